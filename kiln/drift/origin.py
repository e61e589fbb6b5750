"""Where sources come from: a pin's wheel, the file of a wheel, a folder.

A wheel is read member by member, straight from the file; nothing is unpacked. That of a
locked pin is the lock's. For a pin that has no lock yet, the wheel that it asks for is
looked up as `kiln lock` would, and remembered in the store's table, so that the same
question has the same answer offline.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from kiln.canonical import Digest, dumps, key
from kiln.drift.source import Source
from kiln.errors import BadInput, CannotHere
from kiln.graph.action import Locked
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Lock, Wheel
from kiln.pins.load import Project
from kiln.pins.model import Pin
from kiln.pins.problems import listed, near
from kiln.progress import Reporter
from kiln.source import wheel as wheels
from kiln.store import Store

PACKAGE = "vllm"
INIT = f"{PACKAGE}/__init__.py"
_GENERATED = f"{PACKAGE}/_version.py"  # what a build of vLLM writes its version into
_ASSIGNED = re.compile(r"""^__version__ = (?:version = )?['"]([^'"]+)['"]$""", re.MULTILINE)


def find_source(project: Project, text: str, store: Store, reporter: Reporter) -> Source:
    """The source that a person names: a pin, else the path of a wheel or of a folder.

    Raises BadInput "drift.unknown-source", "drift.no-vllm" and what is wrong with a wheel
    or lock; CannotHere "drift.base-image", "drift.no-wheel" for a pin whose files are not
    in a wheel; what resolving and fetching raise.
    """
    if text in project.pins.pins:
        return pin_source(project, text, store, reporter)
    path = Path(text).expanduser()
    if path.is_dir():
        return FolderSource(path)
    if path.is_file():
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return WheelSource(wheels.Wheel(path, path.name), sha256)
    raise BadInput(
        "drift.unknown-source",
        f"{text!r} is no pin, and no wheel or folder",
        why=f"pins: {listed(project.pins.pins)}",
        fix=near(text, project.pins.pins)
        or "name a pin, a .whl file, or a folder with vllm/ in it",
    )


def pin_source(project: Project, name: str, store: Store, reporter: Reporter) -> Source:
    """A pin's own source; see `find_source`."""
    pin = project.pin(name)
    if pin.base is not None:
        raise CannotHere(
            "drift.base-image",
            f"the source of {name!r} is in an image, which Kiln cannot read here yet",
            where=project.where("pins", name, "base"),
            why=f"it stands on {pin.base.repository}@{pin.base.digest}",
            fix="name its files with --to: the wheel that the image was made with, or a folder "
            "that holds its site-packages",
        )
    if not pin.vllm.wheel:
        raise CannotHere(
            "drift.no-wheel",
            f"pin {name!r} names no wheel that its source could be read from",
            where=project.where("pins", name, "vllm"),
            fix="name a wheel or a checkout with --to",
        )
    question = _Question.of(project, pin)
    record = _locked(project, name, question)
    with store.building():  # nobody may collect what is being read
        if record is not None:
            lock, found = record
            _fetch_locked(project, lock, found, store, reporter)
        else:
            found = _unlocked(project, name, question, store, reporter)
    file = wheels.Wheel(store.blobs.path(found.sha256), found.file)
    return WheelSource(file, found.sha256, pin.vllm.version, name)


# ---- the wheel of a pin


@dataclass(frozen=True)
class _Question:
    """What a pin asks for. requirement: "vllm==0.23.0"."""

    requirement: str
    name: str
    version: str
    python: str
    architecture: str

    @classmethod
    def of(cls, project: Project, pin: Pin) -> _Question:
        from packaging.utils import canonicalize_name

        name, _, version = pin.vllm.wheel.partition("==")
        architecture = project.recipe(pin.recipe).architecture
        # The files in vllm/ are those of one wheel for every Python (its tag is abi3).
        return cls(
            pin.vllm.wheel, canonicalize_name(name), version, pin.python or "3.11", architecture
        )

    @property
    def canonical(self) -> dict[str, str]:
        """What its key in the table is of."""
        return {
            "question": "the wheel of a pin without a lock",
            "requirement": self.requirement,
            "python": self.python,
            "architecture": self.architecture,
        }


def _locked(project: Project, name: str, question: _Question) -> tuple[Lock, Wheel] | None:
    """The pin's lock and its wheel, if there is one of the version that the pin asks for.

    Whether the rest of the lock is of today does not matter here.
    """
    from packaging.version import Version

    path = locks_path(project.root, name)
    if not path.exists():
        return None
    lock = read_lock(path)
    image = lock.resolved.closures.get("image")
    for wheel in image.wheels if image else ():
        if wheel.name == question.name and Version(wheel.version) == Version(question.version):
            return lock, wheel
    return None


def _fetch_locked(
    project: Project, lock: Lock, wheel: Wheel, store: Store, reporter: Reporter
) -> None:
    digest = Digest(wheel.sha256, wheel.size)
    if not store.blobs.has(digest):
        from kiln.image.prepare import LockFetcher

        LockFetcher(project, lock, store, reporter).fetch([Locked(digest, wheel.file, wheel)])


