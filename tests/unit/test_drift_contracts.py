"""Planted changes: what stands behind a name of a launch is another thing, and is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiln.drift.contracts import Change, Comparison, Contract, compare_contracts
from kiln.progress import Silent
from tests.helpers.drift import MINI, Texts

TOOLS, HERMES = "vllm/tool_parsers/__init__.py", "vllm/tool_parsers/hermes.py"
ENVS, RUNNER = "vllm/envs.py", "vllm/v1/worker/gpu_model_runner.py"
CONFIG = "vllm/config/speculative.py"
OPS = """\
from vllm.utils import direct_register_custom_op


def _scale(x: torch.Tensor, out: torch.Tensor, by: float = 1.0) -> None:
    out.copy_(x * by)


direct_register_custom_op("scale", _scale, mutates_args=["out"])
"""
BASE = {**MINI, "vllm/ops.py": OPS}


def compare(new: Mapping[str, str], old: Mapping[str, str] = BASE) -> Comparison:
    return compare_contracts(Texts(old, "1.0", "old"), Texts(new, "2.0", "new"), None, Silent())


def changed(path: str, *pairs: tuple[str, str], old: Mapping[str, str] = BASE) -> dict[str, str]:
    """The source with texts of one file replaced."""
    text = old[path]
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    return {**old, path: text}


def told(found: Comparison) -> list[tuple[str, str, str]]:
    return [(c.contract, c.name, c.what) for c in found.changes]


def only(new: Mapping[str, str], old: Mapping[str, str] = BASE) -> Change:
    (change,) = compare(new, old).changes
    return change


def unknown(new: Mapping[str, str], contract: Contract) -> str:
    """Why a contract could not be compared; nothing else of it may be said."""
    found = compare(new)
    assert contract not in found.same
    assert [c for c in found.changes if c.contract == contract] == []
    return found.unknown[contract]


def test_the_same_source_has_the_same_contracts() -> None:
    found = compare(BASE)
    assert found.changes == ()
    assert found.same == {
        "tool-parser": 2,
        "reasoning-parser": 1,
        "proposer-v1": 2,
        "environment": 2,
        "python-op": 1,
    }
    assert found.unknown.keys() == {"compiled-op"}  # texts have no libraries, and it is said
    assert found.unread == {}


# ---- parsers


def test_a_remapped_parser_is_found_and_named() -> None:
    new = changed(
        TOOLS, ('"vllm.tool_parsers.qwen", "Qwen"', '"vllm.tool_parsers.hermes", "Hermes"')
    )
    change = only(new)
    assert (change.contract, change.name, change.what) == ("tool-parser", "qwen", "remapped")
    assert change.old == "vllm.tool_parsers.qwen.Qwen"
    assert change.new == "vllm.tool_parsers.hermes.Hermes"
    assert change.why == "the same name is served by another class"


def test_a_class_of_the_same_name_in_another_module_is_told_with_what_is_left_of_it() -> None:
    body = "".join(f"    a{n} = {n}\n" for n in range(10))
    old = {**BASE, HERMES: f"class Hermes:\n{body}"}
    new = changed(TOOLS, ('"vllm.tool_parsers.hermes"', '"vllm.tool_parsers.fast"'), old=old)
    new["vllm/tool_parsers/fast.py"] = "class Hermes:\n    a1 = 1\n    b = 2\n"
    change = only(new, old)
    assert (change.name, change.what) == ("hermes", "remapped")
    assert change.why == (
        "the same class name from another module; 2 of 11 lines are still among its 3"
    )


def test_a_class_that_was_written_anew_is_found() -> None:
    body = "".join(f"    a{n} = {n}\n" for n in range(10))
    old = {**BASE, HERMES: f"class Hermes:\n{body}"}
    change = only({**BASE, HERMES: "class Hermes:\n    a1 = 1\n"}, old)
    assert (change.name, change.what) == ("hermes", "rewritten")
    assert change.why == "the same class, written anew: 2 of 11 lines are still among its 2"
    grown = {**BASE, HERMES: f"class Hermes:\n{body}{body.replace('a', 'b')}    # more\n"}
    assert compare(grown, old).changes == ()


def test_the_work_of_a_class_that_moved_into_a_factory_s_engine_is_found() -> None:
    body = "".join(f"    a{n} = {n}\n" for n in range(10))
    old = {**BASE, HERMES: f"class Hermes:\n{body}"}
    new = {
        **BASE,
        HERMES: "from vllm.adapters import HermesAdapter\n\n\n"
        "class Hermes(HermesAdapter):\n    tag = 1\n",
        "vllm/adapters.py": "from vllm.engine import HermesEngine\n\n"
        "(HermesReason, HermesAdapter) = make_adapters(HermesEngine)\n",
        "vllm/engine.py": "class HermesEngine:\n    state = 1\n",
    }
    change = only(new, old)
    assert (change.name, change.what) == ("hermes", "rewritten")
    assert change.why.endswith("; its work is now in vllm.engine.HermesEngine")
    # And when only that engine changes, the name's own file does not.
    again = {**new, "vllm/engine.py": "class HermesEngine:\n    a = 1\n    b = 1\n    c = 1\n"}
    again["vllm/engine.py"] += "".join(f"    more{n} = 1\n" for n in range(9))
    assert (only(new, again).name, only(new, again).what) == ("hermes", "rewritten")


def test_a_base_that_was_written_anew_is_told_once_for_all_that_have_it() -> None:
    base = "class Base:\n" + "".join(f"    a{n} = {n}\n" for n in range(10))
    head = "from vllm.base import Base\n\n\n"
    classes = {
        HERMES: f"{head}class Hermes(Base):\n    x = 1\n",
        "vllm/tool_parsers/qwen.py": f"{head}class Qwen(Base):\n    y = 1\n",
    }
    old = {**BASE, **classes, "vllm/base.py": base}
    change = only({**old, "vllm/base.py": "class Base:\n    b = 1\n"}, old)
    assert (change.name, change.what) == ("hermes, qwen", "rewritten")
    assert change.old == "vllm.base.Base"
    broken = compare({**old, "vllm/base.py": "class Base\n"}, old)
    (place,) = broken.unread["tool-parser"]
    assert place.startswith("new: vllm/base.py cannot be parsed")


def test_names_that_come_and_go_are_found() -> None:
    new = changed(TOOLS, ('"qwen", "vllm', '"qwen3", "vllm'))
    assert told(compare(new)) == [
        ("tool-parser", "qwen", "gone"),
        ("tool-parser", "qwen3", "added"),
    ]


TABLE = """\
from vllm.tool_parsers.manager import ToolParserManager

