"""Picking one patch after the other onto the new files, with a person's help where needed.

Each pick is git's own cherry-pick. What came of it is kept at once, so a stop at any point
loses nothing, and it does not matter whether a person or Kiln has ended a pick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kiln.authoring.commits import read_commits
from kiln.authoring.edit import check_clean
from kiln.authoring.git import failed
from kiln.authoring.moved import moved
from kiln.authoring.plan import Move, Plan, read_plan, write_plan
from kiln.authoring.save import Saved, save_locked
from kiln.authoring.work import Work, read_work, unfinished
from kiln.errors import BadInput
from kiln.progress import Reporter

LETTERS = {
    "UU": "both changed the same lines",
    "AA": "both added it",
    "DU": "the new version does not have it",
    "UD": "the patch deletes it, and the new version has changed it",
    "AU": "the new version has it under this name; the patch's change waits for a place",
    "UA": "the patch's file would stand here, where the new version moved the folder",
    "DD": "both took it away",
}
_MARKERS = (b"<<<<<<< ", b">>>>>>> ", b"||||||| ")


@dataclass(frozen=True)
class Refreshed:
    """How far a refresh has come. conflict: path -> what is the matter, of the patch that
    stops it. saved: what was written once all was moved."""

    work: Work
    plan: Plan
    conflict: Mapping[str, str]
    saved: Saved | None

    @property
    def waits(self) -> bool:
        """Whether something is left to a person."""
        return bool(self.plan.picking) or (self.saved is not None and self.saved.waits)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "folder": str(self.work.folder),
            "from": self.plan.source,
            "to": self.plan.target,
            "patches": [
                {"id": name, "state": moved.state, "detail": moved.detail.split("\n")}
                for name, moved in self.plan.results.items()
            ],
            "conflict": {"patch": self.plan.picking, "files": dict(self.conflict)}
            if self.plan.picking
            else None,
            "waiting": [move.id for move in self.plan.waiting],
            "saved": self.saved.as_dict() if self.saved is not None else None,
        }


def resume(work: Work, reporter: Reporter, skip: bool = False) -> Refreshed:
    """Go on after a conflict or a stop. skip: leave out the patch that waits to be solved."""
    with work.locked():
        return proceed(read_work(work.folder), reporter, skip=skip, resumed=True)


def proceed(
    work: Work, reporter: Reporter, *, skip: bool = False, resumed: bool = False
) -> Refreshed:
    """Pick one patch after the other, and save when all are moved.

    Raises BadInput "authoring.no-refresh", "authoring.unsolved", "authoring.markers",
    "authoring.uncommitted", "authoring.unfinished"; what `save_locked` raises.
    """
    plan = read_plan(work)
    if plan is None:
        raise BadInput(
            "authoring.no-refresh",
            "no refresh is under way here",
            where=str(work.folder),
            fix="begin one: `kiln patch refresh PIN --to PIN2`",
        )
    if skip:
        plan = _skip(work, plan)
    elif resumed:
        plan = _solved(work, plan)
    while plan.waiting:
        move = plan.waiting[0]
        check_clean(work)
        with reporter.task(f"move {move.id}"):
            plan, conflict = _pick(work, plan, move)
        if conflict:
            return Refreshed(work, plan, conflict, None)
    return Refreshed(work, plan, {}, save_locked(work))


def _pick(work: Work, plan: Plan, move: Move) -> tuple[Plan, Mapping[str, str]]:
    git = work.git
    before = git.commit("HEAD")
    plan = msgspec.structs.replace(plan, picking=move.id)
    write_plan(work, plan)
    done = git.attempt("cherry-pick", move.commit)
    if done.returncode == 0:
        return _note(work, plan, move, before, solved=False), {}
    if conflict := git.unmerged():
        return plan, {path: LETTERS.get(kind, kind) for path, kind in conflict.items()}
    if work.unfinished() == "cherry-pick" and not git.changed():
        git.run("cherry-pick", "--skip")
        plan = plan.done(move.id, "UPSTREAM", "nothing is left of it: this version has it all")
        write_plan(work, plan)
        return plan, {}
    raise failed(work.folder, ("cherry-pick", move.id), done)


def _note(work: Work, plan: Plan, move: Move, before: str, solved: bool) -> Plan:
    """Keep what came of a pick that is committed."""
    result = moved(work.git, move, before, "HEAD", solved)
    plan = plan.done(move.id, result.state, result.detail)
    write_plan(work, plan)
    return plan


def _solved(work: Work, plan: Plan) -> Plan:
    """Take in what a person has done since the last step: solved, committed, or nothing."""
    git = work.git
    move = next((m for m in plan.waiting if m.id == plan.picking), None)
    doing = work.unfinished()
    if doing and (doing != "cherry-pick" or move is None):
        raise unfinished(work, doing)
    if move is None:
        return plan
    before = git.commit("HEAD")
    if doing:
        _check_solved(work, move)
        if git.run("write-tree") == git.run("rev-parse", "HEAD^{tree}"):
            git.run("cherry-pick", "--skip")
            plan = plan.done(move.id, "SKIPPED", "solved to nothing: left out")
            write_plan(work, plan)
            return plan
        # Not --continue: it would take lines that begin with "#" out of the message.
        git.run("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-C", move.commit)
        return _note(work, plan, move, before, solved=True)
    for commit in read_commits(git, work.state.base, before):
        if move.id in commit.ids:
            return _note(work, plan, move, commit.parents[0], solved=True)
    return plan  # stopped before git had begun, or aborted: it is picked again


def _check_solved(work: Work, move: Move) -> None:
    git = work.git
    if open_ := git.unmerged():
        raise BadInput(
            "authoring.unsolved",
            f"patch {move.id} is not solved yet",
            where=str(work.folder),
            why="\n".join(f"{path}: {LETTERS.get(kind, kind)}" for path, kind in open_.items()),
            fix="edit these files and `git add` them (`git rm` what is to go); or leave the patch "
            "out with `kiln patch refresh --skip`",
        )
    names = git.run("diff", "--cached", "--name-only", "-z", "--no-renames", "--diff-filter=d")
    staged = [name.decode(errors="surrogateescape") for name in names.split(b"\0") if name]
    blobs = git.blobs(f":{path}" for path in staged)
    marked = [
        path
        for path in staged
        if any(line.startswith(_MARKERS) for line in blobs.get(f":{path}", b"").split(b"\n"))
    ]
    if marked:
        raise BadInput(
            "authoring.markers",
            "conflict markers are left in what is staged",
            where=str(work.folder),
            why=", ".join(marked),
            fix="solve them, and `git add` the files again",
        )


def _skip(work: Work, plan: Plan) -> Plan:
    if not plan.picking:
        raise BadInput(
            "authoring.nothing-to-skip",
            "no patch waits to be solved",
            where=str(work.folder),
            fix="`kiln patch refresh --continue`",
        )
    if work.unfinished() == "cherry-pick":
        work.git.run("cherry-pick", "--skip")
    plan = plan.done(plan.picking, "SKIPPED", "left out by hand")
    write_plan(work, plan)
    return plan
