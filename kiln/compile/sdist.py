"""A source distribution as hostile input (PEP 517, PEP 625, PEP 721).

A gzipped tar with one folder at its top, "name-version". Files, folders and relative
links that stay inside are taken; everything else that tar knows is refused. Owners, times
and odd permissions are not taken: nobody may depend on them.
"""

from __future__ import annotations

import functools
import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.source.entry import Entry, check_path, merge
from kiln.source.stream import CHUNK, open_slice
from kiln.store.blobs import no_space

MAX_MEMBERS = 200_000
MAX_TOTAL = 4 << 30  # bytes, unpacked
MAX_RATIO = 200  # text packs at most about 20 to 1
SMALL = 64 << 20  # bytes; below this size no ratio does harm


def read_sdist(path: Path, filename: str, scratch: Path) -> list[Entry]:
    """The files of a .tar.gz, without its top folder, sorted.

    scratch: a folder for the unpacked archive, which the entries read from. Raises
    BadInput (all problems at once): "sdist.name", "sdist.damaged", "sdist.bomb",
    "sdist.odd-type", "sdist.link", "sdist.duplicate", "sdist.top",
    "source.odd-path", "source.below-no-folder".
    """
    if not filename.endswith(".tar.gz"):
        raise _bad("name", f"{filename} is no sdist", filename, "its name must end in .tar.gz")
    plain = scratch / "sdist.tar"
    try:
        with plain.open("wb") as out:
            _inflate(path, out, filename)
        with tarfile.open(plain, "r:", encoding="utf-8", errors="strict") as tar:
            members = list(_bounded(tar, filename))
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise _bad("damaged", "this archive cannot be read", filename, str(error)) from error
    except OSError as error:
        raise (no_space(error, scratch) or error) from error
    return _check(members, plain, filename)


def _inflate(path: Path, out: BinaryIO, filename: str) -> None:
    limit = min(MAX_TOTAL, max(SMALL, MAX_RATIO * path.stat().st_size))
    done = 0
    with gzip.open(path, "rb") as source:
        while block := source.read(CHUNK):
            done += len(block)
            if done > limit:
                why = f"{path.stat().st_size} packed bytes become more than {limit}"
                raise _bad("bomb", "the archive is a bomb", filename, why)
            out.write(block)


def _bounded(tar: tarfile.TarFile, filename: str) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(tar, 1):
        if number > MAX_MEMBERS:
            raise _bad("bomb", f"more than {MAX_MEMBERS} members", filename)
        yield member


def _check(members: list[tarfile.TarInfo], plain: Path, filename: str) -> list[Entry]:
    problems: list[KilnError] = []
    found: dict[str, Entry] = {}
    tops = {member.name.partition("/")[0] for member in members}
    if len(tops) != 1:
        shown = ", ".join(sorted(tops)[:5]) or "nothing"
        problems.append(_bad("top", "an sdist has one folder at its top", filename, shown))
    for member in members:
        try:
            entry = _entry(member, plain, filename)
        except KilnError as error:
            problems.append(error)
            continue
        if entry is None:
            continue
        if entry.path in found and not entry.kind == found[entry.path].kind == "dir":
            problems.append(_bad("duplicate", f"{entry.path} comes twice", filename))
        found[entry.path] = entry
    raise_problems(problems)
    return merge([found.values()])


def _entry(member: tarfile.TarInfo, plain: Path, filename: str) -> Entry | None:
    """The member below the top folder; None for that folder itself."""
    name = check_path(member.name, filename)
    _, slash, inner = name.partition("/")
    if not slash:
        if not member.isdir():
            raise _bad("top", f"{name} lies beside the top folder", filename)
        return None
    if member.isdir():
        return Entry(inner, "dir", 0o755, origin=filename)
    if member.issym():
        _check_link(inner, member.linkname, filename)
        return Entry(inner, "symlink", 0o777, target=member.linkname, origin=filename)
    if not member.isreg() or member.issparse():
        why = f"type {member.type!r}; links to files, devices, pipes and holes are not taken"
        raise _bad("odd-type", f"{inner} is no plain file", filename, why)
    opener = functools.partial(open_slice, plain, member.offset_data, member.size)
    mode = 0o755 if member.mode & 0o100 else 0o644
    return Entry(inner, "file", mode, member.size, "", opener, filename)


def _check_link(path: str, target: str, filename: str) -> None:
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or resolved == ".." or resolved.startswith("../") or "\0" in target:
        raise _bad("link", f"{path} is a link to {target!r}", filename, "it leads out of the sdist")


def _bad(reason: str, what: str, where: str, why: str = "") -> BadInput:
    return BadInput(
        f"sdist.{reason}",
        what,
        where=where,
        why=why,
        fix="do not use this file; report it to whoever publishes it",
    )
