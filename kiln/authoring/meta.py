"""Where a version's patch file stands, and what patch.yaml has to say of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kiln.authoring.edits import add_version, narrow_version, read_text
from kiln.errors import BadInput
from kiln.pins.patch import Patch, PatchFile, PatchVersion, select
from kiln.pins.project import Project
from kiln.pins.yaml import load


@dataclass(frozen=True)
class Place:
    """One patch, for one version. folder: of the patch. file: the one that this version has
    now, None where it has none. rules: what patch.yaml says that applying needs."""

    id: str
    folder: Path
    patch: Patch
    file: Path | None
    rules: PatchFile

    @property
    def shown(self) -> str:
        """patch.yaml, for messages."""
        return f"patches/{self.id}/patch.yaml"

    def data(self) -> bytes | None:
        """The file's bytes; None where there is none, or it is not written yet."""
        try:
            return self.file.read_bytes() if self.file is not None else None
        except FileNotFoundError:
            return None


def public(version: str) -> str:
    """A version without its local part ("0.32.0+cpu" is "0.32.0" here)."""
    return Version(version).public


def find_place(project: Project, patch: str, version: str) -> Place:
    """Where the patch keeps this version's file. Raises what is wrong with its patch.yaml."""
    folder, shown = project.patch_folder(patch), f"patches/{patch}/patch.yaml"
    found = load(folder / "patch.yaml", Patch, shown=shown)
    try:
        name = select(found, version, shown)
    except BadInput as error:
        if error.code != "patch.no-version":
            raise
        name = ""
    file = f"patches/{patch}/{name or public(version) + '.patch'}"
    rules = PatchFile(patch, b"", file, tuple(found.counters), found.leave_out, found.retire_when)
    return Place(patch, folder, found, folder / name if name else None, rules)


@dataclass(frozen=True)
class Target:
    """Where a version's file is to be written. yaml: patch.yaml as it has to be then, None
    where it may stay. notes: what that changes, for people."""

    file: Path
    yaml: str | None
    notes: tuple[str, ...]


def target(place: Place, version: str) -> Target:
    """The file for this version alone.

    A file that serves this version only is written over. One that others use too is left
    to them: this version is taken out of its range, and gets a file of its own.

    Raises BadInput "authoring.by-hand" (see `kiln.authoring.edits`), "authoring.file-taken".
    """
    entries = [n for n, entry in enumerate(place.patch.versions) if _holds(entry, version)]
    own = public(version)
    if place.file is not None:
        entry = place.patch.versions[entries[0]]
        shared = sum(other.file == entry.file for other in place.patch.versions) > 1
        if not shared and _only(entry.range, own):
            return Target(place.file, None, ())
    new = PatchVersion(f"=={own}", f"{own}.patch")
    file = place.folder / new.file
    if file.exists() or any(entry.file == new.file for entry in place.patch.versions):
        raise BadInput(
            "authoring.file-taken",
            f"{new.file} is there already, and is not this version's alone",
            where=place.shown,
            why="patch.yaml gives it to other versions too, or to none",
            fix=f"rename it, and mend `versions`; then {new.file} will be for {new.range}",
        )
    text, patch, notes = read_text(place.folder / "patch.yaml"), place.patch, []
    if entries:
        was = patch.versions[entries[0]]
        text = narrow_version(text, patch, entries[0], own, place.shown)
        now = PatchVersion(f"{was.range},!={own}", was.file)
        changed = (*patch.versions[: entries[0]], now, *patch.versions[entries[0] + 1 :])
        patch = _with_versions(patch, changed)
        notes.append(
            f"{place.shown}: {was.file} is for {now.range} now, since {own} has a file of its own"
        )
    text = add_version(text, patch, new, place.shown)
    notes.append(f"{place.shown}: {new.file} for {new.range}")
    return Target(file, text, tuple(notes))


def _with_versions(patch: Patch, versions: tuple[PatchVersion, ...]) -> Patch:
    return msgspec.structs.replace(patch, versions=versions)


def _holds(entry: PatchVersion, version: str) -> bool:
    return SpecifierSet(entry.range).contains(Version(version), prereleases=True)


def _only(text: str, own: str) -> bool:
    """Whether a range names one version and nothing else."""
    clauses = list(SpecifierSet(text))
    if len(clauses) != 1 or clauses[0].operator not in ("==", "==="):
        return False
    version = clauses[0].version
    return not version.endswith(".*") and Version(version).public == own
