from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.canonical import Digest, dumps
from kiln.lock.compare import difference, stale
from kiln.lock.file import dump_lock, read_lock, write_lock
from kiln.lock.model import (
    Base,
    Closure,
    Deb,
    Encoder,
    Layer,
    Local,
    Lock,
    LockedPatch,
    Outputs,
    PatchedFile,
    Resolved,
    Suite,
    Wheel,
)

words = st.text(max_size=12)
names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
hashes = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
sizes = st.integers(0, 2**53)
digests = st.builds(Digest, hashes, sizes)
files = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,20}\.whl", fullmatch=True)
pools = st.from_regex(
    r"pool/main/[a-z]/[a-z0-9+.-]{0}[a-z]+/[a-z0-9_.~+-]{0}[a-z]+\.deb", fullmatch=True
)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def by_name(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    unique = st.lists(items, max_size=4, unique_by=lambda item: item.name)
    return unique.map(lambda found: tuple(sorted(found)))


wheels = by_name(st.builds(Wheel, names, words, files, sizes, hashes, names))
debs = by_name(st.builds(Deb, names, words, names, pools, sizes, hashes, names, names))
closures = st.builds(Closure, debs, wheels, wheels)
bases = st.builds(Base, words, hashes.map("sha256:".__add__) | st.just(""),
                  hashes.map("sha256:".__add__))  # fmt: skip
resolved = st.builds(
    Resolved,
    st.dictionaries(words, json, max_size=4),
    st.dictionaries(words, closures, max_size=3),
    st.dictionaries(words, st.builds(Suite, words, hashes), max_size=2),
    st.none() | bases,
)
patched = st.lists(
    st.builds(PatchedFile, words, hashes | st.just(""), hashes | st.just("")),
    max_size=3,
    unique_by=lambda file: file.path,
).map(lambda found: tuple(sorted(found, key=lambda file: file.path)))
patches = st.lists(
    st.builds(LockedPatch, words, hashes, patched), max_size=3, unique_by=lambda patch: patch.id
).map(tuple)
locals_ = st.builds(
    Local,
    hashes,
    st.dictionaries(words, hashes, max_size=3),
    patches,
    st.dictionaries(words, sizes, max_size=3),
    st.builds(Encoder, words, words, sizes),
)
layers = st.lists(
    st.builds(Layer, names, hashes, digests, sizes), max_size=3, unique_by=lambda layer: layer.name
).map(tuple)
outputs = st.builds(Outputs, layers, digests, digests)
locks = st.builds(Lock, names, resolved, st.none() | locals_, st.none() | outputs)


@given(locks)
@settings(deadline=None, max_examples=50)
def test_round_trip(lock: Lock) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{lock.pin}.lock"
        write_lock(path, lock)
        assert read_lock(path) == lock
        assert path.read_bytes() == dump_lock(lock)


@given(locks)
@settings(deadline=None, max_examples=50)
def test_the_layout_only_adds_blanks_to_the_canonical_form(lock: Lock) -> None:
    data = dump_lock(lock)
    assert data.endswith(b"}\n")
    plain = msgspec.json.decode(data)
    assert plain == msgspec.json.decode(dumps(lock))
    assert dumps(plain) == dumps(lock)


@given(json)
def test_the_fast_encoder_is_the_canonical_one(value: Any) -> None:
    assert msgspec.json.Encoder(order="sorted").encode(value) == dumps(value)


@given(locks, locks)
@settings(deadline=None, max_examples=25)
def test_no_difference_means_equal(one: Lock, two: Lock) -> None:
    old, new = one.resolved.request, two.resolved.request
    assert (stale(old, new) == []) == (dumps(old) == dumps(new))
    assert stale(old, msgspec.json.decode(dumps(old))) == []
    if one.local is not None and two.local is not None:
        assert (difference(one.local, two.local) == []) == (one.local == two.local)
        assert difference(one.local, one.local) == []
