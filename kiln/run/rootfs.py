"""An image's root file system, unpacked from its layers (image spec v1.1, layer.md).

Each layer is unpacked once to `store.roots/<diffID>` and shared by hard links among the
images that hold it; an image's root is `store.roots/<manifest>/root`. Both are a cache,
written elsewhere and renamed when whole: a reader sees all or nothing.

Layers are hostile: while one is unpacked it can only meet what it brought itself, and
every parent must be a real folder of it, so no link is ever followed. Its diffID is
checked before it is taken. Owners are kept when Kiln runs as root; extended attributes
(file capabilities) are not, since a container of ours has no capabilities to gain.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, cast

import msgspec
from isal import igzip, isal_zlib

from kiln.errors import BadInput, CannotHere, KilnError
from kiln.image.read import Image, ImageLayer
from kiln.progress import Reporter, Task
from kiln.source.entry import check_path
from kiln.store import Store
from kiln.store.blobs import CHUNK, corrupt, no_space

_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
_Kind = Literal["file", "dir", "symlink"]

# What readers raise for garbage, and what the kernel says of impossible names.
_GARBAGE = (
    tarfile.TarError,
    gzip.BadGzipFile,
    cast(type[Exception], isal_zlib.error),
    EOFError,
    ValueError,
)
_ODD_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR)


def image_root(store: Store, image: Image, reporter: Reporter) -> Path:
    """The folder that is the image's root; made if need be.

    Raises BadInput with image.diff-id, image.bad-layer, source.odd-path, ...; Damaged
    for a blob that is not its name; CannotHere("store.no-space"), ("image.zstd-layer").
    """
    final = store.roots / image.manifest.sha256
    if not final.exists():
        layers = [_layer_folder(store, layer, reporter) for layer in image.layers]
        with reporter.task("put layers together"), _whole(store, final) as scratch:
            root = scratch / "root"
            root.mkdir()
            for folder in layers:
                implicit = msgspec.json.decode((folder / "implicit").read_bytes(), type=set[str])
                _stack(folder / "files", root, "", implicit)
            root.chmod(0o755)
    return final / "root"


def _layer_folder(store: Store, layer: ImageLayer, reporter: Reporter) -> Path:
    """`<diffID>/files`, the layer as it is (whiteouts too), and `<diffID>/implicit`: the
    folders that no entry of it declared, whose mode and owner mean nothing."""
    final = store.roots / layer.diff_id
    if final.exists():
        return final
    name, blob = f"unpack layer {layer.diff_id[:12]}", store.blobs.path(layer.digest.sha256)
    with reporter.task(name, layer.digest.size) as task, _whole(store, final) as scratch:
        with _open(blob, layer, task) as stream:
            try:
                unpacker = _Unpacker(scratch / "files", str(layer.digest))
                unpacker.unpack(cast(BinaryIO, stream))
                stream.drain()
            except _GARBAGE as error:
                raise _refused(blob, layer, "bad-layer", str(error)) from error
            except OSError as error:
                if error.errno in _ODD_NAMES:
                    raise _refused(blob, layer, "bad-layer", str(error)) from error
                raise
        if stream.hash.hexdigest() != layer.diff_id:
            found = f"the config says sha256:{layer.diff_id}, it is {stream.hash.hexdigest()}"
            raise _refused(blob, layer, "diff-id", found)
        if unpacker.devices:
            reporter.note(f"{layer.digest}: {unpacker.devices} device nodes below /dev left out")
        (scratch / "implicit").write_bytes(msgspec.json.encode(sorted(unpacker.implicit)))
    return final


def _refused(blob: Path, layer: ImageLayer, reason: str, why: str) -> KilnError:
    with blob.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != layer.digest.sha256:  # a flipped bit of ours, not a bad image
        return corrupt(blob, found)
    return BadInput(
        f"image.{reason}", "a layer is not what it should be", where=str(layer.digest), why=why
    )


@contextmanager
def _whole(store: Store, final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` if the block ends well. Only its owner may
    enter: it can hold set-user-ID files."""
    scratch = Path(tempfile.mkdtemp(prefix="root-", dir=store.blobs.tmp))
    try:
        yield scratch
        os.sync()  # a rename must not reach the disk before what it names
        try:
            scratch.rename(final)
        except OSError:
            if not final.exists():  # else another process was faster
                raise
    except OSError as error:
        raise (no_space(error, scratch) or error) from error
    finally:
        remove_tree(scratch)


def remove_tree(folder: Path) -> None:
    """Delete a folder, also where it holds folders that forbid writing; none is fine."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = Path(path, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=not folder.exists())


class _Stream:
    """The tar inside a layer's blob: unpacked, hashed and counted as it is read."""

    def __init__(self, blob: Path, layer: ImageLayer, task: Task) -> None:
        self._raw, self._task, self.hash = blob.open("rb"), task, hashlib.sha256()
        self._done = 0
        self._file: BinaryIO = self._raw
        if layer.compression == "gzip":
            file = igzip.GzipFile(fileobj=self._raw)  # type: ignore[no-untyped-call]
            self._file = cast(BinaryIO, file)

    def read(self, size: int = CHUNK) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        at = self._raw.tell()
        self._task.advance(at - self._done)
        self._done = at
        return data

    def drain(self) -> None:
        """Read what stands behind the tar's end: the diffID covers it too."""
        while self.read():
            pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()


