"""Taking patches in from elsewhere: hostile until read, and never put where they do not fit."""

from __future__ import annotations

import base64
import quopri
from pathlib import Path

import pytest

from kiln.authoring.incoming import Imported, take_all
from kiln.authoring.mbox import MAX_BYTES, MAX_MAILS, read_mails
from kiln.authoring.scaffold import About
from kiln.errors import BadInput, KilnError, Problems
from kiln.pins.patch import read_document
from tests.helpers.patch_work import Bench, added, change, make_bench, numbered
from tests.unit.test_authoring_save import built, in_tree, quiet

FIRST = """\
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: Jane Doe <jane@example.org>
Date: Tue, 2 Jun 2026 10:00:00 +0200
Subject: [PATCH] [Bugfix] Count to five: twice (#12345)

Because four is not enough.

Signed-off-by: Jane Doe <jane@example.org>
---
 vllm/other.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

"""
OTHER = numbered("other")
DIFF = change("vllm/other.py", OTHER, 5, "other_5 = 'five'")
SIGNATURE = "-- \n2.44.0\n\n"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = make_bench(tmp_path)
    bench.edit()
    return bench


def take(bench: Bench, text: str | bytes, *ids: str, **options: object) -> list[Imported]:
    data = text.encode() if isinstance(text, str) else text
    shift = bool(options.pop("shift", False))
    about = About(**options)  # type: ignore[arg-type]
    mails = read_mails(data, "x.patch")
    return take_all(bench.work(), ids or ("pr",), mails, about, shift=shift)


def codes(error: BaseException) -> set[str]:
    errors = error.errors if isinstance(error, Problems) else (error,)
    return {each.code for each in errors if isinstance(each, KilnError)}


def test_a_mail_becomes_a_patch_with_what_it_says_of_itself(bench: Bench) -> None:
    (done,) = take(bench, FIRST + DIFF + SIGNATURE)
    assert done.saved is not None
    assert done.saved.written == ("patches/pr/1.0.0.patch",)
    patch = read_document(bench.project, "pr").value
    assert patch.title == "[Bugfix] Count to five: twice"
    assert patch.origin == (
        "vllm-project/vllm pull request 12345; by Jane Doe <jane@example.org>; "
        "signed off by Jane Doe <jane@example.org>"
    )
    assert patch.why.startswith("TODO")
    text = bench.read("patches/pr/1.0.0.patch")
    assert text.startswith("From 0000000000")
    assert "From: Kiln <kiln@localhost>\n" in text
    assert "Subject: pr: [Bugfix] Count to five: twice\n\nBecause four is not enough.\n" in text
    assert "2.44.0" not in text
    assert "1 file changed" not in text
    bench.series("v1", "base", "engine", "config", "pr")
    assert built(bench)["vllm/other.py"] == in_tree(bench, "vllm/other.py")


def test_the_number_of_a_pull_request_may_be_in_the_name_of_the_file() -> None:
    assert read_mails(DIFF.encode(), "/tmp/12345.diff")[0].origin == (
        "vllm-project/vllm pull request 12345"
    )
    assert read_mails(DIFF.encode(), "fix.diff")[0].origin == ""


def test_a_diff_that_says_nothing_needs_an_origin(bench: Bench) -> None:
    before = bench.files()
    with pytest.raises(BadInput) as caught:
        take(bench, DIFF)
    assert caught.value.code == "authoring.no-origin"
    assert bench.files() == before
    (done,) = take(bench, DIFF, origin="a friend's", title="Five")
    assert read_document(bench.project, "pr").value.origin == "a friend's"
    assert bench.commits()[-1] == "pr: Five"
    assert done.saved is not None
    assert done.saved.order[-1] == "pr"


def test_an_mbox_is_one_patch_or_several(bench: Bench) -> None:
    changed = OTHER.replace("other_5 = 5", "other_5 = 'five'")
    second = FIRST.replace("Count to five: twice (#12345)", "Then to six (#12346)")
    second += change("vllm/other.py", changed, 6, "other_6 = 'six'") + SIGNATURE
    cover = FIRST.replace("[PATCH]", "[PATCH 0/2]")
    mbox = cover + SIGNATURE + FIRST + DIFF + SIGNATURE + second
    assert len(read_mails(mbox.encode(), "x")) == 2, "a cover letter is no patch"
    take(bench, mbox, "both")
    text = bench.read("patches/both/1.0.0.patch")
    assert text.count("diff --git") == 1
    assert "'six'" in text
    assert "'five'" in text
    quiet(bench, "reset", "-q", "--hard", "HEAD~1")
    done = take(bench, mbox, "one", "two")
    assert bench.commits()[-2:] == [
        "one: [Bugfix] Count to five: twice",
        "two: [Bugfix] Then to six",
    ]
    assert len(done) == 2
    with pytest.raises(BadInput) as caught:
        take(bench, mbox, "a", "b", "c")
    assert caught.value.code == "authoring.several-mails"


