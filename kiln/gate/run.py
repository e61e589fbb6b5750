"""Run the gates on a started image, and keep what they saw as evidence.

Order: smoke before, coherence, tool calls, smoke after, stop. The identity is read
first and last; evidence without both readings is refused, since nobody could say which
image it speaks of.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence

from kiln import __version__
from kiln.errors import BadInput
from kiln.gate.ask import Asker
from kiln.gate.coherence import run_coherence
from kiln.gate.evidence import record
from kiln.gate.extensions import check_extensions, parse_rules
from kiln.gate.identity import Read, identity_case, read_identity
from kiln.gate.known_bad import apply_known_bad
from kiln.gate.model import Case, Evidence, Expected
from kiln.gate.smoke import check_completion, check_process, check_stop
from kiln.gate.toolcall import run_toolcall
from kiln.progress import Reporter
from kiln.run.runner import Server
from kiln.store import Store

GATES = ("smoke", "coherence", "toolcall")  # smoke always runs: identity is part of it


def judge(
    server: Server,
    expected: Expected,
    *,
    store: Store,
    runner: str,
    reporter: Reporter,
    gates: Sequence[str] = GATES,
) -> Evidence:
    """Run the gates, stop the server, and record the evidence in the store.

    runner: its name, for the record. Evidence of chosen gates only is not complete.
    Raises BadInput("gate.unknown", "gate.bad-rule") before anything is asked.
    """
    unknown = sorted(set(gates) - set(GATES))
    if unknown:
        raise BadInput(
            "gate.unknown", f"no gate is called {unknown[0]!r}", why="gates: " + ", ".join(GATES)
        )
    parse_rules(expected.extensions, "extensions")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    asker = Asker(server.client, store.blobs, server.model)
    run = _Run(server, asker, expected, reporter)
    before = run.smoke_before()
    if "coherence" in gates:
        run.timed("coherence", lambda: run_coherence(asker))
    if "toolcall" in gates:
        if not expected.auto_tools:
            reporter.note("tool choice `auto` is not judged: the preset does not enable it")
        run.timed("toolcall", lambda: run_toolcall(asker, auto=expected.auto_tools))
    after = run.smoke_after()
    evidence = Evidence(
        digest=expected.digest,
        preset=expected.preset,
        preset_hash=expected.preset_hash,
        pin=expected.pin,
        kiln_id=expected.kiln_id,
        runner=runner,
        runner_confirms=server.confirms,
        complete=run.looked_inside and bool(server.confirms) and set(gates) >= set(GATES),
        tool=f"kiln {__version__}",
        started=started,
        cases=tuple(apply_known_bad(run.cases, expected.vllm_version)),
        before=before.seen,
        after=after.seen,
        durations=run.durations,
    )
    record(store, evidence)
    return evidence


class _Run:
    """One run of the gates: the cases so far and how long each gate took."""

    def __init__(
        self, server: Server, asker: Asker, expected: Expected, reporter: Reporter
    ) -> None:
        self._server, self._asker, self._expected = server, asker, expected
        self._reporter = reporter
        self.cases: list[Case] = []
        self.durations: dict[str, int] = {}
        self.looked_inside = False

    def timed(self, name: str, gate: Callable[[], Sequence[Case]]) -> None:
        """Run a gate, and keep its cases and its milliseconds."""
        start = time.monotonic()
        with self._reporter.task(f"gate {name}"):
            self.cases += gate()
        self.durations[name] = round((time.monotonic() - start) * 1000)

    def smoke_before(self) -> Read:
        """Process, identity, a completion, and the compiled files."""
        reads: list[Read] = []

        def gate() -> list[Case]:
            process = check_process(self._server, "before")
            reads.append(read_identity(self._asker, self._expected))
            completion = check_completion(self._server, self._asker, "before")
            extensions = check_extensions(self._server, self._expected)
            self.looked_inside = extensions.verdict != "not-run"
            return [process, identity_case("before", reads[0]), completion, extensions]

        self.timed("smoke-before", gate)
        return reads[0]

    def smoke_after(self) -> Read:
        """A completion, the identity, the process; then stop it."""
        reads: list[Read] = []

        def gate() -> list[Case]:
            completion = check_completion(self._server, self._asker, "after")
            reads.append(read_identity(self._asker, self._expected))
            process = check_process(self._server, "after")
            stopped = check_stop(self._server.stop())
            return [completion, identity_case("after", reads[0]), process, stopped]

        self.timed("smoke-after", gate)
        return reads[0]