_TABLE = {
    "hermes": ("hermes", "Hermes"),
    "qwen": (
        "qwen",  # file
        "Qwen",
    ),
}


def register():
    for name, (file, class_name) in _TABLE.items():
        path = f"vllm.tool_parsers.{file}"
        ToolParserManager.register_lazy_module(name, path, class_name)


register()
"""
LAZY = 'ToolParserManager.register_lazy_module("qwen", "vllm.tool_parsers.qwen", "Qwen")'
WITHOUT_QWEN = BASE[TOOLS].replace(LAZY, "")
QWEN = BASE["vllm/tool_parsers/qwen.py"]
QWEN_FILE, MANAGER = "vllm/tool_parsers/qwen.py", "ToolParserManager"
FORMS = {
    "table": {TOOLS: TABLE},
    "keywords": {
        TOOLS: BASE[TOOLS].replace(
            '("qwen", "vllm.tool_parsers.qwen", "Qwen")',
            '(class_name="Qwen", name="qwen", module_path="vllm.tool_parsers" + ".qwen")',
        )
    },
    "decorator": {
        TOOLS: WITHOUT_QWEN,
        QWEN_FILE: f'@{MANAGER}.register_module("qwen")\n{QWEN}',
    },
    "decorator-names": {
        TOOLS: WITHOUT_QWEN,
        QWEN_FILE: f'@{MANAGER}.register_module(["qwen"], force=True)\n{QWEN}',
    },
    "call": {
        TOOLS: WITHOUT_QWEN,
        QWEN_FILE: f'{QWEN}\n\n{MANAGER}.register_module(name="qwen", module=Qwen)\n',
    },
    "item": {
        TOOLS: BASE[TOOLS].replace(
            LAZY, f'{MANAGER}.lazy_parsers["qwen"] = ("vllm.tool_parsers.qwen", "Qwen")'
        )
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_register_a_parser_is_read(form: str) -> None:
    new = {**BASE, **FORMS[form]}
    assert new != BASE
    found = compare(new)
    assert found.changes == ()
    assert found.same["tool-parser"] == 2
    assert found.unread == {}


def test_a_registration_that_cannot_be_read_is_named_and_casts_doubt() -> None:
    new = changed(TOOLS, ('"qwen", "vllm', 'NAMES[1], "vllm'))
    found = compare(new)
    assert found.unread == {"tool-parser": (f"new: {TOOLS}:4",)}
    assert told(found) == [("tool-parser", "qwen", "gone")]
    assert found.changes[0].why.endswith(f"unless it is at {TOOLS}:4")


def test_a_registry_that_cannot_be_read_is_unknown() -> None:
    why = unknown({**BASE, TOOLS: "from vllm.somewhere import ToolParserManager\n"}, "tool-parser")
    assert why == (
        "new: no registration with ToolParserManager can be read (it was in vllm/tool_parsers/)"
    )
    why = unknown({**BASE, TOOLS: f"{BASE[TOOLS]}(\n"}, "tool-parser")
    assert "cannot be parsed" in why


def test_a_class_that_is_not_there_is_told() -> None:
    new = changed(TOOLS, ('"Qwen"', '"Qwen4"'))
    assert only(new).new == "vllm.tool_parsers.qwen.Qwen4 (which is not there)"


def test_a_whole_parser_that_the_manager_makes_for_a_name_is_told() -> None:
    manager = """\
