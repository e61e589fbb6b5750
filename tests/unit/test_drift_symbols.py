"""Planted changes: a name on which a patch relies is gone, and is found and named."""

from __future__ import annotations

import pytest

from kiln.drift.symbols import check_symbols
from kiln.errors import KilnError
from tests.helpers.drift import Texts, diff, patch
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
USES_ALL = hook(
    "from vllm.utils import LIMIT, clamp",
    "if self.config.is_ngram() and self.config.tokens < LIMIT:",
    "    draft = draft[: clamp(self.width(len(lengths)), 1)]",
)


def test_nothing_is_said_where_nothing_changed() -> None:
    found = check(OLD, USES_ALL)
    assert found.findings == ()
    assert found.checked > 8
    assert found.unresolved == 0


def test_a_function_that_moved_is_gone_with_a_hint_where_it_is() -> None:
    new = {**OLD, UTILS: "LIMIT = 8\n", "vllm/helpers/maths.py": f"# moved\n{OLD[UTILS]}"}
    found = only(new, USES_ALL)
    assert (found.kind, found.name, found.breaks) == ("gone", "vllm.utils.clamp", True)
    assert found.hint == "vllm/helpers/maths.py:5"
    assert found.patch == "fix"
    assert found.places == ("patches/fix/1.0.patch:7",)


def test_a_module_that_moved_is_gone_with_a_hint_where_it_is() -> None:
    new = {path: text for path, text in OLD.items() if path != UTILS}
    new["vllm/tools/utils.py"] = OLD[UTILS]
    found = only(new, hook("import vllm.utils", "vllm.utils.clamp(1, 2)"))
    assert (found.kind, found.name) == ("gone", "vllm.utils")
    assert found.hint == "vllm/tools/utils.py"
    found = only(new, hook("from vllm.utils import LIMIT"))
    assert found.why == "its module is not there any more"


@pytest.mark.parametrize(
    ("path", "before", "after", "name"),
    [
        (PROPOSER, "def width(", "def breadth(", f"{NGRAM}.width"),
        (PROPOSER, "self.k = config.tokens", "self.most = config.tokens", f"{NGRAM}.k"),
        (CONFIG, "def is_ngram(", "def uses_ngram(", "vllm.config.spec.SpecConfig.is_ngram"),
        (CONFIG, "tokens: int", "most: int", "vllm.config.spec.SpecConfig.tokens"),
        (UTILS, "LIMIT = 8", "MOST = 8", "vllm.utils.LIMIT"),
        (PROPOSER, "tokens, lengths):", "tokens, sizes):", f"{NGRAM}.propose:lengths"),
        (PROPOSER, "draft = ", "result = ", f"{NGRAM}.propose:draft"),
        (PROPOSER, "import SpecConfig", "import SpecConfig as C", "vllm.v1.proposer.SpecConfig"),
    ],
    ids=["method", "attribute", "method-of-attribute", "field", "constant", "parameter", "local",
         "module-name"],
)  # fmt: skip
def test_each_kind_of_name_that_goes_is_found(
    path: str, before: str, after: str, name: str
) -> None:
    uses = hook(
        "from vllm.utils import LIMIT",
        "self.config.is_ngram(); self.config.tokens; self.width(1); self.k",
        "SpecConfig; lengths; draft",
    )
    found = findings(change(path, before, after), uses)
    assert ("gone", name, True) in found
    assert all(kind in ("gone", "signature") for kind, _, _ in found)


def test_like_named_members_are_a_hint() -> None:
    found = only(change(PROPOSER, "def width(", "def widths("), hook("self.width(1)"))
    assert found.hint == "the class has widths"
    assert found.why == "it is not there any more"


def test_all_places_of_a_name_are_one_finding() -> None:
    new = change(PROPOSER, "def width(", "def breadth(")
    found = only(new, hook("self.width(1)", "", "self.width(2)"))
    assert [place.rpartition(":")[2] for place in found.places] == ["7", "9"]


