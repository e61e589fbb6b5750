"""Real packages and wheels for tests of what runs foreign code; kept in the tests' cache.

Not through Kiln's own resolving and fetching: those have tests of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.canonical import Digest
from kiln.graph.action import Input
from kiln.source.deb import Deb
from kiln.source.tree import write_tree
from kiln.store import Store
from tests.conftest import cache_dir


def debs(*packages: str) -> list[Path]:
    """Debian packages and all that they depend on, through the machine's apt."""
    folder = cache_dir() / "debs" / "+".join(sorted(packages))
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    status = folder.parent / "status"
    status.touch()
    options = {
        "Dir::State::status": status,  # as if nothing were installed
        "Dir::Cache::archives": folder,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
    }
    argv = ["apt-get", "-qq", "-y", "--download-only"]
    argv += [f"-o{name}={value}" for name, value in options.items()]
    subprocess.run([*argv, "install", *packages], check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.deb"))


def trees(store: Store, *packages: str) -> list[Digest]:
    """Those packages as trees of a store."""
    return [write_tree(store.blobs, Deb(path).entries()) for path in debs(*packages)]


def wheels(store: Store, *requirements: str) -> list[tuple[str, Input]]:
    """Wheels and all that they depend on, for Debian 12's Python, through pip."""
    found = download("--only-binary=:all:", "--python-version=3.11", *requirements)
    return [(path.name, store.blobs.put_file(path)) for path in found]


def download(*arguments: str) -> list[Path]:
    """What `pip download` brings."""
    folder = cache_dir() / "pip" / _folder(arguments)
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        argv = [sys.executable, "-m", "pip", "download", "-qq", "-d", str(partial), *arguments]
        subprocess.run(argv, check=True)
        partial.rename(folder)
    return sorted(folder.iterdir())


def _folder(arguments: Sequence[str]) -> str:
    return "+".join(argument.strip("-").replace(":", "") for argument in arguments)
