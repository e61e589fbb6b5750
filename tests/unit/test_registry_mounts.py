"""What the store remembers of pushes: a hint where a blob may be mounted from."""

from __future__ import annotations

import pytest

from kiln.canonical import Digest, digest
from kiln.registry.mounts import Mounts
from kiln.store import Store

A, B, C = (digest(text) for text in (b"a", b"b", b"c"))
HOST = "registry.example"


def remember(store: Store, repository: str, *blobs: Digest, host: str = HOST) -> None:
    Mounts(store, host, repository).remember(blobs)


def sources(store: Store, blob: Digest, *first: str) -> list[str]:
    return Mounts(store, HOST, "own", first).sources(blob)


def test_only_who_has_had_the_blob_and_the_last_first(store: Store) -> None:
    assert sources(store, A) == []
    remember(store, "one", A)
    remember(store, "two", B)
    remember(store, "three", A, B)
    assert sources(store, A) == ["three", "one"]
    assert sources(store, B) == ["three", "two"]
    assert sources(store, C) == []
    remember(store, "one", C)
    assert sources(store, A) == ["one", "three"], "what was known of it before is kept"


def test_neither_itself_nor_another_registry(store: Store) -> None:
    remember(store, "own", A)
    remember(store, "elsewhere", A, host="other.example")
    assert sources(store, A) == []


def test_named_ones_go_first_and_few_are_tried(store: Store) -> None:
    for number in range(5):
        remember(store, f"r{number}", A)
    assert sources(store, A, "named", "r3", "own") == ["named", "r3", "r4"]


def test_it_does_not_grow_without_end(store: Store) -> None:
    for number in range(40):
        remember(store, f"r{number}", A)
    remember(store, "large", *(digest(str(n).encode()) for n in range(2000)))
    again = Mounts(store, HOST, "own")
    assert len(again._known) == 32
    assert len(again._known["large"]) == 1024
    assert (store.root / "pushed.json").stat().st_size < 200_000


@pytest.mark.parametrize("text", ["", "{}", "[[5, []]]", "\xff"])
def test_a_file_that_is_something_else_is_no_hindrance(store: Store, text: str) -> None:
    (store.root / "pushed.json").write_bytes(text.encode("latin-1"))
    assert sources(store, A) == []
    remember(store, "one", A)
    assert sources(store, A) == ["one"]


def test_a_disk_that_does_not_take_it_is_no_failure(store: Store) -> None:
    (store.root / "pushed.json.new").mkdir()
    remember(store, "one", A)
    assert sources(store, A) == []
