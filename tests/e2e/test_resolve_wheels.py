"""Resolving and fetching from the index that this machine's user really has."""

from __future__ import annotations

import pytest

from kiln.canonical import Digest
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.http import Http
from kiln.fetch.index import Index
from kiln.fetch.settings import read_settings
from kiln.graph.action import Locked
from kiln.progress import Silent
from kiln.resolve.target import Target
from kiln.resolve.wheels import Wanted, resolve, resolve_sdist
from kiln.store import Store

pytestmark = pytest.mark.net


def test_a_small_closure_is_resolved_kept_and_fetched(store: Store) -> None:
    settings = read_settings()
    index = Index(Http(settings.access), settings)
    wanted = Wanted(
        ["jinja2==3.1.6"], Target("3.11"), constraints=["markupsafe==3.0.2"], exclude=["nothing"]
    )
    found = resolve(wanted, index, Silent())
    assert [(w.name, w.version) for w in found] == [("jinja2", "3.1.6"), ("markupsafe", "3.0.2")]
    assert found[0].sha256 == "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"
    assert found[1].file.startswith("MarkupSafe-3.0.2-cp311-cp311-manylinux")
    loose = Wanted(["jinja2"], Target("3.11"), keep=found)
    assert resolve(loose, index, Silent()) == found
    locked = [Locked(Digest(w.sha256, w.size), w.file, w) for w in found]
    StoreFetcher(store, settings, Silent()).fetch(locked)
    assert all(store.blobs.has(item.digest) for item in locked)


def test_an_sdist_is_found_without_building_it(store: Store) -> None:
    settings = read_settings()
    record = resolve_sdist(
        "arctic-inference", "0.1.1", Index(Http(settings.access), settings), Silent()
    )
    assert (record.file, record.size) == ("arctic_inference-0.1.1.tar.gz", 122018)
    what = Digest(record.sha256, record.size)
    StoreFetcher(store, settings, Silent()).fetch([Locked(what, record.file, record)])
    assert store.blobs.path(record.sha256).stat().st_size == record.size
