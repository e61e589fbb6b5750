"""What the gates said, for people and as data."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kiln.gate.image import Judged
from kiln.gate.model import Case, Evidence

_COLOURS = {
    "pass": "32",
    "fail": "31",
    "known-bad": "33",
    "healed": "36",
    "unproven": "33",
    "not-run": "33",
}


_REPEATED = ("process-", "identity-", "completion-", "stop")


def verdicts_text(evidence: Evidence, *, colour: bool = False) -> str:
    """Two tables: verdict, case, what was seen; then the same of the patches' proofs, by
    patch and launch. Below them the verdict on the whole.

    colour: for a terminal. The reason of a case stands below its line.
    """
    lines = [f"sha256:{evidence.digest}, preset {evidence.preset}, runner {evidence.runner}"]
    proofs = [case for case in evidence.cases if case.gate == "proof"]
    lines += _table(_folded([case for case in evidence.cases if case.gate != "proof"]), colour)
    if proofs:
        lines += ["", "patches in use, by launch:", *_table(proofs, colour, "proof/"), ""]
    counts = dict.fromkeys(_COLOURS, 0)
    for case in evidence.cases:
        counts[case.verdict] += 1
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    seconds = sum(evidence.durations.values()) / 1000
    verdict = _coloured(evidence.verdict, evidence.verdict, colour)
    partial = "" if evidence.complete else "; the evidence is partial"
    lines.append(f"{verdict}: {summary or 'no case'} in {seconds:.1f} s{partial}")
    return "\n".join(lines)


def _folded(cases: Sequence[Case]) -> list[Case]:
    """The cases, but of a further launch one for all that only say again that it lives and is
    the same image, as long as they pass."""
    plain: dict[str, list[Case]] = {}
    folded: list[Case] = []
    for case in cases:
        launch, _, what = case.id.rpartition("/")
        if case.gate == "launch" and case.verdict == "pass" and what.startswith(_REPEATED):
            plain.setdefault(launch, []).append(case)
            if len(plain[launch]) > 1:
                continue
        folded.append(case)
    return [_line(case, plain) for case in folded]


def _line(case: Case, plain: Mapping[str, Sequence[Case]]) -> Case:
    launch = case.id.rpartition("/")[0]
    if case not in plain.get(launch, ()):
        return case
    said = ", ".join(dict.fromkeys(each.id.split("/")[-1] for each in plain[launch]))
    return msgspec.structs.replace(case, id=f"{launch}/smoke", detail=said)


def _table(cases: Sequence[Case], colour: bool, prefix: str = "") -> Iterator[str]:
    """A line a case, its reason below; without the prefix in its id."""
    names = [case.id.removeprefix(prefix) for case in cases]
    width = max((len(name) for name in names), default=0)
    for case, name in zip(cases, names, strict=True):
        verdict = _coloured(f"{case.verdict:<9}", case.verdict, colour)
        detail = _printable(" ".join(case.detail.split()))
        yield f"{verdict} {name:<{width}}  {detail}".rstrip()
        yield from (f"{'':<10}{_printable(line)}" for line in case.reason.splitlines())


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
