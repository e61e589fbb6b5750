"""Planted changes: what a patch calls, overrides or stands in has another signature."""

from __future__ import annotations

import pytest

from kiln.drift.symbols import check_symbols
from tests.helpers.drift import MINI, Texts, diff, patch
from tests.helpers.symbols import (
    CONFIG,
    OLD,
    PROPOSER,
    RUNNER,
    UTILS,
    change,
    check,
    findings,
    hook,
    module,
    only,
)

NGRAM = "vllm.v1.proposer.NgramProposer"
CLAMP = "def clamp(value, low, high=8):"


def calls(call: str) -> str:
    return f"from vllm.utils import clamp; {call}"


@pytest.mark.parametrize(
    ("call", "now", "breaks", "why"),
    [
        ("clamp(1, 2)", "def clamp(value, low, step, high=8):", True,
         "it gained step (required); the patch does not pass step"),
        ("clamp(1, 2)", "def clamp(value, low, high=8, *, step):", True,
         "it gained step (required, by keyword only); the patch does not pass step"),
        ("clamp(1, 2)", "def clamp(value, low, high=8, step=1):", False,
         "it gained step (default 1); the patch's call still fits, by its shape"),
        ("clamp(1, 2, high=3)", "def clamp(value, low):", True,
         "it lost high; the patch passes high=, which it does not take"),
        ("clamp(1, 2, 3)", "def clamp(value, low):", True,
         "it lost high; the patch passes 3 arguments by position; 2 fit"),
        ("clamp(1, 2)", "def clamp(low, value, high=8):", True,
         "it takes its parameters in another order; "
         "the patch passes its argument 1 to low; it was value"),
        ("clamp(1, low=2)", "def clamp(value, high=8, low=2):", False,
         "it takes its parameters in another order; has a default for low now, 2; "
         "the patch's call still fits, by its shape"),
        ("clamp(1, 2)", "def clamp(value, low, high):", True,
         "it requires high now; the patch does not pass high"),
        ("clamp(1, 2)", "def clamp(value, low, high=9):", False,
         "it has the default 9 for high, not 8; the patch's call still fits, by its shape"),
        ("clamp(1, 2)", "async def clamp(value, low, high=8):", False,
         "it is now asynchronous; the patch's call still fits, by its shape"),
        ("clamp(*self.k)", "def clamp(value, low, step, high=8):", False,
         "it gained step (required); "
         "whether the patch's call still fits, nobody can tell from its text"),
    ],
)  # fmt: skip
def test_a_call_is_held_against_the_new_signature(
    call: str, now: str, breaks: bool, why: str
) -> None:
    found = only(change(UTILS, CLAMP, now), hook(calls(call)))
    assert (found.kind, found.name) == ("signature", "vllm.utils.clamp")
    assert (found.breaks, found.why) == (breaks, why)
    assert found.old == "(value, low, high=8)"


def test_annotations_and_bodies_bind_nobody() -> None:
    now = 'def clamp(value: "int", low: int, high: int = 8) -> int:\n    # other\n'
    assert findings(change(UTILS, f"{CLAMP}\n", now), hook(calls("clamp(1, 2)"))) == []


def test_an_argument_added_to_an_old_call_is_the_patch_s_own() -> None:
    before = "return min(self.k, most)"
    old = {**OLD, PROPOSER: OLD[PROPOSER].replace(before, "return self.load(most)")}
    call = "self.load(\n            most,\n            strict=True,\n        )"
    after = old[PROPOSER].replace("self.load(most)", call)
    added = patch("fix", diff(PROPOSER, old[PROPOSER], after))
    (found,) = check_symbols([added], Texts(old), Texts(old)).findings
    assert (found.kind, found.breaks) == ("signature", True)
    assert found.why == "the patch passes strict=, which it does not take"


def test_a_method_is_called_without_its_receiver() -> None:
    new = change(PROPOSER, "def width(self, most):", "def width(self, most, least):")
    assert findings(new, hook("self.width(1)")) == [("signature", f"{NGRAM}.width", True)]
    assert findings(OLD, hook("self.width(1)", "NgramProposer.width(self, 1)")) == []
    assert findings(OLD, hook("NgramProposer.width(1)")) == [("signature", f"{NGRAM}.width", True)]


