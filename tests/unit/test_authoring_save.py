"""From commits to patch files: what is written, what is not, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.authoring.save import merge_order
from kiln.errors import BadInput, KilnError, Problems
from kiln.pins.patch import read_series
from kiln.source.apply import apply_series
from tests.helpers.patch_work import Bench, added, change, make_bench, numbered


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = make_bench(tmp_path)
    bench.edit()
    return bench


def codes(error: BaseException) -> set[str]:
    errors = error.errors if isinstance(error, Problems) else (error,)
    return {each.code for each in errors if isinstance(each, KilnError)}


def quiet(bench: Bench, *arguments: str) -> str:
    """git without the hooks, so that a test saves when it wants to."""
    return bench.git("-c", "core.hooksPath=/dev/null", *arguments)


def built(bench: Bench, pin: str = "v1", version: str = "1.0.0") -> dict[str, bytes | None]:
    """The files as a build of the pin makes them from the patch files."""
    source = bench.source(version)
    names = source.names()
    series = read_series(bench.project, bench.project.pin(pin).patches, version)
    read = lambda path: source.read(path) if path in names else None  # noqa: E731
    return dict(apply_series(read, names, series).files)


def in_tree(bench: Bench, path: str, pin: str = "v1") -> bytes:
    return (bench.root / ".work" / pin / path).read_bytes()


def test_saving_what_is_saved_writes_nothing(bench: Bench) -> None:
    before = {path: (bench.root / path).stat().st_mtime_ns for path in bench.files()}
    saved = bench.save()
    assert (saved.written, saved.same) == ((), ("base", "engine", "config"))
    assert not saved.waits
    assert {path: (bench.root / path).stat().st_mtime_ns for path in bench.files()} == before


def test_an_amended_commit_changes_its_file_alone(bench: Bench) -> None:
    before = bench.files()
    bench.replace("vllm/config.py", "config_30 = 30", "config_30 = 'too'")
    out = bench.git("commit", "-a", "--amend", "--no-edit")
    assert out.count("wrote ") == 1
    after = bench.files()
    assert {path for path in after if after[path] != before.get(path)} == {
        "patches/config/1.0.0.patch"
    }
    assert built(bench)["vllm/config.py"] == in_tree(bench, "vllm/config.py")
    assert bench.save().written == ()


def test_a_fixup_is_announced_and_its_rebase_saves(bench: Bench) -> None:
    before = bench.files()
    bench.replace("vllm/engine.py", "engine_30 = 30", "engine_30 = 'too'")
    out = bench.git("commit", "-a", "--fixup", ":/engine")
    assert "authoring.fixup" in out
    assert "git rebase -i --autosquash pristine-1.0.0" in out
    assert bench.files() == before
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.fixup"
    rebase = ("rebase", "-i", "--autosquash", "pristine-1.0.0")
    out = bench.git(*rebase, GIT_SEQUENCE_EDITOR=":")
    assert "wrote patches/engine/1.0.0.patch" in out
    assert bench.commits() == ["base: do base", "engine: do engine", "config: do config"]
    assert built(bench)["vllm/engine.py"] == in_tree(bench, "vllm/engine.py")


def test_a_message_that_changes_changes_the_head_alone(bench: Bench) -> None:
    bench.git("commit", "--amend", "-m", "config: for another reason\n\nSo.\n\nKiln-Patch: config")
    text = bench.read("patches/config/1.0.0.patch")
    assert "\nSubject: config: for another reason\n\nSo.\n\ndiff --git" in text
    diff = change("vllm/config.py", numbered("config"), 20, "config_20 = 'new'")
    assert text.endswith(diff), "the diff is byte for byte the old one"


def test_a_commit_is_written_against_the_pristine_file(bench: Bench) -> None:
    """The engine patch grows by ten lines above: the config patch stays, and a later one in
    the same file names pristine lines."""
    bench.patch("late", change("vllm/engine.py", numbered("engine"), 35, "engine_35 = 'late'"))
    bench.series("v1", "base", "engine", "config", "late")
    bench.edit(again=True)
    before = bench.files()
    bench.replace("vllm/engine.py", "engine_5 = 5\n", "engine_5 = 5\n" + "new = 1\n" * 10)
    quiet(bench, "commit", "-qa", "--fixup", ":/do engine")
    bench.git("rebase", "-i", "--autosquash", "pristine-1.0.0", GIT_SEQUENCE_EDITOR=":")
    after = bench.files()
    assert {path for path in after if after[path] != before[path]} == {"patches/engine/1.0.0.patch"}
    # And a remade `late` is against pristine lines too: it applies without `engine`.
    bench.replace("vllm/engine.py", "engine_36 = 36", "engine_36 = 'late'")
    bench.git("commit", "-qa", "--amend", "--no-edit")
    assert "@@ -32,8 +32,8 @@" in bench.read("patches/late/1.0.0.patch")
    assert built(bench)["vllm/engine.py"] == in_tree(bench, "vllm/engine.py")
    bench.series("v1", "base", "config", "late")
    assert b"new = 1" not in (built(bench)["vllm/engine.py"] or b"")


def test_neighbours_share_no_context(bench: Bench) -> None:
    """Two lines from another patch's: with less context it stays independent."""
    bench.patch("near", added("vllm/_near.py", "x = 1\n"))
    bench.series("v1", "base", "engine", "config", "near")
    bench.edit(again=True)
    bench.replace("vllm/config.py", "config_22 = 22", "config_22 = 'near'")
    bench.git("commit", "-qa", "--amend", "--no-edit")
    text = bench.read("patches/near/1.0.0.patch")
    assert "@@ -21,3 +21,3 @@" in text
    bench.series("v1", "near", "base", "engine")
    assert b"config_20 = 20" in (built(bench)["vllm/config.py"] or b"")