@pytest.mark.parametrize("coding", ["quoted-printable", "base64"])
def test_a_mail_in_another_coding_is_read(bench: Bench, coding: str) -> None:
    head, text = FIRST.split("\n\n", 1)
    whole = (text + DIFF).encode()
    body = quopri.encodestring(whole) if coding[0] == "q" else base64.encodebytes(whole)
    fields = f"{head}\nContent-Transfer-Encoding: {coding}\nContent-Type: text/plain\n\n"
    take(bench, fields.encode() + body)
    assert "'five'" in bench.read("patches/pr/1.0.0.patch")


def test_parts_of_no_wheel_are_listed_and_left_out_when_asked(bench: Bench) -> None:
    text = FIRST + DIFF + added("tests/test_x.py", "assert 1\n") + added("docs/x.md", "x\n")
    before = bench.files()
    with pytest.raises(BadInput) as caught:
        take(bench, text)
    assert caught.value.code == "authoring.outside"
    assert "tests/test_x.py" in caught.value.why
    assert "docs/x.md" in caught.value.why
    assert "--leave-out 'tests/**' --leave-out 'docs/**'" in caught.value.fix
    assert bench.files() == before
    (done,) = take(bench, text, leave_out=("tests/**", "docs/**"))
    assert done.notes == ("pr: left out: tests/test_x.py", "pr: left out: docs/x.md")
    assert read_document(bench.project, "pr").value.leave_out == ("tests/**", "docs/**")
    bench.series("v1", "base", "engine", "config", "pr")
    assert "vllm/other.py" in built(bench)


@pytest.mark.parametrize(
    ("globs", "wanted"),
    [
        (("tests/**", "nothing/**"), {"patch.leave-out-unused"}),
        (("tests/**", "vllm/other.py"), {"patch.leave-out-hides"}),
        (("**",), {"patch.leave-out-hides"}),
    ],
)
def test_leave_out_hides_nothing(bench: Bench, globs: tuple[str, ...], wanted: set[str]) -> None:
    text = FIRST + DIFF + added("tests/test_x.py", "assert 1\n")
    with pytest.raises(KilnError) as caught:
        take(bench, text, leave_out=globs)
    assert codes(caught.value) == wanted


HOSTILE = {
    "up": (DIFF.replace("vllm/other.py", "vllm/../../../etc/passwd"), {"authoring.outside"}),
    "absolute": (DIFF.replace("/vllm/other.py", "//etc/passwd"), {"authoring.outside"}),
    "git": (added("vllm/.git/hooks/post-commit", "touch /tmp/evil\n"), {"patch.missing-folder"}),
    "outer git": (added(".git/hooks/post-commit", "touch /tmp/evil\n"), {"authoring.outside"}),
    "link": (
        "diff --git a/vllm/l.py b/vllm/l.py\nnew file mode 120000\n--- /dev/null\n+++ b/vllm/l.py\n"
        "@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n",
        {"patch.link"},
    ),
    "binary": (
        "diff --git a/vllm/data.so b/vllm/data.so\nindex 1111111..2222222 100644\n"
        "Binary files a/vllm/data.so and b/vllm/data.so differ\n",
        {"patch.binary"},
    ),
    "counts": (DIFF.replace("@@ -2,7 +2,7 @@", "@@ -2,8 +2,8 @@"), {"patch.corrupt"}),
    "crlf": (DIFF.replace("\n", "\r\n"), {"patch.line-endings"}),
    "twice": (DIFF + DIFF, {"patch.twice"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_changes_nothing(bench: Bench, name: str) -> None:
    diff, wanted = HOSTILE[name]
    before, head = bench.files(), quiet(bench, "rev-parse", "HEAD")
    with pytest.raises(KilnError) as caught:
        take(bench, FIRST + diff)
    found = codes(caught.value)
    assert found == wanted
    assert (bench.files(), quiet(bench, "rev-parse", "HEAD")) == (before, head)
    assert bench.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"x" * (MAX_BYTES + 1), "authoring.too-large"),
        (FIRST.encode() * (MAX_MAILS + 1), "authoring.too-large"),
        (b"diff --git a/vllm/x b/vllm/x\n\0", "authoring.not-a-patch"),
        (b"", "authoring.not-a-patch"),
        (FIRST.encode(), "authoring.not-a-patch"),
        (b"From: x\nContent-Type: multipart/mixed\n\n" + DIFF.encode(), "authoring.mail"),
        (b"From: x\nContent-Transfer-Encoding: x-uue\n\n" + DIFF.encode(), "authoring.mail"),
    ],
)  # fmt: skip
def test_what_is_no_patch_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_mails(data, "x.patch")
    assert (caught.value.code, caught.value.where) == (code, "x.patch")


def test_what_fits_elsewhere_is_refused_unless_asked_for(bench: Bench) -> None:
    longer = "import os\n" * 4 + OTHER
    text = FIRST + change("vllm/other.py", longer, 12, "other_8 = 'eight'")
    before = bench.files()
    with pytest.raises(KilnError) as caught:
        take(bench, text)
    assert codes(caught.value) == {"patch.offset"}
    assert bench.files() == before
    (done,) = take(bench, text, shift=True)
    assert done.notes == ("pr: vllm/other.py: the hunk for line 9 stands at line 5",)
    assert "@@ -5,7 +5,7 @@" in bench.read("patches/pr/1.0.0.patch")


