"""Results about wheels, kept in the store: the same two wheels and the same code say the same."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from kiln.canonical import JSON, dumps, key, sha256
from kiln.store import Store

T = TypeVar("T")


def remembered(
    store: Store, node: str, question: Mapping[str, JSON], kind: type[T], work: Callable[[], T]
) -> T:
    """The result of `work`, or of an earlier run of the same code on the same question.

    node: its name in the store's table. question: all that the result depends on, but for
    the code of this package. kind: a struct that JSON can hold.
    """
    asked: dict[str, JSON] = {**question, "node": node, "code": _code()}
    found = (store.actions.get(key(asked)) or {}).get("out")
    if found is not None and store.blobs.has(found):
        return msgspec.json.decode(store.blobs.read(found.sha256), type=kind)
    result = work()
    with store.building():
        digest = store.blobs.put(dumps(msgspec.to_builtins(result)))
        store.actions.put(key(asked), node, dumps(asked), {"out": digest})
    return result


@functools.cache
def _code() -> JSON:
    """What could make another result of the same wheels: this package, and Python's syntax."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    hashes: list[JSON] = [sha256(path.read_bytes()) for path in files]
    return [*hashes, f"{sys.version_info.major}.{sys.version_info.minor}"]
