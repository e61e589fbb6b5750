"""Judge the compiled files of an image, from inside it: run by the image's own Python.

Kiln hands this file's text to `python -c`, with one argument: JSON of {"rules": {path
pattern: [{"kind", "arg", "flags"}, ...]}, "seconds": per file}. It needs the standard
library, torch and vLLM, and imports nothing of Kiln. Its last line of output is MARK
and a JSON report: {"torch", "files": [{"path", "rule", "code", "detail"}]}; the code of a
good file is "". Each file is judged in a process of its own, so that an illegal
instruction is a verdict and not the end of the script.

Kinds: import (as a Python module, without its package), load (as a shared library),
kernels (vLLM's own choice for this platform must have loaded it, and filled the torch
namespaces named in arg), static (its symbols are looked up in what it needs, unloaded).
"""

import contextlib
import ctypes
import fnmatch
import importlib.machinery
import importlib.util
import json
import logging
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TypedDict

MARK = "KILN-EXTENSIONS "


class Rule(TypedDict):
    """One alternative of a file's rule."""

    kind: str
    arg: str
    flags: list[str]


class BadError(Exception):
    """A file that is not as it must be: a code, and what was seen."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


def cpu_flags() -> set[str]:
    """Flags of the first processor; Linux calls them flags (x86) or Features (ARM)."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


def elf_files(site: Path, package: str) -> list[str]:
    """All ELF files below a package, relative to the site folder, in order."""
    found = []
    for path in (site / package).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.append(str(path.relative_to(site)))
    return sorted(found)


def choose(alternatives: list[Rule], flags: set[str]) -> Rule:
    """The first alternative whose processor flags (a leading ! negates) all hold."""
    for rule in alternatives:
        if all((f.lstrip("!") in flags) != f.startswith("!") for f in rule["flags"]):
            return rule
    raise BadError("no-rule", "no alternative of its rule holds for this processor")


# ---- static: ELF-64, little endian (System V gABI, chapter 4 and 5) ------------------------


def dynamic_part(path: Path) -> tuple[list[str], list[str]]:
    """(needed libraries, names of undefined strong symbols) of an ELF file."""
    data = path.read_bytes()
    needed: list[str] = []
    undefined: list[str] = []
    seen = False
    try:
        if data[4] != 2 or data[5] != 1:
            raise BadError("unreadable", "not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", data, 0x28)  # e_shoff
        size, count = struct.unpack_from("<HH", data, 0x3A)  # e_shentsize, e_shnum
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
        for _, kind, _, _, offset, length, link, *_ in sections:
            if kind not in (6, 11):  # SHT_DYNAMIC, SHT_DYNSYM
                continue
            seen, strings = True, sections[link][4]
            for at in range(offset, offset + length, 16 if kind == 6 else 24):
                if kind == 6:
                    tag, value = struct.unpack_from("<QQ", data, at)
                    if tag == 1:  # DT_NEEDED
                        needed.append(text_at(data, strings + value))
                else:
                    name, info, _, index = struct.unpack_from("<IBBH", data, at)
                    if name and index == 0 and info >> 4 == 1:  # undefined, STB_GLOBAL
                        undefined.append(text_at(data, strings + name))
    except (struct.error, IndexError, ValueError) as error:
        raise BadError("unreadable", f"damaged ELF file: {error}") from error
    if not seen:
        raise BadError("unreadable", "no dynamic symbols in it")
    return needed, undefined


def text_at(data: bytes, at: int) -> str:
    """The string of a string table that begins there."""
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")


def check_static(path: Path) -> None:
    """Every library it needs loads, and every symbol it misses is in one of them."""
    needed, undefined = dynamic_part(path)
    libraries = [ctypes.CDLL(None)]  # the interpreter: Py... symbols
    for name in needed:
        try:
            libraries.append(ctypes.CDLL(name))
        except OSError as error:
            raise BadError("needed-missing", f"needs {name}: {error}") from error
    missing = [s for s in undefined if not any(hasattr(lib, s) for lib in libraries)]
    if missing:
        raise BadError("undefined-symbol", "undefined symbol: " + ", ".join(sorted(missing)[:5]))


# ---- loading -------------------------------------------------------------------------------


def why(error: object) -> str:
    """The code of an error that a loader raised."""
    return "undefined-symbol" if "undefined symbol" in str(error) else "import-error"


