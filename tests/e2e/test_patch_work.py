"""`kiln patch` with the shipped patches on the real wheels of vLLM 0.23.0 and 0.24.0."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.authoring.lay import each_step
from kiln.drift.origin import WheelSource
from kiln.pins.load import load_project
from kiln.pins.patch import read_series
from tests.helpers.patched import real_wheel

ROOT = Path(__file__).parents[2]
OLD, NEW = "v0.23.0", "v0.24.0"

pytestmark = pytest.mark.net


def wheel_path(pin: str, store: Path) -> Path:
    """The wheel of a pin under its own name, as a user has it."""
    wheel = real_wheel(pin.removeprefix("v"), store)
    link = store.parent / "wheels" / wheel.filename
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        shutil.copyfile(wheel.archive.path, link)
    return link


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project, in a repository of its own."""
    root = tmp_path / "project"
    for part in ("images", "patches", "build"):
        shutil.copytree(ROOT / part, root / part)
    for part in ("pins.yaml", ".gitignore"):
        shutil.copy(ROOT / part, root / part)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x")
    return root


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kiln", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )


def kiln(root: Path, *arguments: str) -> str:
    done = run(root, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("pin", [OLD, NEW])
def test_edit_and_save_leave_every_shipped_patch_as_it_is(
    project: Path, shared_store: Path, pin: str
) -> None:
    folder = Path(
        kiln(project, "patch", "edit", pin, "--source", str(wheel_path(pin, shared_store))).strip()
    )
    wanted = list(load_project(ROOT).pin(pin).patches)
    tag = f"pristine-{pin.removeprefix('v')}"
    bodies = git(
        folder, "log", "--reverse", "--format=%(trailers:key=Kiln-Patch,valueonly)", f"{tag}.."
    )
    assert bodies.split() == wanted
    assert git(folder, "status", "--porcelain") == ""
    assert "all as they were" in kiln(project, "patch", "save", pin)
    # Not because the state says so: without it, each file is made again and compared.
    state = folder / ".git/kiln/work.json"
    kept = json.loads(state.read_bytes())
    state.write_text(json.dumps({**kept, "head": ""}))
    assert "all as they were" in kiln(project, "patch", "save", pin)
    assert git(project, "status", "--porcelain") == "", "the outer repository shows nothing"


def test_every_shipped_patch_is_what_kiln_would_write(project: Path, shared_store: Path) -> None:
    """Made from the commits alone, each file is the shipped one to the byte."""
    kiln(project, "patch", "edit", NEW, "--source", str(wheel_path(NEW, shared_store)))
    shipped = {}
    for patch in load_project(ROOT).pin(NEW).patches:
        file = project / "patches" / patch / "0.24.0.patch"
        shipped[patch] = file.read_bytes()
        file.unlink()
    kiln(project, "patch", "save", NEW)
    made = {patch: (project / "patches" / patch / "0.24.0.patch").read_bytes() for patch in shipped}
    assert [patch for patch in shipped if made[patch] != shipped[patch]] == []


def test_the_series_moves_to_the_next_version(project: Path, shared_store: Path) -> None:
    """All 0.24.0 files are taken away, and made from those of 0.23.0; what conflicts is solved
    as the shipped patch has it. What moves by itself is the shipped file, to the byte."""
    wheels = {pin: wheel_path(pin, shared_store) for pin in (OLD, NEW)}
    ids = load_project(project).pin(NEW).patches
    source = WheelSource(real_wheel("0.24.0", shared_store), "0" * 64, "0.24.0", NEW)
    series = read_series(load_project(ROOT), ids, "0.24.0")
    shipped = dict(zip(ids, each_step(source, series), strict=True))
    for patch in ids:
        folder = project / "patches" / patch
        (folder / "0.24.0.patch").unlink()
        text = (folder / "patch.yaml").read_text()
        (folder / "patch.yaml").write_text(re.sub(r"\n.*0\.24\.0\.patch.*", "", text))
    command = ["patch", "refresh", OLD, "--to", NEW, "--json"]
    command += ["--source", str(wheels[OLD]), "--to-source", str(wheels[NEW])]
    work = project / ".work" / NEW
    solved = []
    while True:
        done = run(project, *command)
        found = json.loads(done.stdout)
        assert done.returncode == int(found["conflict"] is not None), done.stderr
        if found["conflict"] is None:
            break
        patch = found["conflict"]["patch"]
        assert patch not in solved
        assert git(work, "ls-files", "--unmerged")
        git(work, "read-tree", "--reset", "-u", "HEAD")
        for path, blob in shipped[patch].items():
            assert blob is not None
            (work / path).write_bytes(blob.data)
        git(work, "add", "-A")
        solved.append(patch)
        command = ["patch", "refresh", NEW, "--continue", "--json"]
    states = {row["id"]: row["state"] for row in found["patches"]}
    assert list(states) == list(ids)
    assert {patch for patch in ids if states[patch] == "SOLVED"} == set(solved)
    assert set(states.values()) <= {"OK", "OFFSET", "MERGED", "SOLVED"}
    assert states["p70-auto-strict-ngram"] == "OFFSET"
    assert len(solved) < len(ids) / 2, "most move by themselves"
    for patch in ids:
        if states[patch] in ("OK", "OFFSET"):
            file = f"patches/{patch}/0.24.0.patch"
            assert (project / file).read_bytes() == (ROOT / file).read_bytes()
    moved = each_step(source, read_series(load_project(project), ids, "0.24.0"))
    built = {path: blob for files in moved for path, blob in files.items()}
    for path, blob in built.items():
        assert blob is not None
        assert (work / path).read_bytes() == blob.data
