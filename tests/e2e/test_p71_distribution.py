"""P71's rule with the image's own torch: what comes out has the target's distribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiln.compile.sandbox import Bind, Command, find_sandbox
from kiln.image.prepare import LockFetcher
from kiln.image.read import read_image
from kiln.image.tools import BUBBLEWRAP, ensure_tool
from kiln.progress import Silent
from kiln.run.rootfs import image_root
from kiln.store import Store
from tests.helpers.default_pin import DefaultImage
from tests.helpers.patched import VERSIONS, make_site

pytestmark = [pytest.mark.net, pytest.mark.root]

HELPERS = Path(__file__).parents[1] / "helpers"
PATCHES = ("kiln-identity", "p71-block-verify")
# 81 sequences: chi squared is about 80; above 150 once in a million runs of a fair sampler.
FAIR, UNFAIR = 150, 300


def measure(image: DefaultImage, version: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the measurement on the files that the patch adds, in the image, in the sandbox."""
    store = Store(image.store)
    fetcher = LockFetcher(image.project, image.lock, store, Silent())
    ensure_tool(BUBBLEWRAP, image.project, image.lock.resolved, store, fetcher, Silent())
    root = image_root(store, read_image(store, image.outputs.manifest.sha256), Silent())
    site = make_site(folder / version, version, PATCHES)
    (site / "vllm/__init__.py").touch()
    command = Command(
        argv=("python3.11", "/tmp/measure.py", *arguments),
        root=root,
        env={"PYTHONPATH": "/tmp/site", "OMP_NUM_THREADS": "1"},
        binds=(Bind(site, "/tmp/site"), Bind(HELPERS / "p71_distribution.py", "/tmp/measure.py")),
        seconds=300,
    )
    log = folder / "log"
    assert find_sandbox(store).run(command, log) == 0, log.read_text()[-3000:]
    said: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return said


@pytest.mark.parametrize("version", [*VERSIONS])
def test_the_distribution_is_the_targets(
    default_image: DefaultImage, version: str, tmp_path: Path
) -> None:
    said = measure(default_image, version, tmp_path)
    assert [run["chi"] < FAIR for run in said["runs"]] == [True] * 3, said
    # ... and more of each draft is kept than by vLLM's own rule: that is what it is for.
    assert all(run["kept"] > run["usual"] * 1.02 for run in said["runs"]), said
    assert said["edges"] == {
        "the same distributions": [[1, 2, 0], [1, -1, -1], [3, 2, -1]],
        "the target wants another second token": [[1, 0, -1], [1, -1, -1], [3, 2, -1]],
        "a hole in the draft": [[1, 2, -1], [1, -1, -1], [3, 2, -1]],
        "a draft of no probability": [[1, -1, -1], [1, -1, -1], [3, 2, -1]],
    }


def test_one_random_number_for_all_lengths_is_seen(
    default_image: DefaultImage, tmp_path: Path
) -> None:
    said = measure(default_image, "0.32.0", tmp_path, "--shared")
    assert [run["chi"] > UNFAIR for run in said["runs"]] == [True] * 3, said
