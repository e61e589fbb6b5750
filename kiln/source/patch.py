"""The step that patches vLLM: a wheel and a locked series in, the changed files out.

Only what the patches change comes out, with the RECORD that fits it and whiteouts of what
they delete; so an edit of a Python file moves one small layer. Every file is checked
against the series in the lock, before and after: sources that are not those the lock was
made from, and a patch that does not do what the lock says, are errors.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

import msgspec

from kiln.canonical import Digest, sha256
from kiln.errors import BadInput, JudgedBad, KilnError, raise_problems
from kiln.graph.action import Context
from kiln.lock.model import LockedPatch
from kiln.pins.patch import PatchFile
from kiln.source.apply import Applied, apply_series
from kiln.source.diff import EXECUTABLE, FILE, LINK
from kiln.source.entry import Entry
from kiln.source.fit import link_target
from kiln.source.pycache import cache_path
from kiln.source.tree import write_tree
from kiln.source.wheel import Install, Wheel
from kiln.source.whiteout import whiteouts

__all__ = ["Applied", "PatchFile", "apply_series", "patch_wheel"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the step. series: as the lock has it, in the order of application.
    bytecode: the tag of the bytecode in the layer below ("cpython-311"), "" if it has none.
    """

    filename: str
    install: Install
    series: tuple[LockedPatch, ...]
    bytecode: str = ""


def patch_wheel(wheel: Wheel, series: Sequence[PatchFile]) -> Applied:
    """The series applied to the wheel's files, from pristine. Raises what `apply_series` does."""
    members = wheel.archive.members

    def mode(path: str) -> int:
        return EXECUTABLE if members[path].executable else FILE

    read = functools.partial(_read, wheel)
    return apply_series(read, members.keys(), series, mode)


def _read(wheel: Wheel, path: str) -> bytes | None:
    return wheel.read(path) if path in wheel.archive.members else None


def run(context: Context) -> Mapping[str, Digest]:
    """Inputs "wheel" and "patch:<id>"; output "out": a tree of what the series changes, with
    whiteouts of what it deletes."""
    params = msgspec.convert(context.params, Params)
    wheel = Wheel(context.path("wheel"), params.filename)
    _check_sources(wheel, params.series)
    series = []
    for patch in params.series:
        data = context.path(f"patch:{patch.id}").read_bytes()
        if sha256(data) != patch.sha256:
            raise BadInput(
                "patch.file-changed",
                f"the file of patch {patch.id} is not the one in the lock",
                why=f"expected sha256 {patch.sha256}, got {sha256(data)}",
                fix="run `kiln build` without --locked and review the lock's difference",
            )
        series.append(PatchFile(patch.id, data, "", patch.counters, patch.left_out))
        if patch.left_out:
            context.reporter.note(f"patch {patch.id}: left out: {', '.join(patch.left_out)}")
    applied = patch_wheel(wheel, series)
    _check_results(params.series, applied.patches)
    return {"out": write_tree(context.store.blobs, _entries(wheel, applied, params))}


def _entries(wheel: Wheel, applied: Applied, params: Params) -> list[Entry]:
    """The changed files as they will stand in the image, vLLM's RECORD, and whiteouts."""
    site, names = params.install.site, set(wheel.archive.members)
    gone = {path for path, data in applied.files.items() if data is None}
    gone |= {name for name in names if _is_bytecode_of(name, gone)}
    # Read through a link, there is what it leads to; so this is what RECORD says of it.
    links = {path: link_target(path, data) for path, data in applied.files.items()
             if data is not None and applied.modes[path] == LINK}  # fmt: skip
    files: dict[str, bytes | None] = {**applied.files, **dict.fromkeys(gone)}
    for link, target in links.items():
        files[link] = files[target] if target in files else wheel.read(target)
    wanted = {f"{site}/{path}": path for path in files} | {f"{site}/{wheel.dist_info}/RECORD": ""}
    made = []
    for entry in wheel.entries(params.install, files):
        path = wanted.get(entry.path)
        if path is None:
            continue
        if path in links:
            target = (applied.files[path] or b"").decode()
            entry = Entry(entry.path, "symlink", 0o777, target=target, origin=entry.origin)
        elif path:
            entry = dataclasses.replace(entry, mode=applied.modes[path] & 0o777)
        made.append(entry)
    left = (names | files.keys()) - gone
    modules = [path for path in (*gone, *(links.keys() & names)) if path.endswith(".py")]
    tag = params.bytecode
    stale = [cache_path(path, tag) for path in modules] if tag else []
    return [*made, *whiteouts(gone, left, site, stale=stale, origin=wheel.filename)]


def _is_bytecode_of(name: str, modules: Collection[str]) -> bool:
    """Whether a file of the wheel is the bytecode of one of these modules."""
    folder, _, last = name.rpartition("/__pycache__/")
    return last.endswith(".pyc") and f"{folder}/{last.partition('.')[0]}.py" in modules


def _check_sources(wheel: Wheel, series: tuple[LockedPatch, ...]) -> None:
    """Every file is, before the first patch that touches it, what the lock says."""
    names, seen = set(wheel.names()), set[str]()
    errors: list[KilnError] = []
    for patch in series:
        for file in patch.files:
            if file.path in seen:
                continue
            seen.add(file.path)
            found = sha256(wheel.read(file.path)) if file.path in names else ""
            if found != file.pre:
                errors.append(
                    BadInput(
                        "patch.pre-image",
                        f"{file.path} is not the file that patch {patch.id} was locked for",
                        where=wheel.filename,
                        why=f"expected sha256 {file.pre or '(absent)'}, got {found or '(absent)'}",
                        fix="the lock's wheel was replaced, or it is not pristine: lock again",
                    )
                )
    raise_problems(errors)


def _check_results(locked: tuple[LockedPatch, ...], applied: tuple[LockedPatch, ...]) -> None:
    """Every file is, after each patch, what the lock says; and no other file changed."""
    errors: list[KilnError] = []
    for want, have in zip(locked, applied, strict=True):
        wanted = {file.path: (file.post, file.mode) for file in want.files}
        found = {file.path: (file.post, file.mode) for file in have.files}
        for path in sorted(wanted.keys() | found.keys()):
            before, after = wanted.get(path), found.get(path)
            if before != after:
                errors.append(
                    JudgedBad(
                        "patch.post-image",
                        f"patch {want.id} does not make of {path} what the lock says",
                        why=f"expected {_shown(before)}, got {_shown(after)}",
                        fix="run `kiln build` without --locked and review the lock's difference",
                    )
                )
    raise_problems(errors)


def _shown(state: tuple[str, str] | None) -> str:
    if state is None:
        return "no change"
    sha, mode = state
    return f"sha256 {sha}" + (f", mode {mode}" if mode else "") if sha else "no file"
