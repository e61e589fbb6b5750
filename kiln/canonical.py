"""Canonical JSON and digests: the bytes under every key, lock and manifest.

UTF-8, keys sorted by code point, no blanks, no floats: integers, strings,
booleans, null, lists and objects with string keys. (RFC 8785 differs only
where floats and surrogates are concerned, and Kiln has neither.)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

JSON: TypeAlias = "bool | int | str | Sequence[JSON] | Mapping[str, JSON] | None"

_HEX = re.compile(r"[0-9a-f]{64}\Z")


class Digest(msgspec.Struct, frozen=True, order=True):
    """A blob's identity, shaped like REAPI's Digest: sha256 (hex) and size in bytes."""

    sha256: str
    size: int

    def __str__(self) -> str:
        return f"sha256:{self.sha256}"


def is_sha256(text: str) -> bool:
    """Whether the text is 64 lower-case hex digits."""
    return _HEX.match(text) is not None


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: key {key!r} is not a string")
            _check(item, f"{path}.{key}")
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
        return
    raise TypeError(f"{path}: {type(value).__name__} has no canonical form")


def dumps(value: object) -> bytes:
    """Canonical bytes. Raises TypeError for floats and other foreign types.

    msgspec structs are taken as their builtin form first.
    """
    plain = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    _check(plain, "$")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(data: bytes) -> str:
    """Hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest(data: bytes) -> Digest:
    """Digest of bytes."""
    return Digest(sha256(data), len(data))


def key(value: object) -> str:
    """Hex sha256 of the canonical form."""
    return sha256(dumps(value))