def test_what_breaks_comes_first() -> None:
    new = change(PROPOSER, "class NgramProposer(Base):", "class NgramProposer:")
    new[UTILS] = "LIMIT = 8\n"
    assert [f.breaks for f in check(new, USES_ALL).findings] == [True, False]


# ---- what the series itself has


def test_names_that_the_series_adds_are_its_own() -> None:
    text = "class Own:\n    def start(self):\n        self.speed = 1\n        return self.speed\n"
    uses = hook("from vllm import _own", "self.mine = _own.Own()", "self.mine.start().speed")
    assert findings(OLD, module(text, name="one"), uses) == []


def test_an_attribute_that_an_earlier_patch_adds_is_its_own() -> None:
    line = "        draft = found[: self.k]\n"
    after = OLD[PROPOSER].replace(line, f"{line}        self.seen = 1\n")
    second = patch("two", diff(PROPOSER, after, after.replace("min(self.k, most)", "self.seen")))
    assert findings(OLD, hook("self.seen = 1", name="one"), second) == []


def test_what_neither_source_nor_series_has_is_absent() -> None:
    found = findings(OLD, hook("self.nonsense()", "from vllm.utils import nothing"))
    assert found == [
        ("absent", "vllm.utils.nothing", True),
        ("absent", f"{NGRAM}.nonsense", True),
    ]


def test_what_only_the_new_source_has_is_no_finding() -> None:
    new = change(UTILS, "LIMIT = 8", "LIMIT = 8\nNEW = 1")
    assert findings(new, hook("from vllm.utils import NEW")) == []


# ---- what is handed on to files of the series


def test_types_follow_calls_into_files_of_the_series() -> None:
    text = """\
from typing import Any


def apply(proposer: Any, more) -> None:
    later(proposer.config)


def later(config) -> None:
    config.is_ngram()
"""
    uses = hook("from vllm import _own", "_own.apply(self, 1)")
    series = module(text, name="one"), uses
    assert findings(OLD, *series) == []
    both = change(CONFIG, "def is_ngram(", "def uses_ngram(")
    assert findings(both, patch("fix", *(p.data.decode() for p in series))) == [
        ("gone", "vllm.config.spec.SpecConfig.is_ngram", True)
    ]


def test_functions_that_nobody_calls_are_looked_at_by_their_annotations() -> None:
    text = (
        "from vllm.config import SpecConfig\n\n\ndef f(c: SpecConfig | None):\n    c.is_ngram()\n"
    )
    new = change(CONFIG, "def is_ngram(", "def uses_ngram(")
    assert findings(new, module(text)) == [("gone", "vllm.config.spec.SpecConfig.is_ngram", True)]


def test_texts_that_name_things_of_vllm_count() -> None:
    new = change(UTILS, "def clamp(", "def limit(")
    assert findings(new, hook('self.where = "vllm.utils.clamp"')) == [
        ("gone", "vllm.utils.clamp", True)
    ]
    assert findings(new, hook('self.where = "vllm.no.such.thing"')) == []


# ---- where the patch minds


@pytest.mark.parametrize(
    "lines",
    [
        ("try:", "    from vllm.utils import clamp", "except ImportError:", "    clamp = None"),
        ("from vllm import utils", 'getattr(utils, "clamp", None)'),
        ("from vllm import utils", 'hasattr(utils, "clamp")'),
    ],
    ids=["import-error", "default", "hasattr"],
)
def test_a_patch_that_goes_on_without_it_does_not_break(lines: tuple[str, ...]) -> None:
    new = change(UTILS, "def clamp(", "def limit(")
    assert findings(new, hook(*lines)) == [("gone", "vllm.utils.clamp", False)]


def test_getattr_without_a_default_breaks() -> None:
    new = change(UTILS, "def clamp(", "def limit(")
    found = findings(new, hook("from vllm import utils", 'getattr(utils, "clamp")'))
    assert found == [("gone", "vllm.utils.clamp", True)]


