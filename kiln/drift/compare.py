"""Drift as a whole: a pin's series, and what it relies on, held against another source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from kiln.canonical import JSON
from kiln.drift.contracts import Change, Comparison, compare_contracts
from kiln.drift.launches import uses
from kiln.drift.model import Own, PatchDrift
from kiln.drift.moved import Mover
from kiln.drift.origin import WheelSource, find_source, pin_source
from kiln.drift.remember import remembered
from kiln.drift.series import judge_series, own_places, reader, retired_state
from kiln.drift.source import Source
from kiln.drift.symbols import Finding, Symbols, check_symbols
from kiln.errors import BadInput, CannotHere, KilnError, Problems, raise_problems
from kiln.pins.load import Project
from kiln.pins.patch import PatchFile, read_document, read_each
from kiln.progress import Reporter
from kiln.source.apply import parse_series_patch
from kiln.source.retire import retired
from kiln.store import Store

# What a launch names: where another class is behind it, the server does other things.
SERVED = ("tool-parser", "reasoning-parser", "proposer-v1", "proposer-v2")
_REMAPS = ("remapped", "gone")


class Use(msgspec.Struct, frozen=True):
    """A name of a contract that a launch of the pin uses. launch: "preset default"."""

    contract: str
    name: str
    launch: str


class Drift(msgspec.Struct, frozen=True):
    """What becomes of a pin's series on a source.

    own, target: labels of the pin's own source ("" where it cannot be had) and of the one
    that was judged. version: the target's, "" if unknown. names: what the patches' lines
    rely on. contracts: what the names that launches use stand for; None without another
    source. used: of the changes of contracts those that the pin's own launches meet.
    unjudged: what could not be looked at, and why.
    """

    pin: str
    own: str
    target: str
    version: str
    patches: tuple[PatchDrift, ...]
    names: Symbols | None = None
    contracts: Comparison | None = None
    used: tuple[Use, ...] = ()
    unjudged: tuple[str, ...] = ()

    def changed(self) -> tuple[Change, ...]:
        """The changes of contracts that are work: a name of launches that stands for another
        class now, or for none; and all that the pin's own launches meet."""
        return tuple(
            change
            for change in (self.contracts.changes if self.contracts else ())
            if (change.contract in SERVED and change.what in _REMAPS) or self.users(change)
        )

    def users(self, change: Change) -> tuple[str, ...]:
        """The pin's launches that meet a change of contracts."""
        names = change.name.split(", ")
        met = [u.launch for u in self.used if u.contract == change.contract and u.name in names]
        return tuple(dict.fromkeys(met))

    def broken(self) -> tuple[Finding, ...]:
        """The names without which a patch's lines cannot work as they stand."""
        return tuple(one for one in (self.names.findings if self.names else ()) if one.breaks)

    @property
    def waits(self) -> bool:
        """Whether somebody has to do something."""
        return bool(self.broken() or self.changed()) or any(patch.waits for patch in self.patches)

    @property
    def partial(self) -> tuple[str, ...]:
        """What was not judged and may hide work: no result is no pass."""
        unknown = self.contracts.unknown if self.contracts else {}
        served = [
            f"{name} is not compared: {why}" for name, why in unknown.items() if name in SERVED
        ]
        return (*self.unjudged, *served)


def find_drift(
    project: Project, name: str | None, to: str | None, store: Store, reporter: Reporter
) -> Drift:
    """Judge a pin's series on its own source, or on that of `to` (a pin, a wheel, a folder).

    Raises what `find_source` and `read_series` raise, but for patches without a file, and
    BadInput for a .patch that is no good in itself.
    """
    name = name or project.pins.default
    own, why_not = _own(project, name, to, store, reporter)
    target = own if to in (None, name) else None
    target = target or find_source(project, to or name, store, reporter)
    with reporter.task(f"judge {len(project.pin(name).patches)} patches"):
        judged = _Judged(project, name, own, target)
        listed = project.pin(to or name).patches if (to or name) in project.pins.pins else ()
        patches = judged.patches(listed)
    with reporter.task("check the names that the patches call"):
        names, unjudged = judged.names(patches)
    contracts = None
    if own is not None and own is not target:
        with reporter.task("compare contracts"):
            contracts = _contracts(own, target, store, reporter)
    used = _used(project, name, contracts)
    label, lacks = (own.label if own else ""), (*why_not, *unjudged)
    return Drift(name, label, target.label, target.version, patches, names, contracts, used, lacks)


def _own(
    project: Project, name: str, to: str | None, store: Store, reporter: Reporter
) -> tuple[Source | None, tuple[str, ...]]:
    """The pin's own source, or what cannot be judged without it."""
    try:
        return pin_source(project, name, store, reporter), ()
    except CannotHere as error:
        if to is None or not error.code.startswith("drift."):
            raise
        return None, (f"names and contracts are not compared with the pin's own: {error.what}",)


def _contracts(own: Source, target: Source, store: Store, reporter: Reporter) -> Comparison:
    """The comparison; of two wheels it is kept, for it takes seconds and cannot change."""

    def work() -> Comparison:
        return compare_contracts(own, target, store, reporter)

    if not isinstance(own, WheelSource) or not isinstance(target, WheelSource):
        return work()
    # The labels are in what it says.
    wheels: dict[str, JSON] = {"old": [own.digest, own.label], "new": [target.digest, target.label]}
    return remembered(store, "drift:contracts", wheels, Comparison, work)


def _used(project: Project, name: str, contracts: Comparison | None) -> tuple[Use, ...]:
    known = uses(project.pin(name))
    changes = contracts.changes if contracts else ()
    places = [(c.contract, n) for c in changes if c.what != "added" for n in c.name.split(", ")]
    return tuple(Use(*place, known[place]) for place in dict.fromkeys(places) if place in known)


