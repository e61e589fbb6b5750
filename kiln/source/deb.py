"""Debian packages as what they are to us: hostile archives with files in them.

A .deb is an ar archive (deb(5)) of `debian-binary`, `control.tar*` and `data.tar*`.
It is read here without dpkg, since hosts may be no Debians; none of its scripts is
ever run (kiln.layer.system does what they would have done).

Paths come out canonical: where Debian has links to folders, merged /usr above all
(usrmerge, Debian 12's only supported layout), what a package ships under the old name
is moved to where the link leads: bin/sh becomes usr/bin/sh.
"""

from __future__ import annotations

import functools
import io
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from kiln.canonical import Digest
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.graph.action import Context
from kiln.source import ar
from kiln.source.entry import Entry, check_path
from kiln.source.stream import CHUNK, reader
from kiln.source.tree import write_tree

# Old name of a folder -> where Debian's link leads. kiln.layer.system makes the links.
ALIASES: Mapping[str, str] = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")},
    "var/run": "run",
    "var/lock": "run/lock",
}

MAX_CONTROL = 64 << 20
MAX_DATA = 16 << 30
"""Bytes that a package may unpack to; what is larger is a bomb or a mistake."""


@dataclass(frozen=True)
class Dropped:
    """Rights that a package gives and Kiln does not: set-id bits, and writing by groups
    or users that are not there, since everything belongs to root in an image.

    mode: as shipped; kept: what became of it.
    """

    path: str
    mode: int
    kept: int
    owner: str


class Deb:
    """One package file. Reading its control part is cheap; `entries` unpacks the rest.

    control: fields by name, in their order. scripts: maintainer scripts by name
    ("postinst"). conffiles: paths as declared, with the leading slash. md5sums: that
    file's text. dropped: filled by `entries`.
    Raises BadInput: "source.bad-deb" (no package, damaged, cut off), "source.bomb".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members = ar.members(path)
        self.control: dict[str, str] = {}
        self.scripts: dict[str, str] = {}
        self.conffiles: tuple[str, ...] = ()
        self.md5sums = ""
        self.dropped: list[Dropped] = []
        with ar.guard(path), self._open_member("control.tar") as control, io.BytesIO() as plain:
            ar.copy(control, plain, MAX_CONTROL, path)
            texts = dict(self._control_files(plain))
        self.control = _fields(texts.get("control", ""), path)
        self.conffiles = tuple(
            line for line in texts.get("conffiles", "").splitlines() if line.startswith("/")
        )
        self.md5sums = texts.get("md5sums", "")
        scripts = ("preinst", "postinst", "prerm", "postrm", "config")
        self.scripts = {name: texts[name] for name in scripts if name in texts}

    @property
    def name(self) -> str:
        """The package's name."""
        return self.control["Package"]

    @property
    def origin(self) -> str:
        """Name and version, for errors."""
        return f"{self.name} {self.control['Version']}"

    def _open_member(self, stem: str) -> IO[bytes]:
        for member in self._members:
            if member.name == stem or member.name.startswith(stem + "."):
                return ar.decompress(member, self.path)
        raise ar.bad(self.path, f"it has no {stem}")

    def _control_files(self, plain: BinaryIO) -> Iterator[tuple[str, str]]:
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:", encoding="utf-8") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    text = content.read().decode("utf-8", "replace")
                    yield member.name.removeprefix("./"), text

    # ---- files -----------------------------------------------------------------------------

    def entries(self, scratch: Path | None = None) -> list[Entry]:
        """What the package installs, sorted by path. Contents come from an unpacked file
        without a name, in the folder `scratch`, that lives as long as the entries do.

        Raises BadInput, all faults at once: "source.odd-path", "source.special-file"
        (devices, fifos, sparse files), "source.path-clash", "source.bad-link",
        "source.below-no-folder", "source.bad-deb"; CannotHere("store.no-space").
        """
        data = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 (the openers own it)
        self.dropped = []
        with ar.guard(self.path):
            with self._open_member("data.tar") as packed:
                ar.copy(packed, data, MAX_DATA, self.path)
            data.seek(0)
            with tarfile.open(
                fileobj=data, mode="r:", encoding="utf-8", errors="surrogateescape"
            ) as tar:
                found = self._read_members(tar, data)
                # tarfile ends quietly at a header that it cannot read.
                data.seek(tar.offset)
                tail = 0
                while block := data.read(CHUNK):
                    tail += len(block)
                    if block.strip(b"\0"):
                        raise ar.bad(self.path, f"data.tar is damaged after byte {tar.offset}")
                if tail < tarfile.BLOCKSIZE:
                    raise ar.bad(self.path, "data.tar is cut off")
        for link in alias_links(found, self.origin):
            found[link.path] = link
        _check_parents(found, self.origin)
        return sorted(found.values(), key=lambda entry: entry.path.encode())

    def _read_members(self, tar: tarfile.TarFile, data: BinaryIO) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        problems: list[KilnError] = []
        for member in tar:
            if member.name in (".", "./", ""):
                continue
            try:
                entry = self._entry(member, data, found)
                if entry is None:
                    continue
                old = found.setdefault(entry.path, entry)
                if old is not entry and not (old.kind == entry.kind == "dir"):
                    raise BadInput(
                        "source.path-clash",
                        f"the package ships /{entry.path} twice",
                        where=self.origin,
                        fix="do not use this package; report it to whoever publishes it",
                    )
            except KilnError as error:
                problems.append(error)
        raise_problems(problems)
        return found

    def _entry(
        self, member: tarfile.TarInfo, data: BinaryIO, found: Mapping[str, Entry]
    ) -> Entry | None:
        path = canonical(member.name.removeprefix("./"), self.origin)
        if member.isdir():
            return Entry(path, "dir", self._mode(path, member), origin=self.origin)
        if member.issym():
            target = self._target(path, member)
            if (alias := member.name.removeprefix("./")) in ALIASES:
                # Newer releases ship the links of merged /usr; `alias_links` makes them.
                leads = posixpath.normpath(posixpath.join("/", alias, "..", target))
                if leads != f"/{ALIASES[alias]}":
                    raise _bad_link(alias, target, "Debian has another there", self.origin)
                return None
            return Entry(path, "symlink", 0o777, target=target, origin=self.origin)
        if member.islnk():
            first = found.get(canonical(member.linkname.removeprefix("./"), self.origin))
            if first is None or first.kind != "file":
                raise _bad_link(path, member.linkname, "no file before it", self.origin)
            return Entry(
                path, "file", first.mode, first.size, opener=first.opener, origin=self.origin
            )
        if not member.isreg() or member.sparse is not None:
            raise BadInput(
                "source.special-file",
                f"/{path} is no file, folder or link",
                where=self.origin,
                why=f"its tar type is {member.type!r}: devices, fifos and sparse files are refused",
                fix="do not use this package",
            )
        opener = functools.partial(_open_at, data, member.offset_data, member.size)
        mode = self._mode(path, member)
        return Entry(path, "file", mode, member.size, opener=opener, origin=self.origin)

    def _target(self, path: str, member: tarfile.TarInfo) -> str:
        target = member.linkname
        if not target or not _is_plain(target):
            raise _bad_link(path, target, "nothing that can be written down", self.origin)
        return target

    def _mode(self, path: str, member: tarfile.TarInfo) -> int:
        """The mode in an image, where uid and gid are 0; what is lost goes to `dropped`."""
        shipped = member.mode & 0o7777
        kept = shipped & (0o1777 if member.isdir() else 0o777)
        if member.gid != 0:
            kept &= ~0o020  # the bit was for that group, not for gid 0
        if not kept & 0o1000:
            kept &= ~0o002
        if kept != shipped:
            owner = f"{member.uname or member.uid}:{member.gname or member.gid}"
            self.dropped.append(Dropped(path, shipped, kept, owner))
        return kept