def test_what_overlaps_is_written_on_top_and_said(bench: Bench) -> None:
    bench.patch("over", added("vllm/_over.py", "x = 1\n"))
    bench.series("v1", "base", "engine", "config", "over")
    bench.edit(again=True)
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'over'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    saved = bench.save()
    assert "over: overlaps a patch before it, and needs it" in saved.notes
    assert "-config_20 = 'new'\n" in bench.read("patches/over/1.0.0.patch")
    assert built(bench)["vllm/config.py"] == in_tree(bench, "vllm/config.py")


def test_a_reordering_is_reported_and_written_on_request(bench: Bench) -> None:
    todo = "sed -i '/do engine/d; /do config/a pick {}'".format(
        quiet(bench, "rev-parse", "HEAD~1").strip()
    )
    out = bench.git("rebase", "-i", "pristine-1.0.0", GIT_SEQUENCE_EDITOR=todo)
    assert "pin v1 should say" in out
    saved = bench.save()
    assert (saved.written, saved.order) == ((), ("base", "config", "engine"))
    assert saved.waits
    saved = bench.save(write_pin=True)
    assert saved.written == ("pins.yaml",)
    assert "patches: [base, config, engine]  # in this order\n" in bench.read("pins.yaml")
    assert not bench.save().waits


def test_a_dropped_commit_is_reported_and_nothing_is_deleted(bench: Bench) -> None:
    before = bench.files()
    quiet(bench, "reset", "-q", "--hard", "HEAD~1")
    saved = bench.save()
    assert saved.order == ("base", "engine")
    assert bench.files() == before


def test_the_order_of_what_has_no_commit_is_kept() -> None:
    assert merge_order(["a", "x", "b", "y"], ["b", "a"], set()) == ("b", "y", "a", "x")
    assert merge_order(["x", "a"], ["a", "new"], set()) == ("x", "a", "new")
    assert merge_order(["a", "gone", "b"], ["a", "b"], {"gone"}) == ("a", "b")


def bad_no_id(bench: Bench) -> None:
    quiet(bench, "commit", "-q", "--allow-empty", "-m", "mine")


def bad_several(bench: Bench) -> None:
    quiet(bench, "commit", "-q", "--amend", "-m", "x\n\nKiln-Patch: config\nKiln-Patch: base")


