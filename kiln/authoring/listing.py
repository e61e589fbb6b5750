"""All patches of a project: what they are, for which versions, and where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from kiln.authoring.meta import Place, find_place
from kiln.errors import BadInput, KilnError, Problems
from kiln.pins.patch import PatchVersion as Entry
from kiln.pins.patch import Proof, select
from kiln.pins.project import Project


@dataclass(frozen=True)
class Use:
    """A pin that lists a patch. state: of the patch for the pin's version: the name of its
    file, or what stands in the way."""

    pin: str
    version: str
    state: str
    ready: bool


@dataclass(frozen=True)
class Listed:
    """One patch. problems: what is wrong with its patch.yaml or its files."""

    id: str
    title: str
    versions: tuple[Entry, ...]
    pins: tuple[Use, ...]
    proofs: tuple[str, ...]
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "id": self.id,
            "title": self.title,
            "versions": [{"range": entry.range, "file": entry.file} for entry in self.versions],
            "pins": [
                {"pin": use.pin, "version": use.version, "state": use.state, "ready": use.ready}
                for use in self.pins
            ],
            "proofs": list(self.proofs),
            "problems": list(self.problems),
        }


def list_patches(project: Project, pin: str | None = None) -> tuple[Listed, ...]:
    """Every patch by name, or a pin's in its order.

    Whether a patch applies, or upstream has it, is `kiln drift`'s to say: it takes the
    source. Here a version for which a patch has a `retire_when` and no file is "no file".
    """
    names: Sequence[str] = project.names("patch") if pin is None else project.pin(pin).patches
    return tuple(_listed(project, name, pin) for name in names)


def _listed(project: Project, name: str, pin: str | None) -> Listed:
    users = [
        user
        for user, found in project.pins.pins.items()
        if name in found.patches and pin in (None, user)
    ]
    try:
        place = find_place(project, name, "0")
    except Problems as problems:
        return Listed(name, "", (), (), (), tuple(str(error) for error in problems.errors))
    except BadInput as error:
        return Listed(name, "", (), (), (), (str(error),))
    patch = place.patch
    pins = tuple(_use(project, user, place) for user in users)
    problems_ = tuple(
        f"{entry.file} is not there" for entry in patch.versions if _missing(place, entry)
    )
    proofs = tuple(_proof(proof) for proof in patch.proof)
    if patch.unproven:
        proofs = (f"unproven: {patch.unproven}",)
    ordered = tuple(sorted(patch.versions, key=_first_version))
    return Listed(name, patch.title, ordered, pins, proofs, problems_)


def _use(project: Project, pin: str, place: Place) -> Use:
    version = project.pin(pin).vllm.version
    try:
        file = select(place.patch, version, place.shown)
    except KilnError as error:
        marks = place.patch.retire_when
        by = [mark.superseded_by or "upstream" for mark in marks]
        hint = f" (retired where the source has {', '.join(by)})" if marks else ""
        state = "no file" + hint if error.code == "patch.no-version" else error.what
        return Use(pin, version, state, False)
    there = (place.folder / file).is_file()
    return Use(pin, version, file if there else f"{file} is not there", there)


def _missing(place: Place, entry: Entry) -> bool:
    return not (place.folder / entry.file).is_file()


def _proof(proof: Proof) -> str:
    sees = [f"{name} >= {least}" for name, least in proof.counters.items()]
    sees += [f"{name} = {value}" for name, value in proof.settings.items()]
    proposer = f", {proof.proposer}" if proof.proposer else ""
    return f"launch {proof.launch} ({proof.runner}{proposer}): {', '.join(sees)}"


def _first_version(entry: Entry) -> tuple[int, Version]:
    import re

    found = re.search(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.dev[0-9]+)?", entry.range)
    return (0, Version(found[0])) if found else (1, Version("0"))
