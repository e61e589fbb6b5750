"""Strict application of patches: what fits, and what each misfit is called."""

from __future__ import annotations

from kiln.errors import BadInput, JudgedBad
from tests.helpers.patching import (
    CHANGED,
    HEADER,
    HUNK,
    SOURCE,
    TREE,
    apply,
    codes,
    deletion,
    errors,
    new_file,
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
    grown = b"--- a/vllm/new.py\n+++ b/vllm/new.py\n@@ -1 +1,2 @@\n x = 1\n+y = 1\n"
    applied = apply(TREE, new_file("vllm/new.py"), grown)
    assert applied.files == {"vllm/new.py": b"x = 1\ny = 1\n"}
    gone = deletion("vllm/config/m.py", SOURCE)
    (error,) = errors(TREE, gone, HEADER + HUNK)
    assert error.code == "patch.missing-file"
    assert "an earlier patch deletes" in error.what


def test_a_series_that_undoes_itself() -> None:
    """Each patch changes the file; and so nobody would miss that the two do nothing."""
    back = HEADER + HUNK.replace(b"-line10 = 10\n+line10 = 'ten'", b"-line10 = 'ten'\n+line10 = 10")
    other = new_file("vllm/other.py")
    (error,) = errors(TREE, HEADER + HUNK, other, back)
    assert (error.code, error.where) == ("patch.series-no-change", "p1, p3")
    assert "vllm/config/m.py" in error.what
    added, gone = new_file("vllm/new.py"), deletion("vllm/new.py", b"x = 1\n")
    assert codes(TREE, added, gone) == ["patch.series-no-change"]
    assert codes(TREE, added, gone, gone) == ["patch.missing-file"]


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
    assert "line 10, and nowhere else" in error.why
    twice = {"vllm/config/m.py": b"# new\n# lines\n" + SOURCE + SOURCE}
    assert "2 places: lines 10, 30" in errors(twice, HEADER + HUNK)[0].why
    often = {"vllm/config/m.py": b"# new\n# lines\n" + SOURCE * 8}
    assert "8 places: lines 10, 30, 50, 70, 90 and 3 more" in errors(often, HEADER + HUNK)[0].why


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
    mixes = body_crlf.replace(b"'ten'\r\n", b"'ten'\n")  # what (d) would leave behind
    assert codes(crlf, mixes) == ["patch.line-endings"]
    assert codes(TREE, HEADER + HUNK.replace(b"'ten'\n", b"'ten'\r\n")) == ["patch.line-endings"]
    mixed = {**TREE, "vllm/config/m.py": SOURCE.replace(b"line20 = 20\n", b"line20 = 20\r\n")}
    assert b"'ten'\n" in (apply(mixed, HEADER + HUNK).files["vllm/config/m.py"] or b"")


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
    assert codes(one, good, new_file("vllm/three.py"), bad) == ["patch.conflict"]
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
