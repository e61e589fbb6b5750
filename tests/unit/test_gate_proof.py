"""Proofs of patches against what a launch shows: each way in which one does not hold."""

from __future__ import annotations

import dataclasses

import pytest

from kiln.gate.answers import Told, run_workload
from kiln.gate.ask import Asker
from kiln.gate.counters import Reading, read_counters
from kiln.gate.model import Case, LaunchPlan, Proven, Work
from kiln.gate.proof import (
    Watched,
    counters_case,
    prove,
    same_text_case,
    speculation_case,
    unproven_cases,
    work_case,
)
from kiln.gate.workloads import WORKLOADS
from kiln.pins.patch import Proof
from tests.helpers.fake_openai import (
    MODEL,
    FakeClient,
    Memory,
    Patched,
    Script,
    expected,
    reply,
    silence,
    spoken,
)

REPEAT = Work("repeat")
ASKED = len(WORKLOADS["repeat"].prompts)
GROWS = {("p77", "raised"): 2.0, ("p77", "lowered"): 1.0}
CLASSES = (("CPUModelRunner", "NgramProposer"),)
PATCHED = Patched(GROWS, {("p77", "steps"): "1,3,5"}, CLASSES, (3, 12, 9))
PROOF = Proof(
    launch="ngram",
    runner="CPUModelRunner",
    proposer="NgramProposer",
    counters={"raised": 2 * ASKED, "lowered": 1},
    settings={"steps": "1,3,5"},
)
DECLARED = {"p77": ("raised", "lowered")}
LAUNCH = LaunchPlan("ngram", speculates=True, works=(REPEAT,), proofs={"p77": (PROOF,)})


def watch(patched: Patched = PATCHED, answer: Script | None = None) -> Watched:
    """`repeat`, run against a server that says this of its patches."""
    client = FakeClient({} if answer is None else {"work/repeat": answer}, patched)
    asker = Asker(client, Memory(), MODEL)
    before = read_counters(asker)
    return Watched(REPEAT, run_workload(asker, REPEAT), before, read_counters(asker))


def proven(watched: Watched, *proofs: Proof) -> tuple[Case, Proven]:
    launch = dataclasses.replace(LAUNCH, proofs={"p77": proofs or (PROOF,)})
    (found,), (record, *_) = prove(launch, [watched])
    return found, record


def test_a_patch_that_is_in_use() -> None:
    found, record = proven(watch())
    assert (found.id, found.gate, found.verdict) == ("proof/p77/ngram", "proof", "pass")
    assert found.detail == (
        f"lowered {ASKED} (wanted 1), raised {2 * ASKED} (wanted {2 * ASKED}), steps=1,3,5, "
        "CPUModelRunner with NgramProposer"
    )
    assert record == Proven(
        patch="p77",
        launch="ngram",
        workload="repeat",
        temperature="0",
        holds=True,
        wanted={"raised": 2 * ASKED, "lowered": 1},
        counted={"lowered": ASKED, "raised": 2 * ASKED},
        settings={"steps": "1,3,5"},
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        # Installed, and nobody calls it.
        ({"decisions": {("p77", "raised"): 0.0, ("p77", "lowered"): 1.0}}, "not-taken"),
        ({"decisions": {("p77", "raised"): 1.0, ("p77", "lowered"): 1.0}}, "not-taken"),
        ({"decisions": {("p77", "lowered"): 1.0}}, "counter-missing"),
        ({"decisions": {**GROWS, ("p77", "raised"): float("nan")}}, "counter-value"),
        ({"decisions": {**GROWS, ("p77", "raised"): 0.25}}, "counter-value"),
        ({"settings": {}}, "setting-missing"),
        ({"settings": {("p77", "steps"): "3"}}, "setting-differs"),
        ({"settings": {("p70", "steps"): "1,3,5"}}, "setting-missing"),
        # The same patch, under classes with which nobody made the proof.
        ({"classes": (("GPUModelRunner", "NgramProposer"),)}, "other-classes"),
        ({"classes": (("CPUModelRunner", "SuffixDecodingProposer"),)}, "other-classes"),
        ({"classes": (("CPUModelRunner", ""),)}, "other-classes"),
        ({"classes": ()}, "runtime-missing"),
        ({"classes": (*CLASSES, ("CPUModelRunner", ""))}, "runtime-several"),
    ],
)
def test_a_proof_that_does_not_hold(changes: dict[str, object], code: str) -> None:
    found, record = proven(watch(dataclasses.replace(PATCHED, **changes)))  # type: ignore[arg-type]
    assert (found.verdict, found.problems) == ("fail", (code,))
    assert not record.holds
    assert found.reason