def check_import(path: Path) -> None:
    """It loads as an extension module of this interpreter."""
    name = path.name.split(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    try:
        spec = importlib.machinery.ModuleSpec(name, loader, origin=str(path))
        loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        raise BadError(why(error), f"{type(error).__name__}: {error}") from error


def check_load(path: Path) -> None:
    """It loads as a shared library."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise BadError(why(error), str(error)) from error


class Listener(logging.Handler):
    """Keeps what vLLM logs."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        self.said.append(record.getMessage())


def check_kernels(path: Path, namespaces: list[str]) -> None:
    """vLLM's platform loads it, says nothing against it, and its operators are there."""
    import torch  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    said: list[str] = []
    logger = logging.getLogger("vllm")
    logger.setLevel(logging.WARNING)
    logger.addHandler(Listener(said))
    current_platform.import_kernels()
    for text in said:
        # vLLM only warns here; the failure would show later, as a missing attribute.
        if "undefined symbol" in text or "Failed to import" in text:
            raise BadError(why(text), text)
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    if not any(line.endswith(f" {path.resolve()}") for line in mapped):
        raise BadError("not-loaded", f"{type(current_platform).__name__} did not load it")
    filled = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    empty = sorted(set(namespaces) - filled)
    if empty:
        raise BadError("no-operators", "empty: " + ", ".join("torch.ops." + e for e in empty))


def check(path: Path, rule: Rule) -> None:
    """Judge one file by its rule; raises BadError."""
    if rule["kind"] == "static":
        check_static(path)
    elif rule["kind"] == "import":
        check_import(path)
    elif rule["kind"] == "load":
        check_load(path)
    else:
        check_kernels(path, rule["arg"].split())


def in_child(path: Path, rule: Rule, seconds: float) -> tuple[str, str]:
    """(code, detail) of one file, judged in a process of its own, group and all."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        verdict = ["", ""]
        try:
            check(path, rule)
        except BadError as error:
            verdict = [error.code, error.detail]
        except BaseException as error:  # whatever it is, it is this file's verdict
            verdict = [why(error), f"{type(error).__name__}: {error}"]
        sys.stdout.flush()
        os.write(1, ("\n" + MARK + json.dumps(verdict) + "\n").encode())
        os._exit(0)
    with contextlib.suppress(OSError):  # the child does it too; who is first does not matter
        os.setpgid(child, child)
    os.close(writing)
    output, end = b"", time.monotonic() + seconds
    while select.select([reading], [], [], max(0, end - time.monotonic()))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        output += part
        if MARK.encode() in output and output.endswith(b"\n"):
            break
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        return "timeout", f"not done within {seconds} s"
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "crash", f"killed by {signal.Signals(os.WTERMSIG(status)).name} while it loaded"
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            code, detail = json.loads(line[len(MARK) :])
            return str(code), str(detail)
    return "crash", f"ended with status {os.waitstatus_to_exitcode(status)} and no verdict"


def judge(
    rules: dict[str, list[Rule]], seconds: float, site: Path, flags: set[str]
) -> list[dict[str, str]]:
    """The verdicts on all ELF files of the packages that the rules name."""
    files = []
    packages = sorted({pattern.split("/")[0] for pattern in rules})
    paths = [path for package in packages for path in elf_files(site, package)]
    for pattern in sorted(rules):
        if not fnmatch.filter(paths, pattern):
            files.append({"path": pattern, "rule": "", "code": "missing", "detail": "no such file"})
    for path in paths:
        matching = [p for p in sorted(rules) if fnmatch.fnmatchcase(path, p)]
        kind = ""
        try:
            if not matching:
                raise BadError("unlisted", "no rule of the recipe's table names this file")
            rule = choose(rules[matching[0]], flags)
            kind = rule["kind"]
            code, detail = in_child(site / path, rule, seconds)
        except BadError as error:
            code, detail = error.code, error.detail
        files.append({"path": path, "rule": kind, "code": code, "detail": detail})
    return files


def main() -> None:
    """Read the rules, judge, and print the report as the last line."""
    request = json.loads(sys.argv[1])
    import torch  # once, before the children: all of vLLM's files need its libraries

    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("vllm is not installed")
    site = Path(spec.origin).parent.parent
    files = judge(request["rules"], request["seconds"], site, cpu_flags())
    sys.stdout.write("\n" + MARK + json.dumps({"torch": torch.__version__, "files": files}) + "\n")


if __name__ == "__main__":
    main()
