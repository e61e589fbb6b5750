"""The compiled files of an image: which must load here, and which only be whole.

A recipe's `extensions` table has a rule for each ELF file (patterns of paths below
site-packages, as fnmatch):

    vllm/_C_AVX2.abi3.so: "kernels: _C if !avx512f; static"
    vllm/spinloop.abi3.so: "import"

A rule is a list of alternatives, the first of which whose processor flags hold counts:
KIND[: ARGUMENT][ if FLAG ...], a flag with `!` must be absent, the last alternative has
no condition. kiln/gate/extensions_inside.py says what the kinds mean; it runs in the
image's own Python. A compiled file that no rule names is an error, and so is a rule
without a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import TypedDict

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.gate.ask import loads
from kiln.gate.model import Case, Expected, Problem, case, not_run
from kiln.run.runner import Server

KINDS = ("import", "load", "kernels", "static")
CASE = "smoke/extensions"
FILE_SECONDS = 120
SECONDS = 600.0
_MARK = "KILN-EXTENSIONS "
_ALTERNATIVE = re.compile(
    r"(?P<kind>[a-z]+)(?:: *(?P<arg>[\w ]+?))?(?: if (?P<flags>!?[\w.]+(?: !?[\w.]+)*))?"
)


class Rule(TypedDict):
    """One alternative of a file's rule."""

    kind: str
    arg: str
    flags: list[str]


def parse_rules(table: Mapping[str, str], where: str = "") -> dict[str, list[Rule]]:
    """The table as data. Raises BadInput("gate.bad-rule"), all bad rules at once."""
    rules: dict[str, list[Rule]] = {}
    errors: list[KilnError] = []
    for pattern, text in sorted(table.items()):
        matches = [_ALTERNATIVE.fullmatch(part.strip()) for part in text.split(";")]
        found = [
            Rule(kind=m["kind"], arg=m["arg"] or "", flags=(m["flags"] or "").split())
            for m in matches
            if m is not None
        ]
        why = ""
        if len(found) < len(matches):
            why = "expected KIND[: ARGUMENT][ if FLAG ...], alternatives apart by `;`"
        elif any(rule["kind"] not in KINDS for rule in found):
            why = "the kinds are " + ", ".join(KINDS)
        elif any(bool(rule["arg"]) != (rule["kind"] == "kernels") for rule in found):
            why = "kernels, and nothing else, names torch namespaces: kernels: _C"
        elif found[-1]["flags"] or not all(rule["flags"] for rule in found[:-1]):
            why = "the last alternative, and only that, has no condition"
        elif "/" not in pattern or pattern.startswith(("/", "*")):
            why = "a pattern begins with the name of a package's folder"
        rules[pattern] = found
        if why:
            what = f"extension rule {text!r} for {pattern!r} cannot be read"
            errors.append(BadInput("gate.bad-rule", what, where=where, why=why))
    raise_problems(errors)
    return rules


def check_extensions(server: Server, expected: Expected) -> Case:
    """Judge all compiled files from inside the running image."""
    if not expected.extensions:
        return case(CASE, [Problem("no-rules", "the recipe has no table of extensions")])
    rules = parse_rules(expected.extensions, "extensions")
    # -P: the folder in which the server happens to run is no place to import from.
    source = files("kiln.gate").joinpath("extensions_inside.py").read_text()
    request = json.dumps({"rules": rules, "seconds": FILE_SECONDS})
    try:
        done = server.execute([expected.interpreter, "-P", "-c", source, request], SECONDS)
    except KilnError as error:
        return case(CASE, [Problem("no-report", f"looking inside failed: {error.what}")])
    if done is None:
        return not_run(CASE, "this runner cannot look inside the image")
    status, out, err = done
    return judge_report(status, out, err, expected.torch_version)


def judge_report(status: int, out: bytes, err: bytes, torch_version: str) -> Case:
    """The case for what the script inside wrote."""
    lines = [line for line in out.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    report = loads(lines[-1].removeprefix(_MARK)) if lines else None
    if not isinstance(report, dict):
        report = {}
    found = report.get("files")
    if status != 0 or not isinstance(found, list) or not found:
        words = err.decode(errors="replace").strip()[-500:]
        text = f"the script inside ended with status {status} and no report: {words}"
        return case(CASE, [Problem("no-report", text)])
    torch = str(report["torch"]) if "torch" in report else "unknown"
    problems = []
    if torch != torch_version:
        problems.append(Problem("torch", f"torch is {torch}, the lock says {torch_version}"))
    counts: dict[str, int] = {}
    for file in found:
        path, rule, code, detail = (
            str(file.get(name, "")) if isinstance(file, dict) else "damaged"
            for name in ("path", "rule", "code", "detail")
        )
        counts[rule] = counts.get(rule, 0) + 1
        if code == "undefined-symbol":
            detail += f" (wanted torch {torch_version}, found {torch})"
        if code:
            problems.append(Problem(code, f"{path}: {detail}"))
    said = ", ".join(f"{count} by {rule or 'no rule'}" for rule, count in sorted(counts.items()))
    return case(CASE, problems, f"{len(found)} files: {said}; torch {torch}")
