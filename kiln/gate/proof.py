"""Is a patch's code in use, or merely installed? A launch's readings against its proofs.

A proof was made with certain classes of vLLM, and says nothing of others: the same patch on
another model runner may be code that nobody calls. So a proof for other classes than those
that run does not hold. Where a patch has proofs for several classes, those that run count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.gate.answers import Told, compare
from kiln.gate.counters import Reading, check_series, growth, in_words, one_class
from kiln.gate.model import Case, Expected, LaunchPlan, Problem, Proven, Round, Work, case
from kiln.pins.patch import Proof


@dataclass(frozen=True)
class Watched:
    """A workload that was run, and the readings around it."""

    work: Work
    told: Told
    before: Reading
    after: Reading

    def record(self) -> Round:
        """For the evidence."""
        return Round(
            workload=self.work.workload,
            temperature=f"{self.work.temperature:g}",
            answers=len(self.told.answers),
            tokens=self.told.tokens,
            milliseconds=self.told.milliseconds,
            before=self.before.counts(),
            after=self.after.counts(),
        )


def work_case(launch: LaunchPlan, watched: Watched) -> Case:
    """Whether the workload was answered."""
    told = watched.told
    seconds = told.milliseconds / 1000
    detail = f"{len(told.answers)} answers, {told.tokens} tokens in {seconds:.1f} s"
    return case(f"launch/{launch.name}/{watched.work}", told.problems, detail, told.replies)


def counters_case(
    launch: LaunchPlan, readings: Sequence[Reading], declared: Mapping[str, tuple[str, ...]]
) -> Case:
    """Whether the page counts each declared decision, once, upwards, and no other; from one
    reading to the next."""
    first, last = readings[0], readings[-1]
    pairs = zip(readings, readings[1:] or readings, strict=False)
    found = [problem for pair in pairs for problem in check_series(*pair, declared)]
    problems = [*dict.fromkeys(found)]
    grown = {key: growth(first, last, *key) for key in last.decisions}
    moved = sum(isinstance(count, int) and count > 0 for count in grown.values())
    detail = f"{len(grown)} decisions counted, {moved} taken"
    replies = dict.fromkeys(reply for reading in readings for reply in reading.replies)
    return case(f"launch/{launch.name}/counters", problems, detail, [*replies])


def speculation_case(launch: LaunchPlan, first: Reading, last: Reading) -> Case | None:
    """Whether drafts are made where they are asked for, and only there; None if neither.

    A launch whose proposer could not be had may go on without one, or with another, and
    serves on: then its drafts stand still.
    """
    name, problems = f"launch/{launch.name}/speculation", [*first.problems, *last.problems]
    drafts, tokens, accepted = (
        None if old is None or new is None else new - old
        for old, new in zip(first.speculation, last.speculation, strict=True)
    )
    classes = one_class(last)
    if not launch.speculates:
        if not tokens:
            return None
        text = f"{tokens} tokens were drafted, and nothing in the launch asks for that"
        return case(name, [*problems, Problem("drafts-unasked", text)])
    if drafts is None or tokens is None or accepted is None:
        text = "/metrics has no counters vllm:spec_decode_...: the engine does not speculate"
        return case(name, [*problems, Problem("drafts-missing", text)])
    if min(drafts, tokens, accepted) < 0 or accepted > tokens:
        text = f"{drafts} drafts, {tokens} tokens, {accepted} accepted cannot be"
        problems.append(Problem("drafts-odd", text))
    elif tokens == 0:
        text = "not one token was drafted, although the launch asks for speculation"
        problems.append(Problem("drafts-not-moving", text))
    if isinstance(classes, tuple) and not classes[1]:
        problems.append(Problem("no-proposer", "the server says that it has no proposer"))
    share = f" ({100 * accepted / tokens:.0f} %)" if tokens else ""
    detail = f"{tokens} tokens in {drafts} drafts, {accepted} accepted{share}"
    return case(name, problems, detail)


def same_text_case(
    launch: LaunchPlan, plain: Mapping[Work, Told], rounds: Sequence[Watched]
) -> Case | None:
    """Whether greedy answers are the default launch's; None where there is none of these."""
    problems, details = [], []
    for watched in rounds:
        told = plain.get(watched.work)
        # What was not answered is a failure of its own; it has no text to compare.
        if (
            launch.model
            or told is None
            or watched.work.temperature != 0
            or told.problems
            or watched.told.problems
        ):
            continue
        found, detail = compare(told, watched.told)
        problems += found
        details.append(f"{watched.work.workload}: {detail}")
    if not details:
        return None
    return case(f"launch/{launch.name}/same-text", problems, "; ".join(details))