def test_a_class_is_called_as_its_init_or_its_fields_say() -> None:
    new = change(CONFIG, "    tokens: int = 4", "    model: str\n    tokens: int = 4")
    made = hook('SpecConfig("ngram", tokens=1)')
    found = only(new, made)
    assert (found.name, found.breaks) == ("vllm.config.spec.SpecConfig", True)
    assert found.why == "it gained model (required); the patch does not pass model"
    assert findings(OLD, made) == []
    new = change(PROPOSER, "(self, config: SpecConfig)", "(self, config: SpecConfig, device)")
    assert findings(new, hook("NgramProposer(self.config)")) == [("signature", NGRAM, True)]


def test_a_field_that_the_series_adds_may_be_passed() -> None:
    field = patch("one", diff(CONFIG, OLD[CONFIG], OLD[CONFIG].replace(
        "    tokens: int = 4\n", "    tokens: int = 4\n    mine: int = 0\n")))  # fmt: skip
    assert findings(OLD, field, hook('SpecConfig("ngram", mine=1)')) == []


@pytest.mark.parametrize("decorator", ["@wraps_it", "@triton.jit"])
def test_decorated_functions_are_left_alone(decorator: str) -> None:
    both = OLD[UTILS].replace(CLAMP, f"{decorator}\n{CLAMP}")
    new = both.replace(CLAMP, "def clamp(value):")
    found = check_symbols(
        [hook(calls("clamp(1, 2)"))], Texts({**OLD, UTILS: both}), Texts({**OLD, UTILS: new})
    )
    assert (found.findings, found.unresolved) == ((), 1)


def test_one_of_two_definitions_is_nobody_s_guess() -> None:
    two = f"{OLD[UTILS]}\n\nif LIMIT:\n\n    def clamp(value):\n        return value\n"
    found = check({**OLD, UTILS: two}, hook(calls("clamp(1, 2)")))
    assert (found.findings, found.unresolved) == ((), 1)


# ---- what the series overrides


OWN = """\
from vllm.v1.proposer import NgramProposer


class Own(NgramProposer):
    def propose(self, tokens, lengths):
        return super().propose(tokens, lengths)

    def width(self, most=1):
        return most
"""


def test_an_override_is_held_against_what_callers_pass_now() -> None:
    assert findings(OLD, module(OWN)) == []
    new = change(
        PROPOSER, "def propose(self, tokens, lengths):", "def propose(self, k, tokens, lengths):"
    )
    found = [f for f in check(new, module(OWN)).findings if "override" in f.why]
    assert [(f.kind, f.name, f.breaks) for f in found] == [("signature", f"{NGRAM}.propose", True)]
    assert found[0].why == ("it gained k (required); the patch's override has no parameter k")


def test_super_is_followed() -> None:
    new = change(PROPOSER, "def propose(self, tokens, lengths):", "def propose(self, tokens):")
    new[PROPOSER] = new[PROPOSER].replace("Base", "Other")
    found = [f.why for f in check(new, module(OWN)).findings if f.breaks]
    assert "it lost lengths; the patch passes 2 arguments by position; 1 fit" in found


def test_an_override_of_nothing_is_found() -> None:
    found = only(change(PROPOSER, "def width(", "def breadth("), module(OWN))
    assert (found.kind, found.name, found.breaks) == ("gone", f"{NGRAM}.width", True)
    assert found.why == "the patch overrides it, and nothing calls that any more"


def test_a_new_abstract_method_is_found() -> None:
    new = change(
        PROPOSER,
        "    def width(",
        "    @abstractmethod\n    def start(self, k): ...\n\n    def width(",
    )
    found = only(new, module(OWN))
    assert (found.kind, found.name, found.breaks) == ("signature", f"{NGRAM}.start", True)
    assert found.new == "(self, k)"


# ---- what the hunks stand in


def test_the_function_of_a_hunk_has_other_parameters() -> None:
    new = change(PROPOSER, "propose(self, tokens, lengths):", "propose(self, k, tokens, lengths):")
    found = only(new, hook("draft = draft[:1]"))
    assert (found.kind, found.name, found.breaks) == ("signature", f"{NGRAM}.propose", False)
    assert found.why == "the function that the hunk stands in gained k (required)"
    assert (found.old, found.new) == ("(self, tokens, lengths)", "(self, k, tokens, lengths)")


