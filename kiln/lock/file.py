"""Lock files: canonical JSON, laid out so that a diff of one can be reviewed.

A lock's objects have their keys on lines of their own; each item of a list (a wheel, a
package, a layer, a patch) and each object of plain values is one line, in canonical JSON
(kiln/canonical.py). So a new wheel is one changed line. There is one way to write a
lock, and reading checks that the file is written that way: what was edited by hand is
refused, with the line.
"""

from __future__ import annotations

import contextlib
import os
import re
import string
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kiln.canonical import Digest, dumps, is_sha256
from kiln.errors import BadInput, CannotHere, KilnError, raise_problems
from kiln.lock.model import Closure, Deb, Lock, Outputs, Resolved, Wheel

SCHEMA = 1

# Gives the bytes of kiln.canonical.dumps, ten times faster (a property test compares them).
_ENCODER = msgspec.json.Encoder(order="sorted")
_NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._+!~%-")


class _Head(msgspec.Struct):
    schema: int = 0


def locks_path(root: Path, pin: str) -> Path:
    """images/locks/<pin>.lock of the project in `root`."""
    return root / "images" / "locks" / f"{pin}.lock"


# ---- writing ---------------------------------------------------------------------------


def dump_lock(lock: Lock) -> bytes:
    """The bytes of a lock's file. Raises BadInput or Problems as `check_lock` does."""
    raise_problems(list(check_lock(lock, lock.pin)))
    return _lay_out(lock)


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock's file as a whole or not at all. Raises CannotHere("lock.cannot-write")."""
    write_atomically(path, dump_lock(lock))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file: to a temporary name beside it, synced, then renamed over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CannotHere(
            "lock.cannot-write",
            "the file cannot be written; what stood there before is untouched",
            where=str(path),
            why=str(error),
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _lay_out(lock: Lock) -> bytes:
    lines: list[bytes] = []
    _append(lines, lock, b"", b"", b"")
    return b"\n".join(lines) + b"\n"


def _append(lines: list[bytes], value: Any, indent: bytes, before: bytes, after: bytes) -> None:
    """Add a value's lines. before: its key; after: the comma behind it, or nothing."""
    items, marks = _parts(value)
    if not items:
        lines.append(indent + before + _ENCODER.encode(value) + after)
        return
    lines.append(indent + before + marks[:1])
    last = len(items) - 1
    for number, (key, item) in enumerate(items):
        comma = b"," if number < last else b""
        if key is None:
            lines.append(indent + b"  " + _ENCODER.encode(item) + comma)
        else:
            _append(lines, item, indent + b"  ", _ENCODER.encode(key) + b": ", comma)
    lines.append(indent + marks[1:] + after)


def _parts(value: Any) -> tuple[list[tuple[str | None, Any]], bytes]:
    """What gets lines of its own in a value: nothing, keys with items, or items."""
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in sorted(value.__struct_fields__)]
        nested = any(isinstance(item, msgspec.Struct | Mapping | tuple) for _, item in fields)
        return (list(fields) if nested else []), b"{}"
    if isinstance(value, Mapping):
        return sorted(value.items()), b"{}"
    if isinstance(value, list | tuple):
        return [(None, item) for item in value], b"[]"
    return [], b""


# ---- reading ---------------------------------------------------------------------------


