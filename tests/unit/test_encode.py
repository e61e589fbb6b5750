"""The encoder: a fixed header (W3), fixed blocks, and a known answer."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator

import pytest

from kiln.canonical import sha256
from kiln.errors import CannotHere
from kiln.layer import encode as module
from kiln.layer.encode import BLOCK, ENCODER, Encoding, check_known_answer, encode, known_pattern
from kiln.store import Store


@pytest.fixture(autouse=True)
def _forget_the_check() -> Iterator[None]:
    check_known_answer.cache_clear()
    yield
    check_known_answer.cache_clear()


def encoded(store: Store, parts: Iterable[bytes]) -> Encoding:
    with encode(store.blobs) as out:
        for part in parts:
            assert out.write(part) == len(part)
    return out


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_both_hashes_and_sizes(store: Store) -> None:
    data = known_pattern()
    out = encoded(store, [data])
    blob = store.blobs.read(out.blob.sha256)
    assert gzip.decompress(blob) == data
    assert out.diff_id == hashlib.sha256(data).hexdigest()
    assert (out.tar_size, out.blob.size) == (len(data), len(blob))
    assert out.blob.sha256 == sha256(blob)


def test_the_header_has_no_time_no_name_and_a_fixed_system(store: Store) -> None:
    blob = store.blobs.read(encoded(store, [b"x"]).blob.sha256)
    assert blob[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@pytest.mark.parametrize("size", [1, 511, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_the_size_of_writes_does_not_matter(store: Store, size: int) -> None:
    data = known_pattern()[: 3000 if size == 1 else None]
    assert encoded(store, split(data, size)).blob == encoded(store, [data]).blob


@pytest.mark.parametrize("size", [0, BLOCK - 1, BLOCK, BLOCK + 1, 7 * BLOCK])
def test_edges_of_blocks(store: Store, size: int) -> None:
    data = (known_pattern() * 3)[:size]
    out = encoded(store, split(data, 1 << 16))
    assert gzip.decompress(store.blobs.read(out.blob.sha256)) == data
    assert out.tar_size == size


def test_the_known_answer_is_known_here(store: Store) -> None:
    check_known_answer()
    data = known_pattern()
    assert len(data) > 2 * BLOCK
    assert encoded(store, [data]).blob.sha256 == module.KNOWN_ANSWER


def test_the_encoder_says_what_it_is() -> None:
    assert (ENCODER.name, ENCODER.version, ENCODER.block) == ("isal-gzip-1", "1.9.1", 1 << 20)


@pytest.mark.parametrize("name", ["LEVEL", "_HEADER"])
def test_another_encoder_is_named_and_writes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(
        module, name, {"LEVEL": 2, "_HEADER": b"\x1f\x8b\x08\0\0\0\0\0\0\x03"}[name]
    )
    with pytest.raises(CannotHere) as caught, encode(store.blobs):
        raise AssertionError
    assert caught.value.code == "layer.encoder"
    assert "diffID" in caught.value.why
    assert caught.value.exit_code == 4
    assert list(store.blobs) == []


def test_an_exception_drops_the_blob(store: Store) -> None:
    def parts() -> Iterator[bytes]:
        yield bytes(20 * BLOCK)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        encoded(store, parts())
    assert list(store.blobs) == []
    assert list(store.blobs.tmp.iterdir()) == []


def test_a_full_disk_reaches_the_caller(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    full = CannotHere("store.no-space", "full")

    def block(self: module.Gzip, data: bytes) -> None:
        raise full

    check_known_answer()
    monkeypatch.setattr(module.Gzip, "block", block)
    with pytest.raises(CannotHere) as caught:
        encoded(store, [bytes(BLOCK)] * 50)
    assert caught.value is full
    assert list(store.blobs) == []
