"""The step that patches vLLM: a wheel and a locked series in, the changed files out.

Only what the patches change comes out, with the RECORD that fits it; so an edit of a
Python file moves one small layer. Every file is checked against the series in the
lock, before and after: sources that are not those the lock was made from, and a patch
that does not do what the lock says, are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kiln.canonical import Digest, sha256
from kiln.errors import BadInput, JudgedBad, KilnError, raise_problems
from kiln.graph.action import Context
from kiln.lock.model import LockedPatch
from kiln.pins.patch import PatchFile
from kiln.source.apply import Applied, apply_series
from kiln.source.tree import write_tree
from kiln.source.wheel import Install, Wheel

__all__ = ["Applied", "PatchFile", "apply_series", "patch_wheel"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the step. series: as the lock has it, in the order of application."""

    filename: str
    install: Install
    series: tuple[LockedPatch, ...]


def patch_wheel(wheel: Wheel, series: Sequence[PatchFile]) -> Applied:
    """The series applied to the wheel's files, from pristine.

    Raises what `apply_series` raises, and BadInput("patch.deletes") for a series that
    leaves a file out: the layer below would still show it.
    """
    names = set(wheel.names())
    applied = apply_series(lambda p: wheel.read(p) if p in names else None, names, series)
    gone = sorted(path for path, data in applied.files.items() if data is None)
    raise_problems(
        [
            BadInput(
                "patch.deletes",
                f"the series deletes {path}",
                where=", ".join(
                    p.id for p in applied.patches for f in p.files if (f.path, f.post) == (path, "")
                ),
                why="files of a lower layer cannot be taken out of an image by a patch yet",
                fix="leave the file and empty it, or stop importing it",
            )
            for path in gone
        ]
    )
    return applied


def run(context: Context) -> Mapping[str, Digest]:
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
        series.append(PatchFile(patch.id, data))
    applied = patch_wheel(wheel, series)
    _check_results(params.series, applied.patches)
    record = f"{wheel.dist_info}/RECORD"
    wanted = {f"{params.install.site}/{path}" for path in (*applied.files, record)}
    entries = wheel.entries(params.install, applied.files)
    out = [entry for entry in entries if entry.path in wanted]
    return {"out": write_tree(context.store.blobs, out)}


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
        wanted = {file.path: file.post for file in want.files}
        found = {file.path: file.post for file in have.files}
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


def _shown(sha: str | None) -> str:
    if sha is None:
        return "no change"
    return f"sha256 {sha}" if sha else "no file"