# ---- what cannot be told


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (PROPOSER, "    def width(", "    def __getattr__(self, name):\n        ...\n\n    def w("),
        (PROPOSER, "class NgramProposer(Base):", "class NgramProposer(Base, Mixin):"),
        (
            PROPOSER,
            "        self.k = ",
            '        setattr(self, "wid" + "th", 1)\n        self.k = ',
        ),
        (RUNNER, "(config)\n", "(config)\n        self.drafter.width = len\n"),
    ],
    ids=["getattr", "foreign-base", "setattr", "set-from-outside"],
)
def test_a_name_that_may_still_be_there_is_only_counted(path: str, before: str, after: str) -> None:
    new = change(path, before, after)
    new[PROPOSER] = new[PROPOSER].replace("def width(", "def breadth(")
    found = check(new, hook("self.width(1)"))
    assert [f for f in found.findings if f.kind == "gone"] == []
    assert found.unresolved == 1


BELOW = "from vllm.v1.proposer import NgramProposer\n\n\n"
GONE = change(PROPOSER, "def width(", "def breadth(")


@pytest.mark.parametrize(
    "more",
    [
        {"vllm/v1/fast.py": f"{BELOW}class Fast(NgramProposer):\n    def width(self): ...\n"},
        {
            "vllm/v1/fast.py": f"{BELOW}class Mixin:\n    width = 1\n\n\n"
            "class Fast(NgramProposer, Mixin):\n    pass\n"
        },
        {"vllm/v1/fast.py": f"{BELOW}class Fast(NgramProposer, Foreign):\n    pass\n"},
        {PROPOSER: GONE[PROPOSER].replace("(Base):", "(Protocol):")},
        {
            PROPOSER: GONE[PROPOSER].replace(
                "self.k = ", 'self.register("width")\n        self.k = '
            )
        },
    ],
    ids=["subclass", "mixin", "foreign-mixin", "protocol", "quoted"],
)
def test_what_may_be_a_subclass_s_is_only_counted(more: dict[str, str]) -> None:
    found = check({**GONE, **more}, hook("self.width(1)"))
    assert [f for f in found.findings if f.kind == "gone"] == []
    assert found.unresolved == 1
    assert ("gone", f"{NGRAM}.width", True) in findings(GONE, hook("self.width(1)"))


@pytest.mark.parametrize(
    ("kind", "found"),
    [("NgramProposer | None", 1), ("Optional[NgramProposer]", 1), ("NgramProposer | Foreign", 0),
     ("Union[NgramProposer, int]", 0), ("list[NgramProposer]", 0), ("'NgramProposer'", 1),
     ("type[NgramProposer]", 1)],
)  # fmt: skip
def test_a_type_is_what_the_annotation_says(kind: str, found: int) -> None:
    text = f"from vllm.v1.proposer import *\n\n\ndef f(x: {kind}):\n    x.width(x, 1)\n"
    assert len([f for f in check(GONE, module(text)).findings if f.kind == "gone"]) == found


@pytest.mark.parametrize("test", ["isinstance(self.config, Other)", "type(self.config)"])
def test_a_test_of_the_type_around_casts_doubt(test: str) -> None:
    lines = (f"if {test}:", "    self.config.is_ngram()")
    new = change(CONFIG, "def is_ngram(", "def uses_ngram(")
    assert findings(new, hook(*lines)) == []
    assert findings(new, hook("if self.k:", lines[1])) != []


def test_a_patch_that_asks_first_does_not_break() -> None:
    lines = ('if hasattr(self.config, "is_ngram"):', "    self.config.is_ngram()")
    new = change(CONFIG, "def is_ngram(", "def uses_ngram(")
    assert {f.breaks for f in check(new, hook(*lines)).findings} == {False}


def test_compiled_modules_may_have_any_name() -> None:
    old = {**OLD, "vllm/_C.abi3.so": ""}
    uses = hook("from vllm import _C", "from vllm._C import speed", "from vllm import _other_C")
    assert check_symbols([uses], Texts(old), Texts(old)).findings == ()


