"""The default pin for end-to-end tests: its project, its store, and other machines.

The store lies in the tests' cache, outside the repository: downloads and results are
kept between runs, so that a second run of the tests fetches and builds nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.canonical import Digest, sha256
from kiln.compile.tools import SYSTEM
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.settings import read_settings
from kiln.graph.action import Locked
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Deb, Lock, Outputs, Wheel
from kiln.pins.load import Project, load_project
from kiln.progress import Silent
from kiln.store import Store

ROOT = Path(__file__).parents[2]
# What a build reads of the repository, the tool itself included.
PARTS = ("pins.yaml", "images", "patches", "build", "kiln")
MINUTES = 20  # for one command; the longest, a whole build from nothing, takes two or three


@dataclass(frozen=True)
class DefaultImage:
    """The default pin's image, built by the command line in the shared store.

    ran: how many actions had to run for it; 0 where an earlier run of the tests left it.
    """

    project: Project
    name: str
    lock: Lock
    store: Path
    digest: str
    ran: int

    @property
    def outputs(self) -> Outputs:
        """What the lock says that the build made."""
        assert self.lock.outputs is not None
        return self.lock.outputs

    def kiln(
        self, *arguments: str, prefix: Sequence[str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `kiln ARGUMENTS` in the project and the shared store."""
        return kiln(
            self.project.root, *arguments, prefix=prefix, store=self.store, environment=environment
        )


def kiln(
    root: Path,
    *arguments: str,
    store: Path,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    """Run `kiln ARGUMENTS` in a project as a user would, in a store.

    prefix: a command that runs the rest of its line (see `without`).
    """
    return subprocess.run(
        [*prefix, sys.executable, "-m", "kiln", *arguments],
        cwd=root,
        env={**variables(store), **environment},
        text=True,
        capture_output=True,
        timeout=MINUTES * 60,
        check=False,
    )


def variables(store: Path) -> dict[str, str]:
    """The environment that runs this repository's Kiln in a store."""
    kept = {k: v for k, v in os.environ.items() if k not in ("KILN_STORE", "KILN_ALTERNATES")}
    return kept | {"KILN_STORE": str(store), "PYTHONPATH": str(ROOT)}


def build_default(store: Path) -> DefaultImage:
    """Build the default pin as its lock says. AssertionError where that does not work."""
    project = load_project(ROOT)
    name = project.pins.default
    lock = read_lock(locks_path(ROOT, name))
    done = kiln(ROOT, "build", "--locked", "--json", store=store)
    assert done.returncode == 0, (
        f"the default pin does not build as {name}.lock says; "
        f"whatever needs its image cannot run:\n{done.stderr[-4000:]}"
    )
    said = json.loads(done.stdout)
    return DefaultImage(project, name, lock, store, said["digest"], said["actions_run"])


def locked_files(lock: Lock) -> dict[str, int]:
    """sha256 -> size of all that the image is made from: a model or a sandbox is not."""
    files: list[Deb | Wheel] = []
    for name in ("image", "build/arctic-inference"):
        closure = lock.resolved.closures[name]
        files += [*closure.debs, *closure.wheels, *closure.sources]
    return {file.sha256: file.size for file in files}


def locked_wheel(name: str, store: Path, folder: Path) -> Path:
    """A wheel of the default pin's lock, fetched into the store, as a link with its name."""
    project = load_project(ROOT)
    lock = read_lock(locks_path(ROOT, project.pins.default))
    (wheel,) = [w for w in lock.resolved.closures["image"].wheels if w.name == name]
    opened = Store(store)
    fetcher = StoreFetcher(opened, read_settings(), Silent(), named=project.pins.indexes)
    fetcher.fetch([Locked(Digest(wheel.sha256, wheel.size), wheel.file, wheel)])
    link = folder / wheel.sha256 / wheel.file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(opened.blobs.path(wheel.sha256))
    return link


def copy_project(target: Path) -> None:
    """A copy of what a build reads, written in the opposite order of names."""
    for part in sorted(PARTS, reverse=True):
        for source in [path for path in _files(ROOT / part) if "__pycache__" not in path.parts]:
            copy = target / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        for inner in sorted(path.iterdir(), reverse=True):
            yield from _files(inner)


def programs(*names: str) -> list[str]:
    """Every copy of these programs that Kiln could find on this machine."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *SYSTEM]
    paths = {(Path(folder) / name).resolve() for folder in folders for name in names}
    return sorted(str(path) for path in paths if path.is_file())


def without(*names: str) -> list[str]:
    """A prefix: the command behind it runs on a machine that lacks these programs.

    In a mount namespace of its own, /dev/null, which nobody can run, lies over each. Root.
    """
    script = 'while [ "$1" != -- ]; do mount --bind /dev/null "$1"; shift; done; shift; exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", script, "sh", *programs(*names), "--"]


def other_python() -> Path | None:
    """The newest Python of this machine that Kiln supports and that is not the one running.

    Looked for in PATH and among pyenv's versions.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(30, 10, -1):
        if minor == sys.version_info.minor:
            continue
        name = f"python3.{minor}"
        found = [shutil.which(name), *sorted(pyenv.glob(f"3.{minor}.*/bin/{name}"), reverse=True)]
        for path in found:
            # pyenv's shims are in PATH for versions that it does not let run.
            if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                return Path(path)
    return None


def packages_for(python: Path, cache: Path) -> Path:
    """A folder with the tool's locked dependencies for another Python, made once."""
    requirements = ROOT / "requirements.txt"
    said = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout
    folder = cache / f"packages-{said.split()[1]}-{sha256(requirements.read_bytes())[:12]}"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
        options = ["--no-deps", "--require-hashes", "--target", str(partial)]
        subprocess.run([*pip, *options, "-r", str(requirements)], check=True)
        partial.rename(folder)
    return folder
