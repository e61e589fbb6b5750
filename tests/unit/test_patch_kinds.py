"""Modes, renames, copies, links, new and deleted files: all of them, or none."""

from __future__ import annotations

import contextlib

import pytest

from kiln.errors import KilnError
from kiln.source.diff import EXECUTABLE, FILE, LINK
from tests.helpers.patching import (
    CHANGED,
    GIT,
    HEADER,
    HUNK,
    SOURCE,
    TREE,
    apply,
    codes,
    deletion,
    errors,
    link,
    new_file,
    rename,
)

M = "vllm/config/m.py"
RUN = GIT + b"old mode 100644\nnew mode 100755\n"
STOP = GIT + b"old mode 100755\nnew mode 100644\n"
EMPTY = b"diff --git a/vllm/e.py b/vllm/e.py\nnew file mode 100644\nindex 0000000..e69de29\n"
EDITED = b"@@ -8,5 +8,5 @@\n" + HUNK.partition(b"\n")[2]


def files(_: str) -> int:
    return FILE


def copy(old: str, new: str) -> bytes:
    return rename(old, new).replace(b"rename", b"copy")


def test_p8_all_of_its_effects() -> None:
    patch = RUN + rename("vllm/__init__.py", "vllm/init.py") + link("vllm/l.py", b"init.py") + EMPTY
    applied = apply(TREE, patch, modes=files)
    assert applied.files == {
        M: SOURCE,
        "vllm/__init__.py": None,
        "vllm/init.py": b"",
        "vllm/l.py": b"init.py",
        "vllm/e.py": b"",
    }
    assert applied.modes == {
        M: EXECUTABLE,
        "vllm/init.py": FILE,
        "vllm/l.py": LINK,
        "vllm/e.py": FILE,
    }
    locked = {file.path: (bool(file.pre), bool(file.post), file.mode)
              for file in applied.patches[0].files}  # fmt: skip
    assert locked == {
        "vllm/__init__.py": (True, False, ""),
        M: (True, True, "100755"),
        "vllm/e.py": (False, True, ""),
        "vllm/init.py": (False, True, ""),
        "vllm/l.py": (False, True, "120000"),
    }
    assert list(locked) == sorted(locked)


# ---- modes


def test_a_mode_changes_with_and_without_lines() -> None:
    hunk = b"index 1..2\n" + HEADER + HUNK
    applied = apply(TREE, RUN + hunk, modes=files)
    assert (applied.files[M], applied.modes[M]) == (CHANGED, EXECUTABLE)
    applied = apply(TREE, STOP, modes=lambda _: EXECUTABLE)
    assert (applied.files[M], applied.modes[M]) == (SOURCE, FILE)
    applied = apply(TREE, new_file("vllm/x.sh", mode=b"100755"))
    assert applied.modes == {"vllm/x.sh": EXECUTABLE}


def test_a_mode_that_no_patch_names_stays() -> None:
    applied = apply(TREE, HEADER + HUNK, modes=lambda _: EXECUTABLE)
    assert applied.modes == {M: EXECUTABLE}
    assert applied.patches[0].files[0].mode == "100755"
    applied = apply(TREE, rename(M, "vllm/config/n.py"), modes=lambda _: EXECUTABLE)
    assert applied.modes == {"vllm/config/n.py": EXECUTABLE}


def test_a_mode_that_is_there_already() -> None:
    assert codes(TREE, RUN, modes=lambda _: EXECUTABLE) == ["patch.already-applied"]
    assert codes(TREE, RUN, RUN, modes=files) == ["patch.already-applied"]
    assert codes(TREE, RUN, STOP, modes=files) == ["patch.series-no-change"]
    # A source that does not tell modes (a folder) is taken at the patch's word.
    assert apply(TREE, RUN).modes == {M: EXECUTABLE}


# ---- renames and copies


def test_a_rename_with_edits_and_a_patch_to_the_new_name() -> None:
    moved = rename(M, "vllm/config/n.py", EDITED, 95)
    applied = apply(TREE, moved)
    assert applied.files == {M: None, "vllm/config/n.py": CHANGED}
    more = HEADER.replace(b"m.py", b"n.py") + HUNK.replace(b"'ten'", b"'TEN'").replace(
        b"= 10\n", b"= 'ten'\n"
    )
    assert b"'TEN'" in (apply(TREE, moved, more).files["vllm/config/n.py"] or b"")
    assert codes(TREE, moved, HEADER + HUNK) == ["patch.missing-file"]