def _unlocked(
    project: Project, name: str, question: _Question, store: Store, reporter: Reporter
) -> Wheel:
    asked = key(dict(question.canonical))
    known = [
        Wheel(question.name, question.version, file, digest.size, digest.sha256)
        for file, digest in (store.actions.get(asked) or {}).items()
    ]
    for found in known:
        if store.blobs.has(Digest(found.sha256, found.size)):
            reporter.note(f"{name}: {_not_locked(found)}, as in an earlier run")
            return found
    # Imported here: resolving and HTTP cost 0.3 s, and most runs need neither.
    from kiln.fetch.fetcher import StoreFetcher
    from kiln.fetch.http import Http
    from kiln.fetch.index import Index
    from kiln.fetch.settings import read_settings
    from kiln.resolve.target import Target
    from kiln.resolve.wheels import resolve_wheel

    settings = read_settings()
    http, named = Http(settings.access), project.pins.indexes
    target = Target(question.python, architecture=question.architecture)
    index = Index(http, settings, named)
    found = resolve_wheel(question.requirement, target, index, known, reporter)
    digest = Digest(found.sha256, found.size)
    fetcher = StoreFetcher(store, settings, reporter, named=named, http=http)
    fetcher.fetch([Locked(digest, found.file, found)])
    wheels.Wheel(store.blobs.path(found.sha256), found.file)  # a bad one is not remembered
    store.actions.put(
        asked,
        f"wheel:{question.requirement}",
        dumps(dict(question.canonical)),
        {found.file: digest},
    )
    reporter.note(f"{name}: {_not_locked(found)}")
    return found


def _not_locked(wheel: Wheel) -> str:
    return f"not locked: wheel {wheel.file} sha256 {wheel.sha256}"


# ---- sources


@dataclass(frozen=True, eq=False)
class WheelSource:
    """The files of a wheel. digest: its sha256. own_version: what its pin calls it ("" =
    the wheel's own). pin: whose wheel it is, "" for none's."""

    wheel: wheels.Wheel
    digest: str
    own_version: str = ""
    pin: str = ""

    def __post_init__(self) -> None:
        _check(INIT in self.wheel.archive.members, self.wheel.filename, "")

    @property
    def label(self) -> str:
        """The pin where it is one's, the file, and its hash."""
        file = f"{self.wheel.filename}, sha256 {self.digest[:12]}"
        return f"{self.pin} ({file})" if self.pin else file

    @property
    def version(self) -> str:
        """What the pin or the wheel says."""
        return self.own_version or self.wheel.version

    def names(self) -> frozenset[str]:
        """See `Source`."""
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.wheel.archive.members)

    def read(self, path: str) -> bytes:
        """See `Source`. Raises BadInput("wheel.hash-mismatch" | "zip.corrupt") as well."""
        if path not in self.wheel.archive.members:
            raise KeyError(path)
        return self.wheel.read(path)

    def sha256(self, path: str) -> str:
        """A file's sha256, as RECORD says. Raises KeyError where there is none."""
        if path not in self.wheel.archive.members:
            raise KeyError(path)
        return self.wheel.sha256(path)

    def open(self, path: str) -> BinaryIO:
        """A file as a stream, verified as it is read. Raises KeyError where there is none."""
        digest = bytes.fromhex(self.sha256(path))
        return self.wheel.archive.open(self.wheel.archive.members[path], "sha256", digest)


@dataclass(frozen=True, eq=False)
class FolderSource:
    """The vllm/ folder below a folder: unpacked site-packages, or a checkout of vLLM.

    The version is that of the .dist-info beside it, else the one that a build wrote into
    vllm/_version.py, else unknown ("").
    """

    folder: Path
    _files: Mapping[str, Path] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inside = (self.folder / "__init__.py").is_file()
        hint = f"name the folder above it: {self.folder.absolute().parent}" if inside else ""
        _check((self.folder / INIT).is_file(), str(self.folder), hint)
        object.__setattr__(self, "_files", dict(_walk(self.folder)))

    @property
    def label(self) -> str:
        """The folder, and what is known of its version."""
        return f"{self.folder} (vLLM {self.version or 'of unknown version'})"

    @cached_property
    def version(self) -> str:
        """The version, "" if nothing tells it."""
        return _installed(self.folder) or _built(self.folder / _GENERATED)

    def names(self) -> frozenset[str]:
        """See `Source`."""
        return frozenset(self._files)

    def read(self, path: str) -> bytes:
        """See `Source`."""
        return self._files[path].read_bytes()

    def sha256(self, path: str) -> str:
        """A file's sha256, computed. Raises KeyError where there is none."""
        with self._files[path].open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def open(self, path: str) -> BinaryIO:
        """A file as a stream. Raises KeyError where there is none."""
        return self._files[path].open("rb")


def _check(there: bool, where: str, hint: str) -> None:
    if not there:
        raise BadInput(
            "drift.no-vllm",
            f"there is no {INIT} in it",
            where=where,
            fix=hint or "name a wheel of vLLM, its site-packages, or a checkout",
        )


def _walk(folder: Path) -> Iterable[tuple[str, Path]]:
    for parent, folders, files in os.walk(folder / PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = Path(parent, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _installed(site: Path) -> str:
    """The version in the one .dist-info whose RECORD has vllm/ ("" if there is none)."""
    found: set[str] = set()
    for record in site.glob(f"{PACKAGE}*.dist-info/RECORD"):
        if f"\n{INIT}," in f"\n{record.read_text('utf-8', 'replace')}":
            stem = record.parent.name.removesuffix(".dist-info")
            found.add(stem.partition("-")[2])
    return found.pop() if len(found) == 1 else ""


def _built(path: Path) -> str:
    if not path.is_file():
        return ""
    match = _ASSIGNED.search(path.read_text("utf-8", "replace"))
    return match[1] if match else ""