HF = "hermes"


class ParserManager:
    def get_parser(self, tool_parser_name):
        if tool_parser_name in (HF, "other"):
            from vllm.parser.whole import WholeParser

            class _Whole(WholeParser):
                pass

            return _Whole
        return None
"""
    new = {
        **BASE,
        "vllm/parser/parser_manager.py": manager,
        "vllm/parser/whole.py": "class WholeParser:\n    pass\n",
    }
    change = only(new)
    assert (change.name, change.what) == ("hermes", "remapped")
    assert change.new.endswith("hermes.Hermes, within vllm.parser.whole.WholeParser")
    assert change.why == "now also vllm.parser.whole.WholeParser"


# ---- the speculative method's proposer


def test_another_proposer_for_a_method_is_found() -> None:
    change = only(changed(RUNNER, ("NgramProposer()", "SuffixProposer()")))
    assert (change.contract, change.name, change.what) == ("proposer-v1", "ngram", "remapped")
    assert change.new == "vllm.v1.proposers.SuffixProposer"


def test_a_condition_that_the_method_leaves_open_is_told() -> None:
    new = changed(
        RUNNER,
        (
            'if self.speculative_config.method == "ngram":',
            "if self.speculative_config.fast():\n                self.drafter = SuffixProposer()\n"
            '            elif self.speculative_config.method == "ngram":',
        ),
    )
    new[CONFIG] += (
        "\n    def fast(self):\n        if self.method != \"ngram\":\n            return False\n"
        "        return self.prompt_lookup_min > 3\n"
    )  # fmt: skip
    change = only(new)
    assert (change.name, change.new) == (
        "ngram",
        "vllm.v1.proposers.SuffixProposer if self.speculative_config.fast(); "
        "else vllm.v1.proposers.NgramProposer",
    )


def test_methods_of_the_config_decide_for_the_method() -> None:
    new = changed(RUNNER, ('.method == "suffix"', ".use_suffix()"))
    new[CONFIG] += '\n    def use_suffix(self):\n        return self.method in ("suffix", "tree")\n'
    assert compare(new).changes == ()


def test_a_method_that_is_refused_has_no_proposer() -> None:
    new = changed(RUNNER, ("self.drafter = SuffixProposer()", 'raise ValueError("no")'))
    assert told(compare(new)) == [("proposer-v1", "suffix", "gone")]


@pytest.mark.parametrize(
    ("path", "before", "after", "why"),
    [
        (RUNNER, "self.drafter = ", "self.proposer = ", "no file builds self.drafter"),
        (RUNNER, "SuffixProposer()\n", "MAKERS[config]()\n", "no telling what"),
        (RUNNER, "            if self", "            for _ in ():\n                self.drafter = "
         "NgramProposer()\n            if self", "a choice inside of For"),
        (CONFIG, "SpeculativeMethod = ", "Method = ", "has no SpeculativeMethod"),
        (CONFIG, "class SpeculativeConfig", "class SpecConfig", "has no class SpeculativeConfig"),
        (CONFIG, "class ", "(class ", "cannot be parsed"),
    ],
    ids=["attribute", "maker", "loop", "methods", "config", "syntax"],
)  # fmt: skip
def test_a_choice_that_cannot_be_read_is_unknown(
    path: str, before: str, after: str, why: str
) -> None:
    assert why in unknown(changed(path, (before, after)), "proposer-v1")


def test_the_second_runner_is_read_where_there_is_one() -> None:
    path = "vllm/v1/worker/gpu/spec_decode/__init__.py"
    build = """\
def init_speculator(config):
    speculative_config = config.speculative_config
    if speculative_config.method == "ngram":
        from vllm.v1.proposers import NgramProposer

        return NgramProposer(config)
    else:
        raise NotImplementedError
"""
    with_v2 = {**BASE, path: build}
    assert told(compare(with_v2)) == [("proposer-v2", "ngram", "added")]
    other = {**BASE, path: build.replace("NgramProposer", "SuffixProposer")}
    assert told(compare(other, with_v2)) == [("proposer-v2", "ngram", "remapped")]
    broken = {**BASE, "vllm/v1/worker/gpu/model_runner.py": ""}
    assert "init_speculator is in no file" in unknown(broken, "proposer-v2")
