"""Run the gates on a started image, launch by launch, and keep what they saw as evidence.

The default launch, which is the preset as it stands: smoke before, coherence, tool calls,
proofs, smoke after, stop. Each further launch: identity, proofs, identity, stop. The
identity is read first and last in each; evidence without these readings is refused, since
nobody could say which image it speaks of.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from kiln import __version__
from kiln.canonical import is_sha256
from kiln.errors import BadInput, CannotHere, KilnError
from kiln.gate.answers import Told
from kiln.gate.ask import Asker
from kiln.gate.evidence import record
from kiln.gate.extensions import parse_rules
from kiln.gate.known_bad import apply_known_bad
from kiln.gate.model import (
    Case,
    Evidence,
    Expected,
    Launched,
    LaunchPlan,
    Problem,
    Proven,
    Work,
    case,
    not_run,
)
from kiln.gate.one_start import Start
from kiln.gate.proof import unproven_cases
from kiln.pins.model import DEFAULT_LAUNCH
from kiln.progress import Reporter
from kiln.run.runner import Server
from kiln.store import Store

GATES = ("smoke", "coherence", "toolcall", "proof")  # smoke always runs: identity is part of it


def judge(
    server: Server,
    expected: Expected,
    *,
    store: Store,
    runner: str,
    reporter: Reporter,
    gates: Sequence[str] = GATES,
) -> Evidence:
    """Run the gates on one start, as the first launch expected, and stop it.

    The parameters and errors are those of `Gates`.
    """
    run = Gates(expected, store=store, runner=runner, reporter=reporter, gates=gates)
    run.judge(server, expected.launches[0])
    return run.evidence()


class Gates:
    """One run of the gates over the launches of an image: hand in each, take the evidence."""

    def __init__(
        self,
        expected: Expected,
        *,
        store: Store,
        runner: str,
        reporter: Reporter,
        gates: Sequence[str] = GATES,
    ) -> None:
        """runner: its name, for the record. Evidence of chosen gates only is not complete.

        Raises BadInput("gate.unknown", "gate.bad-rule") before anything is asked.
        """
        unknown = sorted(set(gates) - set(GATES))
        if unknown:
            raise BadInput(
                "gate.unknown",
                f"no gate is called {unknown[0]!r}",
                why="gates: " + ", ".join(GATES),
            )
        parse_rules(expected.extensions, "extensions")
        self._expected, self._store, self._reporter = expected, store, reporter
        self._runner, self._gates, self._confirms = runner, gates, ""
        self._began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._cases: list[Case] = []
        self._launches: list[Launched] = []
        self._proofs: list[Proven] = []
        self._durations: dict[str, int] = {}
        self._looked_inside = False
        self._plain: dict[Work, Told] = {}  # the default launch's answers
        self._failures: list[KilnError] = []  # of starts

    def judge(self, server: Server, launch: LaunchPlan, start_seconds: float = 0) -> None:
        """Judge one start, and stop it. start_seconds: how long it took, for the record."""
        asker = Asker(server.client, self._store.blobs, server.model)
        start = Start(server, asker, launch, self._expected, self._reporter)
        self._confirms = server.confirms
        before = start.before()
        if launch.name == DEFAULT_LAUNCH:
            start.questions(self._gates)
        if "proof" in self._gates:
            start.prove(self._plain)
        after = start.after()
        if launch.name == DEFAULT_LAUNCH:
            self._looked_inside = start.looked_inside
            self._plain = {watched.work: watched.told for watched in start.rounds}
        if start_seconds:
            self._durations[f"{launch.name}/start"] = round(start_seconds * 1000)
        self._durations |= start.durations
        self._cases += start.cases
        self._proofs += start.proofs
        runner, proposer = start.classes
        self._launches.append(
            Launched(
                name=launch.name,
                args=launch.args,
                env=dict(launch.env),
                model=launch.model,
                started=True,
                before=before.seen,
                after=after.seen,
                runner=runner,
                proposer=proposer,
                rounds=tuple(watched.record() for watched in start.rounds),
            )
        )

    def not_started(self, launch: LaunchPlan, error: KilnError) -> None:
        """A launch from which no server came: all that it was to show has failed. Where it is
        this machine's fault, nothing was judged."""
        self._failures.append(error)
        text = "\n".join(part for part in (error.what, error.why) if part)
        here = isinstance(error, CannotHere)
        ids = [f"proof/{patch}/{launch.name}" for patch in launch.proofs]
        if here:
            self._cases.append(not_run(launch.case("start"), text))
            self._cases += [not_run(name, error.what) for name in ids]
        else:
            log = Path(error.where).name  # of the blob that keeps it
            replies = [log] if is_sha256(log) else []
            self._cases.append(
                case(launch.case("start"), [Problem(error.code, text)], replies=replies)
            )
            problem = Problem("not-started", f"launch {launch.name} did not start")
            self._cases += [case(name, [problem]) for name in ids]
        self._launches.append(
            Launched(launch.name, launch.args, dict(launch.env), started=False, model=launch.model)
        )

    def evidence(self) -> Evidence:
        """All that was seen, recorded in the store.

        Raises the first start's error where nothing started, and JudgedBad("gate.no-identity").
        """
        expected = self._expected
        if not any(launch.started for launch in self._launches):
            raise self._failures[0]
        all_there = expected.whole and len(self._launches) == len(expected.launches)
        machine = any(isinstance(error, CannotHere) for error in self._failures)
        proven = unproven_cases(expected) if expected.whole and "proof" in self._gates else []
        evidence = Evidence(
            digest=expected.digest,
            preset=expected.preset,
            preset_hash=expected.preset_hash,
            pin=expected.pin,
            kiln_id=expected.kiln_id,
            runner=self._runner,
            runner_confirms=self._confirms,
            complete=(
                self._looked_inside
                and bool(self._confirms)
                and set(self._gates) >= set(GATES)
                and all_there
                and not machine
            ),
            tool=f"kiln {__version__}",
            started=self._began,
            cases=tuple(apply_known_bad([*self._cases, *proven], expected.vllm_version)),
            launches=tuple(self._launches),
            proofs=tuple(self._proofs),
            durations=self._durations,
        )
        record(self._store, evidence)
        return evidence
