"""Several launches of one image in one run of the gates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln.errors import BadInput, CannotHere, JudgedBad, KilnError
from kiln.gate import image as gate_image
from kiln.gate import start as gate_start
from kiln.gate.evidence import replay
from kiln.gate.image import Judged
from kiln.gate.model import Case, Evidence, Expected, LaunchPlan, Proven, Work
from kiln.gate.start import judge_launches
from kiln.gate.workloads import WORKLOADS
from kiln.image.read import Image
from kiln.pins.model import Preset
from kiln.pins.patch import Proof
from kiln.progress import Silent
from kiln.report.verdicts import verdicts_data, verdicts_text
from kiln.run.runner import Launch, Server, Stopped
from kiln.store import Store
from tests.helpers.fake_openai import FakeServer, Patched, expected, metrics, silence, spoken

PRESET = Preset("tiny", ("--max-model-len=64",), {"A": "preset", "B": "preset"}, start_seconds=7)
REPEAT = Work("repeat")
ASKED = len(WORKLOADS["repeat"].prompts)
PROOF = Proof(
    launch="ngram",
    runner="CPUModelRunner",
    proposer="NgramProposer",
    counters={"raised": 1},
    settings={"min": "8"},
)
SPECULATES = ("--speculative-config={}",)
NGRAM = LaunchPlan("ngram", SPECULATES, {"B": "launch"}, True, (REPEAT,), {"p77": (PROOF,)})
SUFFIX = LaunchPlan("suffix", SPECULATES, {}, True, (REPEAT,), {})
DEFAULT = LaunchPlan(works=(REPEAT,))
LAUNCHES = (DEFAULT, NGRAM, SUFFIX)
DECISIONS = {"p77": ("raised",)}
PATCHED = Patched(
    {("p77", "raised"): 1.0},
    {("p77", "min"): "8"},
    [("CPUModelRunner", "NgramProposer")],
    (1, 4, 3),
)
IDLE = Patched({("p77", "raised"): 0.0})


PROVES = "proof/p77/ngram"


class Fakes:
    """A runner that hands out these servers in turn, or fails to start."""

    name = "fake"

    def __init__(self, *servers: FakeServer | KilnError) -> None:
        self.left, self.launches = [*servers], list[Launch]()

    @contextlib.contextmanager
    def start(self, image: Image, launch: Launch) -> Iterator[Server]:
        self.launches.append(launch)
        server = self.left.pop(0)
        if isinstance(server, KilnError):
            raise server
        yield server
        assert server.stops == 1


def run(
    store: Store,
    *servers: FakeServer | KilnError,
    launches: tuple[LaunchPlan, ...] = LAUNCHES,
    **changes: object,
) -> Evidence:
    known = expected(launches=launches, decisions=DECISIONS, **changes)
    runner = Fakes(*servers)
    image = Image.__new__(Image)  # no fake looks at it
    evidence = judge_launches(runner, image, PRESET, {"": Path("/m")}, known, store, Silent())
    assert not runner.left
    return evidence


def default(**changes: object) -> FakeServer:
    return FakeServer(patched=IDLE, **changes)  # type: ignore[arg-type]


def ngram(scripts: Mapping[str, object] = {}, **changes: object) -> FakeServer:
    return FakeServer(scripts, patched=PATCHED, **changes)  # type: ignore[arg-type]


def by_id(evidence: Evidence) -> dict[str, Case]:
    found = {case.id: case for case in evidence.cases}
    assert len(found) == len(evidence.cases)
    return found


def failed(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    return {case.id: case.problems for case in evidence.cases if case.verdict == "fail"}


def died(store: Store) -> JudgedBad:
    log = store.blobs.put(b"ImportError: libfoo").sha256
    return JudgedBad(
        "run.died",
        "the server died while it started",
        where=str(store.blobs.path(log)),
        why="it exited after 3 s with status 1\nlast lines of its log:\nImportError: libfoo",
    )


def test_each_launch_is_started_and_judged(store: Store) -> None:
    evidence = run(store, default(), ngram(), ngram())
    assert failed(evidence) == {}
    assert (evidence.verdict, evidence.complete) == ("pass", True)
    found = by_id(evidence)
    for name in ("ngram", "suffix"):
        for what in ("process-before", "identity-before", "completion-before", "repeat@0"):
            assert found[f"launch/{name}/{what}"].verdict == "pass"
        for what in ("counters", "speculation", "same-text", "identity-after", "stop"):
            assert found[f"launch/{name}/{what}"].verdict == "pass"
    assert found["proof/p77/ngram"].verdict == "pass"
    # Only the preset itself is asked what the launches have in common.
    assert sum(case.id == "coherence/france" for case in evidence.cases) == 1
    assert "launch/default/same-text" not in found
    assert "launch/default/speculation" not in found
    assert replay(store, evidence.digest, "default") == evidence


def test_the_evidence_tells_what_was_started_and_counted(store: Store) -> None:
    evidence = run(store, default(), ngram(), ngram())
    plain, launch, _ = evidence.launches
    assert (plain.name, plain.args, plain.env, plain.runner) == (
        "default",
        (),
        {},
        "CPUModelRunner",
    )
    assert (launch.args, launch.env) == (SPECULATES, {"B": "launch"})
    assert (launch.runner, launch.proposer) == ("CPUModelRunner", "NgramProposer")
    assert launch.before == launch.after == plain.before is not None
    (watched,) = launch.rounds
    assert (watched.workload, watched.temperature, watched.answers) == ("repeat", "0", ASKED)
    assert watched.before.decisions == {"p77": {"raised": 0}}
    assert watched.after.decisions == {"p77": {"raised": ASKED}}
    assert watched.after.settings == {"p77": {"min": "8"}}
    assert (watched.after.drafts, watched.after.draft_tokens, watched.after.accepted) == (
        ASKED,
        4 * ASKED,
        3 * ASKED,
    )
    assert evidence.proofs == (
        Proven("p77", "ngram", "repeat", "0", True, {"raised": 1}, {"raised": ASKED}, {"min": "8"}),
    )
    assert {"default/coherence", "ngram/start", "ngram/proof"} <= evidence.durations.keys()


def test_a_launch_adds_to_its_preset(store: Store) -> None:
    runner = Fakes(default(), ngram(), ngram())
    known = expected(launches=LAUNCHES, decisions=DECISIONS)
    image = Image.__new__(Image)
    judge_launches(runner, image, PRESET, {"": Path("/m")}, known, store, Silent())
    one, two, three = runner.launches
    assert (one.args, one.env) == (PRESET.args, PRESET.env)
    assert two.args == (*PRESET.args, *SPECULATES)
    assert two.env == {"A": "preset", "B": "launch"}
    assert {each.start_seconds for each in runner.launches} == {7}
    assert len({each.served_name for each in (one, two, three)}) == 3


def test_a_launch_that_dies_fails_with_its_log(store: Store) -> None:
    evidence = run(store, default(), died(store), ngram())
    assert failed(evidence) == {
        "launch/ngram/start": ("run.died",),
        "proof/p77/ngram": ("not-started",),
    }
    case = by_id(evidence)["launch/ngram/start"]
    assert "ImportError: libfoo" in case.reason
    (log,) = case.replies
    assert store.blobs.read(log) == b"ImportError: libfoo"
    # The others were judged nevertheless, and all is kept.
    assert by_id(evidence)["launch/suffix/speculation"].verdict == "pass"
    assert [launch.started for launch in evidence.launches] == [True, False, True]
    assert (evidence.exit_code, evidence.complete) == (1, True)
    assert replay(store, evidence.digest, "default") == evidence


def test_a_machine_that_cannot_start_one_gives_no_verdict(store: Store) -> None:
    error = CannotHere("run.killed", "something killed the server", why="memory ran out")
    evidence = run(store, default(), error, ngram())
    assert failed(evidence) == {}
    found = by_id(evidence)
    assert found["launch/ngram/start"].verdict == "not-run"
    assert "memory ran out" in found["launch/ngram/start"].reason
    assert found["proof/p77/ngram"].verdict == "not-run"
    assert (evidence.verdict, evidence.exit_code, evidence.complete) == ("not-run", 4, False)
    # A failure of another launch is a failure all the same, but no evidence to replay.
    other = run(store, default(), error, ngram(running=False))
    assert (other.exit_code, other.complete) == (1, False)


def test_without_the_default_launch_nothing_is_tried(store: Store) -> None:
    with pytest.raises(JudgedBad) as caught:
        run(store, died(store))
    assert caught.value.code == "run.died"
    assert list(store.actions.all_evidence()) == []


def test_where_no_chosen_launch_starts_there_is_no_evidence(store: Store) -> None:
    with pytest.raises(JudgedBad) as caught:
        run(store, died(store), died(store), launches=(NGRAM, SUFFIX), whole=False)
    assert caught.value.code == "run.died"
    assert list(store.actions.all_evidence()) == []


def test_a_part_of_the_launches_is_partial(store: Store) -> None:
    evidence = run(store, ngram(), launches=(NGRAM,), whole=False, unproven={"p62": ""})
    assert (evidence.verdict, evidence.complete) == ("pass", False)
    found = by_id(evidence)
    assert found["proof/p77/ngram"].verdict == "pass"
    # Neither asked nor claimed: the preset's own gates, its texts, the patches elsewhere.
    assert {case.gate for case in evidence.cases} == {"launch", "proof"}
    assert "launch/ngram/same-text" not in found
    assert "proof/p62" not in found
    assert evidence.before == evidence.after is not None


@pytest.mark.parametrize(
    ("server", "cases"),
    [
        (ngram({"work/repeat": spoken("a", " lie")}), {"same-text"}),
        (ngram({"work/repeat": silence()}), {"repeat@0", PROVES}),
        (
            ngram({"smoke/completion-before": silence()}),
            {"completion-before", "repeat@0", "speculation", PROVES},
        ),
        (ngram({"/version": '{"version": "0.23.0"}'}), {"identity-before", "identity-after"}),
        (ngram(ending=Stopped(30.0, clean=False)), {"stop"}),
        (ngram(running=False), {"process-before", "process-after"}),
        (FakeServer(patched=IDLE), {"speculation", PROVES}),
    ],
)
def test_a_fault_in_a_further_launch(store: Store, server: FakeServer, cases: set[str]) -> None:
    evidence = run(store, default(), server, ngram())
    assert evidence.exit_code == 1
    assert {name.removeprefix("launch/ngram/") for name in failed(evidence)} == cases


def test_another_image_in_a_further_launch_is_kept_as_a_failure(store: Store) -> None:
    other = metrics(kiln_id="9" * 64) + PATCHED.page(ASKED)
    evidence = run(store, default(), ngram({"/metrics": other}), ngram())
    assert failed(evidence)["launch/ngram/identity-before"] == ("kiln-id",)
    assert evidence.launches[0].before != evidence.launches[1].before
    assert replay(store, evidence.digest, "default") == evidence


def test_a_part_is_never_replayed_nor_taken_from_a_replay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kiln gate --launch ngram` starts it, whatever evidence of the whole there is."""
    whole = run(store, default(), ngram(), ngram())
    started: list[tuple[str, ...]] = []

    def expects(*arguments: object) -> Expected:
        names = arguments[4]
        assert isinstance(names, list | tuple)
        chosen = tuple(each for each in LAUNCHES if each.name in names) or LAUNCHES
        return expected(launches=chosen, whole=len(chosen) == len(LAUNCHES), decisions=DECISIONS)

    def starts(*arguments: object) -> Evidence:
        known = arguments[3]
        assert isinstance(known, Expected)
        started.append(tuple(each.name for each in known.launches))
        servers = [default() if each.name == "default" else ngram() for each in known.launches]
        return run(store, *servers, launches=known.launches, whole=known.whole)

    pin = SimpleNamespace(presets={"default": PRESET})
    monkeypatch.setattr(gate_image, "find_target", lambda *_: SimpleNamespace(name="p", pin=pin))
    monkeypatch.setattr(gate_image, "expect", expects)
    monkeypatch.setattr(gate_start, "start_and_judge", starts)
    project: Any = None

    def gate(**options: Any) -> Judged:
        return gate_image.gate_target(project, None, store, Silent(), **options)

    assert (gate().evidence, started) == (whole, [])
    part = gate(launches=["ngram"])
    assert (part.replayed, part.exit_code, started) == (False, 0, [("ngram",)])
    assert gate().evidence == whole
    # An endpoint was started in one way, the default one unless somebody says which.
    gate(runner="endpoint=http://localhost")
    gate(runner="endpoint=http://localhost", launches=["ngram"])
    assert started[1:] == [("default",), ("ngram",)]
    with pytest.raises(BadInput) as caught:
        gate(runner="endpoint=http://localhost", launches=["ngram", "suffix"])
    assert caught.value.code == "gate.one-launch"


