"""A wheel as hostile input, and what it looks like once it is installed.

(Binary distribution format, packaging.python.org.) Nothing is installed here: a wheel
becomes a list of entries, whose contents are unpacked and verified as they are read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.source.entry import Entry, check_path, data_entry
from kiln.source.record import Row, format_record, parse_record, problem
from kiln.source.zip import Archive, Member

_ENTRY_POINT = re.compile(r"(?P<module>\w+(\.\w+)*)\s*:\s*(?P<attr>\w+(\.\w+)*)\s*(\[.*\])?")
_SCRIPT_NAME = re.compile(r"[\w+-][\w.+-]*", re.ASCII)
_SCHEMES = ("purelib", "platlib", "scripts", "headers", "data")
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_MAX_TEXT = 64 << 20  # bytes of a metadata file; torch's RECORD has 1.3 MB
NO_CHANGES: Mapping[str, bytes | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Install:
    """Where files go in the image: paths without leading slash, but `interpreter`.

    site: "usr/local/lib/python3.11/dist-packages"; scripts: "usr/local/bin"; data: the
    prefix, "usr/local"; interpreter: "/usr/bin/python3.11", for the first lines of scripts.
    """

    site: str
    scripts: str
    data: str
    interpreter: str

    def relative(self, path: str) -> str:
        """A path of the image as RECORD spells it, relative to site."""
        inside = path.removeprefix(self.site + "/")  # nearly all; relpath is slow
        return inside if inside != path else posixpath.relpath(path, self.site)


class Wheel:
    """One wheel, checked on opening; all problems are raised at once.

    filename: its real name, which says name, version and tags (the store knows files by
    hash). name is normalised (PEP 503), version as METADATA spells it, dist_info the
    name of that folder. notes: what the user should see. An object may be used from
    several threads at once.
    """

    def __init__(self, path: Path, filename: str) -> None:
        self.filename = filename
        self.archive = Archive(path, filename)
        self.notes: tuple[str, ...] = ()
        self._problems: list[KilnError] = []
        self.dist_info = self._find_dist_info()
        self._data = self.dist_info.removesuffix(".dist-info") + ".data/"
        self._check_metadata()
        self._rows = self._check_record()
        self._check_data()
        self._scripts = self._entry_points()
        raise_problems(self._problems)

    def names(self) -> list[str]:
        """The members, as the archive spells them and in its order."""
        return list(self.archive.members)

    def read(self, name: str) -> bytes:
        """A member's bytes, verified. Raises BadInput("wheel.no-member")."""
        if name not in self.archive.members:
            raise BadInput("wheel.no-member", f"the wheel has no {name}", where=self.filename)
        with self._open(self.archive.members[name]) as source:
            return source.read()

    def sha256(self, name: str) -> str:
        """A member's sha256 (hex), as RECORD says or, where RECORD hashes otherwise,
        computed."""
        return _sha256(self._entry(name, self.archive.members[name]))

    def verify(self) -> None:
        """Read everything and raise all damage found: "wheel.hash-mismatch", "zip.corrupt"."""
        problems: list[KilnError] = []
        for member in self.archive.members.values():
            try:
                with self._open(member) as source:
                    while source.read(1 << 20):
                        pass
            except BadInput as error:
                problems.append(error)
        raise_problems(problems)

    def entries(
        self, install: Install, replace: Mapping[str, bytes | None] = NO_CHANGES
    ) -> list[Entry]:
        """The files that an installer would leave, sorted; folders are not among them.

        replace: path relative to site, as in RECORD -> new bytes, of a changed or new
        file, or None, to leave one out. RECORD follows. Raises
        BadInput("wheel.replace-missing") for a file to be left out that is not there,
        "wheel.path-clash" for two files of the wheel that want one path.
        """
        files = self._installed(install)
        for relative, data in replace.items():
            path = posixpath.normpath(f"{install.site}/{relative}")
            check_path(path, self.filename)
            old = files.pop(path, None)
            if data is not None:
                mode = old.mode if old is not None else 0o644
                files[path] = data_entry(path, data, mode, self.filename)
            elif old is None:
                raise BadInput(
                    "wheel.replace-missing",
                    f"{relative} is to be left out, but the wheel does not have it",
                    where=self.filename,
                    fix="take it out of the list, or correct the path",
                )
        own = f"{self.dist_info}/RECORD"
        hashes = {
            install.relative(entry.path): (_sha256(entry), entry.size) for entry in files.values()
        }
        record = data_entry(
            f"{install.site}/{own}", format_record(hashes, [own]), origin=self.filename
        )
        return sorted([*files.values(), record], key=lambda entry: entry.path.encode())

    def record(self, install: Install, replace: Mapping[str, bytes | None] = NO_CHANGES) -> bytes:
        """RECORD as it has to be once `replace` (see `entries`) is done."""
        path = f"{install.site}/{self.dist_info}/RECORD"
        entry = next(e for e in self.entries(install, replace) if e.path == path)
        with entry.open() as source:
            return source.read()

    # ---- checks on opening -------------------------------------------------------------

    def _refuse(self, reason: str, what: str, why: str = "") -> None:
        self._problems.append(problem(reason, what, self.filename, why))

    def _find_dist_info(self) -> str:
        tops = {name.partition("/")[0] for name in self.archive.members if "/" in name}
        found = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(found) != 1:
            names = ", ".join(found) or "none"
            self._refuse("dist-info", "a wheel has one .dist-info folder", f"found: {names}")
            raise_problems(self._problems)
        needed = [f"{found[0]}/{name}" for name in ("METADATA", "WHEEL", "RECORD")]
        for name in needed:
            if name not in self.archive.members:
                self._refuse("missing-file", f"{name} is missing")
            elif self.archive.members[name].size > _MAX_TEXT:
                self._refuse("too-large", f"{name} is larger than any honest one")
        raise_problems(self._problems)
        return found[0]

    def _headers(self, name: str) -> Mapping[str, list[str]]:
        from email.parser import BytesHeaderParser

        message = BytesHeaderParser().parsebytes(self.archive.read(f"{self.dist_info}/{name}"))
        return {key.lower(): [str(v) for v in message.get_all(key, [])] for key in message}

    def _check_metadata(self) -> None:
        """Name and version are the same in METADATA, file name and folder name."""
        from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
        from packaging.version import InvalidVersion, Version

        metadata = self._headers("METADATA")
        names, versions = metadata.get("name", []), metadata.get("version", [])
        self.name = canonicalize_name(names[0]) if names else ""
        self.version = versions[0] if versions else ""
        if len(names) != 1 or len(versions) != 1:
            self._refuse("metadata", "METADATA needs one Name and one Version")
            return
        folder_name, _, folder_version = self.dist_info.removesuffix(".dist-info").partition("-")
        claims = {"its folder": (folder_name, folder_version)}
        try:
            name, version, _, _ = parse_wheel_filename(self.filename)
            claims["its file name"] = (name, str(version))
        except InvalidWheelFilename as error:
            self._refuse("filename", f"{self.filename} is no name of a wheel", str(error))
        for whose, (name_there, version_there) in claims.items():
            try:
                same = Version(version_there) == Version(self.version)
            except InvalidVersion as error:
                self._refuse("version", str(error))
                continue
            if not same or canonicalize_name(name_there) != self.name:
                self._refuse(
                    "name-mismatch",
                    f"{whose} says {name_there} {version_there}, "
                    f"METADATA {names[0]} {self.version}",
                )
        major = self._headers("WHEEL").get("wheel-version", [""])[0].partition(".")[0]
        if major != "1":
            self._refuse("format", f"Wheel-Version {major or '(none)'} is not 1")

    def _check_record(self) -> dict[str, Row]:
        own = f"{self.dist_info}/RECORD"
        rows, problems = parse_record(self.archive.read(own), self.filename)
        self._problems += problems
        unlisted = {own} | {f"{self.dist_info}/{name}" for name in _SIGNATURES}
        dropped = sorted(unlisted & self.archive.members.keys() - {own})
        if dropped:
            note = "its signature does not fit the RECORD that Kiln writes, and is left out"
            self.notes += (f"{self.filename}: {', '.join(dropped)}: {note}",)
        if problems:
            return rows  # the rest would only repeat them
        for name in sorted(rows.keys() - self.archive.members.keys()):
            self._refuse("record-absent", f"RECORD lists {name}, which the wheel does not have")
        for name, member in self.archive.members.items():
            row = rows.get(name)
            if name in unlisted:
                continue
            if row is None:
                self._refuse("record-missing", f"RECORD does not list {name}")
            elif not row.algorithm:
                self._refuse("record-hash", f"RECORD gives no hash of {name}")
            elif row.size is not None and row.size != member.size:
                why = f"RECORD says {row.size} bytes, the archive {member.size}"
                self._refuse("record-size", f"{name} is not as long as RECORD says", why)
        return rows

    def _check_data(self) -> None:
        for name in self.archive.members:
            top, _, rest = name.partition("/")
            if not top.endswith(".data") or not rest:
                continue
            scheme, _, inner = rest.partition("/")
            if top + "/" != self._data:
                self._refuse("odd-data", f"{name} lies in another package's .data folder")
            elif scheme not in _SCHEMES or not inner:
                self._refuse("odd-data", f"{name}: nobody knows where {scheme!r} goes")

    def _entry_points(self) -> dict[str, tuple[str, str]]:
        """Script name -> (module, attribute)."""
        from configparser import ConfigParser, Error

        name = f"{self.dist_info}/entry_points.txt"
        if name not in self.archive.members:
            return {}
        parser = ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string(self.archive.read(name).decode())
        except (Error, UnicodeDecodeError) as error:
            self._refuse("entry-point", "entry_points.txt cannot be read", str(error))
            return {}
        scripts: dict[str, tuple[str, str]] = {}
        for section in {"console_scripts", "gui_scripts"} & set(parser.sections()):
            for script, value in parser.items(section):
                match = _ENTRY_POINT.fullmatch(value.strip())
                if match is None or not _SCRIPT_NAME.fullmatch(script) or script in scripts:
                    self._refuse("entry-point", f"{section}: {script} = {value} is odd")
                else:
                    scripts[script] = (match["module"], match["attr"])
        return scripts

    # ---- installing --------------------------------------------------------------------

    def _open(self, member: Member) -> BinaryIO:
        row = self._rows.get(member.name)
        if row is None:
            return self.archive.open(member)
        return self.archive.open(member, row.algorithm, row.digest)

    def _installed(self, install: Install) -> dict[str, Entry]:
        """All files but RECORD, by path in the image."""
        files: dict[str, Entry] = {}
        for entry in self._placed(install):
            if entry.path in files:
                raise problem(
                    "path-clash", f"two files of the wheel want /{entry.path}", self.filename
                )
            files[entry.path] = entry
        return files

    def _placed(self, install: Install) -> Iterator[Entry]:
        skipped = {f"{self.dist_info}/{name}" for name in ("RECORD", "INSTALLER", *_SIGNATURES)}
        for name, member in self.archive.members.items():
            if name in skipped:
                continue
            if not name.startswith(self._data):
                yield self._entry(f"{install.site}/{name}", member)
                continue
            scheme, _, inner = name.removeprefix(self._data).partition("/")
            entry = self._entry(f"{self._root(install, scheme)}/{inner}", member)
            yield self._script(entry, install) if scheme == "scripts" else entry
        installer = f"{install.site}/{self.dist_info}/INSTALLER"
        yield data_entry(installer, b"kiln\n", origin=self.filename)
        yield from self._launchers(install)

    def _entry(self, path: str, member: Member) -> Entry:
        row = self._rows[member.name]
        sha = row.digest.hex() if row.algorithm == "sha256" else ""
        mode = 0o755 if member.executable else 0o644
        opener = functools.partial(self._open, member)
        return Entry(path, "file", mode, member.size, "", opener, self.filename, sha)

    def _root(self, install: Install, scheme: str) -> str:
        if scheme in ("purelib", "platlib"):
            return install.site
        if scheme == "headers":
            python = posixpath.basename(install.interpreter)
            return f"{install.data}/include/{python}/{self.name}"
        return install.scripts if scheme == "scripts" else install.data

    def _script(self, entry: Entry, install: Install) -> Entry:
        """A file of .data/scripts: executable, `#!python` naming the image's Python."""
        with entry.open() as source:
            if source.read(8) == b"#!python":
                _, _, body = source.read().partition(b"\n")
                first = f"#!{install.interpreter}\n".encode()
                return data_entry(entry.path, first + body, 0o755, entry.origin)
        return dataclasses.replace(entry, mode=0o755)

    def _launchers(self, install: Install) -> Iterator[Entry]:
        from installer.scripts import Script

        for name, (module, attr) in sorted(self._scripts.items()):
            _, data = Script(name, module, attr, "console").generate(install.interpreter, "posix")
            yield data_entry(f"{install.scripts}/{name}", data, 0o755, self.filename)


def _sha256(entry: Entry) -> str:
    if entry.sha256:
        return entry.sha256
    digest = hashlib.sha256()
    for block in entry.blocks():
        digest.update(block)
    return digest.hexdigest()
