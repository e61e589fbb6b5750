"""Moving a series: git merges, a person solves, and a stop at any point loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.authoring import pick, refresh
from kiln.authoring.pick import Refreshed
from kiln.authoring.plan import read_plan, write_plan
from kiln.errors import BadInput, KilnError
from kiln.progress import Silent
from kiln.report.patches import refresh_text
from tests.helpers.patch_work import Bench, added, change, make_bench, numbered
from tests.unit.test_authoring_save import built, in_tree

MARKED = (
    "<<<<<<< HEAD\nconfig_20 = 20\nconfig_21 = [21]\n",
    "config_20 = 'new'\nconfig_21 = 21\n>>>>>>> ",
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture
def easy(bench: Bench) -> Bench:
    """Without the conflict."""
    for pin in ("v1", "v2"):
        bench.series(pin, "base", "engine")
    return bench


def start(bench: Bench, to: str = "v2") -> Refreshed:
    new = bench.source("2.0.0")
    return refresh.start(bench.project, "v1", to, bench.source("1.0.0"), new, Silent())


def go_on(bench: Bench, skip: bool = False) -> Refreshed:
    return pick.resume(bench.work("v2"), Silent(), skip)


def states(refreshed: Refreshed) -> dict[str, str]:
    return {name: moved.state for name, moved in refreshed.plan.results.items()}


def solve(bench: Bench) -> None:
    """As a person would: both changes are wanted."""
    path = bench.root / ".work/v2/vllm/config.py"
    lines = path.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("<<<<<<< "))
    end = next(n for n, line in enumerate(lines) if line.startswith(">>>>>>> "))
    lines[begin : end + 1] = ["config_20 = 'new'", "config_21 = [21]"]
    path.write_text("\n".join(lines) + "\n")
    bench.git("add", "-u", pin="v2")


def test_what_fits_moves_by_itself_and_is_saved(easy: Bench) -> None:
    old = easy.files()
    refreshed = start(easy)
    assert states(refreshed) == {"base": "OK", "engine": "OFFSET"}
    assert refreshed.plan.results["engine"].detail == "vllm/engine.py +3 lines"
    assert not refreshed.waits
    assert refreshed.saved is not None
    assert refreshed.saved.written == (
        "patches/base/2.0.0.patch",
        "patches/engine/2.0.0.patch",
        "patches/base/patch.yaml",
        "patches/engine/patch.yaml",
    )
    assert {path: data for path, data in easy.files().items() if path in old and "yaml" not in path
            } == {path: data for path, data in old.items() if "yaml" not in path}  # fmt: skip
    row = '  - {range: "==1.0.0", file: 1.0.0.patch}\n'
    assert easy.read("patches/base/patch.yaml") == old["patches/base/patch.yaml"].decode().replace(
        row, row + row.replace("1.0.0", "2.0.0")
    )
    assert built(easy, "v2", "2.0.0")["vllm/engine.py"] == in_tree(easy, "vllm/engine.py", "v2")
    assert "@@ -20,7 +20,7 @@" in easy.read("patches/engine/2.0.0.patch")
    # It is a work tree of v2 like any other now.
    assert not easy.edit("v2").made
    assert easy.save("v2").written == ()


def test_a_conflict_is_gits_own_with_all_three_sides(bench: Bench) -> None:
    before = bench.files()
    refreshed = start(bench)
    assert refreshed.waits
    assert refreshed.plan.picking == "config"
    assert dict(refreshed.conflict) == {"vllm/config.py": "both changed the same lines"}
    assert states(refreshed) == {"base": "OK", "engine": "OFFSET"}
    text = refresh_text(refreshed)
    assert "CONFLICT" in text
    assert "kiln patch refresh --continue" in text
    status = bench.git("status", pin="v2")
    assert "You are currently cherry-picking" in status
    assert "both modified:" in status
    config = in_tree(bench, "vllm/config.py", "v2").decode()
    for part in (*MARKED, "||||||| parent of ", "config_20 = 20\nconfig_21 = 21\n"):
        assert part in config
    for stage, line in ((1, "config_20 = 20"), (2, "config_21 = [21]"), (3, "config_20 = 'new'")):
        assert line in bench.git("show", f":{stage}:vllm/config.py", pin="v2")
    assert bench.files() == before, "nothing is written before all is moved"


def test_a_solved_conflict_goes_on_and_is_saved(bench: Bench) -> None:
    start(bench)
    solve(bench)
    refreshed = go_on(bench)
    assert states(refreshed)["config"] == "SOLVED"
    assert refreshed.saved is not None
    assert not refreshed.waits
    assert bench.commits("v2") == ["base: do base", "engine: do engine", "config: do config"]
    assert built(bench, "v2", "2.0.0")["vllm/config.py"] == in_tree(bench, "vllm/config.py", "v2")


def test_plain_git_goes_on_too_and_its_hook_saves(bench: Bench) -> None:
    start(bench)
    solve(bench)
    out = bench.git("cherry-pick", "--continue", pin="v2", GIT_EDITOR=":")
    assert "wrote patches/config/2.0.0.patch" in out
    refreshed = go_on(bench)
    assert states(refreshed)["config"] == "SOLVED"
    assert refreshed.saved is not None
    assert refreshed.saved.written == ()


def test_a_conflict_in_the_middle_names_what_waits(bench: Bench) -> None:
    for pin in ("v1", "v2"):
        bench.series(pin, "base", "config", "engine")
    assert [move.id for move in start(bench).plan.waiting] == ["config", "engine"]
    solve(bench)
    out = bench.git("cherry-pick", "--continue", pin="v2", GIT_EDITOR=":")
    assert "still to be moved: engine; go on with `kiln patch refresh --continue`" in out
    assert states(go_on(bench)) == {"base": "OK", "config": "SOLVED", "engine": "OFFSET"}
    assert not bench.save("v2").waits


@pytest.mark.parametrize("added_", [False, True])
def test_what_is_not_solved_does_not_go_on(bench: Bench, added_: bool) -> None:
    start(bench)
    if added_:
        bench.git("add", "-u", pin="v2")  # with the markers in it
    with pytest.raises(BadInput) as caught:
        go_on(bench)
    assert caught.value.code == ("authoring.markers" if added_ else "authoring.unsolved")
    assert "vllm/config.py" in caught.value.why
    assert bench.commits("v2") == ["base: do base", "engine: do engine"]


def test_skip_leaves_the_patch_out_and_the_pin_should_not_list_it(bench: Bench) -> None:
    start(bench)
    refreshed = go_on(bench, skip=True)
    assert states(refreshed)["config"] == "SKIPPED"
    assert refreshed.saved is not None
    assert refreshed.saved.order == ("base", "engine")
    assert not (bench.root / "patches/config/2.0.0.patch").exists()
    with pytest.raises(BadInput) as caught:
        go_on(bench, skip=True)
    assert caught.value.code == "authoring.nothing-to-skip"


def test_solved_to_nothing_is_left_out(bench: Bench) -> None:
    start(bench)
    bench.git("checkout", "--ours", "--", "vllm/config.py", pin="v2")
    bench.git("add", "-u", pin="v2")
    assert states(go_on(bench))["config"] == "SKIPPED"


def test_abort_takes_a_new_work_tree_away_and_only_that(bench: Bench) -> None:
    bench.edit("v1")
    start(bench)
    refresh.abort(bench.work("v2"))
    assert [path.name for path in (bench.root / ".work").iterdir()] == ["v1"]


def test_abort_gives_a_work_tree_back_as_it_was(bench: Bench) -> None:
    edited = bench.edit("v2").work
    start(bench)
    refresh.abort(bench.work("v2"))
    assert bench.work("v2").state == edited.state
    assert bench.commits("v2") == []
    assert bench.git("status", "--porcelain", pin="v2") == ""
    with pytest.raises(BadInput) as caught:
        refresh.abort(bench.work("v2"))
    assert caught.value.code == "authoring.no-refresh"


def test_a_file_that_moved_is_followed(bench: Bench) -> None:
    diff = change("vllm/entry/parser.py", numbered("parser"), 9, "parser_9 = 'new'")
    bench.patch("parser", diff)
    for pin in ("v1", "v2"):
        bench.series(pin, "parser")
    refreshed = start(bench)
    assert states(refreshed) == {"parser": "MOVED"}
    assert "vllm/entry/parser.py -> vllm/parsers/parser.py" in refresh_text(refreshed)
    assert "--- a/vllm/parsers/parser.py" in bench.read("patches/parser/2.0.0.patch")


def test_what_upstream_has_is_dropped_and_said(bench: Bench) -> None:
    lines = change("vllm/config.py", numbered("config"), 21, "config_21 = [21]")
    bench.patch("merged", lines)
    for pin in ("v1", "v2"):
        bench.series(pin, "base", "merged", "engine")
    refreshed = start(bench)
    assert states(refreshed) == {"base": "OK", "merged": "UPSTREAM", "engine": "OFFSET"}
    assert refreshed.saved is not None
    assert refreshed.saved.order == ("base", "engine")
    assert not (bench.root / "patches/merged/2.0.0.patch").exists()


def test_retired_kept_and_unknown_ones_are_named(bench: Bench) -> None:
    marker = 'retire_when:\n  - {file: vllm/config.py, contains: "config_21 = [21]"}\n'
    bench.patch("old", added("vllm/_old.py", "x = 1\n"), more=marker)
    bench.patch("both", added("vllm/_both.py", "x = 1\n"), "1.0.0 2.0.0")
    bench.patch("late", added("vllm/_late.py", "x = 1\n"), "3.0.0")
    bench.series("v1", "base", "old", "both", "late", "engine")
    bench.series("v2", "base", "old", "both", "late")
    own = bench.read("patches/both/2.0.0.patch")
    refreshed = start(bench)
    assert states(refreshed) == {
        "base": "OK", "old": "RETIRED", "both": "KEPT", "late": "SKIPPED", "engine": "SKIPPED",
    }  # fmt: skip
    text = refresh_text(refreshed)
    assert "vllm/config.py:21" in text
    assert "nothing to move: it has no file for vLLM 1.0.0" in text
    assert "pin v2 does not list it" in text
    assert bench.read("patches/both/2.0.0.patch") == own
    assert bench.commits("v2") == ["base: do base", "both: do both"]


def test_parts_that_no_wheel_has_move_too(bench: Bench) -> None:
    extra = added("tests/test_base.py", "assert 1\n")
    diff = change("vllm/engine.py", numbered("engine"), 20, "engine_20 = 'new'") + extra
    bench.patch("engine", diff, more='leave_out: ["tests/**"]\n')
    for pin in ("v1", "v2"):
        bench.series(pin, "engine")
    start(bench)
    assert bench.read("patches/engine/2.0.0.patch").endswith(extra)
    assert built(bench, "v2", "2.0.0").keys() == {"vllm/engine.py"}


def test_a_version_that_no_pin_has(easy: Bench) -> None:
    refreshed = start(easy, to=str(easy.src / "2.0.0"))
    assert refreshed.work.folder == easy.root / ".work" / "2.0.0"
    assert refreshed.work.state.pin == ""
    assert (easy.root / "patches/engine/2.0.0.patch").exists()
    assert not refreshed.waits


def test_refusals_before_anything_is_made(bench: Bench) -> None:
    (bench.src / "2.0.0/vllm/_version.py").unlink()
    cases: list[tuple[str, Callable[[], object]]] = [
        ("authoring.no-version", lambda: start(bench, to=str(bench.src / "2.0.0"))),
        ("authoring.same-version", lambda: start(bench, to="v1")),
    ]
    for wanted, attempt in cases:
        with pytest.raises(KilnError) as caught:
            attempt()
        assert caught.value.code == wanted
    assert not (bench.root / ".work").exists()


def test_a_work_tree_with_work_in_it_is_not_moved_over(bench: Bench) -> None:
    bench.edit("v2")
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'", pin="v2")
    with pytest.raises(BadInput) as caught:
        start(bench)
    assert caught.value.code == "authoring.unsaved"
    bench.git("stash", "-q", pin="v2")
    start(bench)
    with pytest.raises(BadInput) as caught:
        start(bench)  # one is under way
    assert caught.value.code == "authoring.unsaved"


def test_uncommitted_changes_stop_the_next_step(bench: Bench) -> None:
    for pin in ("v1", "v2"):
        bench.series(pin, "config", "engine")
    start(bench)
    solve(bench)
    quiet_continue = ("-c", "core.hooksPath=/dev/null", "cherry-pick", "--continue")
    bench.git(*quiet_continue, pin="v2", GIT_EDITOR=":")
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'", pin="v2")
    with pytest.raises(BadInput) as caught:
        go_on(bench)
    assert caught.value.code == "authoring.uncommitted"
    bench.git("checkout", "-q", "--", ".", pin="v2")
    assert states(go_on(bench)) == {"config": "SOLVED", "engine": "OFFSET"}


def test_a_stop_after_any_step_is_made_good(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at each write of the plan in turn; then --continue ends in the same commits."""
    for pin in ("v1", "v2"):
        bench.series(pin, "base", "engine")
    real = write_plan
    done: set[tuple[str, ...]] = set()
    for stop in range(1, 12):
        for name in ("base", "engine"):
            (bench.root / f"patches/{name}/2.0.0.patch").unlink(missing_ok=True)
        bench.patch("base", added("vllm/_base.py", "x = 1\ny = 2\n"))
        bench.patch("engine", change("vllm/engine.py", numbered("engine"), 20, "engine_20 = 'new'"))
        calls = 0

        def write(work: object, plan: object, stop: int = stop) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
            real(work, plan)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            for module in (refresh, pick):
                patched.setattr(module, "write_plan", write)
            try:
                start(bench)
            except KeyboardInterrupt:
                if not (bench.root / ".work/v2").exists():
                    continue  # before the work tree was there: nothing is
        assert states(go_on(bench)).keys() == {"base", "engine"}
        done.add(tuple(bench.commits("v2")))
        assert bench.git("status", "--porcelain", pin="v2") == ""
        subprocess.run(["rm", "-rf", str(bench.root / ".work")], check=True)
        if calls < stop:
            break
    else:
        pytest.fail("there are more steps than thought")
    assert done == {("base: do base", "engine: do engine")}


