"""The outer archive of a Debian package: ar(5) members, each compressed (deb(5))."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from kiln.errors import BadInput, CannotHere
from kiln.source.stream import CHUNK, open_slice, reader
from kiln.store.blobs import no_space

_MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes: name 16, mtime 12, uid 6, gid 6, mode 8, size 10, magic 2


@dataclass(frozen=True)
class Member:
    """A part of the package file: `size` bytes from offset `start`."""

    name: str
    start: int
    size: int


def members(path: Path) -> list[Member]:
    """The members, checked to be a package's: debian-binary 2.x, then control.tar* and
    data.tar*, each once; names that begin with an underscore may stand between.

    Raises BadInput("source.bad-deb").
    """
    total = path.stat().st_size
    found: list[Member] = []
    kinds: set[str] = set()
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise bad(path, "it is no ar archive")
        while header := file.read(_HEADER):
            name = header[:16].decode("ascii", "replace").rstrip(" ").removesuffix("/")
            digits = header[48:58].rstrip(b" ")
            if len(header) != _HEADER or header[58:] != b"`\n" or not digits.isdigit():
                raise bad(path, f"it is damaged or cut off after member {len(found)}")
            member = Member(name, file.tell(), int(digits))
            if member.start + member.size > total:
                raise bad(path, f"{name} is cut off")
            kind = name.split(".")[0] if ".tar" in name else name
            if not found:
                if name != "debian-binary" or not file.read(member.size).startswith(b"2."):
                    raise bad(path, "it does not begin with debian-binary 2.x")
            elif (kind not in ("control", "data") or kind in kinds) and not name.startswith("_"):
                raise bad(path, f"its member {name!r} is not one that a package has there")
            kinds.add(kind)
            found.append(member)
            file.seek(member.start + member.size + member.size % 2)
    return found


def decompress(member: Member, path: Path) -> IO[bytes]:
    """A member's content as a stream: plain, gzip, xz or zstd by its name.

    Raises BadInput("source.bad-deb"), CannotHere("source.no-zstd").
    """
    packed = open_slice(path, member.start, member.size)
    suffix = member.name.rpartition(".tar")[2]
    if suffix == "":
        return packed
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=packed, mode="rb"))
    if suffix == ".xz":
        return lzma.LZMAFile(packed, format=lzma.FORMAT_XZ)
    if suffix == ".zst":
        return _zstd(packed, path)
    raise bad(path, f"{member.name}: this compression is not known")


def _zstd(packed: BinaryIO, path: Path) -> BinaryIO:
    """zstd by the program of that name: Python's library has it from 3.14 on, and
    Debian's own packages do not use it (Ubuntu's do)."""
    with tempfile.TemporaryFile(prefix="kiln-deb-") as source:
        while block := packed.read(CHUNK):
            source.write(block)
        source.seek(0)
        try:
            process = subprocess.Popen(
                ["zstd", "-dcq"], stdin=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except FileNotFoundError as error:
            raise CannotHere(
                "source.no-zstd",
                "this package is compressed with zstd, and there is no program zstd here",
                where=str(path),
                fix="install the package zstd",
            ) from error
    assert process.stdout is not None
    output = process.stdout

    def blocks() -> Iterator[bytes]:
        while block := output.read(CHUNK):
            yield block
        if process.wait() != 0:
            raise bad(path, "zstd cannot unpack it")

    def close() -> None:
        output.close()
        process.kill()
        process.wait()

    return reader(blocks(), close)


def copy(source: IO[bytes], target: BinaryIO, limit: int, path: Path) -> None:
    """Unpack to the end. Raises BadInput("source.bomb") beyond `limit` bytes."""
    size = 0
    while block := source.read(CHUNK):
        size += len(block)
        if size > limit:
            raise BadInput(
                "source.bomb",
                f"the package unpacks to more than {limit} bytes",
                where=path.name,
                why=f"the file itself has {path.stat().st_size} bytes",
                fix="do not use this package",
            )
        target.write(block)


@contextlib.contextmanager
def guard(path: Path) -> Iterator[None]:
    """Turn what the decompressors and tarfile raise for damaged files into ours."""
    try:
        yield
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError, tarfile.TarError) as error:
        raise bad(path, str(error) or "a part of it is cut off") from error
    except OSError as error:
        raise (no_space(error, Path(tempfile.gettempdir())) or error) from error


def bad(path: Path, why: str) -> BadInput:
    """The error for what is no sound package."""
    return BadInput(
        "source.bad-deb",
        "this is no sound Debian package",
        where=path.name,
        why=why,
        fix="fetch it again; if its hash is the locked one, report it to its publisher",
    )
