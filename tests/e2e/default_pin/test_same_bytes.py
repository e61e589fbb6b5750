"""Same lock, same digest: the default pin built twice, with everything different.

The first build is the session's own: in the repository, in the shared store, as root,
under whatever the environment is. The second one (`Elsewhere`) differs in all that must
not matter. Both begin with an empty action table; the second finds every blob of the
first in its alternate, and must run each action all the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kiln.store import Store
from tests.conftest import cache_dir
from tests.helpers.default_pin import (
    MINUTES,
    DefaultImage,
    build_default,
    copy_project,
    locked_files,
    other_python,
    packages_for,
    programs,
)

pytestmark = [pytest.mark.net, pytest.mark.root, pytest.mark.slow]

USER = 4242  # nobody's
# The root's own things are shown to that user where it may look: $1 is bound to $2, and
# so on up to `--`; then come programs that the machine shall lack, up to the next `--`.
_AS_USER = """
while [ "$1" != -- ]; do mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; shift 2; done
shift
while [ "$1" != -- ]; do mount --bind /dev/null "$1"; shift; done
shift
umask 077
exec setpriv --reuid USER --regid USER --clear-groups --inh-caps=-all "$@"
""".replace("USER", str(USER))


@dataclass(frozen=True)
class Elsewhere:
    """The second build. python: the version that ran the tool. blobs: of its own store."""

    digest: str
    python: tuple[int, int]
    ran: int
    blobs: frozenset[str]
    notes: str


@pytest.fixture(scope="module")
def first(default_image: DefaultImage) -> DefaultImage:
    """A build of this session from an emptied action table."""
    if default_image.ran == _actions(default_image):
        return default_image
    Store(default_image.store).actions.forget_all()
    return build_default(default_image.store)


@pytest.fixture(scope="module")
def second(first: DefaultImage) -> Iterator[Elsewhere]:
    # In memory, where there is such a place: another file system lists a folder otherwise.
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="kiln-"))
    project = Path(tempfile.mkdtemp(prefix="kiln-", dir=memory if memory.is_dir() else None))
    try:
        yield _build_elsewhere(scratch, project / "ein anderer Ordner ü", first)
    finally:
        shutil.rmtree(scratch)
        shutil.rmtree(project)


def _build_elsewhere(scratch: Path, project: Path, first: DefaultImage) -> Elsewhere:
    copy_project(project)
    python = other_python() or Path(sys.executable).resolve()
    version, prefix = _describe(python)
    packages = packages_for(python, cache_dir())
    shown = {first.store: scratch / "first", packages: scratch / "packages"}
    if not prefix.is_relative_to("/usr"):
        shown[prefix] = scratch / "python"
        python = scratch / "python" / python.relative_to(prefix)
    store, home = scratch / "a store", scratch / "home"
    for folder in (store, home, *shown.values()):
        folder.mkdir()
    for folder in (scratch, project.parent):
        folder.chmod(0o755)
    for folder in (store, home):
        os.chown(folder, USER, USER)
    environment = {
        "HOME": str(home),
        "KILN_ALTERNATES": str(scratch / "first"),
        "KILN_STORE": str(store),
        "LC_ALL": "C",
        "LD_LIBRARY_PATH": str(scratch / "python/lib"),  # of a Python with a shared library
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "12345",
        "PYTHONPATH": f"{project}:{scratch / 'packages'}",
        "PYTHONUTF8": "0",  # so that files without a named encoding are read as ASCII
        "TMPDIR": str(home),
        "TZ": "Asia/Kathmandu",
    }
    binds = [str(part) for pair in shown.items() for part in pair]
    hidden = programs("bwrap")  # this build's sandbox comes from the closure
    prefix_argv = ["unshare", "--mount", "sh", "-ec", _AS_USER, "sh", *binds, "--", *hidden, "--"]
    done = subprocess.run(
        [*prefix_argv, str(python), "-m", "kiln", "build", "--locked", "--json", "--jobs", "5"],
        cwd=project,
        env=environment,
        text=True,
        capture_output=True,
        timeout=MINUTES * 60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    blobs = frozenset(path.name for path in (store / "blobs/sha256").iterdir())
    return Elsewhere(said["digest"], version, said["actions_run"], blobs, done.stderr)


def _describe(python: Path) -> tuple[tuple[int, int], Path]:
    """Its version, and where it is installed."""
    code = "import json, sys; print(json.dumps([*sys.version_info[:2], sys.base_prefix]))"
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    major, minor, prefix = json.loads(said)
    return (major, minor), Path(prefix)


def _actions(image: DefaultImage) -> int:
    done = image.kiln("plan", "--json")
    assert done.returncode == 0, done.stderr
    return len(json.loads(done.stdout)["actions"])


def test_both_digests_are_the_locks(first: DefaultImage, second: Elsewhere) -> None:
    assert first.digest == second.digest == str(first.outputs.manifest)


def test_blobs_of_an_alternate_spare_no_action(first: DefaultImage, second: Elsewhere) -> None:
    assert first.ran == second.ran == _actions(first)
    assert first.outputs.manifest.sha256 in second.blobs


def test_the_second_build_fetched_nothing_again(first: DefaultImage, second: Elsewhere) -> None:
    locked = locked_files(first.lock)
    assert len(locked) > 200
    assert not locked.keys() & second.blobs


def test_the_second_build_took_the_closures_sandbox(second: Elsewhere) -> None:
    assert "taking it from the lock's closure" in second.notes


@pytest.mark.other_python
def test_the_second_build_ran_on_another_python(second: Elsewhere) -> None:
    assert second.python != sys.version_info[:2]
