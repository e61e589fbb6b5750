"""Making a work tree: what is in it, and that nothing of the user's setup gets into it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln.authoring import git as authoring_git
from kiln.authoring.work import find_work, open_work
from kiln.errors import BadInput, CannotHere, KilnError
from tests.helpers.patch_work import Bench, change, make_bench, numbered, sources


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


def code(error: pytest.ExceptionInfo[KilnError]) -> str:
    return error.value.code


# Everything a user may have set that could change bytes, names, or whether a commit works.
ODD_CONFIG = """\
[core]
    autocrlf = true
    eol = crlf
    safecrlf = true
    hooksPath = {home}/hooks
    attributesFile = {home}/attributes
    excludesFile = {home}/ignore
    quotePath = false
    bigFileThreshold = 1
[commit]
    gpgSign = true
[tag]
    gpgSign = true
[gpg]
    program = /bin/false
[init]
    templateDir = {home}/template
    defaultBranch = odd
    defaultObjectFormat = sha256
[rerere]
    enabled = true
    autoUpdate = true
[diff]
    noprefix = true
    mnemonicPrefix = true
    algorithm = histogram
    context = 1
    interHunkContext = 9
    renames = copies
    external = /bin/false
    orderFile = {home}/order
    submodule = log
[merge]
    conflictStyle = merge
    renames = false
    ff = only
[apply]
    whitespace = fix
[user]
    useConfigOnly = true
[log]
    showSignature = true
    date = relative
[format]
    pretty = oneline
[color]
    ui = always
[i18n]
    commitEncoding = latin1
