"""patches/<id>/patch.yaml: what a patch is for, and which file of it fits which vLLM."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, to_builtins

from kiln.canonical import key
from kiln.errors import BadInput, KilnError, Problems, raise_problems
from kiln.pins.forms import EnvName, FileName, Name, Text
from kiln.pins.model import Model
from kiln.pins.project import Project
from kiln.pins.yaml import Document, parse_document, read


class PatchVersion(Model, frozen=True):
    """One .patch file. range: the vLLM versions that it is for, by PEP 440 ("==0.32.0")."""

    range: Text
    file: FileName


class PatchSwitch(Model, frozen=True):
    """An environment variable that the patched vLLM reads. default: where it is unset."""

    default: str
    meaning: Text


class RetireWhen(Model, frozen=True):
    """What in a version's source shows that the patch has no place there any more.

    file: a path inside site-packages. contains: a text that stands in it (never one that
    the patch itself adds). superseded_by: what does the patch's work there; "" where
    upstream has merged the very change.
    """

    file: Text
    contains: Text
    superseded_by: str = ""


class Proof(Model, frozen=True):
    """How a gate sees that the patch's code is in use, not merely installed.

    launch: of the pin, "default" or a name under `launches`. runner, proposer: classes of
    vLLM's model runner and proposer with which this proof was made ("" = no speculation);
    it holds for those alone. workload: what is asked (kiln/gate/workloads.py), at a
    temperature. counters: decision -> the least number of times that it is taken while
    the workload runs. settings: name -> the value that the running server shows.
    """

    launch: Name
    runner: Text
    proposer: str = ""
    workload: Name = "repeat"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0
    counters: dict[Name, Annotated[int, Meta(ge=1)]] = {}  # noqa: RUF012
    settings: dict[Name, str] = {}  # noqa: RUF012


class Patch(Model, frozen=True):
    """patch.yaml.

    why: what goes wrong without it. origin: an upstream pull request, or whose own idea.
    requires: ids, or names that patches provide, which must stand before it in a series.
    conflicts: the same, but which must not be in it. provides: names that it answers to.
    env: the switches that it adds. counters: the decisions that its code counts.
    leave_out: globs of files in its diffs that no wheel has (tests, docs); they are left
    out and reported. unproven: why no gate can see it at work; then `proof` stays empty.
    """

    title: Text
    why: Text
    origin: Text
    versions: Annotated[tuple[PatchVersion, ...], Meta(min_length=1)]
    requires: tuple[Name, ...] = ()
    conflicts: tuple[Name, ...] = ()
    provides: tuple[Name, ...] = ()
    env: dict[EnvName, PatchSwitch] = {}  # noqa: RUF012 (msgspec copies it)
    counters: dict[Name, Text] = {}  # noqa: RUF012
    retire_when: tuple[RetireWhen, ...] = ()
    leave_out: tuple[Text, ...] = ()
    proof: tuple[Proof, ...] = ()
    unproven: str = ""


@dataclass(frozen=True)
class PatchFile:
    """One patch of a series. file: where it came from, for messages ("" = its id).

    The rest is what patch.yaml says to whoever applies it. counters: names only.
    """

    id: str
    data: bytes
    file: str = ""
    counters: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    retire_when: tuple[RetireWhen, ...] = ()

    @property
    def rules(self) -> str:
        """Hex sha256 of what decides whether the patch may be applied; "" if nothing does."""
        if not (self.leave_out or self.retire_when):
            return ""
        return key([list(self.leave_out), [to_builtins(rule) for rule in self.retire_when]])


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

    Raises, all at once, what is wrong with a patch.yaml, with the series (see
    `kiln.pins.series.check_series`), what `select` raises, and BadInput("patch.no-file").
    """
    series, errors = read_each(project, ids, version)
    raise_problems([*errors, *(lack for lack in series.values() if isinstance(lack, BadInput))])
    return [patch for patch in series.values() if isinstance(patch, PatchFile)]


def read_each(
    project: Project, ids: Sequence[str], version: str
) -> tuple[dict[str, PatchFile | BadInput], list[KilnError]]:
    """As `read_series`, but a patch without a file for the version stands there as its
    "patch.no-version"; and everything else that is wrong."""
    # Imported here, for it speaks of the models above.
    from kiln.pins.series import check_series

    documents: dict[str, Document[Patch]] = {}
    found: dict[str, PatchFile | BadInput] = {}
    errors: list[KilnError] = []
    for name in ids:
        try:
            documents[name] = read_document(project, name)
            found[name] = _read_file(project, name, documents[name].value, version)
        except Problems as problems:
            errors += problems.errors
        except BadInput as error:
            if error.code == "patch.no-version":
                found[name] = error
            else:
                errors.append(error)
    return found, [*errors, *check_series(project, ids, documents)]


def read_document(project: Project, name: str) -> Document[Patch]:
    """patches/<id>/patch.yaml, with positions. Raises BadInput("pins.unknown-patch") or what
    is wrong in it."""
    shown = f"patches/{name}/patch.yaml"
    return _document(read(project.patch_folder(name) / "patch.yaml", shown), shown)


# Checks, series and gates ask for it in turn; `kiln patch` may have changed it in between.
@functools.lru_cache(maxsize=256)
def _document(text: str, shown: str) -> Document[Patch]:
    return parse_document(text, Patch, shown)


def _read_file(project: Project, name: str, patch: Patch, version: str) -> PatchFile:
    shown = f"patches/{name}/patch.yaml"
    file = f"patches/{name}/{select(patch, version, shown)}"
    try:
        data = (project.root / file).read_bytes()
    except OSError as error:
        raise BadInput(
            "patch.no-file", f"{file} cannot be read", where=shown, why=str(error)
        ) from error
    counters = tuple(sorted(patch.counters))
    return PatchFile(name, data, file, counters, patch.leave_out, patch.retire_when)