def test_ctrl_c_in_the_terminal(bench: Bench) -> None:
    """The whole program, stopped while it works, at several moments."""
    arguments = ["patch", "refresh", "v1", "--to", "v2"]
    arguments += ["--source", str(bench.src / "1.0.0"), "--to-source", str(bench.src / "2.0.0")]
    for delay in (0.4, 0.7, 1.0, 1.4):
        process = subprocess.Popen(
            [sys.executable, "-m", "kiln", *arguments],
            cwd=bench.root,
            env=bench.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        time.sleep(delay)
        os.kill(process.pid, signal.SIGINT)
        out = process.communicate(timeout=60)[0]
        assert process.returncode in (130, 1, -2), out
        if (bench.root / ".work/v2").exists():
            break
    else:
        start(bench)
    assert not list((bench.root / ".work/v2/.git").glob("*.lock"))
    work = bench.work("v2")
    assert read_plan(work) is not None
    refreshed = go_on(bench) if not work.unfinished() else None
    if refreshed is None or refreshed.waits:
        solve(bench)
        refreshed = go_on(bench)
    assert list(states(refreshed)) == ["base", "engine", "config"]


def test_the_command_line_shows_the_table_and_exits_1(bench: Bench) -> None:
    sources = ("--source", str(bench.src / "1.0.0"), "--to-source", str(bench.src / "2.0.0"))
    done = bench.kiln("patch", "refresh", "v1", "--to", "v2", *sources)
    assert done.returncode == 1, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[:3]] == [
        ["base", "OK"],
        ["engine", "OFFSET"],
        ["config", "CONFLICT"],
    ]
    solve(bench)
    inside = bench.root / ".work/v2/vllm"
    done = bench.kiln("patch", "refresh", "--continue", cwd=inside)
    assert done.returncode == 0, done.stderr
    assert "wrote patches/config/2.0.0.patch" in done.stdout
    assert bench.kiln("patch", "refresh", "v1").returncode == 2
