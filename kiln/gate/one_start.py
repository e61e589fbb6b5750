"""One start of an image under the gates: what is asked of it, in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kiln.gate.answers import Told, run_workload
from kiln.gate.ask import Asker
from kiln.gate.coherence import run_coherence
from kiln.gate.counters import one_class, read_counters
from kiln.gate.extensions import check_extensions
from kiln.gate.identity import Read, identity_case, read_identity
from kiln.gate.model import Case, Expected, LaunchPlan, Proven, Work
from kiln.gate.proof import (
    Watched,
    counters_case,
    prove,
    same_text_case,
    speculation_case,
    work_case,
)
from kiln.gate.smoke import check_completion, check_process, check_stop
from kiln.gate.toolcall import run_toolcall
from kiln.pins.model import DEFAULT_LAUNCH
from kiln.progress import Reporter
from kiln.run.runner import Server


class Start:
    """One start, being judged: the cases so far and how long each gate took (milliseconds).

    looked_inside: the compiled files were seen. rounds, proofs: see `prove`. classes: the
    model runner and the proposer that the server named, "" where it named none or several.
    """

    def __init__(
        self,
        server: Server,
        asker: Asker,
        launch: LaunchPlan,
        expected: Expected,
        reporter: Reporter,
    ) -> None:
        self._server, self._asker, self._launch = server, asker, launch
        self._expected, self._reporter = expected, reporter
        self.cases: list[Case] = []
        self.durations: dict[str, int] = {}
        self.looked_inside = False
        self.rounds: tuple[Watched, ...] = ()
        self.proofs: list[Proven] = []
        self.classes = ("", "")

    def before(self) -> Read:
        """Process, identity and a completion; of the default launch the compiled files too."""
        reads: list[Read] = []
        launch, server, asker = self._launch, self._server, self._asker

        def gate() -> list[Case]:
            process = check_process(server, launch.case("process-before"))
            reads.append(read_identity(asker, self._expected))
            identity = identity_case(launch.case("identity-before"), reads[0])
            completion = check_completion(server, asker, launch.case("completion-before"))
            cases = [process, identity, completion]
            if launch.name == DEFAULT_LAUNCH:
                cases.append(check_extensions(server, self._expected))
                self.looked_inside = cases[-1].verdict != "not-run"
            return cases

        self._timed("smoke-before", gate)
        return reads[0]

    def questions(self, gates: Sequence[str]) -> None:
        """Coherence and tool calls, where they are among the gates."""
        asker, auto = self._asker, self._expected.auto_tools
        if "coherence" in gates:
            self._timed("coherence", lambda: run_coherence(asker))
        if "toolcall" in gates:
            if not auto:
                self._reporter.note(
                    "tool choice `auto` is not judged: the preset does not enable it"
                )
            self._timed("toolcall", lambda: run_toolcall(asker, auto=auto))

    def prove(self, plain: Mapping[Work, Told]) -> None:
        """Run the launch's workloads between two readings each, and judge what they show.

        plain: the default launch's answers.
        """
        self._timed("proof", lambda: self._prove(plain))

    def _prove(self, plain: Mapping[Work, Told]) -> list[Case]:
        launch, rounds = self._launch, list[Watched]()
        readings = [read_counters(self._asker)]
        for work in launch.works:
            told = run_workload(self._asker, work)
            readings.append(read_counters(self._asker))
            rounds.append(Watched(work, told, *readings[-2:]))
        self.rounds = tuple(rounds)
        found = one_class(readings[-1])
        self.classes = found if isinstance(found, tuple) else ("", "")
        proofs, self.proofs = prove(launch, rounds)
        cases = [
            *(work_case(launch, watched) for watched in rounds),
            counters_case(launch, readings, self._expected.decisions),
            speculation_case(launch, readings[0], readings[-1]),
            None if launch.name == DEFAULT_LAUNCH else same_text_case(launch, plain, rounds),
            *proofs,
        ]
        return [found for found in cases if found is not None]

    def after(self) -> Read:
        """A completion, the identity, the process; then stop it."""
        reads: list[Read] = []
        launch, server, asker = self._launch, self._server, self._asker

        def gate() -> list[Case]:
            completion = check_completion(server, asker, launch.case("completion-after"))
            reads.append(read_identity(asker, self._expected))
            identity = identity_case(launch.case("identity-after"), reads[0])
            process = check_process(server, launch.case("process-after"))
            return [completion, identity, process, check_stop(server.stop(), launch.case("stop"))]

        self._timed("smoke-after", gate)
        return reads[0]

    def _timed(self, name: str, gate: Callable[[], Sequence[Case]]) -> None:
        start, whole = time.monotonic(), f"{self._launch.name}/{name}"
        with self._reporter.task(f"gate {whole}"):
            self.cases += gate()
        self.durations[whole] = round((time.monotonic() - start) * 1000)