class _Judged:
    """The pin's files, and those that the same patches have for the target's version."""

    def __init__(self, project: Project, name: str, own: Source | None, target: Source) -> None:
        self._project, self._own, self._target = project, own, target
        pin = project.pin(name)
        found, errors = read_each(project, pin.patches, pin.vllm.version)
        raise_problems(errors)
        self._ids, self._series = pin.patches, _files(found)
        _check(self._series)
        self._alone = own is None or own is target
        if own is None or own is target:
            self._here = judge_series(self._series, target, {}, Mover(None, target))
            judged = self._here
        else:
            self._here, places = own_places(self._series, own)
            judged = judge_series(self._series, target, places, Mover(own, target))
        self._verdicts = {drift.id: drift for drift in judged}
        self._other, theirs = self._series, self._here
        if own is not target:
            self._other = _files(_read_for(project, pin.patches, target.version))
            theirs = judge_series(self._other, target, {}, None)
        self._targets = {drift.id: _has(drift) for drift in theirs}

    def patches(self, listed: Collection[str]) -> tuple[PatchDrift, ...]:
        """A verdict for each patch, in the pin's order. listed: those of the target's pin."""
        found, states = [], {drift.id: drift.state for drift in self._here}
        for patch in self._ids:
            drift = self._verdicts.get(patch) or self._without_file(patch)
            drift = msgspec.structs.replace(drift, target=self._targets.get(patch, Own()))
            if (here := states.get(patch, "OK")) != "OK" and not self._alone:
                reason = f"on the pin's own source it is {here}; {drift.reason}".removesuffix("; ")
                drift = msgspec.structs.replace(drift, reason=reason)
            waits = _waits(drift, patch in listed)
            found.append(msgspec.structs.replace(drift, waits=waits))
        return tuple(found)

    def _without_file(self, patch: str) -> PatchDrift:
        """A patch that has no file for the pin's version."""
        manifest = read_document(self._project, patch).value
        if marks := retired(manifest, reader(self._target)):
            state, reason = retired_state(marks)
            return PatchDrift(patch, state, reason=reason, retired=True)
        ranges = "; ".join(item.range for item in manifest.versions)
        reason = f"no file for the pin's version (it has: {ranges})"
        return PatchDrift(patch, "NO_FILE", reason=reason)

    def names(self, patches: Sequence[PatchDrift]) -> tuple[Symbols | None, tuple[str, ...]]:
        """What the patches rely on: of a patch with a file that fits the target, that file,
        else the pin's, unless it is retired. And what could not be looked at."""
        carried = {patch.id for patch in patches if patch.target.fits}
        dropped = {patch.id for patch in patches if patch.retired}
        runs = [(self._fitting(self._other, carried), self._target, carried)]
        rest = {patch.id for patch in patches} - carried - dropped
        if self._own is not None and self._own is not self._target and rest:
            fine = {drift.id for drift in self._here if drift.state == "OK"}
            runs.append((self._fitting(self._series, fine), self._own, rest))
        found, why = list[Symbols](), list[str]()
        for series, source, wanted in runs:
            if not series:
                continue
            try:
                symbols = check_symbols(series, source, self._target)
            except KilnError as error:
                why.append(f"names are not checked: {error}")
                continue
            kept = tuple(one for one in symbols.findings if one.patch in wanted)
            found.append(Symbols(kept, symbols.checked, symbols.unresolved))
        if why and not found:
            return None, tuple(why)
        order = {patch: number for number, patch in enumerate(self._ids)}
        findings = [finding for one in found for finding in one.findings]
        findings.sort(key=lambda f: (not f.breaks, order.get(f.patch, 0)))
        checked, unresolved = sum(s.checked for s in found), sum(s.unresolved for s in found)
        return Symbols(tuple(findings), checked, unresolved), tuple(why)

    @staticmethod
    def _fitting(series: Sequence[PatchFile], ids: Collection[str]) -> list[PatchFile]:
        return [patch for patch in series if patch.id in ids]


def _check(series: Sequence[PatchFile]) -> None:
    """Raise what is wrong with the .patch files themselves, all at once."""
    errors: list[KilnError] = []
    for patch in series:
        try:
            parse_series_patch(patch)
        except Problems as problems:
            errors += problems.errors
        except KilnError as error:
            errors.append(error)
    raise_problems(errors)


def _files(found: Mapping[str, PatchFile | BadInput]) -> list[PatchFile]:
    return [patch for patch in found.values() if isinstance(patch, PatchFile)]


def _read_for(
    project: Project, ids: Sequence[str], version: str
) -> Mapping[str, PatchFile | BadInput]:
    """The patches' files for the target's version; none where that is not known."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        return {}
    found, errors = read_each(project, ids, version)
    raise_problems(errors)
    return found


def _has(drift: PatchDrift) -> Own:
    """What a patch has for the target, from the verdict on that file."""
    if drift.retired or drift.state != "OK":
        bad = next((file for file in drift.files if file.state == drift.state), None)
        reason = drift.reason or (f"{bad.path}: {bad.reason}" if bad else "")
        return Own(drift.file, False, f"{drift.state}: {reason.partition(chr(10))[0]}")
    return Own(drift.file, True)


def _waits(drift: PatchDrift, listed: bool) -> bool:
    """Whether somebody has to do something. listed: the target's pin has the patch."""
    there = drift.target
    if drift.retired:
        return listed and not there.fits  # a build of that pin refuses it
    if there.file and not there.fits:
        return True
    if drift.state == "OK":
        return listed and not there.file  # its range has to be extended
    return not there.fits