def test_a_copy_reads_the_file_as_it_was_before_the_patch() -> None:
    patch = HEADER + HUNK + copy(M, "vllm/config/n.py")
    assert apply(TREE, patch).files == {M: CHANGED, "vllm/config/n.py": SOURCE}
    assert apply(TREE, copy(M, "vllm/n.py")).files == {"vllm/n.py": SOURCE}


def test_renames_that_do_not_fit() -> None:
    assert codes(TREE, rename("vllm/gone.py", "vllm/n.py")) == ["patch.missing-file"]
    assert codes(TREE, rename(M, "vllm/__init__.py")) == ["patch.exists"]
    assert codes(TREE, copy(M, "vllm/__init__.py")) == ["patch.exists"]
    assert codes(TREE, rename(M, "vllm/old/m.py")) == ["patch.missing-folder"]
    assert codes(TREE, rename("vllm/m.py", M)) == ["patch.already-applied"]
    other = EDITED.replace(b"line9 = 9", b"line9 = 0")
    assert codes(TREE, rename(M, "vllm/n.py", other, 95)) == ["patch.conflict"]


def test_names_of_renames_may_be_quoted_or_have_blanks() -> None:
    tree = {"vllm/a b.py": b"x = 1\n"}
    assert apply(tree, rename("vllm/a b.py", "vllm/c d e.py")).files == {
        "vllm/a b.py": None, "vllm/c d e.py": b"x = 1\n",
    }  # fmt: skip
    quoted = (
        rb'diff --git a/vllm/a b.py "b/vllm/\303\251.py"' + b"\nsimilarity index 100%\n"
        rb"rename from vllm/a b.py" + b"\n" + rb'rename to "vllm/\303\251.py"' + b"\n"
    )
    assert apply(tree, quoted).files["vllm/é.py"] == b"x = 1\n"


def test_a_rename_to_and_fro_is_no_change() -> None:
    there, back = rename(M, "vllm/n.py"), rename("vllm/n.py", M)
    assert codes(TREE, there, back) == ["patch.series-no-change"] * 2


# ---- new and deleted files


def test_new_empty_and_deleted_files() -> None:
    applied = apply(TREE, EMPTY, deletion(M, SOURCE))
    assert applied.files == {"vllm/e.py": b"", M: None}
    assert applied.patches[0].files[0].pre == applied.patches[1].files[0].post == ""
    plain = b"--- a/vllm/config/m.py\n+++ /dev/null\n@@ -1,20 +0,0 @@\n"
    plain += b"".join(b"-" + line for line in SOURCE.splitlines(keepends=True))
    assert apply(TREE, plain).files == {M: None}


def test_lines_for_a_file_that_is_empty() -> None:
    grows = b"--- a/vllm/__init__.py\n+++ b/vllm/__init__.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert apply(TREE, grows).files == {"vllm/__init__.py": b"x = 1\n"}
    assert codes({"vllm/__init__.py": b"y = 1\n"}, grows) == ["patch.no-context"]
    assert apply(TREE, EMPTY, grows.replace(b"__init__", b"e")).files["vllm/e.py"] == b"x = 1\n"


def test_p19_new_file_that_exists_and_deleted_file_that_differs() -> None:
    tree = {**TREE, "vllm/new.py": b"y = 1\n"}
    assert codes(tree, new_file("vllm/new.py")) == ["patch.exists"]
    gone = deletion("vllm/new.py", b"y = 1\n")
    assert apply(tree, gone).files == {"vllm/new.py": None}
    tree["vllm/new.py"] += b"z = 1\n"
    assert codes(tree, gone) == ["patch.conflict"]
    no_lines = b"diff --git a/vllm/new.py b/vllm/new.py\ndeleted file mode 100644\n"
    assert codes(tree, no_lines) == ["patch.conflict"]
    assert apply({"vllm/new.py": b""}, no_lines).files == {"vllm/new.py": None}
    tree["vllm/new.py"] = b"x = 1\n"
    assert codes(tree, gone) == ["patch.conflict"]


def test_a_new_file_in_place_of_a_folder() -> None:
    assert codes(TREE, new_file("vllm/config")) == ["patch.exists"]
    assert codes(TREE, link("vllm/config", b"__init__.py")) == ["patch.exists"]
    assert codes(TREE, new_file("vllm/__init__.py/x")) == ["patch.missing-folder"]


