"""The small pin where the machine, the network or somebody's hand is not as it should be."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.server import closed_port
from tests.helpers.small import Small, make_small


@pytest.fixture
def locked(tmp_path: Path) -> Small:
    """A small project with a complete lock."""
    small = make_small(tmp_path)
    for command in ("lock", "build"):
        result = small.kiln(command)
        assert result.returncode == 0, result.stderr
    return small


def refused(done: subprocess.CompletedProcess[str], exit_code: int) -> dict[str, Any]:
    """The error of a command that ran with --json."""
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert isinstance(error, dict)
    return error


# ---- a lock that somebody edited ---------------------------------------------------------------


def reformat(text: str) -> str:
    return json.dumps(json.loads(text), indent=4) + "\n"


def add_host(text: str) -> str:
    return text.replace('"index":"default"', '"index":"https://example.invalid/simple"', 1)


def other_version(text: str) -> str:
    """idle 1.2 was never resolved; its hash is that of 1.1."""
    return text.replace("idle-1.1-py3-none-any.whl", "idle-1.2-py3-none-any.whl")


def other_hash(text: str) -> str:
    found = re.search(r'"idle-1\.1-py3-none-any\.whl".*?"sha256":"([0-9a-f]{64})"', text)
    assert found
    return text.replace(found[1], "0" * 64)


@pytest.mark.parametrize(
    ("edit", "command", "exit_code", "code"),
    [
        (reformat, "build", 2, "lock.not-canonical"),
        (reformat, "plan", 2, "lock.not-canonical"),
        (other_hash, "build", 3, "fetch."),
        (other_version, "build", 3, "fetch."),
        (add_host, "build", 2, "fetch.unknown-index"),
        (lambda text: text[: len(text) // 2], "build", 2, "lock.syntax"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "build", 2, "lock.future-schema"),
        (lambda text: f"<<<<<<< ours\n{text}", "build", 2, "lock.syntax"),
    ],
)  # fmt: skip
def test_a_lock_edited_by_hand(
    locked: Small, edit: Callable[[str], str], command: str, exit_code: int, code: str
) -> None:
    path = locked.root / "images/locks/small.lock"
    before = path.read_text()
    edited = edit(before)
    assert edited != before
    path.write_text(edited)
    # Another store: this one holds what the true lock names.
    done = locked.kiln(command, "--json", KILN_STORE=f"{locked.store}-other")
    error = refused(done, exit_code)
    assert error["code"].startswith(code)
    assert path.read_text() == edited, "a lock is left as it is found"
    path.write_text(before)
    assert locked.kiln("build", "--locked").returncode == 0


# ---- no network, no engine ---------------------------------------------------------------------


def test_an_index_that_cannot_be_reached(locked: Small) -> None:
    dead = f"http://127.0.0.1:{closed_port()}/simple"
    environment = {
        "PIP_FIND_LINKS": "",
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": dead,
        "KILN_STORE": f"{locked.store}-other",
    }
    errors = refused(locked.kiln("build", "--locked", "--json", **environment), 3)["errors"]
    assert [error["code"] for error in errors] == ["fetch.unreachable"] * 3
    assert all(error["where"].startswith(dead) for error in errors)
    locking = locked.kiln("lock", "--upgrade-all", "--json", **environment)
    assert refused(locking, 3)["code"] == "resolve.unreachable"
    assert locked.kiln("build", "--locked").returncode == 0


def test_no_engine(locked: Small, tmp_path: Path) -> None:
    dead = f"unix://{tmp_path}/nobody.sock"
    error = refused(locked.kiln("load", "--json", DOCKER_HOST=dead), 4)
    assert error["code"] == "run.no-engine"
    assert error["where"] == dead
    # An archive for an engine elsewhere needs none here.
    out = tmp_path / "image.tar"
    assert locked.kiln("load", "--output", str(out), DOCKER_HOST=dead).returncode == 0
    assert out.stat().st_size > 0


def test_a_store_that_cannot_be_made(locked: Small) -> None:
    error = refused(locked.kiln("build", "--json", KILN_STORE="/proc/kiln"), 4)
    assert error["code"] == "store.cannot-create"


# ---- an old locale -----------------------------------------------------------------------------

OLD = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_a_locale_that_cannot_say_a_name(tmp_path: Path) -> None:
    """Names in wheels, folders and files are UTF-8, whatever the locale's encoding is."""
    small = make_small(tmp_path / "Főtanúsítvány")
    for command in ("lock", "build"):
        done = small.kiln(command, **OLD)
        assert done.returncode == 0, done.stderr
    usual = make_small(tmp_path / "usual")
    for command in ("lock", "build"):
        assert usual.kiln(command).returncode == 0
    assert done.stdout == usual.kiln("build", "--locked").stdout
