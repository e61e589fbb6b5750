"""patches/<id>/patch.yaml: what a patch is for, and which file of it fits which vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from kiln.errors import BadInput, KilnError, Problems, raise_problems
from kiln.pins.forms import EnvName, FileName, Name, Text
from kiln.pins.model import Model
from kiln.pins.project import Project
from kiln.pins.yaml import load


class PatchVersion(Model, frozen=True):
    """One .patch file. range: the vLLM versions that it is for, by PEP 440 ("==0.32.0")."""

    range: Text
    file: FileName


class PatchSwitch(Model, frozen=True):
    """An environment variable that the patched vLLM reads. default: where it is unset."""

    default: str
    meaning: Text


class Patch(Model, frozen=True):
    """patch.yaml.

    why: what goes wrong without it. origin: where the idea comes from. needs: patches
    that must stand before it in a series. env: the switches that it adds.
    """

    title: Text
    why: Text
    origin: Text
    versions: Annotated[tuple[PatchVersion, ...], Meta(min_length=1)]
    needs: tuple[Name, ...] = ()
    env: dict[EnvName, PatchSwitch] = {}  # noqa: RUF012 (msgspec copies it)


@dataclass(frozen=True)
class PatchFile:
    """One patch of a series. file: where it came from, for messages ("" = its id)."""

    id: str
    data: bytes
    file: str = ""


def select(patch: Patch, version: str, where: str) -> str:
    """The name of the .patch file for a vLLM version; `where` names patch.yaml.

    Raises BadInput: patch.no-version (no range holds it), patch.two-versions (several
    do), patch.range (one is no specifier of PEP 440).
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import Version

    found: list[str] = []
    for item in patch.versions:
        try:
            specifier = SpecifierSet(item.range)
        except InvalidSpecifier as error:
            raise BadInput(
                "patch.range",
                f"{item.range!r} is no range of versions",
                where=where,
                why=str(error),
                fix="write it by PEP 440, as ==0.32.0 or >=0.23.0,<0.24",
            ) from error
        # Nightlies count as what they are; a local part ("+cpu") does not matter to "==".
        if specifier.contains(Version(version), prereleases=True):
            found.append(item.file)
    ranges = "; ".join(item.range for item in patch.versions)
    if not found:
        raise BadInput(
            "patch.no-version",
            f"the patch has no file for vLLM {version}",
            where=where,
            why=f"it has: {ranges}",
            fix="make one for this version and add it to `versions`, or leave the patch out",
        )
    if len(found) > 1:
        raise BadInput(
            "patch.two-versions",
            f"the patch has {len(found)} files for vLLM {version}: {', '.join(found)}",
            where=where,
            why=f"its ranges overlap: {ranges}",
            fix="let exactly one range hold each version",
        )
    return found[0]


def read_series(project: Project, ids: Sequence[str], version: str) -> list[PatchFile]:
    """The files of a pin's patches, in its order, for its vLLM version.

    Raises, all at once, what is wrong with a patch.yaml, what `select` raises, and
    BadInput: patch.needs (a patch that must stand before it does not), patch.no-file.
    """
    series: list[PatchFile] = []
    errors: list[KilnError] = []
    for number, name in enumerate(ids):
        try:
            series.append(read_patch(project, name, ids[:number], version))
        except Problems as problems:
            errors += problems.errors
        except KilnError as error:
            errors.append(error)
    raise_problems(errors)
    return series


def read_patch(project: Project, name: str, before: Sequence[str], version: str) -> PatchFile:
    """One patch of a series, behind those of `before`. Raises as `read_series` does."""
    folder, shown = project.patch_folder(name), f"patches/{name}/patch.yaml"
    patch = load(folder / "patch.yaml", Patch, shown=shown)
    for needed in patch.needs:
        if needed not in before:
            raise BadInput(
                "patch.needs",
                f"patch {name} needs {needed} before it",
                where=shown,
                why=f"before it stand: {', '.join(before) or 'no patches'}",
                fix=f"put {needed} before {name} in the pin's patches",
            )
    file = f"patches/{name}/{select(patch, version, shown)}"
    try:
        return PatchFile(name, (project.root / file).read_bytes(), file)
    except OSError as error:
        raise BadInput(
            "patch.no-file", f"{file} cannot be read", where=shown, why=str(error)
        ) from error