def test_arguments_without_types_are_counted() -> None:
    found = check(OLD, hook("tokens.anything", "lengths.more.and_more()"))
    assert (found.findings, found.unresolved) == ((), 2)


def test_names_of_comprehensions_are_not_those_around_them() -> None:
    line = "draft = [SpecConfig.no_such for SpecConfig in draft]"
    found = check(OLD, hook(line))
    assert (found.findings, found.unresolved) == ((), 1)


@pytest.mark.parametrize(
    "text",
    ["def broken(:\n", "\0", "(" * 5000, "x = " + "-" * 100_000 + "1\n"],
    ids=["syntax", "nul", "brackets", "depth"],
)
def test_a_file_that_cannot_be_read_proves_nothing(text: str) -> None:
    found = check({**OLD, UTILS: text}, USES_ALL)
    assert found.findings == ()
    assert found.unresolved == 3  # two imports and a call


def test_stars_are_followed() -> None:
    new = {**OLD, UTILS: "from vllm.more import *\n", "vllm/more.py": OLD[UTILS]}
    assert findings(new, USES_ALL) == []
    new["vllm/more.py"] = "LIMIT = 8\n"
    assert findings(new, USES_ALL) == [("gone", "vllm.utils.clamp", True)]


def test_a_circle_of_imports_is_left() -> None:
    new = {**OLD, UTILS: "from vllm.more import LIMIT, clamp\n",
           "vllm/more.py": "from vllm.utils import LIMIT, clamp\n"}  # fmt: skip
    assert findings(new, USES_ALL) == []


def test_stars_in_a_circle_bring_nothing() -> None:
    new = {**OLD, UTILS: "from vllm.more import *\n", "vllm/more.py": "from vllm.utils import *\n"}
    assert ("gone", "vllm.utils.clamp", True) in findings(new, USES_ALL)


@pytest.mark.parametrize(
    "text",
    [
        "if LIMIT:\n    pass\n" + "elif LIMIT:\n    pass\n" * 800,
        "clamp = LIMIT" + ".a" * 800 + "\n",
        "".join(f"class C{n}(C{n + 1}):\n    pass\n" for n in range(500)) + "clamp = C0().a\n",
        "def clamp() -> " + "list[" * 80 + "int" + "]" * 80 + ": ...\n",
        "class a(" * 50_000,
    ],
    ids=["elif", "attributes", "bases", "annotation", "open"],
)
def test_odd_sources_are_read_all_the_same(text: str) -> None:
    found = check({**OLD, UTILS: f"LIMIT = 8\n{text}"}, USES_ALL)
    assert {f.name for f in found.findings} <= {"vllm.utils.clamp"}


def test_variables_of_vllm_envs_are_known_by_its_table() -> None:
    envs = """\
import os

environment_variables = {"VLLM_SPEED": lambda: os.getenv("VLLM_SPEED", "1")}


def __getattr__(name):
    return environment_variables[name]()
"""
    old, uses = {**OLD, "vllm/envs.py": envs}, hook("from vllm import envs", "envs.VLLM_SPEED")
    new = {**OLD, "vllm/envs.py": envs.replace("VLLM_SPEED", "VLLM_PACE")}
    (found,) = check_symbols([uses], Texts(old), Texts(new)).findings
    assert (found.kind, found.name) == ("gone", "vllm.envs.VLLM_SPEED")


def test_names_that_only_type_checkers_see_are_not_there() -> None:
    hidden = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from vllm.m import clamp\n"
    new = {**OLD, UTILS: f"{hidden}LIMIT = 8\n", "vllm/m.py": "def clamp(value, low): ...\n"}
    assert ("gone", "vllm.utils.clamp", True) in findings(new, USES_ALL)


def test_a_series_that_does_not_fit_the_old_source_is_an_error() -> None:
    with pytest.raises(KilnError) as caught:
        check(OLD, patch("fix", diff(UTILS, "LIMIT = 9\n", "LIMIT = 10\n")))
    assert caught.value.code == "patch.conflict"