def test_the_classes_that_were_seen_are_named() -> None:
    other = (("GPUModelRunner", "EagleProposer"),)
    found, _ = proven(watch(dataclasses.replace(PATCHED, classes=other)))
    assert "made with CPUModelRunner with NgramProposer" in found.reason
    assert "running: GPUModelRunner with EagleProposer" in found.reason


def test_a_setting_that_is_there_twice() -> None:
    watched = watch()
    settings = {("p77", "steps"): ("1,3,5", "3")}
    twice = dataclasses.replace(watched.after, settings=settings)
    found, record = proven(dataclasses.replace(watched, after=twice))
    assert found.problems == ("setting-twice",)
    assert record.settings == {}


def test_a_counter_that_begins_anew_is_no_count() -> None:
    watched = watch()
    restarted = dataclasses.replace(
        watched.after, decisions={**watched.after.decisions, ("p77", "raised"): (2.0,)}
    )
    before = dataclasses.replace(
        watched.before, decisions={**watched.before.decisions, ("p77", "raised"): (5.0,)}
    )
    found, _ = proven(dataclasses.replace(watched, before=before, after=restarted))
    assert found.problems == ("counter-down",)


def test_of_proofs_for_several_classes_those_that_run_count() -> None:
    gpu = Proof(launch="ngram", runner="GPUModelRunner", counters={"raised": 10_000})
    found, record = proven(watch(), gpu, PROOF)
    assert found.verdict == "pass"
    assert record.wanted == PROOF.counters
    assert proven(watch(), gpu)[0].problems == ("not-taken", "other-classes")


def test_all_proofs_for_one_launch_must_hold() -> None:
    more = Proof(
        launch="ngram",
        runner="CPUModelRunner",
        proposer="NgramProposer",
        counters={"lowered": ASKED + 1},
    )
    found, _ = proven(watch(), PROOF, more)
    assert found.problems == ("not-taken",)
    text = f"lowered was taken {ASKED} times during repeat@0, not {ASKED + 1}"
    assert text in found.reason


@pytest.mark.parametrize("answer", [silence(), reply("no", 500), spoken("", finish="stop")])
def test_what_was_not_answered_proves_nothing(answer: Script) -> None:
    watched = watch(answer=answer)
    assert work_case(LAUNCH, watched).verdict == "fail"
    found, _ = proven(watched)
    assert "unanswered" in found.problems


def test_the_workload_is_a_case_of_its_own() -> None:
    found = work_case(LAUNCH, watch())
    assert (found.id, found.verdict) == ("launch/ngram/repeat@0", "pass")
    assert found.detail.startswith(f"{ASKED} answers, {2 * ASKED} tokens in ")
    assert len(found.replies) > 1


def test_counters_are_watched_from_one_reading_to_the_next() -> None:
    """Lost and counted up again: the ends alone would not show it."""
    before, after = watch().before, watch().after
    good = counters_case(LAUNCH, [before, after, after], DECLARED)
    assert (good.id, good.verdict) == ("launch/ngram/counters", "pass")
    assert good.detail == "2 decisions counted, 2 taken"
    assert len(good.replies) == 2
    lost = counters_case(LAUNCH, [before, after, before, after], DECLARED)
    assert (lost.verdict, lost.problems) == ("fail", ("counter-down",))
    assert counters_case(LAUNCH, [after], DECLARED).verdict == "pass"
    assert counters_case(LAUNCH, [after], {}).problems == ("counter-undeclared",)
    assert counters_case(LAUNCH, [after], {**DECLARED, "p1": ("x",)}).problems == (
        "counter-missing",
    )