"""


@pytest.fixture
def odd_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose settings of git are all against it."""
    home = tmp_path / "home"
    for folder in ("hooks", "template/hooks"):
        (home / folder).mkdir(parents=True)
        for hook in ("pre-commit", "commit-msg", "post-checkout", "prepare-commit-msg"):
            path = home / folder / hook
            path.write_text(f"#!/bin/sh\ntouch {home}/ran\nexit 1\n")
            path.chmod(0o755)
    (home / "attributes").write_text("*.py text eol=crlf ident\n*.txt binary\n")
    (home / "ignore").write_text("*.py\nvllm/\n")
    (home / "order").write_text("vllm/z*\n")
    (home / ".gitconfig").write_text(ODD_CONFIG.format(home=home))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    for name in ("GIT_AUTHOR_NAME", "GIT_CONFIG_GLOBAL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    return home


def test_the_work_tree_holds_the_texts_and_a_commit_for_each_patch(bench: Bench) -> None:
    edited = bench.edit()
    folder = edited.work.folder
    assert folder == bench.root / ".work" / "v1"
    assert bench.commits() == ["base: do base", "engine: do engine", "config: do config"]
    assert bench.git("show", "-s", "--format=%an <%ae> %ad%n%b", "--date=short").startswith(
        "Kiln <kiln@localhost> 2000-01-01\nKiln-Patch: config\n"
    )
    pristine = sources()["1.0.0"]
    listed = bench.git("ls-tree", "-r", "--name-only", "pristine-1.0.0").splitlines()
    assert listed == sorted(path for path in pristine if not path.endswith(".so"))
    for path in listed:
        data = subprocess.run(
            ["git", "cat-file", "blob", f"pristine-1.0.0:{path}"], cwd=folder, capture_output=True
        ).stdout
        text = pristine[path]
        assert data == (text.encode() if isinstance(text, str) else text), path
    assert (folder / "vllm/odd.txt").read_bytes() == pristine["vllm/odd.txt"]
    assert bench.git("status", "--porcelain") == ""


def test_the_same_series_gives_the_same_commits(bench: Bench, tmp_path: Path) -> None:
    first = bench.edit().work.state
    (tmp_path / "elsewhere").mkdir()
    other = make_bench(tmp_path / "elsewhere")
    # The label names the source's folder; a wheel's names its file and hash.
    for version in ("1.0.0", "2.0.0"):
        assert other.source(version).label != bench.source(version).label
    (tmp_path / "src").rename(tmp_path / "gone")
    (tmp_path / "elsewhere" / "src").rename(tmp_path / "src")
    same = Bench(other.root, tmp_path / "src").edit().work.state
    assert (same.base, same.head) == (first.base, first.head)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_an_odd_user_gets_the_same_work_tree_and_plain_git_works_in_it(
    bench: Bench, odd_user: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        shipped = bench.files()
        bench.edit()
        assert bench.git("status", "--porcelain") == ""
        assert (bench.root / ".work/v1/vllm/odd.txt").read_bytes() == b"latin \xe9\r\nends\r\n"
        assert b"\r" not in (bench.root / ".work/v1/vllm/engine.py").read_bytes()
        assert bench.save().written == ()
        assert bench.files() == shipped
        bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
        out = bench.git("commit", "--all", "--amend", "--no-edit")
        assert "wrote patches/config/1.0.0.patch" in out
        assert not (odd_user / "ran").exists()
    finally:
        os.umask(before)
    text = bench.read("patches/config/1.0.0.patch")
    assert "--- a/vllm/config.py\n+++ b/vllm/config.py\n@@ -17,7 +17,7 @@ config_16 = 16\n" in text
    assert "\r" not in text
    assert "index " in text
    assert len(text.split("index ")[1].split("..")[0]) == 40
    assert {path: data for path, data in bench.files().items() if "config/1" not in path} == {
        path: data for path, data in shipped.items() if "config/1" not in path
    }


def test_an_outer_repository_is_left_alone(bench: Bench) -> None:
    def outer(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=bench.root, text=True, capture_output=True, check=True
        )
        return done.stdout

    bench.write(".gitignore", "/.work/\n")
    outer("init", "-q")
    outer("add", "-A")
    outer("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x")
    head = outer("rev-parse", "HEAD")
    bench.edit()
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    bench.git("commit", "-q", "--all", "--amend", "--no-edit")
    assert outer("rev-parse", "HEAD") == head
    assert outer("status", "--porcelain") == " M patches/config/1.0.0.patch\n"


def test_a_variable_that_names_another_repository_is_not_followed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "other")], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    work = bench.edit().work
    assert bench.save().written == ()
    monkeypatch.undo()
    assert work.git.commit("HEAD") == work.state.head
    assert list((tmp_path / "other").iterdir()) == [tmp_path / "other" / ".git"]
    assert not (tmp_path / "index").exists()


def test_edit_again_shows_the_tree_and_touches_nothing(bench: Bench) -> None:
    bench.edit()
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'")
    again = bench.edit()
    assert not again.made
    assert bench.git("status", "--porcelain") == " M vllm/other.py\n"


def test_a_patch_without_a_file_is_left_out_and_named(bench: Bench) -> None:
    edited = bench.edit("v2")
    assert bench.commits("v2") == []
    assert edited.left_out == dict.fromkeys(
        ("base", "engine", "config"), "it has no file for vLLM 2.0.0"
    )


def test_a_series_that_does_not_fit_makes_no_work_tree(bench: Bench) -> None:
    wrong = numbered("config").replace("config_19", "config_XX")
    bench.patch("config", change("vllm/config.py", wrong, 20, "x"))
    with pytest.raises(KilnError) as caught:
        bench.edit()
    assert code(caught) == "patch.conflict"
    assert not (bench.root / ".work").exists()


def test_a_taken_folder_is_not_touched(bench: Bench) -> None:
    bench.write(".work/v1/mine.txt", "mine")
    with pytest.raises(BadInput) as caught:
        bench.edit()
    assert code(caught) == "authoring.folder-taken"
    assert bench.read(".work/v1/mine.txt") == "mine"
    assert [path.name for path in (bench.root / ".work").iterdir()] == ["v1"]


