"""A whole run of the gates, its evidence, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest

from kiln.errors import BadInput, Damaged, JudgedBad
from kiln.gate.evidence import read_evidence, record, replay
from kiln.gate.model import Case, Evidence, Launched, overall
from kiln.gate.run import judge
from kiln.progress import Silent
from kiln.report.verdicts import verdicts_data, verdicts_text
from kiln.run.runner import Stopped
from kiln.store import Store
from tests.helpers.fake_openai import (
    FakeServer,
    Script,
    calls,
    chat,
    completion,
    expected,
    metrics,
    reply,
    silence,
)

DIGEST = "d" * 64


def run(store: Store, server: FakeServer, **changes: object) -> Evidence:
    return judge(server, expected(**changes), store=store, runner="fake", reporter=Silent())


def by_id(evidence: Evidence) -> dict[str, Case]:
    return {case.id: case for case in evidence.cases}


def failed(evidence: Evidence) -> set[str]:
    return {case.id for case in evidence.cases if case.verdict == "fail"}


def in_turn(*answers: Script) -> Callable[[], Script]:
    """Another answer each time."""
    left = list(answers)
    return lambda: left.pop(0)


def test_the_real_server_passes(store: Store) -> None:
    server = FakeServer()
    evidence = run(store, server)
    assert failed(evidence) == set()
    assert evidence.verdict == "pass"
    assert evidence.exit_code == 0
    assert evidence.complete
    assert evidence.before == evidence.after is not None
    assert server.stops == 1
    assert {case.verdict for case in evidence.cases} == {"pass", "known-bad"}


def test_order(store: Store) -> None:
    ids = [case.id for case in run(store, FakeServer()).cases]
    assert ids[0] == "smoke/process-before"
    assert ids[-1] == "smoke/stop"
    assert ids.index("smoke/completion-before") < ids.index("coherence/france")
    assert ids.index("coherence/again") < ids.index("toolcall/required/full/strict")
    assert ids.index("toolcall/history/full") < ids.index("smoke/completion-after")


def test_evidence_comes_back_from_the_store(store: Store) -> None:
    evidence = run(store, FakeServer())
    assert replay(store, DIGEST, "default") == evidence
    assert replay(store, DIGEST, "other") is None
    assert replay(store, "a" * 64, "default") is None
    for sha in evidence.blobs():
        assert store.blobs.read(sha)


def test_the_newest_evidence_counts(store: Store) -> None:
    run(store, FakeServer())
    run(store, FakeServer({"coherence/france": chat("!!!!!!!!")}))
    newest = replay(store, DIGEST, "default")
    assert newest is not None
    assert newest.verdict == "fail"


@pytest.mark.parametrize(
    ("scripts", "cases"),
    [
        ({"coherence/cat": chat("London.")}, {"coherence/cat"}),
        (
            {"toolcall/named/stream/strict": b"data: [DONE]\n\n"},
            {"toolcall/named/stream/strict"},
        ),
        (
            {"/metrics": metrics(kiln_id="9" * 64)},
            {"smoke/identity-before", "smoke/identity-after"},
        ),
        ({"/version": '{"version": "0.23.0"}'}, {"smoke/identity-before", "smoke/identity-after"}),
        (
            {"/metrics": in_turn(metrics(), metrics(), metrics(kiln_id="9" * 64))},
            {"smoke/identity-after"},
        ),
        ({"/metrics": in_turn(metrics(), metrics(), reply("gone", 500))}, {"smoke/identity-after"}),
        ({"smoke/completion-before": completion(" Paris", "other")}, {"smoke/completion-before"}),
        ({"smoke/completion-before": completion("")}, {"smoke/completion-before"}),
        ({"smoke/completion-after": silence()}, {"smoke/completion-after"}),
        (
            {"toolcall/required/full/plain": calls(("get_weather", "{}"))},
            {"toolcall/required/full/plain"},
        ),
    ],
)
def test_a_fault_fails_the_run(
    store: Store, scripts: Mapping[str, Script], cases: set[str]
) -> None:
    evidence = run(store, FakeServer(scripts))
    assert failed(evidence) == cases
    assert evidence.exit_code == 1
    assert replay(store, DIGEST, "default") == evidence


def test_an_engine_that_is_dead_behind_a_healthy_face(store: Store) -> None:
    """L1: /health and /metrics answer, a completion never does."""
    evidence = run(store, FakeServer({"smoke/completion-before": silence()}))
    found = by_id(evidence)
    case = found["smoke/completion-before"]
    assert case.problems == ("engine-dead",)
    assert "/health says 200" in case.reason
    assert "last line of the log" in case.reason
    assert found["coherence/france"].verdict == "not-run"
    assert found["toolcall/named/full/strict"].verdict == "not-run"
    assert found["smoke/identity-after"].verdict == "pass"
    assert evidence.verdict == "fail"


def test_a_server_that_died(store: Store) -> None:
    gone = {
        case: silence("refused") for case in ("/metrics", "/version", "smoke/completion-before")
    }
    evidence = run(store, FakeServer(gone, running=False))
    assert by_id(evidence)["smoke/process-before"].problems == ("died",)
    assert "132" in by_id(evidence)["smoke/process-before"].reason
    assert by_id(evidence)["smoke/completion-before"].problems == ("no-answer",)
    assert evidence.before is None
    assert evidence.verdict == "fail"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Stopped(30.0, clean=False), "stop-forced"),
        (Stopped(0.5, clean=True, left=("VLLM::EngineCore (pid 7)",)), "left-behind"),
    ],
)
def test_a_bad_stop_fails(store: Store, ending: Stopped, code: str) -> None:
    evidence = run(store, FakeServer(ending=ending))
    assert by_id(evidence)["smoke/stop"].problems == (code,)
    assert evidence.verdict == "fail"


def test_an_endpoint_is_partial_and_never_a_pass(store: Store) -> None:
    ending = Stopped(0, clean=False, ours=False)
    evidence = run(store, FakeServer(executed=None, confirms="", ending=ending))
    assert by_id(evidence)["smoke/extensions"].verdict == "not-run"
    assert by_id(evidence)["smoke/stop"].verdict == "not-run"
    assert not evidence.complete
    assert (evidence.verdict, evidence.exit_code) == ("not-run", 4)
    assert "partial" in verdicts_text(evidence)


def test_what_is_not_seen_or_not_vouched_for_is_partial(store: Store) -> None:
    assert not run(store, FakeServer(executed=None)).complete
    assert not run(store, FakeServer(confirms="")).complete


def test_chosen_gates_are_partial(store: Store) -> None:
    evidence = judge(
        FakeServer(),
        expected(),
        store=store,
        runner="fake",
        reporter=Silent(),
        gates=["coherence"],
    )
    assert not [case for case in evidence.cases if case.gate == "toolcall"]
    assert "smoke/identity-after" in by_id(evidence)
    assert not evidence.complete


def test_a_healed_case_is_visible_and_no_failure(store: Store) -> None:
    healed = calls(("get_weather", '{"city": "paris-fr"}'))
    evidence = run(store, FakeServer({"toolcall/required/full/plain": healed}))
    assert by_id(evidence)["toolcall/required/full/plain"].verdict == "healed"
    assert evidence.verdict == "pass"
    assert "1 healed" in verdicts_text(evidence)


def test_what_the_preset_does_not_enable_is_noted(store: Store) -> None:
    notes: list[str] = []

    class Noting(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    judge(
        FakeServer(),
        expected(auto_tools=False),
        store=store,
        runner="fake",
        reporter=Noting(),
    )
    assert any("auto" in note for note in notes)


def test_bad_requests_are_refused_before_anything_is_asked(store: Store) -> None:
    server = FakeServer()
    with pytest.raises(BadInput) as caught:
        judge(
            server, expected(), store=store, runner="f", reporter=Silent(), gates=["smoke", "speed"]
        )
    assert caught.value.code == "gate.unknown"
    with pytest.raises(BadInput) as caught:
        run(store, server, extensions={"vllm/x": "whatever"})
    assert caught.value.code == "gate.bad-rule"
    assert server.stops == 0


# ---- evidence ----------------------------------------------------------------------------------


def test_evidence_without_both_readings_is_refused(store: Store) -> None:
    """Incident 15."""
    good = run(store, FakeServer())
    (launch,) = good.launches
    assert launch.before is not None
    without = tuple(case for case in good.cases if case.id != "smoke/identity-after")
    changed = msgspec.structs.replace(launch.before, kiln_id="9" * 64)
    unread = tuple(
        msgspec.structs.replace(case, verdict="not-run") if "identity-b" in case.id else case
        for case in good.cases
    )

    def read(**changes: object) -> tuple[Launched, ...]:
        return (msgspec.structs.replace(launch, **changes),)

    never = Launched("ngram", (), {}, started=False)
    other = msgspec.structs.replace(launch, name="ngram")
    for bad in (
        msgspec.structs.replace(good, cases=without),
        msgspec.structs.replace(good, cases=()),
        msgspec.structs.replace(good, cases=unread),
        msgspec.structs.replace(good, launches=read(before=None)),
        msgspec.structs.replace(good, launches=read(after=None)),
        msgspec.structs.replace(good, launches=read(before=None, after=None)),
        msgspec.structs.replace(good, launches=read(after=changed)),
        msgspec.structs.replace(good, launches=()),
        msgspec.structs.replace(good, launches=(never,)),
        # A second start that nobody asked who it is, and one that was another image.
        msgspec.structs.replace(good, launches=(launch, other)),
        msgspec.structs.replace(good, launches=(launch, *read(before=changed, after=changed))),
    ):
        with pytest.raises(JudgedBad) as caught:
            record(store, bad)
        assert caught.value.code == "gate.no-identity"
    assert replay(store, DIGEST, "default") == good


def test_evidence_of_another_schema_is_left_alone(store: Store) -> None:
    """What an older Kiln wrote is no damage; it says nothing to this one."""
    good = run(store, FakeServer())
    old = store.blobs.put(b'{"schema":1,"cases":[]}').sha256
    store.actions.add_evidence(DIGEST, "default", old)
    assert read_evidence(store, old) is None
    assert replay(store, DIGEST, "default") == good


def test_evidence_of_another_image_is_refused(store: Store) -> None:
    good = run(store, FakeServer())
    sha = store.blobs.put(good.canonical()).sha256
    store.actions.add_evidence("a" * 64, "default", sha)
    with pytest.raises(Damaged) as caught:
        replay(store, "a" * 64, "default")
    assert caught.value.code == "gate.bad-evidence"


def test_a_blob_that_is_no_evidence_is_refused(store: Store) -> None:
    store.actions.add_evidence("a" * 64, "default", store.blobs.put(b"{}").sha256)
    with pytest.raises(Damaged) as caught:
        replay(store, "a" * 64, "default")
    assert caught.value.code == "gate.bad-evidence"


def cases(*verdicts: str) -> list[Case]:
    return [Case(str(i), "g", verdict) for i, verdict in enumerate(verdicts)]  # type: ignore[arg-type]


def test_the_verdict_on_the_whole() -> None:
    assert overall(cases("pass", "known-bad", "healed")) == "pass"
    assert overall(cases("pass", "fail", "not-run")) == "fail"
    assert overall(cases("pass", "not-run")) == "not-run"
    assert overall(cases("pass", "unproven")) == "pass"
    assert overall(cases("unproven")) == "not-run"
    assert overall([]) == "not-run"


# ---- the report ----------------------------------------------------------------------------------


def test_the_table_is_plain_unless_asked(store: Store) -> None:
    evidence = run(store, FakeServer({"coherence/cat": chat("London\n\nis it.")}))
    plain, coloured = verdicts_text(evidence), verdicts_text(evidence, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[31mfail" in coloured
    line = next(line for line in plain.splitlines() if "coherence/cat" in line)
    assert line.startswith("fail ")
    assert plain.splitlines()[-1].startswith("fail: ")
    assert "wrong" not in line  # the reason stands below


def test_control_characters_of_a_server_stay_off_the_terminal(store: Store) -> None:
    evidence = run(store, FakeServer({"coherence/cat": reply(b"\x1b]0;x\x07 \x1b[31m", 500)}))
    assert "\\x1b]0;x" in verdicts_text(evidence)
    assert "\x1b" not in verdicts_text(evidence)


def test_half_a_surrogate_pair_can_be_kept_and_shown(store: Store) -> None:
    body = calls(("get_weather", '{"city": "\ud800"}'))
    evidence = run(store, FakeServer({"toolcall/required/full/strict": body}))
    assert replay(store, DIGEST, "default") == evidence
    verdicts_text(evidence).encode()


def test_the_json_form(store: Store) -> None:
    data = verdicts_data(run(store, FakeServer()))
    assert data["verdict"] == "pass"
    assert data["digest"] == DIGEST
    assert msgspec.convert(
        {key: value for key, value in data.items() if key != "verdict"}, Evidence
    ).cases


def test_partial_evidence_does_not_hide_whole_evidence(store: Store) -> None:
    whole = run(store, FakeServer())
    run(store, FakeServer(executed=None, confirms=""))
    found = replay(store, DIGEST, "default", lambda evidence: evidence.complete)
    assert found == whole
