"""What the shipped patches make of vLLM, for the tests of any patch.

The files that patches add import nothing of vLLM but each other, so they run in unit tests
without it (`make_site`; fixtures `site` and `module` in tests/unit/patched/conftest.py).
The files that they change are in the real wheels (`real_wheel`; marker net).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kiln.canonical import Digest
from kiln.errors import BadInput
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.http import Http
from kiln.fetch.index import Index
from kiln.fetch.settings import read_settings
from kiln.graph.action import Locked
from kiln.pins.load import load_project
from kiln.pins.patch import Patch, PatchFile, select
from kiln.pins.yaml import load
from kiln.progress import Silent
from kiln.resolve.target import Target
from kiln.resolve.wheels import resolve_wheel
from kiln.source.diff import parse
from kiln.source.wheel import Wheel
from kiln.store import Store

ROOT = Path(__file__).parents[2]
# Every patch of this repository, in an order in which a series may hold them.
SHIPPED = (
    "kiln-identity",
    "p70-auto-strict-ngram",
    "p75-suffix-decoding",
    "p77-adaptive-ngram-k",
    "pn72-ngram-frequency-filter",
    "k001-mtp-dynamic-k",
    "p71-block-verify",
    "p62-structured-output-timing",
)
# vLLM's version in the tests -> what it calls itself in an image.
VERSIONS = {"0.23.0": "0.23.0", "0.24.0": "0.24.0", "0.32.0": "0.32.0+cpu"}


@functools.cache
def spec(patch: str) -> Patch:
    """A patch's patch.yaml."""
    return load(ROOT / "patches" / patch / "patch.yaml", Patch)


def has(patch: str, version: str) -> bool:
    """Whether a patch has a file for a version (one that upstream has taken has none)."""
    try:
        select(spec(patch), version, patch)
    except BadInput as error:
        if error.code != "patch.no-version":
            raise
        return False
    return True


def with_required(patch: str) -> list[str]:
    """A patch behind those that it requires, by id or by what they provide."""
    needed = {patch}
    for other in reversed(SHIPPED[: SHIPPED.index(patch) + 1]):
        if needed & {other, *spec(other).provides}:
            needed |= {other, *spec(other).requires}
    return [other for other in SHIPPED if needed & {other, *spec(other).provides}]


def patch_file(patch: str, version: str) -> PatchFile:
    """A patch's file for a version."""
    file = f"patches/{patch}/{select(spec(patch), version, patch)}"
    return PatchFile(patch, (ROOT / file).read_bytes(), file)


def series(version: str, patches: Iterable[str] = SHIPPED) -> list[PatchFile]:
    """The files of those patches that have one for a version."""
    return [patch_file(patch, version) for patch in patches if has(patch, version)]


@functools.cache
def added_files(patch: str, version: str) -> Mapping[str, bytes]:
    """Path -> content of the files that a patch adds to vLLM."""
    file = patch_file(patch, version)
    return {
        diff.path: b"".join(line for hunk in diff.hunks for line in hunk.after)
        for diff in parse(file.data, file.file)
        if diff.new
    }


def distinct(patches: Sequence[str]) -> list[str]:
    """The versions in which these patches add files of another text than in an earlier one.

    A patch's own files are mostly the same for all versions; then one is enough to test.
    """
    seen: dict[tuple[tuple[str, bytes], ...], str] = {}
    for version in VERSIONS:
        if all(has(patch, version) for patch in patches):
            files = [item for p in patches for item in sorted(added_files(p, version).items())]
            seen.setdefault(tuple(files), version)
    return [*seen.values()]


def make_site(folder: Path, version: str, patches: Sequence[str]) -> Path:
    """A folder for sys.path with the files that patches add, and metadata of vLLM."""
    for patch in patches:
        for path, data in added_files(patch, version).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    said = VERSIONS[version]
    info = folder / f"vllm-{said}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {said}\n")
    return folder


def real_wheel(version: str, store: Path) -> Wheel:
    """The wheel of a version, from the machine's index, kept in a store."""
    settings = read_settings()
    project = load_project(ROOT)
    index = Index(Http(settings.access), settings)
    found = resolve_wheel(f"vllm=={version}", Target("3.11"), index, (), Silent())
    opened = Store(store)
    fetcher = StoreFetcher(opened, settings, Silent(), named=project.pins.indexes)
    fetcher.fetch([Locked(Digest(found.sha256, found.size), found.file, found)])
    return Wheel(opened.blobs.path(found.sha256), found.file)