def test_unproven_is_visible_and_no_proof() -> None:
    said, silent = unproven_cases(expected(unproven={"p62": "no reasoning model", "p99": ""}))
    assert (said.id, said.verdict, said.reason) == ("proof/p62", "unproven", "no reasoning model")
    assert (silent.id, silent.verdict, silent.problems) == ("proof/p99", "fail", ("no-proof",))


# ---- speculation ---------------------------------------------------------------------------------


def speculation(launch: LaunchPlan, patched: Patched) -> Case | None:
    watched = watch(patched)
    return speculation_case(launch, watched.before, watched.after)


def test_drafts_are_made_and_accepted() -> None:
    found = speculation(LAUNCH, PATCHED)
    assert found is not None
    assert (found.id, found.verdict) == ("launch/ngram/speculation", "pass")
    assert found.detail == (
        f"{12 * ASKED} tokens in {3 * ASKED} drafts, {9 * ASKED} accepted (75 %)"
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"speculation": None}, "drafts-missing"),  # the engine never heard of it
        ({"speculation": (0, 0, 0)}, "drafts-not-moving"),  # arctic is missing: ngram went on
        ({"speculation": (1, 4, 5)}, "drafts-odd"),
        ({"classes": (("CPUModelRunner", ""),)}, "no-proposer"),
    ],
)
def test_a_silent_fallback_is_found(changes: dict[str, object], code: str) -> None:
    found = speculation(LAUNCH, dataclasses.replace(PATCHED, **changes))  # type: ignore[arg-type]
    assert found is not None
    assert (found.verdict, found.problems) == ("fail", (code,))


def test_counters_of_drafts_that_go_down() -> None:
    found = speculation_case(LAUNCH, watch().after, watch().before)
    assert found is not None
    assert found.problems == ("drafts-odd",)


def test_speculation_that_nobody_asked_for() -> None:
    plain = LaunchPlan("plain")
    assert speculation(plain, Patched()) is None
    found = speculation(plain, PATCHED)
    assert found is not None
    assert found.problems == ("drafts-unasked",)
    unread = Reading()
    assert speculation_case(plain, unread, unread) is None


# ---- the same text -------------------------------------------------------------------------------


def same_text(plain: Told, watched: Watched) -> Case | None:
    return same_text_case(LAUNCH, {REPEAT: plain}, [watched])


def test_speculation_may_not_change_the_text() -> None:
    found = same_text(watch().told, watch())
    assert found is not None
    assert (found.id, found.verdict) == ("launch/ngram/same-text", "pass")
    assert found.detail == "repeat: 7 of 7 answers are the same"
    other = same_text(watch().told, watch(answer=spoken("a", " lie")))
    assert other is not None
    assert (other.verdict, other.problems) == ("fail", ("other-text",))


def test_another_model_gives_another_text() -> None:
    other = dataclasses.replace(LAUNCH, model="tiny-mtp")
    watched = watch(answer=spoken("a", " lie"))
    assert same_text_case(other, {REPEAT: watch().told}, [watched]) is None


def test_only_greedy_answers_of_both_are_compared() -> None:
    watched = watch()
    assert same_text_case(LAUNCH, {}, [watched]) is None
    sampled = dataclasses.replace(watched, work=Work("repeat", 0.8))
    assert same_text_case(LAUNCH, {sampled.work: watched.told}, [sampled]) is None
    unanswered = watch(answer=silence())
    assert same_text(watched.told, unanswered) is None
    assert same_text(unanswered.told, watched) is None
