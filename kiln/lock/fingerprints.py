"""Fingerprints of a locked layer's files: 3 bytes each, to name the file that differs.

A layer's diffID says that something differs, not what. The listing of a layer
(kiln/layer/listing.py) has one line a file, a JSON array of path, mode and content, in
the layer's order; images/locks/<pin>.files keeps the first 3 bytes of each line's sha256,
one line a layer:

    <layer name> <diffID, hex> <base64 (RFC 4648, section 4)>

A changed file keeps its fingerprint once in 16.7 million times. So these name a file;
they never decide whether layers are equal: that is for the diffID.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kiln.canonical import is_sha256
from kiln.errors import BadInput, raise_problems
from kiln.lock.file import write_atomically

_WIDTH = 3


def fingerprints_path(root: Path, pin: str) -> Path:
    """images/locks/<pin>.files of the project in `root`."""
    return root / "images" / "locks" / f"{pin}.files"


def fingerprints(listing: bytes) -> str:
    """Base64 of the first 3 bytes of the sha256 of each line, in order."""
    return base64.b64encode(b"".join(_prints(_lines(listing)))).decode()


def write_fingerprints(path: Path, layers: Mapping[str, tuple[str, str]]) -> None:
    """Write a pin's file, as a whole or not at all.

    layers: name -> (diffID, fingerprints), in the image's order.
    """
    lines = [f"{name} {diff_id} {prints}\n" for name, (diff_id, prints) in layers.items()]
    write_atomically(path, "".join(lines).encode())


def read_fingerprints(path: Path) -> dict[str, tuple[str, str]]:
    """Layer name -> (diffID, fingerprints). Raises BadInput("lock.files-missing" |
    "lock.files-syntax"), with all lines that are wrong."""
    try:
        lines = path.read_text("ascii").splitlines()
    except FileNotFoundError as error:
        raise BadInput(
            "lock.files-missing",
            "there is no list of the locked layers' files",
            where=str(path),
            fix="take the file back from git; `kiln build` writes it beside the lock",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            "lock.files-syntax", "the file cannot be read", where=str(path), why=str(error)
        ) from error
    layers: dict[str, tuple[str, str]] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        name, diff_id, prints = (*line.split(" "), "", "", "")[:3]
        why = ""
        if line.count(" ") != 2 or not name or not is_sha256(diff_id):
            why = 'wanted "<layer> <diffID> <base64>"'
        elif name in layers:
            why = f"layer {name} stands here twice"
        elif _decode(prints) is None:
            why = f"the last word is no base64 of {_WIDTH} bytes a file"
        if why:
            where = f"{path}:{number}"
            fix = "take the file back from git"
            problems.append(
                BadInput(
                    "lock.files-syntax", "this is no layer's line", where=where, why=why, fix=fix
                )
            )
        layers[name] = (diff_id, prints)
    raise_problems(problems)
    return layers


def first_difference(listing: bytes, locked: str) -> str | None:
    """The first file in which a built layer's listing differs from the locked one.

    "added or changed: <path>"; "removed after: <path>" (the locked layer had files
    behind that one, which are gone), or "removed at the start". None where no fingerprint
    differs. Raises ValueError if `locked` is not what `fingerprints` gives.
    """
    data = _decode(locked)
    if data is None:
        raise ValueError("not the fingerprints of a layer")
    lines = _lines(listing)
    new = _prints(lines)
    old = [data[i : i + _WIDTH] for i in range(0, len(data), _WIDTH)]
    same = 0
    while same < min(len(new), len(old)) and new[same] == old[same]:
        same += 1
    if same == len(new) == len(old):
        return None
    # A line that the locked layer has further on is neither new nor changed.
    if same == len(new) or new[same] in old[same + 1 :]:
        return f"removed after: {_path(lines[same - 1])}" if same else "removed at the start"
    return f"added or changed: {_path(lines[same])}"


def _lines(listing: bytes) -> list[bytes]:
    return listing.removesuffix(b"\n").split(b"\n") if listing else []


def _prints(lines: list[bytes]) -> list[bytes]:
    return [hashlib.sha256(line).digest()[:_WIDTH] for line in lines]


def _path(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=list[str])[0]
    except (msgspec.DecodeError, IndexError):
        return line.decode(errors="backslashreplace")


def _decode(prints: str) -> bytes | None:
    try:
        data = base64.b64decode(prints, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) % _WIDTH == 0 else None