def _open(blob: Path, layer: ImageLayer, task: Task) -> _Stream:
    if layer.compression == "zstd":
        raise CannotHere(
            "image.zstd-layer",
            "this runner cannot unpack zstd layers",
            where=str(layer.digest),
            fix="use --runner docker with an engine of version 23 or later, or pin "
            "`compression: gzip`",
        )
    return _Stream(blob, layer, task)


class _Unpacker:
    """One layer's tar, written below an empty folder."""

    def __init__(self, top: Path, origin: str) -> None:
        self._top, self._origin = top, origin
        self._kinds: dict[str, _Kind] = {"": "dir"}
        self._folders: dict[str, tarfile.TarInfo] = {}
        self._own = os.geteuid() == 0
        self.implicit: set[str] = set()
        self.devices = 0

    def unpack(self, stream: BinaryIO) -> None:
        self._top.mkdir()
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                self._member(archive, member)
                # Or it would remember all of them.
                archive.members = []  # type: ignore[attr-defined]
        for name in sorted(self._folders, reverse=True):  # inner first: modes may forbid writing
            path, member = self._top / name, self._folders[name]
            self._stat(path, member)
            path.chmod(stat.S_IMODE(member.mode))

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = member.name.removeprefix("./")
        if name in ("", "."):
            return
        check_path(name, self._origin)
        last = name.rpartition("/")[2]
        if last.startswith(_RESERVED) and last != _OPAQUE:
            raise self._odd(name, "a reserved name of layers")
        if last.startswith(_WHITEOUT):
            if last.removeprefix(_WHITEOUT) in ("", ".", ".."):
                raise self._odd(name, "a whiteout of nothing")
            if not member.isreg() or member.size:
                raise self._odd(name, "a whiteout that is no empty file")
        self._parents(name)
        path = self._top / name
        if member.isdir():
            self._put(name, "dir")
            self._folders[name] = member
        elif member.isreg():
            self._put(name, "file")
            source = archive.extractfile(member)
            assert source is not None
            with path.open("xb") as out:
                shutil.copyfileobj(source, out, CHUNK)
                os.fchmod(out.fileno(), 0o600)
            if path.stat().st_size != member.size:
                raise self._odd(name, "it is cut off")
            self._stat(path, member)
            path.chmod(stat.S_IMODE(member.mode))  # after chown, which takes bits away
        elif member.issym():
            self._put(name, "symlink")
            path.symlink_to(member.linkname)
            self._stat(path, member)
        elif member.islnk():
            target = check_path(member.linkname.removeprefix("./"), self._origin)
            if self._kinds.get(target) not in ("file", "symlink") or target == name:
                raise self._odd(name, f"a hard link to {target!r}, which this layer lacks")
            self._put(name, self._kinds[target])
            os.link(self._top / target, path, follow_symlinks=False)
        elif member.isdev() and name.startswith("dev/"):
            self.devices += 1  # every runtime makes a /dev of its own
        else:
            raise self._odd(name, f"an entry of type {member.type!r}")

    def _parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        kind = self._kinds.get(parent)
        if kind is None:
            self._parents(parent)
            (self._top / parent).mkdir()
            self._kinds[parent] = "dir"
            self.implicit.add(parent)
        elif kind != "dir":
            raise self._odd(name, f"/{parent} is no folder: a layer may not write through links")

    def _put(self, name: str, kind: _Kind) -> None:
        """Make room: of two entries with one name the later counts (POSIX pax)."""
        old, path = self._kinds.get(name), self._top / name
        if (old == "dir") != (kind == "dir") and old is not None:
            raise self._odd(name, "a folder and something else have this name")
        if kind == "dir":
            path.mkdir(exist_ok=True)
            self.implicit.discard(name)
        elif old is not None:
            path.unlink()
        self._kinds[name] = kind

    def _stat(self, path: Path, member: tarfile.TarInfo) -> None:
        if self._own:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        when = int(member.mtime * 1_000_000_000)
        os.utime(path, ns=(when, when), follow_symlinks=False)

    def _odd(self, name: str, why: str) -> BadInput:
        return BadInput(
            "image.bad-layer", f"a layer's entry {name!r} cannot be", where=self._origin, why=why
        )


def _stack(layer: Path, target: Path, name: str, implicit: set[str]) -> None:
    """Put a folder of a layer over what the layers below left at `target`."""
    here = sorted(os.scandir(layer), key=lambda entry: entry.name)
    for entry in here:  # first, for they speak of the layers below only
        if entry.name == _OPAQUE:
            for old in list(target.iterdir()):
                _remove(old)
        elif entry.name.startswith(_WHITEOUT):
            _remove(target / entry.name.removeprefix(_WHITEOUT))
    for entry in here:
        if entry.name.startswith(_WHITEOUT):
            continue
        path, below = target / entry.name, f"{name}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            _remove(path)
            os.link(entry.path, path, follow_symlinks=False)
            continue
        if below in implicit and path.is_symlink():
            raise BadInput(
                "image.through-link",
                f"a layer writes below /{below}, a link of a layer below it",
                why="container engines disagree on where such a file lands",
                fix="build the layer with the folder's true path",
            )
        if path.is_symlink() or not path.is_dir():
            _remove(path)
            path.mkdir()
        _stack(Path(entry.path), path, f"{below}/", implicit)
        if below not in implicit:
            found = entry.stat(follow_symlinks=False)
            if os.geteuid() == 0:
                os.chown(path, found.st_uid, found.st_gid)
            shutil.copystat(entry.path, path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