def read_lock(path: Path) -> Lock:
    """A lock's file, checked in full.

    Raises BadInput: lock.missing, lock.unreadable, lock.syntax, lock.schema,
    lock.future-schema, lock.wrong-pin, lock.not-canonical; or what `check_lock` finds.
    """
    pin = path.name.removesuffix(".lock")
    again = f"run `kiln lock {pin}`, or take the file back from git"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadInput("lock.missing", "there is no lock", where=str(path), fix=again) from error
    except OSError as error:
        raise BadInput(
            "lock.unreadable", "the lock cannot be read", where=str(path), why=str(error)
        ) from error
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema > SCHEMA:
            raise BadInput(
                "lock.future-schema",
                "the lock was written by a newer Kiln",
                where=str(path),
                why=f"its schema is {schema}; this version knows {SCHEMA}",
                fix="use the version of Kiln that the project asks for",
            )
        lock = msgspec.json.decode(data, type=Lock)
    except msgspec.ValidationError as error:
        raise BadInput(
            "lock.schema", "this is no lock", where=str(path), why=str(error), fix=again
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _syntax(path, data, error, again) from error
    problems = list(check_lock(lock, str(path)))
    if lock.pin != pin:
        problems.append(
            BadInput(
                "lock.wrong-pin",
                f"this is the lock of {lock.pin!r}",
                where=str(path),
                fix=f"a lock cannot be copied or renamed; run `kiln lock {pin}`",
            )
        )
    raise_problems(problems)
    if (canonical := _lay_out(lock)) != data:
        raise _not_canonical(path, data, canonical, again)
    return lock


def _syntax(path: Path, data: bytes, error: Exception, again: str) -> BadInput:
    if conflict := re.search(rb"^(<<<<<<<|=======|>>>>>>>)", data, re.MULTILINE):
        return BadInput(
            "lock.syntax",
            "the lock holds the marks of a merge conflict",
            where=f"{path}:{_line(data, conflict.start())}",
            fix=f"locks cannot be merged; {again}",
        )
    at = re.search(r"\(byte (\d+)\)", str(error))
    line = _line(data, int(at[1])) if at else data.count(b"\n") + 1
    return BadInput(
        "lock.syntax", "this is not JSON", where=f"{path}:{line}", why=str(error), fix=again
    )


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1


def _not_canonical(path: Path, data: bytes, canonical: bytes, again: str) -> BadInput:
    pairs = zip_longest(data.splitlines(True), canonical.splitlines(True), fillvalue=b"")
    number, (found, wanted) = next((n, p) for n, p in enumerate(pairs, 1) if p[0] != p[1])
    return BadInput(
        "lock.not-canonical",
        "the lock was edited by hand",
        where=f"{path}:{number}",
        why=f"this line is {_shown(found, wanted)}\nKiln writes  {_shown(wanted, found)}",
        fix=f"locks are generated; {again}",
    )


def _shown(line: bytes, other: bytes) -> str:
    """The part of a line around the first byte in which it differs from the other."""
    same = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), 0)
    begin = max(same - 60, 0)
    text = line[begin : begin + 160].decode(errors="backslashreplace").removesuffix("\n")
    front, back = "..." if begin else "", "..." if len(line) > begin + 160 else ""
    return f"{front}{text}{back}" if line.endswith(b"\n") else f"{front}{text} (end of file)"


# ---- checking --------------------------------------------------------------------------


def check_lock(lock: Lock, where: str) -> Iterator[KilnError]:
    """What types cannot say: forms of hashes and names, order, and each thing once.

    Codes: lock.schema, lock.hash-form, lock.odd-name, lock.unsorted, lock.duplicate.
    """

    def bad(code: str, what: str, why: str = "") -> BadInput:
        fix = f"run `kiln lock {lock.pin}`"
        return BadInput(f"lock.{code}", what, where=where, why=why, fix=fix)

    if lock.schema != SCHEMA:
        yield bad("schema", f"schema {lock.schema} is not known", f"known is {SCHEMA}")
    try:
        dumps(lock.resolved.request)
    except TypeError as error:
        yield bad("schema", "the request has no canonical form", str(error))
    for what, text in _hashes(lock):
        if not is_sha256(text):
            yield bad(
                "hash-form",
                f"the hash of {what} is not 64 lower-case hex digits",
                f"found {text[:80]!r}",
            )
    for what, text in _base_digests(lock.resolved):
        if not is_sha256(text.removeprefix("sha256:")) or not text.startswith("sha256:"):
            yield bad("hash-form", f"{what} is no digest", f"found {text[:80]!r}")
    for name, closure in sorted(lock.resolved.closures.items()):
        yield from _check_closure(name, closure, bad)
    if lock.local is not None:
        for patch in lock.local.patches:
            paths = [file.path for file in patch.files]
            if paths != sorted(set(paths)):
                yield bad("unsorted", f"the files of patch {patch.id} are not sorted, each once")
        yield from _repeated("patch", [p.id for p in lock.local.patches], bad)
    if lock.outputs is not None:
        yield from _repeated("layer", [layer.name for layer in lock.outputs.layers], bad)


