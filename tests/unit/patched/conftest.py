"""Fixtures for tests of the files that patches add to vLLM, run as the patches have them.

A test module names its patches in PATCHES, kiln-identity first. Tests that use these
fixtures run for each version of vLLM in which the files differ.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.patched import distinct, make_site


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        metafunc.parametrize("version", distinct(metafunc.module.PATCHES), scope="module")


@pytest.fixture
def site(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the files that the module's patches add, and metadata of vLLM."""
    return make_site(tmp_path / "site", version, request.module.PATCHES)


@pytest.fixture
def module(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    """Imports one of the added modules by name ("_kiln_p70"), in a vllm package of its own.

    What they count lands in a folder of this test.
    """
    counters = tmp_path / "counters"
    counters.mkdir()
    monkeypatch.setenv("TMPDIR", str(counters))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("KILN_COUNTERS", "")  # so that what the code sets is undone
    monkeypatch.delenv("KILN_COUNTERS")
    monkeypatch.syspath_prepend(site)
    yield lambda name: importlib.import_module(f"vllm.{name}")
    if "vllm._kiln" in sys.modules:
        sys.modules["vllm._kiln"]._here.forget()
    for name in [*sys.modules]:
        if name.partition(".")[0] == "vllm":
            del sys.modules[name]