def canonical(name: str, origin: str) -> str:
    """A package's path as an entry's: plain, and under the folder that links lead to.

    Raises BadInput("source.odd-path").
    """
    path = check_path(name.rstrip("/") if name != "/" else name, origin)
    if not _is_plain(path):
        raise BadInput(
            "source.odd-path",
            f"entry name {path!r} has control characters or is no UTF-8",
            where=origin,
            fix="do not use this package; report it to whoever publishes it",
        )
    for alias, folder in ALIASES.items():
        if path == alias or path.startswith(alias + "/"):
            return folder + path[len(alias) :]
    return path


def alias_links(paths: Collection[str], origin: str = "kiln") -> list[Entry]:
    """The links of ALIASES that these paths need, so that a package's tree works alone."""
    links = []
    for alias, folder in ALIASES.items():
        if any(path == folder or path.startswith(folder + "/") for path in paths):
            # Relative for merged /usr and absolute in /var, as Debian has them.
            target = folder if "/" not in alias else f"/{folder}"
            links.append(Entry(alias, "symlink", 0o777, target=target, origin=origin))
    return links


def _is_plain(text: str) -> bool:
    return not any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in text)


def _bad_link(path: str, target: str, why: str, origin: str) -> BadInput:
    return BadInput(
        "source.bad-link",
        f"/{path} is a link to {target!r}: {why}",
        where=origin,
        fix="do not use this package; report it to whoever publishes it",
    )


def _open_at(data: BinaryIO, start: int, size: int) -> BinaryIO:
    """A part of a temporary file that has no name; each reader has a position of its own."""

    def blocks() -> Iterator[bytes]:
        at, end = start, start + size
        while at < end and (block := os.pread(data.fileno(), min(CHUNK, end - at), at)):
            at += len(block)
            yield block

    return reader(blocks(), lambda: None)


def _fields(text: str, path: Path) -> dict[str, str]:
    """The one stanza of a control file (deb-control(5)), as it stands."""
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t") and last:
            fields[last] += "\n" + line
        elif line.strip() and not line.startswith("#"):
            last, colon, value = line.partition(":")
            if not colon or last in fields:
                raise ar.bad(path, f"its control file has a line {line!r}")
            fields[last] = value.strip()
    missing = [name for name in ("Package", "Version", "Architecture") if not fields.get(name)]
    if missing:
        raise ar.bad(path, f"its control file lacks {', '.join(missing)}")
    return fields


def _check_parents(found: Mapping[str, Entry], origin: str) -> None:
    problems: list[KilnError] = []
    for path in found:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in found and found[parent].kind != "dir":
                problems.append(
                    BadInput(
                        "source.below-no-folder",
                        f"/{path} lies below /{parent}, which is a {found[parent].kind}",
                        where=origin,
                        why="unpacking it would write through the link",
                        fix="do not use this package; report it to whoever publishes it",
                    )
                )
                break
            parent = parent.rpartition("/")[0]
    raise_problems(problems)


# ---- the step --------------------------------------------------------------------------------


def run(context: Context) -> dict[str, Digest]:
    """A package's files as a tree: input {"deb"} -> output {"out": tree}."""
    deb = Deb(context.path("deb"))
    entries = deb.entries(context.tmp)
    for lost in deb.dropped:
        context.reporter.note(
            f"{deb.origin}: /{lost.path} was {lost.mode:04o} {lost.owner}, is {lost.kept:04o}"
        )
    return {"out": write_tree(context.store.blobs, entries)}