def bad_same(bench: Bench) -> None:
    quiet(bench, "commit", "-q", "--allow-empty", "-m", "x\n\nKiln-Patch: base")


def bad_name(bench: Bench) -> None:
    quiet(bench, "commit", "-q", "--allow-empty", "-m", "x\n\nKiln-Patch: ../../etc")


def bad_unknown(bench: Bench) -> None:
    quiet(bench, "commit", "-q", "--allow-empty", "-m", "x\n\nKiln-Patch: unheard-of")


def bad_merge(bench: Bench) -> None:
    quiet(bench, "checkout", "-q", "-b", "side", "HEAD~1")
    quiet(bench, "commit", "-q", "--allow-empty", "-m", "x\n\nKiln-Patch: base")
    quiet(bench, "checkout", "-q", "v1")
    quiet(bench, "merge", "-q", "--no-ff", "--no-edit", "side")


def bad_base(bench: Bench) -> None:
    quiet(bench, "checkout", "-q", "--orphan", "new")
    quiet(bench, "commit", "-q", "-m", "x\n\nKiln-Patch: base")


def bad_empty(bench: Bench) -> None:
    quiet(bench, "revert", "--no-commit", "HEAD")
    quiet(bench, "commit", "-qa", "--amend", "--allow-empty", "-m", "x\n\nKiln-Patch: config")


@pytest.mark.parametrize(
    ("spoil", "wanted"),
    [
        (bad_no_id, {"authoring.no-id"}),
        (bad_several, {"authoring.several-ids"}),
        (bad_same, {"authoring.same-id"}),
        (bad_name, {"authoring.bad-id"}),
        (bad_unknown, {"authoring.unknown-patch"}),
        (bad_merge, {"authoring.merge", "authoring.same-id"}),
        (bad_base, {"authoring.lost-base"}),
        (bad_empty, {"authoring.empty-commit"}),
    ],
)
def test_what_is_no_series_is_refused(bench: Bench, spoil: object, wanted: set[str]) -> None:
    before = bench.files()
    spoil(bench)  # type: ignore[operator]
    with pytest.raises(KilnError) as caught:
        bench.save()
    assert codes(caught.value) == wanted
    assert bench.files() == before


def test_a_commit_without_an_id_is_told_what_to_do(bench: Bench) -> None:
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'")
    out = bench.git("commit", "-am", "a change of mine")
    assert "authoring.no-id" in out
    assert "kiln patch new ID --commit" in out
    assert "may not be those of these commits" in out


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        ("echo x > notes.txt", {"patch.outside"}),
        ("mkdir tests; echo 'x = 1' > tests/test_x.py", {"patch.outside"}),
        ("ln -s ../../../etc/passwd vllm/link.py", {"patch.link"}),
        ("printf 'a\\0b' > vllm/blob.bin", {"patch.binary"}),
        ("echo 'def (' > vllm/broken.py", {"patch.syntax"}),
        ("mkdir vllm/deep; cp vllm/engine.py vllm/deep/x.py.orig", {"patch.left-over"}),
        ("mkdir vllm/fresh; echo x=1 > vllm/fresh/x.py", {"patch.missing-folder"}),
    ],
)
def test_what_no_build_would_take_is_not_written(bench: Bench, make: str, wanted: set[str]) -> None:
    before = bench.files()
    assert bench.attempt("sh", "-c", make).returncode == 0
    quiet(bench, "add", "-A")
    quiet(bench, "commit", "-q", "--amend", "--no-edit")
    with pytest.raises(KilnError) as caught:
        bench.save()
    assert codes(caught.value) == wanted
    assert bench.files() == before


def test_what_is_not_committed_is_said(bench: Bench) -> None:
    bench.replace("vllm/other.py", "other_1 = 1", "other_1 = 'mine'")
    (bench.root / ".work/v1/vllm/new.py").write_text("x = 1\n")
    assert bench.save().notes == ("not committed, so not saved: vllm/other.py, vllm/new.py",)


