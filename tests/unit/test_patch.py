"""Strict application of patches: what fits, and what each misfit is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln.errors import BadInput, JudgedBad, KilnError, Problems
from kiln.pins.model import Pins
from kiln.pins.patch import Patch, PatchFile, PatchVersion, read_series, select
from kiln.pins.project import Project
from kiln.pins.yaml import Document, Map
from kiln.source.apply import Applied, apply_series

SOURCE = b"".join(b"line%d = %d\n" % (n, n) for n in range(1, 21))
CHANGED = SOURCE.replace(b"line10 = 10\n", b"line10 = 'ten'\n")
HEADER = b"--- a/vllm/config/m.py\n+++ b/vllm/config/m.py\n"
HUNK = b"""@@ -8,5 +8,5 @@ def somewhere():
 line8 = 8
 line9 = 9
-line10 = 10
+line10 = 'ten'
 line11 = 11
 line12 = 12
"""
TREE = {"vllm/__init__.py": b"", "vllm/config/m.py": SOURCE}


def apply(tree: Mapping[str, bytes], *patches: bytes) -> Applied:
    series = [PatchFile(f"p{n}", data, f"p{n}.patch") for n, data in enumerate(patches, 1)]
    return apply_series(tree.get, tree.keys(), series)


def errors(tree: Mapping[str, bytes], *patches: bytes) -> list[KilnError]:
    before = dict(tree)
    with pytest.raises(KilnError) as caught:
        apply(tree, *patches)
    assert dict(tree) == before
    error = caught.value
    return list(error.errors) if isinstance(error, Problems) else [error]


def codes(tree: Mapping[str, bytes], *patches: bytes) -> list[str]:
    return [error.code for error in errors(tree, *patches)]


def new_file(path: str, body: bytes = b"x = 1\n") -> bytes:
    name = path.encode()
    return (
        b"diff --git a/%s b/%s\nnew file mode 100644\nindex 0000000..1111111\n" % (name, name)
        + b"--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n" % name
        + b"".join(b"+" + line for line in body.splitlines(keepends=True))
    )


# ---- what fits


def test_a_hunk_that_fits() -> None:
    applied = apply(TREE, HEADER + HUNK)
    assert applied.files == {"vllm/config/m.py": CHANGED}
    (patch,) = applied.patches
    (file,) = patch.files
    assert (patch.id, file.path) == ("p1", "vllm/config/m.py")
    assert file.pre != file.post
    assert len(file.pre) == len(file.post) == 64


def test_a_mail_with_signature_and_a_second_mail() -> None:
    mail = b"From 0123 Mon Sep 17 00:00:00 2001\nSubject: x\n\n - a point\n+ another\n---\n"
    mail += b" vllm/config/m.py | 2 +-\n\ndiff --git a/vllm/config/m.py b/vllm/config/m.py\n"
    mail += b"index 1111111..2222222 100644\n" + HEADER + HUNK + b"-- \n2.39.5\n\n"
    applied = apply(TREE, mail + mail.replace(b"config/m.py", b"new.py").split(b"diff --git")[0])
    assert applied.files["vllm/config/m.py"] == CHANGED


def test_a_series_builds_on_itself_and_its_order_counts() -> None:
    first = HEADER + HUNK
    second = HEADER + HUNK.replace(b"'ten'", b"'TEN'").replace(b"= 10\n", b"= 'ten'\n")
    applied = apply(TREE, first, second)
    assert b"line10 = 'TEN'\n" in (applied.files["vllm/config/m.py"] or b"")
    assert applied.patches[0].files[0].post == applied.patches[1].files[0].pre
    assert codes(TREE, second, first) == ["patch.conflict"]


def test_new_empty_and_deleted_files() -> None:
    empty = (
        b"diff --git a/vllm/a b.py b/vllm/a b.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    )
    deleted = b"--- a/vllm/config/m.py\n+++ /dev/null\n@@ -1,20 +0,0 @@\n"
    deleted += b"".join(b"-" + line for line in SOURCE.splitlines(keepends=True))
    applied = apply(TREE, empty, deleted)
    assert applied.files == {"vllm/a b.py": b"", "vllm/config/m.py": None}
    assert applied.patches[0].files[0].pre == applied.patches[1].files[0].post == ""


def test_a_file_added_before_is_there_and_a_deleted_one_is_not() -> None:
    deleted = b"--- a/vllm/new.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    assert apply(TREE, new_file("vllm/new.py"), deleted).files == {"vllm/new.py": None}
    assert codes(TREE, new_file("vllm/new.py"), deleted, deleted) == ["patch.missing-file"]


def test_p13_bytes_that_are_no_utf8() -> None:
    tree = {"vllm/t.txt": b"caf\xe9\nb\n"}
    patch = b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n@@ -1,2 +1,2 @@\n caf\xe9\n-b\n+\xff\n"
    assert apply(tree, patch).files == {"vllm/t.txt": b"caf\xe9\n\xff\n"}


def test_p14_quoted_path_and_path_with_blanks() -> None:
    name = "vllm/dir é/a b.py"
    tree = {name: b"a = 1\n"}
    quoted = rb'"a/vllm/dir \303\251/a b.py" "b/vllm/dir \303\251/a b.py"'
    old, new = quoted[: len(quoted) // 2], quoted[len(quoted) // 2 + 1 :]
    body = b"@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    git = b"diff --git %s\nindex 1..2 100644\n--- %s\t\n+++ %s\t\n" % (quoted, old, new) + body
    assert apply(tree, git).files == {name: b"a = 2\n"}
    plain = b"--- a/vllm/a b.py\t2020-01-01\n+++ b/vllm/a b.py\t2020-01-01\n" + body
    assert apply({"vllm/a b.py": b"a = 1\n"}, plain).files == {"vllm/a b.py": b"a = 2\n"}


def test_a_lone_carriage_return_ends_no_line() -> None:
    tree = {"vllm/t.txt": b"a\rb\nc\n"}
    patch = b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n@@ -1,2 +1,2 @@\n a\rb\n-c\n+d\n"
    assert apply(tree, patch).files == {"vllm/t.txt": b"a\rb\nd\n"}


# ---- what does not fit


def test_p2_no_fuzz_into_another_class() -> None:
    source = b"class Plain:\n    def size(self):\n        a = 1\n        b = 2\n        return a\n"
    patch = b"--- a/vllm/c.py\n+++ b/vllm/c.py\n@@ -1,5 +1,5 @@\n class Bold:\n"
    patch += (
        b"     def size(self):\n         a = 1\n-        b = 2\n+        b = 3\n         return a\n"
    )
    assert codes({"vllm/c.py": source}, patch) == ["patch.conflict"]
    error = errors({"vllm/c.py": source}, patch)[0]
    assert "! class Bold:" in error.why
    assert "class Plain:" in error.why
    assert error.where == "p1.patch:3"


def test_a_conflict_at_the_end_shows_that_there_is_no_line() -> None:
    short = {"vllm/config/m.py": SOURCE[: SOURCE.index(b"line10")] + b"x = 1\n"}
    assert "(no line)" in errors(short, HEADER + HUNK)[0].why


def test_an_offset_is_told_and_not_taken() -> None:
    moved = {**TREE, "vllm/config/m.py": b"# new\n# lines\n" + SOURCE}
    (error,) = errors(moved, HEADER + HUNK)
    assert error.code == "patch.offset"
    assert isinstance(error, JudgedBad)
    assert "+2 lines" in error.what
    twice = {"vllm/config/m.py": b"# new\n# lines\n" + SOURCE + SOURCE}
    assert "1 more places" in errors(twice, HEADER + HUNK)[0].why


def test_p4_applied_already() -> None:
    tree = {**TREE, "vllm/config/m.py": CHANGED}
    assert codes(tree, HEADER + HUNK) == ["patch.already-applied"]
    assert codes(TREE, HEADER + HUNK, HEADER + HUNK) == ["patch.already-applied"]
    merged_elsewhere = {**TREE, "vllm/config/m.py": b"# upstream\n" + CHANGED}
    assert codes(merged_elsewhere, HEADER + HUNK) == ["patch.already-applied"]
    added = new_file("vllm/new.py")
    assert codes({**TREE, "vllm/new.py": b"x = 1\n"}, added) == ["patch.already-applied"]


def test_p4_all_hunks_of_a_file_applied_is_one_error() -> None:
    hunks = b"@@ -1,2 +1,3 @@\n line1 = 1\n+new = 1\n line2 = 2\n"
    hunks += b"@@ -19,2 +20,2 @@\n line19 = 19\n-line20 = 20\n+line20 = 'x'\n"
    after = apply(TREE, HEADER + hunks).files["vllm/config/m.py"]
    assert after is not None
    assert codes({"vllm/config/m.py": after}, HEADER + hunks) == ["patch.already-applied"]


def test_p6_line_ends() -> None:
    crlf = {**TREE, "vllm/config/m.py": SOURCE.replace(b"\n", b"\r\n")}
    body_crlf = HEADER + HUNK.replace(b"\n", b"\r\n").replace(b"():\r\n", b"():\n")
    assert codes(crlf, HEADER + HUNK) == ["patch.line-endings"]  # (a)
    assert codes(TREE, body_crlf) == ["patch.line-endings"]
    assert "LF there, the patch CR LF" in errors(TREE, body_crlf)[0].why
    assert codes(TREE, (HEADER + HUNK).replace(b"\n", b"\r\n")) == ["patch.line-endings"]  # (b)
    done = apply(crlf, body_crlf).files["vllm/config/m.py"]  # (c)
    assert done == CHANGED.replace(b"\n", b"\r\n")


def test_p17_newline_at_the_end() -> None:
    mark = b"\\ No newline at end of file\n"
    with_newline, without = {"vllm/t.txt": b"a\nb\n"}, {"vllm/t.txt": b"a\nb"}
    head = b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n@@ -1,2 +1,2 @@\n"
    plain = head + b"-a\n+A\n b\n"
    marked = head + b"-a\n+A\n b\n" + mark
    assert apply(with_newline, plain).files == {"vllm/t.txt": b"A\nb\n"}
    assert apply(without, marked).files == {"vllm/t.txt": b"A\nb"}
    assert codes(without, plain) == ["patch.end-newline"]
    assert codes(with_newline, marked) == ["patch.end-newline"]
    only_newline = head + b" a\n-b\n" + mark + b"+b\n"
    assert apply(without, only_newline).files == {"vllm/t.txt": b"a\nb\n"}
    removes = head + b" a\n-b\n+b\n" + mark
    assert codes({"vllm/t.txt": b"a\nb\nc\n"}, removes) == ["patch.no-context"]


def test_p9_all_or_nothing_and_all_failures_of_a_patch() -> None:
    one = {"vllm/one.py": SOURCE, "vllm/two.py": CHANGED.replace(b"line12 = 12", b"x = 1")}
    good, bad = (HEADER.replace(b"config/m", name) + HUNK for name in (b"one", b"two"))
    assert codes(one, good + bad) == ["patch.conflict"]
    three = {**one, "vllm/three.py": SOURCE[10:]}
    worse = HEADER.replace(b"config/m", b"three") + HUNK
    assert codes(three, good, bad + worse) == ["patch.conflict", "patch.offset"]


def test_p12_moved_file_and_new_file_in_a_folder_that_is_gone() -> None:
    tree = {"vllm/__init__.py": b"", "vllm/tool_parsers/hermes.py": SOURCE}
    changes = HEADER.replace(b"config/m.py", b"openai/hermes.py") + HUNK
    (error,) = errors(tree, changes)
    assert error.code == "patch.missing-file"
    assert "vllm/tool_parsers/hermes.py" in error.why
    ambiguous = {**tree, "vllm/other/hermes.py": b""}
    assert errors(ambiguous, changes)[0].why == ""
    (error,) = errors(tree, new_file("vllm/openai/tool_parsers/new.py"))
    assert error.code == "patch.missing-folder"
    assert "vllm/tool_parsers" in error.why


def test_p19_new_file_that_exists_and_deleted_file_that_differs() -> None:
    tree = {**TREE, "vllm/new.py": b"y = 1\n"}
    assert codes(tree, new_file("vllm/new.py")) == ["patch.exists"]
    deleted = b"--- a/vllm/new.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-y = 1\n"
    assert apply(tree, deleted).files == {"vllm/new.py": None}
    tree["vllm/new.py"] += b"z = 1\n"
    assert codes(tree, deleted) == ["patch.conflict"]
    no_lines = b"diff --git a/vllm/new.py b/vllm/new.py\ndeleted file mode 100644\n"
    assert codes(tree, no_lines) == ["patch.conflict"]
    assert apply({"vllm/new.py": b""}, no_lines).files == {"vllm/new.py": None}
    tree["vllm/new.py"] = b"x = 1\n"
    assert codes(tree, deleted) == ["patch.conflict"]


def test_a_hunk_without_context_proves_nothing() -> None:
    bare = b"@@ -10,0 +11 @@\n+line10b = 0\n"
    assert codes(TREE, HEADER + bare) == ["patch.no-context"]
    above_only = b"@@ -10 +10,2 @@\n line10 = 10\n+line10b = 0\n"
    assert codes(TREE, HEADER + above_only) == ["patch.no-context"]
    at_end = b"@@ -20 +20,2 @@\n line20 = 20\n+line21 = 0\n"
    assert apply(TREE, HEADER + at_end).files["vllm/config/m.py"] == SOURCE + b"line21 = 0\n"


def test_a_patch_that_changes_nothing() -> None:
    same = HUNK.replace(b"'ten'", b"10")
    assert codes(TREE, HEADER + same) == ["patch.no-change"]


def test_python_stays_python() -> None:
    (error,) = errors(TREE, HEADER + HUNK.replace(b"+line10 = 'ten'", b"+line10 = ("))
    assert error.code == "patch.syntax"
    assert isinstance(error, BadInput)


# ---- patches that are no good in themselves

CORRUPT = {
    "old count too small": HUNK.replace(b"-8,5", b"-8,3"),
    "old count too large": HUNK.replace(b"-8,5", b"-8,6"),
    "both counts too small": HUNK.replace(b"-8,5 +8,5", b"-8,4 +8,4"),
    "both counts too large": HUNK.replace(b"-8,5 +8,5", b"-8,6 +8,6"),
    "new start shifted": HUNK.replace(b"+8,5", b"+9,5"),
    "line 0": HUNK.replace(b"-8,5 +8,5", b"-0,5 +0,5"),
    "no numbers": HUNK.replace(b"-8,5", b"-x,5"),
    "unknown line": HUNK.replace(b"\n line11", b"\n?line11"),
    "cut off": HUNK[:-20],
    "cut within the last line": HUNK[:-1],
    "only context": HUNK.replace(b"-line10 = 10\n+line10 = 'ten'\n", b" line10 = 10\n"),
    "text behind": HUNK + b"and so on\n",
    "hunk behind a signature": HUNK + b"-- \n2.39\n" + HUNK,
    "overlap": HUNK + HUNK.replace(b"-8,5 +8,5", b"-9,5 +9,5"),
    "marker in the middle": HUNK.replace(b"9 = 9\n", b"9 = 9\n\\ No newline at end of file\n"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_p15_corrupt(name: str) -> None:
    (error,) = errors(TREE, HEADER + CORRUPT[name])
    assert error.code == "patch.corrupt"
    assert isinstance(error, BadInput)


def test_p15_says_the_line() -> None:
    (error,) = errors(TREE, HEADER + HUNK.replace(b"-8,5 +8,5", b"-8,4 +8,4"))
    assert error.where == "p1.patch:9"


GIT = b"diff --git a/vllm/config/m.py b/vllm/config/m.py\n"
REFUSED = {
    "nothing at all": (b"", "patch.corrupt"),
    "prose": (b"Please apply this.\n", "patch.corrupt"),
    "hunk without header": (HUNK, "patch.corrupt"),
    "header without hunk": (HEADER, "patch.corrupt"),
    "second name missing": (GIT + b"--- a/vllm/config/m.py\n" + HUNK, "patch.corrupt"),
    "two different names": (GIT + HEADER.replace(b"/m.py", b"/n.py") + HUNK, "patch.corrupt"),
    "old and new differ": (HEADER.replace(b"b/vllm/config/m", b"b/vllm/m") + HUNK, "patch.corrupt"),
    "new, with old lines": (GIT + b"new file mode 100644\n" + HEADER + HUNK, "patch.corrupt"),
    "no prefix": (HEADER.replace(b"a/", b"").replace(b"b/", b"") + HUNK, "patch.prefix"),
    "binary": (GIT + b"index 1..2 100644\nGIT binary patch\nliteral 3\nabc\n", "patch.binary"),
    "binary, plain": (GIT + b"Binary files a/vllm/x and b/vllm/x differ\n", "patch.binary"),
    "mode": (GIT + b"old mode 100644\nnew mode 100755\n", "patch.mode"),
    "new executable": (new_file("vllm/x.py").replace(b"100644", b"100755"), "patch.mode"),
    "new link": (new_file("vllm/x").replace(b"100644", b"120000"), "patch.not-a-file"),
    "changed link": (GIT + b"index 1..2 120000\n" + HEADER + HUNK, "patch.not-a-file"),
    "submodule": (new_file("vllm/x").replace(b"100644", b"160000"), "patch.not-a-file"),
    "twice": (HEADER + HUNK + HEADER + HUNK, "patch.twice"),
    "rename": (
        b"diff --git a/vllm/config/m.py b/vllm/n.py\nsimilarity index 100%\n"
        b"rename from vllm/config/m.py\nrename to vllm/n.py\n",
        "patch.rename",
    ),
    "new file, named as an old one": (
        GIT + b"new file mode 100644\n" + HEADER + b"@@ -0,0 +1 @@\n+x = 1\n",
        "patch.corrupt",
    ),
    "new file from old lines": (
        b"--- /dev/null\n+++ b/vllm/n.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        "patch.corrupt",
    ),
    "deleted file with lines left": (
        b"--- a/vllm/config/m.py\n+++ /dev/null\n@@ -1 +1 @@\n-line1 = 1\n+x = 2\n",
        "patch.corrupt",
    ),
    "binary before": (
        b"Binary files a/vllm/x and b/vllm/x differ\n" + HEADER + HUNK,
        "patch.corrupt",
    ),
    "only in": (b"Only in b/vllm: x.py\n" + HEADER + HUNK, "patch.corrupt"),
    "open quote": (HEADER.replace(b"a/vllm", b'"a/vllm') + HUNK, "patch.corrupt"),
    "bad escape": (HEADER.replace(b"a/vllm/config/m.py", b'"a/vllm/\\q"') + HUNK, "patch.corrupt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    patch, code = REFUSED[name]
    assert codes(TREE, patch) == [code]


OUTSIDE = ["../evil", "vllm/../evil", "vllm/./m.py", "vllm//m.py", "torch/__init__.py", "vllm",
           "vllm-0.32.0.dist-info/RECORD", "/etc/passwd", "vllm/a\\b", "vllm/"]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_p18_outside_the_package(path: str) -> None:
    assert codes({**TREE, path: b""}, new_file(path)) == ["patch.outside"]


def test_names_that_are_no_utf8_are_refused() -> None:
    patch = new_file("vllm/x.py").replace(b"x.py", b"x\xff.py")
    assert codes(TREE, patch) == ["patch.outside"]


def test_all_malformed_patches_of_a_series_are_reported() -> None:
    mode, link = REFUSED["mode"][0], REFUSED["changed link"][0]
    assert codes(TREE, mode + link, HEADER) == ["patch.mode", "patch.not-a-file", "patch.corrupt"]


# ---- which file of a patch


def spec(*ranges: str) -> Patch:
    versions = tuple(PatchVersion(r, f"{n}.patch") for n, r in enumerate(ranges))
    return Patch(title="t", why="w", origin="o", versions=versions)


@pytest.mark.parametrize(
    ("version", "file"),
    [("0.32.0+cpu", "0.patch"), ("0.23.1rc1.dev748+g2dfaae752", "1.patch"), ("0.24.0", "2.patch")],
)
def test_select(version: str, file: str) -> None:
    patch = spec("==0.32.0", ">0.23.0,<0.24.dev0", ">=0.24.0,<0.25")
    assert select(patch, version, "patch.yaml") == file


def test_select_refuses() -> None:
    for ranges, code in [
        (("==0.32.0",), "patch.no-version"),
        ((">=0.23", "<0.25"), "patch.two-versions"),
        (("about 0.24",), "patch.range"),
    ]:
        with pytest.raises(BadInput) as caught:
            select(spec(*ranges), "0.24.0", "patch.yaml")
        assert caught.value.code == code
    with pytest.raises(BadInput) as caught:
        select(spec("==0.32.0"), "0.24.0", "patch.yaml")
    assert "==0.32.0" in caught.value.why


def project(root: Path, **needs: str) -> Project:
    for name, needed in needs.items():
        folder = root / "patches" / name
        folder.mkdir(parents=True)
        (folder / "patch.yaml").write_text(
            f"title: t\nwhy: w\norigin: o\nneeds: [{needed}]\n"
            'versions: [{range: "==1.0", file: 1.patch}]\n'
        )
        (folder / "1.patch").write_bytes(HEADER + HUNK)
    document = Document("pins.yaml", Pins(default="x", pins={}), Map(1, 1))
    return Project(root, document)


def test_read_series(tmp_path: Path) -> None:
    one = project(tmp_path, base="", more="base")
    series = read_series(one, ["base", "more"], "1.0")
    assert [(p.id, p.file) for p in series] == [
        ("base", "patches/base/1.patch"),
        ("more", "patches/more/1.patch"),
    ]
    assert series[0].data == HEADER + HUNK


def test_read_series_refuses(tmp_path: Path) -> None:
    one = project(tmp_path, base="", more="base")
    (tmp_path / "patches/base/1.patch").unlink()
    for ids, version, expected in [
        (["more"], "1.0", ["patch.needs"]),
        (["more", "base"], "1.0", ["patch.needs", "patch.no-file"]),
        (["base", "more"], "2.0", ["patch.no-version", "patch.no-version"]),
        (["gone"], "1.0", ["pins.unknown-patch"]),
    ]:
        with pytest.raises(KilnError) as caught:
            read_series(one, ids, version)
        error = caught.value
        found = error.errors if isinstance(error, Problems) else (error,)
        assert [e.code for e in found] == expected
