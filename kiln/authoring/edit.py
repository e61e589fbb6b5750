"""Making a work tree: pristine files, then a pin's series, a commit a patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kiln.authoring import plan
from kiln.authoring.git import Git, check_git
from kiln.authoring.lay import Series, import_pristine, import_steps, read_steps
from kiln.authoring.meta import find_place
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
    unfinished,
    write_hooks,
    write_names,
    write_state,
)
from kiln.canonical import sha256
from kiln.drift.source import Source
from kiln.errors import BadInput
from kiln.pins.project import Project
from kiln.progress import Reporter


@dataclass(frozen=True)
class Edited:
    """A work tree to edit in. made: it was made now. left_out: patches of the pin that have
    no commit, and why."""

    work: Work
    made: bool
    left_out: Mapping[str, str]

    def text(self) -> str:
        """For people: the folder alone goes to stdout."""
        return str(self.work.folder)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        state = self.work.state
        return {
            "folder": str(self.work.folder),
            "made": self.made,
            "pin": state.pin,
            "version": state.version,
            "base": state.base,
            "head": state.head,
            "patches": list(state.files),
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True)
class Named:
    """A source whose version somebody has named."""

    source: Source
    version: str

    @property
    def label(self) -> str:
        """See `Source`."""
        return self.source.label

    def names(self) -> frozenset[str]:
        """See `Source`."""
        return self.source.names()

    def read(self, path: str) -> bytes:
        """See `Source`."""
        return self.source.read(path)


def edit(
    project: Project,
    pin: str,
    find: Callable[[], Source],
    reporter: Reporter,
    folder: Path | None = None,
    again: bool = False,
) -> Edited:
    """The work tree of a pin: the one that is there, or a new one.

    find: its source, if that is needed. again: lay the series anew from the patch files;
    what is committed stays in the reflog.

    Raises BadInput "authoring.folder-taken", "authoring.other-work", "authoring.files-moved",
    "authoring.unsaved"; what `read_steps` raises.
    """
    check_git()
    where = (folder or default_folder(project.root, pin)).absolute()
    version = project.pin(pin).vllm.version
    work = _there(where, pin, version)
    if work is not None and not again:
        write_hooks(work.git)
        _check_files(project, work)
        return Edited(work, False, {})
    if work is not None:
        check_saved(work)
    source = Named(find(), version)
    series = read_steps(project, project.pin(pin).patches, source)
    state = State(project_from(where, project.root), pin, version, source.label, base="")
    for rule in series.rules:
        reporter.note(f"a build will refuse the series: {rule.what} [{rule.code}]")
    with reporter.task(f"work tree of {pin}"):
        if work is not None:
            with work.locked():
                work = relay(work, state, source, series)
                plan.write_plan(work, None)
        else:
            with fresh_folder(where) as new:
                git = start_repository(new, branch_name(pin))
                lay(git, state, source, series)
            work = read_work(where)
    return Edited(work, True, series.left_out)


def find_or_make(
    project: Project,
    pin: str | None,
    folder: Path | None,
    here: Path,
    find: Callable[[str], Source],
    reporter: Reporter,
) -> Work:
    """The work tree in `folder`, the one around `here`, or else the pin's, made if need be."""
    if folder is None and pin is None and (work := find_work(here)) is not None:
        return work
    name = pin or project.pins.default
    there = find_work(folder or default_folder(project.root, name))
    if there is not None and there.state.pin == name:
        return there
    return edit(project, name, lambda: find(name), reporter, folder).work


def lay(git: Git, state: State, source: Source, series: Series) -> State:
    """Commits, tag, branch and files of a work tree; its state is kept last."""
    base = import_pristine(git, source)
    commits = import_steps(git, base, series.steps)
    head = commits[-1] if commits else base
    git.run("tag", "--force", tag_name(state.version), base)
    check_out(git, state.pin or state.version, head)
    write_names(git.folder, source.names())
    files = {step.id: step.sha256 for step in series.steps}
    state = msgspec.structs.replace(state, base=base, head=head, files=files)
    write_state(git.folder, state)
    return state


def relay(work: Work, state: State, source: Source, series: Series) -> Work:
    """As `lay`, in a work tree that is there."""
    return replace(work, state=lay(work.git, state, source, series))


def check_out(git: Git, name: str, commit: str) -> None:
    """Put the branch of the work tree, and its files, onto a commit."""
    branch = branch_name(name)
    if git.commit("HEAD"):
        git.run("checkout", "--quiet", "--force", "-B", branch, commit)
    else:
        git.run("update-ref", f"refs/heads/{branch}", commit)
        git.run("reset", "--quiet", "--hard", commit)


def check_clean(work: Work) -> None:
    """Raise BadInput("authoring.unfinished" or "authoring.uncommitted") unless all is committed."""
    if doing := work.unfinished():
        raise unfinished(work, doing)
    if changed := work.git.changed():
        raise BadInput(
            "authoring.uncommitted",
            "there are changes that are in no commit",
            where=str(work.folder),
            why=", ".join(changed[:5]),
            fix="commit them into a patch (`git commit --amend`), or `git stash -u` them",
        )


def check_saved(work: Work) -> None:
    """Raise BadInput("authoring.unsaved") if the work tree has what no patch file has."""
    git = work.git
    doing, changed = work.unfinished(), git.changed()
    waiting = plan.waiting(work)
    why = ""
    if doing:
        why = f"git is in the middle of a {doing}"
    elif waiting:
        why = f"a refresh has still to move {', '.join(waiting)}"
    elif changed:
        why = f"changes that are in no commit: {', '.join(changed[:3])}"
    elif git.commit("HEAD") != work.state.head:
        why = "commits that are in no patch file"
    if why:
        raise BadInput(
            "authoring.unsaved",
            "the work tree has work of its own",
            where=str(work.folder),
            why=why,
            fix="finish it and run `kiln patch save`; or move the folder away",
        )


def _there(folder: Path, pin: str, version: str) -> Work | None:
    work = find_work(folder) if folder.exists() else None
    if work is None or work.folder != folder:
        return None
    if (work.state.pin, work.state.version) == (pin, version):
        return work
    raise BadInput(
        "authoring.other-work",
        f"the folder is the work tree of {work.name} (vLLM {work.state.version})",
        where=str(folder),
        why=f"asked for: {pin} (vLLM {version})",
        fix="move it away, or name another folder with --dir",
    )


def _check_files(project: Project, work: Work) -> None:
    """Raise BadInput("authoring.files-moved") if patch files are not those of the work tree."""
    moved = []
    for name in sorted({*work.state.files, *project.pin(work.state.pin).patches}):
        if name not in project.names("patch"):
            continue
        data = find_place(project, name, work.state.version).data()
        known = work.state.files.get(name, "")
        if data is not None and sha256(data) != known:
            moved.append(name)
    if moved:
        raise BadInput(
            "authoring.files-moved",
            f"the files of {', '.join(moved)} are not those of the work tree any more",
            where=str(work.folder),
            why="they were changed by hand, by a checkout, or by another work tree",
            fix=f"`kiln patch edit {work.name} --again` lays the series anew from the files",
        )