def prove(launch: LaunchPlan, rounds: Sequence[Watched]) -> tuple[list[Case], list[Proven]]:
    """A case for each patch that has proofs in this launch."""
    by_work = {watched.work: watched for watched in rounds}
    cases, proven = [], []
    for patch, proofs in launch.proofs.items():
        judged = [
            _judge(launch, patch, proof, by_work[Work(proof.workload, proof.temperature)])
            for proof in proofs
        ]
        # Proofs for other classes say nothing, if there are some for those that run.
        here = [one for one in judged if not one.elsewhere] or judged
        problems = dict.fromkeys(problem for one in here for problem in one.problems)
        detail = "; ".join(one.detail for one in here)
        cases.append(case(f"proof/{patch}/{launch.name}", [*problems], detail))
        proven += [one.proven for one in here]
    return cases, proven


@dataclass(frozen=True)
class _Judged:
    problems: tuple[Problem, ...]
    detail: str
    proven: Proven
    elsewhere: bool  # made for other classes than those that run


def _judge(launch: LaunchPlan, patch: str, proof: Proof, watched: Watched) -> _Judged:
    problems: list[Problem] = []
    before, after = watched.before, watched.after
    classes = one_class(after)
    elsewhere = isinstance(classes, tuple) and classes != (proof.runner, proof.proposer)
    if isinstance(classes, Problem):
        problems.append(classes)
    elif elsewhere:
        made = in_words(proof.runner, proof.proposer)
        text = f"the proof was made with {made}; running: {in_words(*classes)}"
        problems.append(Problem("other-classes", text))
    if watched.told.problems:
        problems.append(Problem("unanswered", f"{watched.work} was not answered as a whole"))
    counted: dict[str, int] = {}
    words = []
    for decision, least in sorted(proof.counters.items()):
        grown = growth(before, after, patch, decision)
        if isinstance(grown, Problem):
            problems.append(grown)
            continue
        counted[decision] = grown
        words.append(f"{decision} {grown} (wanted {least})")
        if grown < least:
            text = f"{decision} was taken {grown} times during {watched.work}, not {least}"
            problems.append(Problem("not-taken", text))
    settings: dict[str, str] = {}
    for name, wanted in sorted(proof.settings.items()):
        values = after.settings.get((patch, name), ())
        if len(values) == 1:
            settings[name] = values[0]
            words.append(f"{name}={values[0]}")
        problems += _check_setting(name, wanted, values)
    if isinstance(classes, tuple):
        words.append(in_words(*classes))
    proven = Proven(
        patch=patch,
        launch=launch.name,
        workload=proof.workload,
        temperature=f"{proof.temperature:g}",
        holds=not problems,
        wanted=dict(proof.counters),
        counted=counted,
        settings=settings,
    )
    return _Judged(tuple(problems), ", ".join(words), proven, elsewhere)


def _check_setting(name: str, wanted: str, values: Sequence[str]) -> list[Problem]:
    if not values:
        return [Problem("setting-missing", f"the server does not say what {name} is")]
    if len(values) > 1:
        return [Problem("setting-twice", f"the server says of {name}: {', '.join(values)}")]
    if values[0] != wanted:
        return [Problem("setting-differs", f"{name} is {values[0]!r}, the proof wants {wanted!r}")]
    return []


def unproven_cases(expected: Expected) -> list[Case]:
    """A case for each patch that no launch of the pin proves."""
    cases = []
    for patch, reason in sorted(expected.unproven.items()):
        name = f"proof/{patch}"
        if reason:
            cases.append(Case(name, "proof", "unproven", reason=reason))
        else:
            text = "no launch of this pin proves that its code is in use"
            cases.append(case(name, [Problem("no-proof", text)]))
    return cases