def test_what_stands_at_two_places_is_not_shifted(bench: Bench) -> None:
    for version in ("1.0.0",):
        path = bench.src / version / "vllm/other.py"
        path.write_text(OTHER + OTHER)
    work = bench.root / ".work"
    work.rename(bench.root / "old")
    bench.edit()
    text = FIRST + change("vllm/other.py", "import os\n" * 4 + OTHER, 12, "other_8 = 'eight'")
    with pytest.raises(KilnError) as caught:
        take(bench, text, shift=True)
    assert codes(caught.value) == {"patch.offset"}


def test_what_changed_is_answered_as_a_build_would(bench: Bench) -> None:
    wrong = OTHER.replace("other_4", "another_4")
    with pytest.raises(KilnError) as caught:
        take(bench, FIRST + change("vllm/other.py", wrong, 5, "x = 1"), shift=True)
    assert codes(caught.value) == {"patch.conflict"}
    assert "the patch expects" in caught.value.why


def indexed(bench: Bench, diff: str, old: str) -> str:
    """The diff with git's name of the file that it was made against, as a .diff has it."""
    (bench.root / "old").write_text(old)
    name = quiet(bench, "hash-object", "-w", str(bench.root / "old")).strip()
    line = f"index {name[:10]}..{'1' * 10} 100644\n--- a/"
    return diff.replace("--- a/", line, 1)


def test_known_files_are_merged(bench: Bench) -> None:
    older = "import os\n" * 4 + OTHER.replace("other_7", "other_seven")
    diff = indexed(bench, change("vllm/other.py", older, 16, "other_12 = 'twelve'"), older)
    (done,) = take(bench, FIRST + diff)
    assert done.saved is not None
    assert not done.conflict
    assert "read it" in done.notes[0]
    assert b"other_12 = 'twelve'" in in_tree(bench, "vllm/other.py")
    assert b"other_7 = 7" in in_tree(bench, "vllm/other.py")
    assert bench.commits()[-1].startswith("pr: ")


def test_known_files_that_conflict_leave_a_normal_state(bench: Bench) -> None:
    older = OTHER.replace("other_11 = 11", "other_11 = 'eleven'")
    diff = indexed(bench, change("vllm/other.py", older, 12, "other_12 = 'twelve'"), older)
    (done,) = take(bench, FIRST + diff)
    assert dict(done.conflict) == {"vllm/other.py": "both changed the same lines"}
    assert done.waits
    assert done.saved is None
    assert "cherry-pick" in bench.git("status")
    path = bench.root / ".work/v1/vllm/other.py"
    path.write_text(OTHER.replace("other_12 = 12", "other_12 = 'twelve'"))
    bench.git("add", "-u")
    out = bench.git("cherry-pick", "--continue", GIT_EDITOR=":")
    assert "wrote patches/pr/1.0.0.patch" in out
    assert bench.commits()[-1].startswith("pr: ")


def test_what_the_sources_have_already_makes_nothing(bench: Bench) -> None:
    older = OTHER.replace("other_12 = 12", "other_12 = 'twelve'")
    diff = indexed(bench, change("vllm/other.py", older, 12, "other_12 = 12"), older)
    before, head = bench.files(), quiet(bench, "rev-parse", "HEAD")
    with pytest.raises(BadInput) as caught:
        take(bench, FIRST + diff)
    assert caught.value.code == "authoring.nothing-new"
    assert (bench.files(), quiet(bench, "rev-parse", "HEAD")) == (before, head)
    assert bench.git("status", "--porcelain") == ""


def test_a_patch_that_is_there_is_not_taken_twice(bench: Bench) -> None:
    take(bench, FIRST + DIFF)
    with pytest.raises(BadInput) as caught:
        take(bench, FIRST + DIFF)
    assert caught.value.code == "authoring.patch-exists"
    with pytest.raises(KilnError) as refused:
        take(bench, FIRST + DIFF, "again")
    assert codes(refused.value) == {"patch.already-applied"}


def test_uncommitted_changes_are_not_swept_away(bench: Bench) -> None:
    bench.replace("vllm/config.py", "config_1 = 1", "config_1 = 'mine'")
    with pytest.raises(BadInput) as caught:
        take(bench, FIRST + DIFF)
    assert caught.value.code == "authoring.uncommitted"
    assert b"mine" in in_tree(bench, "vllm/config.py")


def test_the_command_line_reads_a_pipe(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "12345.patch"
    path.write_text(FIRST + DIFF)
    done = bench.kiln("patch", "import", str(path), "--id", "pr", "--pin", "v1", "--write-pin")
    assert done.returncode == 0, done.stderr
    assert "wrote patches/pr/1.0.0.patch" in done.stdout
    assert "config, pr]" in bench.read("pins.yaml")
    listed = bench.kiln("patch", "list", "v1").stdout
    assert "pr  [Bugfix] Count to five: twice" in listed
