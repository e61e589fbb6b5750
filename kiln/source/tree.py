"""Trees: how steps hand files to each other. A tree is a canonical, uncompressed tar
(see kiln.source.tar) kept as a blob, so equal files have equal digests.
"""

from __future__ import annotations

import functools
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from kiln.canonical import Digest
from kiln.errors import BadInput, Damaged, KilnError
from kiln.source.entry import Entry, Kind, check_path, complete, merge
from kiln.source.stream import open_slice
from kiln.source.tar import BLOCK, EPOCH, TarWriter
from kiln.store.blobs import BlobStore, no_space

_KINDS: dict[bytes, Kind] = {b"0": "file", b"2": "symlink", b"5": "dir"}


def write_tree(blobs: BlobStore, entries: Iterable[Entry]) -> Digest:
    """Store the entries, in any order, as a tree; the same entries give the same digest.

    Raises BadInput for clashes and for content that is not what its entry says.
    """
    with blobs.writer() as out:
        tar = TarWriter(out)
        for entry in complete(merge([entries])):
            tar.add(entry)
        tar.close()
    return out.digest


def read_tree(path: Path, origin: str = "") -> list[Entry]:
    """The entries of a tree, sorted; contents are opened in place when asked for.

    Folders that nobody declared are among them, with mode 0755. Raises
    Damaged("source.tree") for a file that is not what `write_tree` writes.
    """
    if not path.stat().st_size:
        raise _malformed(path, "it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return list(_parse(data, path, origin or path.name))
        except (ValueError, IndexError, KilnError) as error:
            raise _malformed(path, str(error)) from error


def _parse(data: mmap.mmap, path: Path, origin: str) -> Iterator[Entry]:
    at, pax, zeros = 0, dict[str, str](), bytes(BLOCK)
    while (head := data[at : at + BLOCK]) != zeros:
        if head[257:265] != b"ustar\00000":
            raise ValueError(f"no header at byte {at}")
        at += BLOCK
        kind, size = head[156:157], int(head[124:135], 8)
        if kind == b"x":
            pax = _records(data[at : at + size])
        else:
            size = int(pax.get("size", size))
            name = pax.get("path") or _name(head)
            target = pax.get("linkpath") or _text(head[157:257])
            if at + size > len(data):
                raise ValueError(f"{name} is cut off")
            opener = functools.partial(open_slice, path, at, size) if kind == b"0" else None
            mode = int(head[100:107], 8)
            name = check_path(name.removesuffix("/"), str(path))
            yield Entry(name, _KINDS[kind], mode, size, target, opener, origin)
            pax = {}
        at += size + -size % BLOCK


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("ascii")


def _name(head: bytes) -> str:
    prefix = _text(head[345:500])
    return f"{prefix}/{_text(head[:100])}" if prefix else _text(head[:100])


def _records(raw: bytes) -> dict[str, str]:
    found = {}
    while raw:
        length = int(raw[: raw.index(b" ")])
        key, _, value = raw[raw.index(b" ") + 1 : length - 1].partition(b"=")
        found[key.decode()] = value.decode()
        raw = raw[length:]
    return found


def _malformed(path: Path, why: str) -> Damaged:
    return Damaged(
        "source.tree",
        "this blob is not a file tree that Kiln wrote",
        where=str(path),
        why=why,
        fix="run `kiln fsck`; the next build makes the tree again",
    )


def unpack(entries: Iterable[Entry], directory: Path) -> None:
    """Write entries below a folder (made if need be), with their modes and mtime EPOCH.

    Nothing is written through a link or over something that is there: what exists may
    only be folders. Links are made last. Set-user-ID and set-group-ID bits of files are
    left out: what is unpacked is read by builds and never needs another's rights.
    Raises BadInput("source.unpack-exists"); CannotHere("store.no-space").
    """
    merged = merge([entries])
    folders: dict[Path, int] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for entry in merged:
            target = directory / entry.path
            _make_folder(target.parent, directory, folders)
            if entry.kind == "file":
                _write(entry, target)
            elif entry.kind == "dir":
                _make_folder(target, directory, folders)
                folders[target] = entry.mode
        for entry in merged:
            if entry.kind == "symlink":
                target = directory / entry.path
                target.symlink_to(entry.target)
                os.utime(target, (EPOCH, EPOCH), follow_symlinks=False)
        # Innermost first: a folder's mode may forbid to write into it.
        for folder, mode in sorted(folders.items(), reverse=True):
            folder.chmod(mode)
            os.utime(folder, (EPOCH, EPOCH))
    except FileExistsError as error:
        raise _exists(Path(error.filename or directory)) from error
    except OSError as error:
        raise (no_space(error, directory) or error) from error


def _make_folder(folder: Path, top: Path, known: dict[Path, int]) -> None:
    if folder in known or folder == top:
        return
    _make_folder(folder.parent, top, known)
    try:
        folder.mkdir(0o755)
        known[folder] = 0o755
    except FileExistsError:
        there = folder.lstat().st_mode
        if not stat.S_ISDIR(there):
            raise _exists(folder) from None
        known[folder] = stat.S_IMODE(there)


def _write(entry: Entry, target: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o600), "wb") as out:
        for block in entry.blocks():
            out.write(block)
        out.flush()  # or closing would touch the mtime again
        os.fchmod(out.fileno(), entry.mode & 0o1777)
        os.utime(out.fileno(), (EPOCH, EPOCH))


def _exists(path: Path) -> BadInput:
    return BadInput(
        "source.unpack-exists",
        "something is in the way of a file to be unpacked",
        where=str(path),
        why="only folders may be there before; a link could lead anywhere",
        fix="unpack into an empty folder",
    )
