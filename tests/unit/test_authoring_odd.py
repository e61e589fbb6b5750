"""Odd commits, odd states: what a person can do to a work tree, and what Kiln says to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kiln.authoring import edit as editing
from kiln.authoring.git import Git
from kiln.authoring.work import read_work
from kiln.errors import BadInput, CannotHere
from kiln.progress import Silent
from tests.helpers.patch_work import Bench, added, make_bench
from tests.unit.test_authoring_save import built, in_tree, quiet


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = make_bench(tmp_path)
    bench.edit()
    return bench


def amend(bench: Bench, *commands: str) -> str:
    """Change the last commit, and let the hook save it."""
    for command in commands:
        done = bench.attempt("sh", "-c", command)
        assert done.returncode == 0, done.stdout
    bench.git("add", "-A")
    return bench.git("commit", "-q", "--amend", "--no-edit")


def test_a_renamed_file_is_one_taken_away_and_one_added(bench: Bench) -> None:
    amend(bench, "git mv vllm/other.py vllm/another.py")
    text = bench.read("patches/config/1.0.0.patch")
    assert "rename from" not in text
    files = built(bench)
    assert files["vllm/other.py"] is None
    assert files["vllm/another.py"] == in_tree(bench, "vllm/another.py")


def test_a_file_that_may_be_run_and_a_link(bench: Bench) -> None:
    amend(
        bench,
        "echo 'x = 1' > vllm/tool.py; git add -A; git update-index --chmod=+x vllm/tool.py",
        "ln -s config.py vllm/settings.py",
    )
    text = bench.read("patches/config/1.0.0.patch")
    assert "new file mode 100755" in text
    assert "new file mode 120000" in text
    assert bench.save().written == ()
    assert built(bench)["vllm/settings.py"] == b"config.py"


def test_names_with_blanks_and_umlauts(bench: Bench) -> None:
    amend(bench, "printf 'x = 1\\n' > 'vllm/a b \u00e9.py'")
    assert "vllm/a b \\303\\251.py" in bench.read("patches/config/1.0.0.patch")
    assert built(bench)["vllm/a b \u00e9.py"] == b"x = 1\n"


def test_bytes_stay_bytes(bench: Bench) -> None:
    """Latin-1, CR LF, no line feed at the end: nothing is normalised anywhere."""
    path = bench.root / ".work/v1/vllm/odd.txt"
    path.write_bytes(b"latin \xe8\r\nends\r\nwithout")
    amend(bench)
    assert built(bench)["vllm/odd.txt"] == b"latin \xe8\r\nends\r\nwithout"


def test_a_file_that_repeats_itself_is_told_apart_by_more_context(tmp_path: Path) -> None:
    """Blocks all alike: with three lines of context a hunk would fit at two places."""
    bench = make_bench(tmp_path)
    block = "def f():\n" + "".join(f"    {c} = 1\n" for c in "abcdef") + "    return a\n\n\n"
    (bench.src / "1.0.0/vllm/other.py").write_text("start = 1\n" + block * 12 + "end = 1\n")
    bench.series("v1", "base", "engine")
    bench.edit()
    other = bench.root / ".work/v1/vllm/other.py"
    lines = other.read_text().splitlines(keepends=True)
    lines[1:1] = [f"mark_{number} = 1\n" for number in range(10)]  # as many as a block has
    other.write_text("".join(lines))
    amend(bench)
    assert lines[95] == "    d = 1\n"
    lines[95] = "    d = 'new'\n"
    other.write_text("".join(lines))
    bench.patch("late", added("vllm/_late.py", "x = 1\n"))
    quiet(bench, "commit", "-qam", "late\n\nKiln-Patch: late")
    (bench.root / "patches/late/1.0.0.patch").unlink()
    saved = bench.save()
    assert "patches/late/1.0.0.patch" in saved.written
    assert bench.read("patches/late/1.0.0.patch").endswith(" end = 1\n"), "as far as its end"
    bench.series("v1", "base", "engine", "late")
    assert built(bench)["vllm/other.py"] == other.read_bytes()


def test_another_branch_is_for_trying_things_out(bench: Bench) -> None:
    before = bench.files()
    bench.git("checkout", "-q", "-b", "try")
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'tried'")
    out = bench.git("commit", "-qa", "--amend", "--no-edit")
    assert "not saved: this is not branch v1" in out
    assert bench.files() == before
    bench.git("checkout", "-q", "v1")
    assert bench.save().written == ()


def test_another_worktree_of_it_does_not_save_in_secret(bench: Bench, tmp_path: Path) -> None:
    before = bench.files()
    bench.git("worktree", "add", "-q", str(tmp_path / "side"), "-b", "side")
    done = bench.attempt(
        "git", "-C", str(tmp_path / "side"), "commit", "-q", "--allow-empty", "-m", "x"
    )
    assert done.returncode == 0
    assert bench.files() == before


def test_a_hook_whose_kiln_is_gone_is_loud(bench: Bench) -> None:
    hook = bench.root / ".work/v1/.git/hooks/post-commit"
    hook.write_text(hook.read_text().replace(" -P -m kiln ", " -P -m no_kiln "))
    out = bench.git("commit", "-q", "--amend", "--no-edit")
    assert "No module named no_kiln" in out
    assert "may not be those of these commits" in out
    bench.edit()  # and the next edit writes it anew
    assert "-m kiln " in hook.read_text()


def test_a_file_in_the_way_is_not_taken(bench: Bench) -> None:
    """patch.yaml gives 1.0.0.patch to another version: it is not this one's to write."""
    path = "patches/config/patch.yaml"
    bench.write(path, bench.read(path).replace('"==1.0.0"', '"==0.9.0"'))
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    before = bench.files()
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.file-taken"
    assert bench.files() == before


@pytest.mark.parametrize("text", ["", "{", '{"project": 1}', "[]"])
def test_notes_that_cannot_be_read_lose_no_commits(bench: Bench, text: str) -> None:
    work = bench.work()
    (work.kept / "work.json").write_text(text)
    with pytest.raises(BadInput) as caught:
        read_work(work.folder)
    assert caught.value.code == "authoring.bad-state"
    assert bench.kiln("patch", "save", "v1").returncode == 2


def test_a_folder_of_another_pin_is_not_taken(bench: Bench) -> None:
    folder = bench.work().folder
    with pytest.raises(BadInput) as caught:
        editing.edit(bench.project, "v2", lambda: bench.source("2.0.0"), Silent(), folder)
    assert caught.value.code == "authoring.other-work"


def test_a_git_that_fails_says_what_it_said(bench: Bench) -> None:
    git = bench.work().git
    (git.dir / "index.lock").write_text("")
    with pytest.raises(CannotHere) as caught:
        git.run("add", "-A")
    assert caught.value.code == "authoring.git-failed"
    assert "index.lock" in caught.value.why


def test_a_project_that_moved_takes_its_work_trees_along(bench: Bench, tmp_path: Path) -> None:
    bench.root.rename(tmp_path / "moved")
    moved = Bench(tmp_path / "moved", bench.src)
    moved.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    assert "wrote patches/config" in moved.git("commit", "-qa", "--amend", "--no-edit")


def test_without_its_own_git_folder_the_outer_one_is_not_taken(bench: Bench) -> None:
    folder = bench.work().folder
    outer = Git(bench.root)
    outer.init("main")
    shutil.rmtree(folder / ".git")
    with pytest.raises(CannotHere):
        Git(folder).run("add", "-A")
    assert outer.attempt("ls-files").stdout == b""
    assert os.listdir(bench.root / ".git/refs/heads") == []