Bad: TypeAlias = Callable[..., BadInput]


def _check_closure(name: str, closure: Closure, bad: Bad) -> Iterator[KilnError]:
    for kind in ("debs", "wheels", "sources"):
        items: tuple[Deb | Wheel, ...] = getattr(closure, kind)
        if any(msgspec.structs.astuple(a) > msgspec.structs.astuple(b) for a, b in pairwise(items)):
            yield bad("unsorted", f"{kind} of closure {name} are not sorted")
        # Debian lets one package stand there for several architectures, wheels do not.
        names = [f"{i.name}:{i.architecture}" if isinstance(i, Deb) else i.name for i in items]
        yield from _repeated(f"{kind} of closure {name}:", names, bad)
        for item in items:
            file, fits = (
                (item.path, _is_pool_path) if isinstance(item, Deb) else (item.file, _is_name)
            )
            if not fits(file) or item.size < 0:
                yield bad(
                    "odd-name",
                    f"{item.name} in closure {name} has an impossible file name or size",
                    f"{file[:120]!r}, {item.size} bytes",
                )


def _is_name(text: str) -> bool:
    """Whether this can be a file's name, and only that."""
    return _NAME_CHARACTERS.issuperset(text) and text[:1] not in ("", ".", "-")


def _is_pool_path(text: str) -> bool:
    pool, *rest = text.split("/")
    return pool == "pool" and len(rest) > 1 and text.endswith(".deb") and all(map(_is_name, rest))


def _repeated(what: str, names: list[str], bad: Bad) -> Iterator[KilnError]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield bad("duplicate", f"{what} {name} stands in the lock twice")
        seen.add(name)


def _hashes(lock: Lock) -> Iterator[tuple[str, str]]:
    """All sha256 of a lock, with what each is of."""
    for closure in lock.resolved.closures.values():
        yield from ((deb.name, deb.sha256) for deb in closure.debs)
        yield from ((w.name, w.sha256) for w in (*closure.wheels, *closure.sources))
    for name, suite in lock.resolved.suites.items():
        yield f"suite {name}", suite.sha256
    if lock.local is not None:
        yield "the recipe", lock.local.recipe
        for name, text in lock.local.components.items():
            yield f"component {name}", text
        for patch in lock.local.patches:
            yield f"patch {patch.id}", patch.sha256
            if patch.rules:
                yield f"the rules of patch {patch.id}", patch.rules
            for file in patch.files:
                # "" says that the file is absent before or after.
                yield from ((file.path, text) for text in (file.pre, file.post) if text)
    if lock.outputs is not None:
        yield from _output_hashes(lock.outputs)


def _output_hashes(outputs: Outputs) -> Iterator[tuple[str, str]]:
    digests: list[tuple[str, Digest]] = [
        ("the config", outputs.config),
        ("the manifest", outputs.manifest),
    ]
    for layer in outputs.layers:
        yield f"layer {layer.name}", layer.diff_id
        digests.append((f"layer {layer.name}", layer.digest))
    yield from ((what, digest.sha256) for what, digest in digests)


def _base_digests(resolved: Resolved) -> Iterator[tuple[str, str]]:
    if resolved.base is not None:
        yield "the base's manifest digest", resolved.base.manifest_digest
        if resolved.base.index_digest:  # "" is said where it is unknown
            yield "the base's index digest", resolved.base.index_digest