# ---- patches that nobody proves ------------------------------------------------------------------


def test_an_unproven_patch_is_listed_and_counted(store: Store) -> None:
    evidence = run(store, default(), ngram(), ngram(), unproven={"p62": "no reasoning model"})
    assert by_id(evidence)["proof/p62"].verdict == "unproven"
    assert (evidence.verdict, evidence.complete) == ("pass", True)
    text = verdicts_text(evidence)
    assert "unproven  p62" in text
    assert "no reasoning model" in text
    assert "1 unproven" in text.splitlines()[-1]


def test_a_patch_without_a_proof_fails(store: Store) -> None:
    evidence = run(store, default(), ngram(), ngram(), unproven={"p99": ""})
    assert failed(evidence) == {"proof/p99": ("no-proof",)}
    assert evidence.exit_code == 1


# ---- the report ----------------------------------------------------------------------------------


def test_the_table_shows_proofs_by_patch_and_launch(store: Store) -> None:
    evidence = run(store, default(), ngram(), ngram())
    text = verdicts_text(evidence)
    cases, proofs = text.split("patches in use, by launch:\n")
    drafts = f"{4 * ASKED} tokens in {ASKED} drafts, {3 * ASKED} accepted (75 %)"
    words = [line.split(maxsplit=2) for line in cases.splitlines()]
    assert [
        "pass",
        "launch/ngram/speculation",
        drafts,
    ] in words
    assert "p77" not in cases
    # What each launch says again takes one line, unless it is bad.
    said = "process-before, identity-before, completion-before, completion-after, identity-after"
    assert ["pass", "launch/ngram/smoke", f"{said}, process-after, stop"] in words
    assert "launch/ngram/stop" not in cases
    bad = run(store, default(), ngram(ending=Stopped(30.0, clean=False)), ngram())
    assert "fail      launch/ngram/stop" in verdicts_text(bad)
    assert f"{said}, process-after\n" in verdicts_text(bad)
    first, *_ = proofs.splitlines()
    assert first == (
        f"pass      p77/ngram  raised {ASKED} (wanted 1), min=8, CPUModelRunner with NgramProposer"
    )


def test_the_data_has_the_numbers(store: Store) -> None:
    data = verdicts_data(run(store, default(), ngram(), ngram()))
    assert data["proofs"] == (
        {
            "patch": "p77",
            "launch": "ngram",
            "workload": "repeat",
            "temperature": "0",
            "holds": True,
            "wanted": {"raised": 1},
            "counted": {"raised": ASKED},
            "settings": {"min": "8"},
        },
    )
