"""Faults of a vLLM release that are known, as data, so that new ones stand out.

An entry excuses a case only where everything that is wrong with it is the fault
described. A case that the table lists and that passes is "healed", and is reported:
the entry has to go, or somebody patched it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from kiln.gate.model import Case


@dataclass(frozen=True)
class KnownBad:
    """versions: PEP 440 specifiers of vLLM. case: pattern of case ids. shapes: sets of
    problem codes, one of which must be exactly what is wrong."""

    versions: SpecifierSet
    case: str
    shapes: tuple[frozenset[str], ...]
    reason: str

    def covers(self, version: Version, case_id: str) -> bool:
        """Whether the entry is about this case of this version."""
        return self.versions.contains(version, prereleases=True) and fnmatch.fnmatchcase(
            case_id, self.case
        )


KNOWN_BAD: tuple[KnownBad, ...] = (
    KnownBad(
        versions=SpecifierSet("==0.32.0"),
        case="toolcall/*/plain",
        # Free of its schema the model gives the city's name: alone, or in the object.
        shapes=(frozenset({"arguments-bare-string"}), frozenset({"arguments-enum"})),
        reason="without `strict: true` vLLM 0.32.0 does not hold arguments to the tool's schema",
    ),
)


def apply_known_bad(
    cases: Sequence[Case], vllm_version: str, table: Sequence[KnownBad] = KNOWN_BAD
) -> list[Case]:
    """The cases with known faults and healed ones named as such; others as they are."""
    try:
        version = Version(vllm_version)
    except InvalidVersion:
        return list(cases)  # an unknown version has no known faults
    return [_applied(case, version, table) for case in cases]


def _applied(case: Case, version: Version, table: Sequence[KnownBad]) -> Case:
    for entry in table:
        if not entry.covers(version, case.id):
            continue
        if case.verdict == "pass":
            return msgspec.structs.replace(
                case, verdict="healed", reason=f"known as bad, and passes: {entry.reason}"
            )
        if case.verdict == "fail" and frozenset(case.problems) in entry.shapes:
            return msgspec.structs.replace(
                case, verdict="known-bad", reason=f"{entry.reason} ({case.reason})"
            )
    return case
