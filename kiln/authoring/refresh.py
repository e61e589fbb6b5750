"""Moving a series to another version: git's own merge machinery does the work.

The target's work tree holds the old pristine files with the old series on top, and, on the
old pristine commit, the new pristine one. Each patch is picked from the old series onto
the new files, so that every merge has its true base, and files that moved are followed. A
conflict is git's own: `git status` shows it, plain git solves it. The plan and what came of
each patch are kept after every step, so a stop at any point loses nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kiln.authoring.edit import Named, check_out, check_saved
from kiln.authoring.form import left_out_parts
from kiln.authoring.git import Git, check_git
from kiln.authoring.lay import Series, import_pristine, import_steps, read_steps, why_retired
from kiln.authoring.meta import find_place, public
from kiln.authoring.pick import Refreshed, proceed
from kiln.authoring.plan import Move, Moved, Plan, read_plan, write_plan
from kiln.authoring.work import (
    State,
    Work,
    branch_name,
    default_folder,
    find_work,
    fresh_folder,
    project_from,
    read_work,
    start_repository,
    tag_name,
    write_names,
    write_state,
)
from kiln.drift.source import Source
from kiln.errors import BadInput
from kiln.pins.project import Project
from kiln.progress import Reporter


def start(
    project: Project,
    pin: str,
    to: str,
    old: Source,
    new: Source,
    reporter: Reporter,
    folder: Path | None = None,
) -> Refreshed:
    """Begin to move a pin's series to another pin's version, or a source's, and go on as far
    as nobody is needed.

    Raises BadInput "authoring.no-version", "authoring.same-version", "authoring.unsaved",
    "authoring.folder-taken"; what `read_steps` and `proceed` raise.
    """
    check_git()
    to_pin = to if to in project.pins.pins else ""
    if to_pin:
        new = Named(new, project.pin(to_pin).vllm.version)
    old = Named(old, project.pin(pin).vllm.version)
    _check_versions(old, new, to)
    order = (project.pin(to_pin).patches if to_pin else ()) or project.pin(pin).patches
    series = read_steps(project, project.pin(pin).patches, old)
    kept, skipped = _sort(project, order, series, new, pin)
    for name in project.pin(pin).patches:
        if name not in order:
            skipped[name] = Moved("SKIPPED", f"pin {to_pin} does not list it")
    have = read_steps(project, kept, new, order)
    parts = _parts(project, order, old)

    where = (folder or default_folder(project.root, to_pin or public(new.version))).absolute()
    state = State(project_from(where, project.root), to_pin, new.version, new.label, base="")
    work = find_work(where) if where.exists() else None
    if work is not None:
        check_saved(work)
    with reporter.task(f"work tree of {to_pin or new.version}"):
        if work is not None:
            with work.locked():
                plan = Plan(pin, to, (), skipped, made=False, state=work.state)
                plan = msgspec.structs.replace(plan, before=work.git.commit("HEAD"))
                _lay(work.git, state, old, new, series, have, order, plan, parts)
        else:
            with fresh_folder(where) as made:
                git = start_repository(made, branch_name(to_pin or new.version))
                _lay(
                    git,
                    state,
                    old,
                    new,
                    series,
                    have,
                    order,
                    Plan(pin, to, (), skipped, True),
                    parts,
                )
        work = read_work(where)
    with work.locked():
        return proceed(work, reporter)


def _check_versions(old: Source, new: Source, to: str) -> None:
    if not new.version:
        raise BadInput(
            "authoring.no-version",
            "nothing tells which version of vLLM this source is",
            where=to,
            fix="name it with --version",
        )
    if public(old.version) == public(new.version):
        raise BadInput(
            "authoring.same-version",
            f"both are vLLM {public(old.version)}: there is nothing to move",
            where=to,
            fix="patch files belong to a version; to edit them: `kiln patch edit PIN`",
        )


def _sort(
    project: Project, order: Sequence[str], series: Series, new: Source, pin: str
) -> tuple[list[str], dict[str, Moved]]:
    """The patches that have a file for the new version, and those that need none or lack a
    start."""
    steps = {step.id for step in series.steps}
    kept: list[str] = []
    skipped: dict[str, Moved] = {}
    for name in order:
        place = find_place(project, name, new.version)
        if why := why_retired(place.patch, new):
            skipped[name] = Moved("RETIRED", why)
        elif place.data() is not None:
            kept.append(name)
        elif name not in steps:
            why = series.left_out.get(name, f"pin {pin} does not list it")
            skipped[name] = Moved("SKIPPED", f"nothing to move: {why}")
    return kept, skipped


def _lay(
    git: Git,
    state: State,
    old: Source,
    new: Source,
    series: Series,
    have: Series,
    order: Sequence[str],
    plan: Plan,
    parts: Mapping[str, bytes],
) -> None:
    """Both pristine commits, both series; the branch on the new pristine one."""
    first = import_pristine(git, old)
    commits = import_steps(git, first, series.steps)
    base = import_pristine(git, new, first)
    own = import_steps(git, base, have.steps)
    moves = {
        **{s.id: Move(s.id, c) for s, c in zip(series.steps, commits, strict=True)},
        **{s.id: Move(s.id, c, True) for s, c in zip(have.steps, own, strict=True)},
    }
    for tag, commit in ((tag_name(old.version), first), (tag_name(new.version), base)):
        git.run("tag", "--force", tag, commit)
    git.run("tag", "--force", branch_name(f"from-{plan.source}"), (commits or [first])[-1])
    check_out(git, state.pin or state.version, base)
    write_names(git.folder, new.names())
    files = {step.id: step.sha256 for step in have.steps}
    state = msgspec.structs.replace(state, base=base, head=base, files=files)
    write_state(git.folder, state)
    todo = tuple(moves[name] for name in order if name in moves and name not in plan.results)
    work = Work(git.folder, state)
    for name, data in parts.items():
        work.keep_parts(name, data)
    write_plan(work, msgspec.structs.replace(plan, moves=todo))


def _parts(project: Project, order: Sequence[str], old: Source) -> dict[str, bytes]:
    """What no wheel has goes along: patch.yaml's leave_out is of all versions."""
    parts: dict[str, bytes] = {}
    for name in order:
        place = find_place(project, name, old.version)
        if place.patch.leave_out and (data := place.data()):
            parts[name] = left_out_parts(replace(place.rules, data=data))
    return parts


def abort(work: Work) -> str:
    """Give a refresh up; returns what that did. What it has written to patches/ stays.

    Raises BadInput("authoring.no-refresh") if all is moved, or none was begun.
    """
    with work.locked():
        plan = read_plan(work)
        if plan is None or not plan.waiting:
            raise BadInput(
                "authoring.no-refresh",
                "no refresh is under way here",
                where=str(work.folder),
                fix="a finished one is undone by removing the files that it wrote (`git status` "
                "in the project) and moving the work tree away",
            )
        if plan.made:
            shutil.rmtree(work.folder)
            return f"removed {work.folder}, which was made for it"
        git = work.git
        if work.unfinished():
            git.run("cherry-pick", "--abort")
        assert plan.state is not None
        check_out(git, plan.state.pin or plan.state.version, plan.before)
        write_state(work.folder, plan.state)
        write_plan(work, None)
        return f"{work.folder} is as it was before"