def test_files_that_changed_since_are_named_and_laid_anew_on_request(bench: Bench) -> None:
    old = bench.edit().work.state.head
    diff = change("vllm/config.py", numbered("config"), 20, "config_20 = 'by hand'")
    bench.patch("config", diff)
    with pytest.raises(BadInput) as caught:
        bench.edit()
    assert code(caught) == "authoring.files-moved"
    assert bench.edit(again=True).made
    assert "by hand" in (bench.root / ".work/v1/vllm/config.py").read_text()
    assert bench.save().written == ()
    assert old in bench.git("reflog", "--no-abbrev")


@pytest.mark.parametrize("how", ["edited", "committed"])
def test_work_that_is_not_saved_is_not_laid_over(bench: Bench, how: str) -> None:
    bench.edit()
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'")
    if how == "committed":
        bench.git("-c", "core.hooksPath=/dev/null", "commit", "-qam", "mine")
    with pytest.raises(BadInput) as caught:
        bench.edit(again=True)
    assert code(caught) == "authoring.unsaved"
    assert "mine" in (bench.root / ".work/v1/vllm/other.py").read_text()


def test_work_trees_are_found_by_pin_folder_and_place(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        open_work(bench.root, None, bench.root)
    assert code(caught) == "authoring.no-work-tree"
    folder = bench.edit().work.folder
    for target, here in (
        ("v1", bench.root),
        (None, bench.root),
        (None, folder / "vllm"),
        (str(folder), tmp_path),
        (".work/v1", bench.root),
    ):
        assert open_work(bench.root, target, here).folder == folder
    assert find_work(bench.root) is None
    bench.edit("v2")
    with pytest.raises(BadInput) as caught:
        open_work(bench.root, None, bench.root)
    assert "v1" in caught.value.why
    assert "v2" in caught.value.why


def test_a_machine_without_git_or_with_an_old_one_says_so(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(CannotHere) as caught:
        bench.edit()
    assert code(caught) == "authoring.no-git"
    (empty / "git").write_text("#!/bin/sh\necho git version 2.30.2\n")
    (empty / "git").chmod(0o755)
    with pytest.raises(CannotHere) as caught:
        bench.edit()
    assert code(caught) == "authoring.git-too-old"
    assert "2.30.2" in caught.value.why
    assert not (bench.root / ".work").exists()


def test_nothing_of_git_in_the_environment_reaches_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.autocrlf")
    monkeypatch.setenv("GIT_TRACE", "1")
    monkeypatch.setenv("EMAIL", "x@x")
    env = authoring_git.git_environment()
    assert not {"GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_TRACE", "EMAIL"} & env.keys()
    assert (env["LC_ALL"], env["TZ"]) == ("C", "UTC")


def test_a_source_with_an_odd_path_is_refused(bench: Bench) -> None:
    (bench.src / "1.0.0/vllm/.git").mkdir()
    (bench.src / "1.0.0/vllm/.git/config").write_text("[core]\n")
    with pytest.raises(BadInput) as caught:
        bench.edit()
    assert code(caught) == "authoring.odd-path"
    assert not (bench.root / ".work/v1").exists()


def test_ctrl_c_while_it_is_made_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kiln.authoring.edit.import_steps", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.edit()
    assert list((bench.root / ".work").iterdir()) == []
    # A killed one cannot tidy up; the next one does it.
    (bench.root / ".work/.new-999999999-x").mkdir()
    bench.edit()
    assert [path.name for path in (bench.root / ".work").iterdir()] == ["v1"]


def test_git_ends_what_it_does_when_ctrl_c_is_pressed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\ntouch begun\nsleep 1\ntouch done\n")
    slow.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from kiln.authoring.git import Git\n"
        "Git(Path(sys.argv[1])).run('status')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=bench.environment(PATH=f"{slow.parent}:{os.environ['PATH']}"),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert (tmp_path / "done").exists()