# ---- links


@pytest.mark.parametrize(
    "target",
    [b"/etc/passwd", b"../../evil", b"../torch/x.py", b"..", b"", b"../../vllm/__init__.py",
     b"x\xff", b"config/../../../x", b"__init__.py\n"],
)  # fmt: skip
def test_p18_links_that_leave_the_package(target: bytes) -> None:
    if target:
        assert codes(TREE, link("vllm/l.py", target)) == ["patch.link"]
    else:
        none = b"diff --git a/vllm/l b/vllm/l\nnew file mode 120000\nindex 0000000..e69de29\n"
        assert codes(TREE, none) == ["patch.corrupt"]


def test_links_stay_inside_and_lead_to_files() -> None:
    for target in (b"config/m.py", b"./config/../config/m.py", b"../vllm/config/m.py"):
        ok = b"../vllm" not in target
        assert ok == (link_codes(target) == []), target
    assert (
        apply(TREE, link("vllm/config/l.py", b"../__init__.py")).modes["vllm/config/l.py"] == LINK
    )
    assert link_codes(b"config") == ["patch.link-target"]
    assert link_codes(b"nothing.py") == ["patch.link-target"]
    assert link_codes(b"l.py") == ["patch.link"]
    chain = link("vllm/l.py", b"config/m.py") + link("vllm/k.py", b"l.py")
    assert codes(TREE, chain) == ["patch.link-target"]
    assert codes(TREE, link("vllm/l.py", b"config/m.py"), deletion(M, SOURCE)) == [
        "patch.link-target"
    ]


def link_codes(target: bytes) -> list[str]:
    with contextlib.suppress(KilnError):
        apply(TREE, link("vllm/l.py", target))
        return []
    return codes(TREE, link("vllm/l.py", target))


def test_p18_nothing_is_written_through_a_link() -> None:
    """CVE-2023-23946: a link, then a file behind it; in one patch or in two."""
    out, evil = link("vllm/l", b"../../.."), new_file("vllm/l/evil.py")
    assert codes(TREE, out + evil) == ["patch.link", "patch.missing-folder"]
    inside = link("vllm/l", b"config/m.py")
    assert codes(TREE, inside + evil) == ["patch.through-link"]
    assert codes(TREE, inside, evil) == ["patch.through-link"]
    assert codes(TREE, evil + inside) == ["patch.missing-folder"]
    to_it = b"--- a/vllm/l\n+++ b/vllm/l\n@@ -1 +1 @@\n-config/m.py\n+config/n.py\n"
    assert codes(TREE, inside, to_it) == ["patch.wrong-type"]
    assert codes(TREE, inside, HEADER.replace(b"config/m.py", b"l") + HUNK) == ["patch.wrong-type"]


def test_a_link_is_changed_and_deleted_as_a_link_only() -> None:
    inside = link("vllm/l.py", b"config/m.py")
    end = b"\n\\ No newline at end of file\n"
    head = b"diff --git a/vllm/l.py b/vllm/l.py\nindex 1..2 120000\n"
    change = head + b"--- a/vllm/l.py\n+++ b/vllm/l.py\n@@ -1 +1 @@\n-config/m.py" + end
    assert apply(TREE, inside, change + b"+__init__.py" + end).files == {
        "vllm/l.py": b"__init__.py"
    }
    assert codes(TREE, inside, change + b"+../x.py" + end) == ["patch.link"]
    assert codes({**TREE, "vllm/l.py": b"config/m.py"}, change + b"+__init__.py" + end) == [
        "patch.wrong-type"
    ]
    gone = deletion("vllm/l.py", b"config/m.py", b"120000")
    assert codes(TREE, inside, gone) == ["patch.series-no-change"]
    assert codes(TREE, inside, deletion("vllm/l.py", b"config/m.py")) == ["patch.wrong-type"]


def test_a_file_becomes_a_link_in_two_patches() -> None:
    applied = apply(TREE, deletion(M, SOURCE), link(M, b"../__init__.py"))
    assert (applied.files, applied.modes) == ({M: b"../__init__.py"}, {M: LINK})
    (error,) = errors(TREE, link(M, b"../__init__.py"))
    assert error.code == "patch.exists"
