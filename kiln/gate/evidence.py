"""Evidence in the store: written once, found by (digest, preset), replayed while it holds."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kiln.errors import Damaged, JudgedBad
from kiln.gate.model import SCHEMA, Evidence, LaunchPlan
from kiln.store import Store


def record(store: Store, evidence: Evidence) -> str:
    """Put the evidence into the store; returns the sha256 of its blob.

    Raises JudgedBad("gate.no-identity") where the identity was not read before and after
    the gates in each start, or where the readings agree on nothing while the verdict is no
    failure.
    """
    judged = {case.id for case in evidence.cases if case.verdict != "not-run"}
    started = [launch for launch in evidence.launches if launch.started]
    readings = [seen for launch in started for seen in (launch.before, launch.after)]
    read = {
        LaunchPlan(launch.name).case(f"identity-{when}")
        for launch in started
        for when in ("before", "after")
    }
    proven = None not in readings and len(set(readings)) == 1
    if not started or not read <= judged or not (proven or evidence.verdict == "fail"):
        raise JudgedBad(
            "gate.no-identity",
            "evidence without the identity before and after the gates is not kept",
            where=f"sha256:{evidence.digest}, preset {evidence.preset}",
            why=f"before: {evidence.before}\nafter: {evidence.after}",
            fix="run all of `kiln gate`; what is running changed, or never said what it is",
        )
    sha = store.blobs.put(evidence.canonical()).sha256
    store.actions.add_evidence(evidence.digest, evidence.preset, sha)
    return sha


def replay(
    store: Store, digest: str, preset: str, holds: Callable[[Evidence], bool] = lambda _: True
) -> Evidence | None:
    """The newest evidence for (manifest digest in hex, preset) that still holds, or None.

    Partial evidence does not hide whole evidence that is older; evidence of another schema
    was judged by another Kiln, and is left alone. Raises Damaged("gate.bad-evidence") where
    a blob is no evidence for these two.
    """
    for sha in store.actions.evidence(digest, preset):
        evidence = read_evidence(store, sha)
        if evidence is None:
            continue
        if (evidence.digest, evidence.preset) != (digest, preset):
            raise _bad_evidence(sha, f"it is for {evidence.digest}, preset {evidence.preset}")
        if holds(evidence):
            return evidence
    return None


class _Schema(msgspec.Struct, frozen=True):
    schema: int


def read_evidence(store: Store, sha: str) -> Evidence | None:
    """One evidence blob; None where another schema wrote it. Raises
    Damaged("gate.bad-evidence")."""
    data = store.blobs.read(sha)
    try:
        if msgspec.json.decode(data, type=_Schema).schema != SCHEMA:
            return None
        return msgspec.json.decode(data, type=Evidence)
    except msgspec.DecodeError as error:
        raise _bad_evidence(sha, str(error)) from error


def _bad_evidence(sha: str, why: str) -> Damaged:
    return Damaged(
        "gate.bad-evidence",
        "a blob of evidence cannot be used",
        where=f"sha256:{sha}",
        why=why,
        fix="run `kiln gate` again",
    )
