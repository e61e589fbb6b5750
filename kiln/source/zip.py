"""A zip archive as hostile input: every member checked before any byte is used.

The central directory is read by the standard library; contents are inflated by isal,
which is several times faster, straight from the file. (PKWARE APPNOTE 6.3.10; the
section numbers below are its.)
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import isal_zlib

from kiln.errors import BadInput, raise_problems
from kiln.source.entry import check_path
from kiln.source.stream import CHUNK, open_slice, reader

MAX_MEMBERS = 200_000
MAX_TOTAL = 64 << 30  # bytes; the largest wheels hold about 5 GB
MAX_RATIO = 200  # of all members together; shared objects reach 10
SMALL = 64 << 20  # bytes; below this size no ratio does harm

_INFLATE_ERROR = cast("type[Exception]", isal_zlib.error)  # isal's stub forgets `type`
_PACKED_BLOCK = 256 << 10  # isal inflates fastest when fed blocks of this size

_LOCAL = struct.Struct("<4s5H3L2H")  # 4.3.7
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # 4.4.4: bits 0, 6, 13
_PATCHED = 0x20  # bit 5


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive. start: offset of its packed bytes. packed, size: bytes."""

    name: str
    start: int
    packed: int
    size: int
    crc: int
    deflated: bool
    executable: bool