def test_in_the_middle_of_a_rebase_nothing_is_saved(bench: Bench) -> None:
    before = bench.files()
    bench.git("rebase", "-i", "HEAD~1", GIT_SEQUENCE_EDITOR="sed -i s/^pick/edit/")
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    out = bench.git("commit", "-qa", "--amend", "--no-edit")
    assert "wrote" not in out
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.unfinished"
    assert bench.files() == before
    assert "wrote patches/config/1.0.0.patch" in bench.git("rebase", "--continue")


def test_a_file_that_somebody_changed_is_not_written_over(bench: Bench) -> None:
    path = bench.root / "patches/config/1.0.0.patch"
    hand = path.read_bytes().replace(b"'new'", b"'by hand'")
    path.write_bytes(hand)
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.file-changed"
    assert path.read_bytes() == hand
    assert bench.save(overwrite=True).written == ("patches/config/1.0.0.patch",)
    assert b"newer" in path.read_bytes()


def test_the_pin_that_moved_on_is_noticed(bench: Bench) -> None:
    bench.write("pins.yaml", bench.read("pins.yaml").replace("1.0.0", "1.0.1"))
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.other-version"
    assert caught.value.where.startswith("pins.yaml:")


def test_a_file_for_a_range_is_left_to_the_others(bench: Bench) -> None:
    """Editing for 1.0.0 changes nothing for 1.0.5, which the same range gives the file to."""
    path = "patches/config/patch.yaml"
    text = bench.read(path).replace("==1.0.0", ">=1.0,<1.1").replace("1.0.0.patch", "one.patch")
    bench.write(path, text)
    old = bench.read("patches/config/1.0.0.patch")
    (bench.root / "patches/config/1.0.0.patch").rename(bench.root / "patches/config/one.patch")
    bench.edit(again=True)
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    saved = bench.save()
    assert saved.written == ("patches/config/1.0.0.patch", path)
    assert "one.patch is for >=1.0,<1.1,!=1.0.0 now" in "\n".join(saved.notes)
    assert bench.read("patches/config/one.patch") == old
    assert bench.read(path) == text.replace(
        '  - {range: ">=1.0,<1.1", file: one.patch}\n',
        '  - {range: ">=1.0,<1.1,!=1.0.0", file: one.patch}\n'
        '  - {range: "==1.0.0", file: 1.0.0.patch}\n',
    )
    assert bench.save().written == ()


def test_parts_that_no_wheel_has_go_along(bench: Bench) -> None:
    extra = added("tests/test_config.py", "assert 1\n")
    path = bench.root / "patches/config/1.0.0.patch"
    path.write_text(path.read_text() + extra)
    yaml = bench.root / "patches/config/patch.yaml"
    yaml.write_text(yaml.read_text() + 'leave_out: ["tests/**"]\n')
    bench.edit(again=True)
    assert not (bench.root / ".work/v1/tests").exists()
    assert bench.save().written == ()
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    assert "config: the parts that no wheel has go along as they were" in bench.save().notes
    assert path.read_text().endswith(extra)
    assert built(bench)["vllm/config.py"] == in_tree(bench, "vllm/config.py")


def test_two_saves_at_once_do_no_harm(bench: Bench) -> None:
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    command = [sys.executable, "-m", "kiln", "patch", "save", "v1", "--json"]
    running = [
        subprocess.Popen(
            command, cwd=bench.root, env=bench.environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    outs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sum("patches/config/1.0.0.patch" in out for out in outs) == 1
    assert not [path for path in bench.files() if Path(path).name.startswith(".")]
    assert bench.save().written == ()


def test_a_failing_write_leaves_all_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.replace("vllm/config.py", "config_20 = 'new'", "config_20 = 'newer'")
    bench.replace("vllm/engine.py", "engine_20 = 'new'", "engine_20 = 'newer'")
    quiet(bench, "commit", "-qa", "--amend", "--no-edit")
    before, calls = bench.files(), []

    def full(handle: int) -> None:
        calls.append(handle)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        with pytest.raises(OSError):
            bench.save()
    assert calls
    assert bench.files() == before
    assert bench.save().written == ("patches/config/1.0.0.patch",)
