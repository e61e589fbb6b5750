"""What the gates said, for people and as data."""

from __future__ import annotations

import sys

import msgspec

from kiln.gate.image import Judged
from kiln.gate.model import Evidence

_COLOURS = {"pass": "32", "fail": "31", "known-bad": "33", "healed": "36", "not-run": "33"}


def verdicts_text(evidence: Evidence, *, colour: bool = False) -> str:
    """A table: verdict, case, what was seen; below it the verdict on the whole.

    colour: for a terminal. The reason of a case stands below its line.
    """
    width = max((len(case.id) for case in evidence.cases), default=0)
    lines = [f"sha256:{evidence.digest}, preset {evidence.preset}, runner {evidence.runner}"]
    for case in evidence.cases:
        verdict = _coloured(f"{case.verdict:<9}", case.verdict, colour)
        detail = _printable(" ".join(case.detail.split()))
        lines.append(f"{verdict} {case.id:<{width}}  {detail}".rstrip())
        lines += [f"{'':<10}{_printable(line)}" for line in case.reason.splitlines()]
    counts = dict.fromkeys(_COLOURS, 0)
    for case in evidence.cases:
        counts[case.verdict] += 1
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    seconds = sum(evidence.durations.values()) / 1000
    verdict = _coloured(evidence.verdict, evidence.verdict, colour)
    partial = "" if evidence.complete else "; the evidence is partial"
    lines.append(f"{verdict}: {summary or 'no case'} in {seconds:.1f} s{partial}")
    return "\n".join(lines)


def verdicts_data(evidence: Evidence) -> dict[str, object]:
    """For --json: the evidence, with the verdict on the whole."""
    data: dict[str, object] = msgspec.to_builtins(evidence)
    return data | {"verdict": evidence.verdict}


def _printable(text: str) -> str:
    """What a server said must not steer the reader's terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _coloured(text: str, verdict: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[verdict]}m{text}\x1b[0m" if colour else text


def print_verdicts(judged: Judged) -> None:
    """The table, on stderr; colours only on a terminal."""
    if judged.replayed:
        age = f"as of {judged.evidence.started}; --again runs the gates anew"
        sys.stderr.write(f"nothing changed: replaying the evidence for this digest, {age}\n")
    text = verdicts_text(judged.evidence, colour=sys.stderr.isatty())
    sys.stderr.write(f"{text}\n")