class Archive:
    """A zip file whose members are all plain files with plain names, each once.

    Raises BadInput (all problems at once): "zip.malformed", "zip.duplicate",
    "zip.odd-type" (links, devices), "source.odd-path", "zip.encrypted",
    "zip.compression", "zip.mismatch" (local header against directory), "zip.overlap",
    "zip.bomb", "zip.file-and-folder".
    """

    def __init__(self, path: Path, where: str) -> None:
        self.path, self.where = path, where
        self._problems: list[BadInput] = []
        self.members: dict[str, Member] = {}  # in the order of the archive
        folders: set[str] = set()
        infos = self._directory()
        with path.open("rb") as file:
            for info in infos:
                if info.is_dir() and not info.file_size:
                    self._check_name(info, info.filename.removesuffix("/"))
                    folders.add(info.filename.removesuffix("/"))
                elif self._check(info):
                    self._add(info, file.fileno())
        self._check_overlaps()
        for name in self.members:
            parents = name.split("/")[:-1]
            folders.update("/".join(parents[:n]) for n in range(1, len(parents) + 1))
        for name in sorted(folders & self.members.keys()):
            self._refuse("file-and-folder", f"{name} is a file and a folder")
        raise_problems(self._problems)

    def open(self, member: Member, algorithm: str = "", expected: bytes = b"") -> BinaryIO:
        """The member's content. Size and CRC, and the hash where one is given, are
        checked before the last bytes are handed out: BadInput("zip.corrupt"),
        BadInput("wheel.hash-mismatch")."""
        packed = self.open_packed(member)
        blocks = self._inflated if member.deflated else self._stored
        return reader(
            self._verified(member, blocks(member, packed), algorithm, expected), packed.close
        )

    def open_packed(self, member: Member) -> BinaryIO:
        """The member's bytes as they lie in the archive, unchecked."""
        return open_slice(self.path, member.start, member.packed)

    def read(self, name: str) -> bytes:
        """A small member's content. Raises KeyError if there is none of that name."""
        with self.open(self.members[name]) as source:
            return source.read()

    def _refuse(self, code: str, what: str, why: str = "") -> None:
        self._problems.append(
            BadInput(
                code if "." in code else f"zip.{code}",
                what,
                where=self.where,
                why=why,
                fix="do not use this file; report it to whoever publishes it",
            )
        )

    def _directory(self) -> list[zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                infos = archive.infolist()
        except (
            zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error,
            ValueError, OverflowError, EOFError,
        ) as error:  # fmt: skip
            self._refuse("malformed", "this is not a zip archive that can be read", str(error))
            raise_problems(self._problems)
        total, packed = sum(i.file_size for i in infos), sum(i.compress_size for i in infos)
        if len(infos) > MAX_MEMBERS:
            self._refuse("bomb", f"{len(infos)} members are more than {MAX_MEMBERS}")
        if total > MAX_TOTAL or (total > SMALL and total > MAX_RATIO * packed):
            self._refuse("bomb", f"{packed} packed bytes declare that they unpack to {total}")
        raise_problems(self._problems)
        return infos

    def _check_name(self, info: zipfile.ZipInfo, name: str) -> bool:
        # zipfile cuts names at a NUL and turns other separators around.
        if info.orig_filename != info.filename or "\\" in name:
            self._refuse("source.odd-path", f"entry name {info.orig_filename!r} is odd")
            return False
        try:
            check_path(name, self.where)
        except BadInput as error:
            self._problems.append(error)
            return False
        return True

    def _check(self, info: zipfile.ZipInfo) -> bool:
        before, name = len(self._problems), info.filename
        self._check_name(info, name)
        if name in self.members:
            self._refuse("duplicate", f"{name} is there twice", "tools differ on which one counts")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            what = "a symbolic link" if kind == stat.S_IFLNK else f"of type {kind:#o}"
            self._refuse("odd-type", f"{name} is {what}", "wheels hold plain files only")
        if info.flag_bits & (_ENCRYPTED | _PATCHED):
            self._refuse("encrypted", f"{name} is encrypted or patch data")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self._refuse("compression", f"{name} is packed with method {info.compress_type}")
        elif info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            self._refuse("mismatch", f"{name} is stored, and yet of two sizes")
        return len(self._problems) == before

    def _add(self, info: zipfile.ZipInfo, fd: int) -> None:
        """Take a member whose local header says the same as the central directory."""
        head = os.pread(fd, _LOCAL.size, info.header_offset)
        name = info.filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
        if len(head) == _LOCAL.size:
            magic, _, flags, method, *_, name_size, extra = _LOCAL.unpack(head)
            there = os.pread(fd, name_size, info.header_offset + _LOCAL.size)
            if (magic, there, method) == (b"PK\3\4", name, info.compress_type) and not (
                flags & _ENCRYPTED
            ):
                self.members[info.filename] = Member(
                    info.filename,
                    info.header_offset + _LOCAL.size + name_size + extra,
                    info.compress_size,
                    info.file_size,
                    info.CRC,
                    method == zipfile.ZIP_DEFLATED,
                    bool(info.external_attr >> 16 & 0o111),
                )
                return
        self._refuse(
            "mismatch",
            f"{info.filename}: its own header does not say what the central directory says",
            "tools that read the one or the other see different files",
        )

    def _check_overlaps(self) -> None:
        end, size = 0, self.path.stat().st_size
        for member in sorted(self.members.values(), key=lambda m: m.start):
            if member.start < end:
                self._refuse("overlap", f"{member.name} shares bytes with another member")
            end = member.start + member.packed
            if end > size:
                self._refuse("malformed", f"{member.name} reaches beyond the end of the file")

    def _verified(
        self, member: Member, blocks: Iterator[bytes], algorithm: str, expected: bytes
    ) -> Iterator[bytes]:
        """The blocks; the last one only once everything has been checked."""
        left, crc, held = member.size, 0, b""
        digest = hashlib.new(algorithm) if algorithm else None
        for block in blocks:
            if held:
                yield held
            held, left, crc = block, left - len(block), isal_zlib.crc32(block, crc)
            if left < 0:
                raise self._corrupt(member, "it unpacks to more than it declares")
            if digest is not None:
                digest.update(block)
        if left:
            raise self._corrupt(member, f"{left} of {member.size} bytes are missing")
        if crc != member.crc:
            raise self._corrupt(member, f"its CRC is {crc:08x}, not {member.crc:08x}")
        if digest is not None and digest.digest() != expected:
            raise BadInput(
                "wheel.hash-mismatch",
                f"{member.name} is not the file that RECORD describes",
                where=self.where,
                why=f"{algorithm} is {digest.hexdigest()}, RECORD says {expected.hex()}",
                fix="do not use this wheel; report it to whoever publishes it",
            )
        if held:
            yield held

    def _stored(self, _: Member, packed: BinaryIO) -> Iterator[bytes]:
        return iter(lambda: packed.read(CHUNK), b"")

    def _inflated(self, member: Member, packed: BinaryIO) -> Iterator[bytes]:
        inflate = isal_zlib.decompressobj(-15)
        while not inflate.eof:
            data = inflate.unconsumed_tail or packed.read(_PACKED_BLOCK)
            try:
                block = inflate.decompress(data, CHUNK)
            except _INFLATE_ERROR as error:
                raise self._corrupt(member, str(error)) from error
            if block:
                yield block
            elif not data and not inflate.eof:
                raise self._corrupt(member, "its packed bytes end too early")
        if inflate.unused_data or packed.read(1):
            raise self._corrupt(member, "bytes follow the end of its packed stream")

    def _corrupt(self, member: Member, why: str) -> BadInput:
        return BadInput(
            "zip.corrupt",
            f"{member.name} cannot be unpacked",
            where=self.where,
            why=why,
            fix="the file is damaged or forged; fetch it again",
        )
