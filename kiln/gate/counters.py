"""What a server says of its patches on /metrics, and what of it can be believed.

    kiln_patch_decisions_total{patch,decision}       how often a patch's code took a decision
    kiln_patch_setting_info{patch,name,value} 1      the configuration that came of it
    kiln_runtime_info{runner,proposer} 1             the classes that really run

and vLLM's own counters of drafts. A number counts only if its series is there once, is a
whole number, and does not go down: a counter that is lost and begins anew would hide what
it had counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kiln.gate.ask import Asker
from kiln.gate.identity import Samples, Unreadable, parse_metrics, read_page
from kiln.gate.model import Counts, Problem

_DRAFTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
Values = tuple[float, ...]


@dataclass(frozen=True)
class Reading:
    """One reading. The values are as they came: none, one, or several of one series.

    decisions: (patch, decision) -> values. settings: (patch, name) -> values. classes:
    (runner, proposer) of each kiln_runtime_info. speculation: vLLM's drafts, draft tokens,
    accepted tokens, summed over its engines; None where a series is missing.
    """

    decisions: Mapping[tuple[str, str], Values] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[tuple[str, str], ...] = ()
    speculation: tuple[int | None, int | None, int | None] = (None, None, None)
    problems: tuple[Problem, ...] = ()
    replies: tuple[str, ...] = ()

    def counts(self) -> Counts:
        """The numbers that can be believed, for the record."""
        decisions: dict[str, dict[str, int]] = {}
        for (patch, decision), values in sorted(self.decisions.items()):
            if _whole(values) is not None:
                decisions.setdefault(patch, {})[decision] = int(values[0])
        settings: dict[str, dict[str, str]] = {}
        for (patch, name), texts in sorted(self.settings.items()):
            if len(texts) == 1:
                settings.setdefault(patch, {})[name] = texts[0]
        return Counts(decisions, settings, *self.speculation)


def read_counters(asker: Asker) -> Reading:
    """Read /metrics. Does not raise: what cannot be read is a problem."""
    problems: list[Problem] = []
    replies: list[str] = []
    page = read_page(asker, "/metrics", problems, replies)
    if page is None:
        return Reading(problems=tuple(problems), replies=tuple(replies))
    try:
        samples = parse_metrics(page.body, page.content_type)
    except Unreadable as error:
        problems.append(Problem("metrics-unreadable", f"/metrics: {error}"))
        return Reading(problems=tuple(problems), replies=tuple(replies))
    decisions: dict[tuple[str, str], Values] = {}
    for labels, value in samples.get("kiln_patch_decisions_total", []):
        key = (labels.get("patch", ""), labels.get("decision", ""))
        decisions[key] = (*decisions.get(key, ()), value)
    settings: dict[tuple[str, str], tuple[str, ...]] = {}
    for labels, _ in samples.get("kiln_patch_setting_info", []):
        key = (labels.get("patch", ""), labels.get("name", ""))
        settings[key] = (*settings.get(key, ()), labels.get("value", ""))
    classes = tuple(
        (labels.get("runner", ""), labels.get("proposer", ""))
        for labels, _ in samples.get("kiln_runtime_info", [])
    )
    drafts, tokens, accepted = (_speculation(samples, name) for name in _DRAFTS)
    return Reading(
        decisions, settings, classes, (drafts, tokens, accepted), tuple(problems), tuple(replies)
    )


def check_series(
    first: Reading, last: Reading, declared: Mapping[str, tuple[str, ...]]
) -> list[Problem]:
    """Whether every decision that a patch declares is counted, and nothing else is."""
    if unread := [*first.problems, *last.problems]:
        return list(dict.fromkeys(unread))
    wanted = {(patch, decision) for patch, names in declared.items() for decision in names}
    problems = []
    for key in sorted(wanted | first.decisions.keys() | last.decisions.keys()):
        if key not in wanted:
            text = f"{_name(key)} is counted, and patch.yaml does not declare it"
            problems.append(Problem("counter-undeclared", text))
        elif isinstance(grown := growth(first, last, *key), Problem):
            problems.append(grown)
    return problems


def growth(before: Reading, after: Reading, patch: str, decision: str) -> int | Problem:
    """How often a decision was taken between two readings, or why that is not known."""
    key = (patch, decision)
    numbers = []
    for reading in (before, after):
        if reading.problems:
            return reading.problems[0]
        values = reading.decisions.get(key, ())
        if not values:
            return Problem("counter-missing", f"/metrics has no counter of {_name(key)}")
        if len(values) > 1:
            text = f"/metrics has {len(values)} counters of {_name(key)}"
            return Problem("counter-twice", text)
        number = _whole(values)
        if number is None:
            text = f"the counter of {_name(key)} is {values[0]}, not a whole number from 0"
            return Problem("counter-value", text)
        numbers.append(number)
    first, last = numbers
    if last < first:
        text = f"the counter of {_name(key)} went down, from {first} to {last}"
        return Problem("counter-down", text)
    return last - first


def one_class(reading: Reading) -> tuple[str, str] | Problem:
    """The model runner and the proposer that run, or why that is not known."""
    if reading.problems:
        return reading.problems[0]
    if not reading.classes:
        return Problem("runtime-missing", "/metrics has no kiln_runtime_info")
    if len(reading.classes) > 1:
        several = ", ".join(in_words(*each) for each in sorted(reading.classes))
        return Problem("runtime-several", f"several classes say that they run: {several}")
    return reading.classes[0]


def in_words(runner: str, proposer: str) -> str:
    """Two classes, for people."""
    return f"{runner or 'no runner'} with {proposer or 'no proposer'}"


def _name(key: tuple[str, str]) -> str:
    patch, decision = key
    return f"{patch or '(no patch)'}: {decision or '(no decision)'}"


def _whole(values: Values) -> int | None:
    """The one value, if it is there once and counts something."""
    if len(values) != 1 or not 0 <= values[0] < 2**63 or not values[0].is_integer():
        return None
    return int(values[0])


def _speculation(samples: Samples, name: str) -> int | None:
    """One of vLLM's counters of drafts, over all engines."""
    numbers = [_whole((value,)) for _, value in samples.get(f"vllm:spec_decode_{name}_total", [])]
    known = [number for number in numbers if number is not None]
    return sum(known) if numbers and len(known) == len(numbers) else None
