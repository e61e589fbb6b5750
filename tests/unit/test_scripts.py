"""scripts/setup and scripts/need: what they say and how they end where something lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Answers as Python does where setup asks; what it lacks is set in the environment.
PYTHON = """\
#!/bin/sh
case "$*" in
    *version_info*) exit "${OLD:-0}" ;;
    -V) echo "Python 3.9.2" ;;
    *"import ensurepip, venv"*) exit "${NO_VENV:-0}" ;;
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install "*) exit "${NO_PIP:-0}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the scripts alone; the user is not root, and Python a stub."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    for name, text in (("python3", PYTHON), ("id", "#!/bin/sh\necho 1000\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(
    checkout: Path, script: str, *arguments: str, **lacks: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts" / script, *arguments],
        env={"PATH": f"{checkout / 'bin'}:{os.defpath}", **lacks},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_ordinary_user_is_told_in_one_line_what_to_install(checkout: Path) -> None:
    done = run(checkout, "setup", NO_VENV="1")
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert "python3-venv" in line
    assert "sudo apt-get install" in line
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_named_with_its_version(checkout: Path) -> None:
    done = run(checkout, "setup", OLD="1")
    assert done.returncode == 4
    assert "Python 3.9.2" in done.stderr
    assert "3.11" in done.stderr


def test_packages_that_cannot_be_had_are_no_failed_gate(checkout: Path) -> None:
    done = run(checkout, "image", NO_PIP="1")
    assert done.returncode == 3  # 1 would say that a gate failed
    assert not (checkout / ".venv" / ".ready").exists()


def test_a_set_up_that_was_not_finished_begins_anew(checkout: Path) -> None:
    left = checkout / ".venv" / "lib" / "half-installed"
    left.mkdir(parents=True)
    assert run(checkout, "setup").returncode == 0
    assert (checkout / ".venv" / ".ready").exists()
    assert not left.exists()


def test_a_finished_set_up_is_brought_up_to_date_in_place(checkout: Path) -> None:
    assert run(checkout, "setup").returncode == 0
    kept = checkout / ".venv" / "kept"
    kept.touch()
    assert run(checkout, "setup").returncode == 0
    assert kept.exists()
