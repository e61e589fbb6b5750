"""The relabel step: a wheel under another name or version, otherwise byte for byte.

Only what names the wheel changes: the .dist-info and .data folders, Name and Version in
METADATA, and RECORD. All other members keep their packed bytes, so a relabel costs a
copy. Dates in the new zip are 1980-01-01, the first that a zip can hold.
(Zip structures: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.)
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isal import isal_zlib

from kiln.canonical import Digest
from kiln.errors import BadInput
from kiln.graph.action import Context
from kiln.source.record import format_record
from kiln.source.stream import CHUNK
from kiln.source.wheel import Wheel
from kiln.store.blobs import BlobWriter

_DATE = 1 << 5 | 1  # year 1980 + 0, month 1, day 1
_UTF8 = 1 << 11
_UNIX = 3 << 8 | 20  # made by: Unix, zip 2.0
_STORED, _DEFLATED = 0, 8
_MAX = 0xFFFFFFFF  # bytes; what a zip without its 64-bit extension can say


def relabelled_filename(filename: str, name: str, version: str) -> str:
    """The wheel's file name under another name and version: build and tags stay.

    Raises BadInput("relabel.name") if one of them cannot be.
    """
    parts = filename.split("-")
    if len(parts) not in (5, 6):
        raise BadInput("relabel.name", f"{filename!r} is no name of a wheel", where=filename)
    return "-".join([_stem(name, version), *parts[2:]])


def _stem(name: str, version: str) -> str:
    """`name-version` as file and folder names spell it."""
    from packaging.utils import InvalidName, canonicalize_name
    from packaging.version import InvalidVersion, Version

    try:
        normal = canonicalize_name(name, validate=True)
        return f"{normal.replace('-', '_')}-{Version(version)}"
    except (InvalidName, InvalidVersion) as error:
        raise BadInput(
            "relabel.name",
            f"{name}=={version} cannot name a wheel",
            why=str(error),
            fix="write `relabel: name==version` in pins.yaml, as packaging.python.org spells them",
        ) from error


def run(ctx: Context) -> Mapping[str, Digest]:
    """Input "wheel"; parameters "filename", "name", "version"; output "out": a wheel."""
    filename, name, version = (str(ctx.params[key]) for key in ("filename", "name", "version"))
    wheel = Wheel(ctx.path("wheel"), filename)
    with ctx.store.blobs.writer() as out:
        _write(wheel, _stem(name, version), name, version, out)
    # What was written has to be a wheel as good as the one that came in.
    Wheel(ctx.store.blobs.path(out.digest.sha256), relabelled_filename(filename, name, version))
    return {"out": out.digest}


def _write(wheel: Wheel, stem: str, name: str, version: str, out: BlobWriter) -> None:
    old = wheel.dist_info.removesuffix(".dist-info")

    def renamed(path: str) -> str:
        for kind in (".dist-info/", ".data/"):
            if path.startswith(old + kind):
                return stem + kind + path.removeprefix(old + kind)
        return path

    metadata, record = f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/RECORD"
    changed = {metadata: _metadata(wheel.read(metadata), name, version)}
    dropped = {f"{record}.jws", f"{record}.p7s"}  # signatures of the old RECORD
    kept = [member for path, member in wheel.archive.members.items() if path not in dropped]
    rows: dict[str, tuple[str, int]] = {}
    for member in kept:
        if member.name == metadata:
            data = changed[metadata]
            rows[renamed(metadata)] = (hashlib.sha256(data).hexdigest(), len(data))
        elif member.name != record:
            rows[renamed(member.name)] = (wheel.sha256(member.name), member.size)
    changed[record] = format_record(rows, [renamed(record)])

    zip_out = _ZipWriter(out)
    for member in kept:
        path, mode = renamed(member.name), 0o100755 if member.executable else 0o100644
        if (new := changed.get(member.name)) is not None:
            facts = _Facts(path, mode, _STORED, isal_zlib.crc32(new), len(new), len(new))
            zip_out.add(facts, iter([new]))
        else:
            method = _DEFLATED if member.deflated else _STORED
            facts = _Facts(path, mode, method, member.crc, member.packed, member.size)
            with wheel.archive.open_packed(member) as packed:
                zip_out.add(facts, iter(functools.partial(packed.read, CHUNK), b""))
    zip_out.close()


def _metadata(text: bytes, name: str, version: str) -> bytes:
    """METADATA with another Name and Version; the body and all other lines as they were."""
    end = re.search(rb"\r?\n\r?\n", text)
    cut = end.start() if end else len(text)
    head, body = text[:cut], text[cut:]
    for key, value in ((b"Name", name), (b"Version", version)):
        # Names and versions are checked by now: nothing in them means anything to `sub`.
        line = key + b": " + value.encode()
        head = re.sub(rb"(?im)^" + key + rb":[^\r\n]*", line, head, count=1)
    return head + body


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the headers say of a member; sizes in bytes."""

    path: str
    mode: int
    method: int
    crc: int
    packed: int
    size: int


class _ZipWriter:
    def __init__(self, out: BlobWriter) -> None:
        self._out, self._at = out, 0
        self._central: list[bytes] = []

    def add(self, facts: _Facts, packed: Iterator[bytes]) -> None:
        name, start = facts.path.encode(), self._at
        common = struct.pack(
            "<5H3L2H", 20, _UTF8, facts.method, 0, _DATE,
            facts.crc, facts.packed, facts.size, len(name), 0,
        )  # fmt: skip
        self._write(b"PK\3\4" + common + name)
        before = self._at
        for block in packed:
            self._write(block)
        if self._at - before != facts.packed:
            raise BadInput("zip.corrupt", f"{facts.path} ends too early")
        # 4.4.7 on: no comment, first disk, binary, mode, offset of the local header.
        rest = struct.pack("<3H2L", 0, 0, 0, facts.mode << 16, start)
        self._central.append(b"PK\1\2" + struct.pack("<H", _UNIX) + common + rest + name)

    def close(self) -> None:
        start, count = self._at, len(self._central)
        for entry in self._central:
            self._write(entry)
        if self._at > _MAX or count > 0xFFFF:
            raise BadInput(
                "relabel.too-large",
                "wheels of more than 4 GiB or 65535 files cannot be relabelled",
                fix="publish the wheel under the name that is wanted",
            )
        tail = struct.pack("<4H2LH", 0, 0, count, count, self._at - start, start, 0)
        self._write(b"PK\5\6" + tail)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._at += len(data)