def test_the_function_of_a_hunk_is_gone() -> None:
    new = change(PROPOSER, "def propose(self, tokens, lengths", "def draft(self, tokens, lengths")
    found = only(new, hook("draft = draft[:1]"))
    assert (found.kind, found.name, found.breaks) == ("gone", f"{NGRAM}.propose", True)
    assert found.hint == f"{NGRAM} now has it from vllm.v1.proposer.Base"


def test_the_class_of_a_hunk_is_gone() -> None:
    new = change(PROPOSER, "class NgramProposer(Base)", "class LookupProposer(Base)")
    new["vllm/v1/other.py"] = "\nclass NgramProposer:\n    pass\n"
    found = only(new, hook("draft = draft[:1]"))
    assert (found.kind, found.name, found.breaks) == ("gone", NGRAM, True)
    assert found.hint == "vllm/v1/other.py:2"


def test_a_hunk_that_only_takes_lines_away_stands_somewhere_too() -> None:
    after = OLD[PROPOSER].replace("        draft = found[: self.k]\n        return draft\n", "")
    removes = patch("fix", diff(PROPOSER, OLD[PROPOSER], after))
    new = change(PROPOSER, "propose(self, tokens, lengths):", "propose(self, k, tokens, lengths):")
    assert ("signature", f"{NGRAM}.propose", False) in findings(new, removes)


def test_the_class_of_a_hunk_has_other_bases() -> None:
    found = only(
        change(PROPOSER, "NgramProposer(Base)", "NgramProposer"), hook("draft = draft[:1]")
    )
    assert (found.kind, found.name, found.breaks) == ("bases", NGRAM, False)
    assert (found.old, found.new) == ("vllm.v1.proposer.Base", "none")


def test_a_subclass_overrides_the_method_of_a_hunk() -> None:
    fast = "from vllm.v1.proposer import NgramProposer\n\n\nclass Fast(NgramProposer):\n"
    new = {
        **OLD,
        "vllm/v1/fast.py": f"{fast}    def propose(self, tokens, lengths):\n        ...\n",
    }
    found = only(new, hook("draft = draft[:1]"))
    assert (found.kind, found.name, found.breaks) == ("overridden", f"{NGRAM}.propose", False)
    assert found.new == "vllm.v1.fast.Fast"
    calls_it = fast + "    def propose(self, *args):\n        return super().propose(*args)\n"
    assert findings({**OLD, "vllm/v1/fast.py": calls_it}, hook("draft = draft[:1]")) == []
    # Not news: it was there before.
    was = check_symbols([hook("draft = draft[:1]")], Texts(new), Texts(new))
    assert was.findings == ()


# ---- classes that are no longer the ones built


def test_a_class_that_nobody_names_any_more_is_not_built() -> None:
    found = only({**OLD, RUNNER: "class Runner:\n    pass\n"}, hook("draft = draft[:1]"))
    assert (found.kind, found.name, found.breaks) == ("not-built", NGRAM, True)


def test_a_class_that_the_runner_builds_no_longer_is_named_with_its_heir() -> None:
    path, runner = "vllm/v1/proposers.py", "vllm/v1/worker/gpu_model_runner.py"
    fix = patch("fix", diff(path, MINI[path], MINI[path].replace("tokens[-1:]", "tokens[-2:]")))
    new = {**MINI, runner: MINI[runner].replace("NgramProposer()", "SuffixProposer()")}
    (found,) = check_symbols([fix], Texts(MINI), Texts(new)).findings
    assert (found.kind, found.name, found.breaks) == (
        "not-built",
        "vllm.v1.proposers.NgramProposer",
        True,
    )
    assert found.old == "V1 proposer for method ngram"
    assert found.new == "V1 proposer for method ngram: vllm.v1.proposers.SuffixProposer"


def test_a_base_of_what_is_built_is_built_too() -> None:
    path = "vllm/v1/proposers.py"
    old = {**MINI, path: f"class Root:\n    def load(self):\n        return 1\n\n\n{MINI[path]}"}
    old[path] = old[path].replace("class NgramProposer", "class NgramProposer(Root)")
    fix = patch("fix", diff(path, old[path], old[path].replace("return 1", "return 2")))
    assert check_symbols([fix], Texts(old), Texts(old)).findings == ()
    new = {**old, path: old[path].replace("(Root)", "")}
    (found,) = check_symbols([fix], Texts(old), Texts(new)).findings
    assert (found.kind, found.name) == ("not-built", "vllm.v1.proposers.Root")
