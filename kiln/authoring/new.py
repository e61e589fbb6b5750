"""A new patch: a commit with its id, and the files that a person fills in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.authoring import mail
from kiln.authoring.commits import Commit, read_commits
from kiln.authoring.files import write_all
from kiln.authoring.git import Git
from kiln.authoring.save import Saved, save_locked
from kiln.authoring.scaffold import TODO, About, check_id, scaffold
from kiln.authoring.work import Work, read_work, unfinished
from kiln.errors import BadInput
from kiln.pins.load import load_project


@dataclass(frozen=True)
class Created:
    """A patch that was made. commit: its own. files: written for it."""

    patch: str
    commit: str
    files: tuple[str, ...]
    saved: Saved

    def text(self) -> str:
        """For people."""
        return "\n".join([*(f"wrote {file}" for file in self.files), self.saved.text()])

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "patch": self.patch,
            "commit": self.commit,
            "files": list(self.files),
            "saved": self.saved.as_dict(),
        }


def new(
    work: Work, patch: str, *, title: str = "", commit: str = "", write_pin: bool = False
) -> Created:
    """Make a patch of what is not committed, of a commit without an id, or an empty one.

    Raises BadInput "authoring.bad-id", "authoring.patch-exists", "authoring.unfinished",
    "authoring.no-commit"; what `save_locked` raises (the commit and the files are there
    then, and the next save goes on).
    """
    check_id(patch)
    with work.locked():
        work = read_work(work.folder)
        if doing := work.unfinished():
            raise unfinished(work, doing)
        project = load_project(work.project)
        commits = read_commits(work.git, work.state.base, work.git.commit("HEAD"))
        own = next((found for found in commits if patch in found.ids), None)
        if patch in project.names("patch") and not (own is None and commit):
            raise BadInput(
                "authoring.patch-exists",
                f"there is a patch {patch} already",
                where=f"patches/{patch}/patch.yaml",
                fix="change its commit in the work tree (`git commit --fixup`, `git rebase -i`), "
                "or choose another name",
            )
        if own is None:
            message = mail.with_id(f"{patch}: {title or TODO}".encode(), patch)
            made = _adopt(work.git, commits, commit, patch) if commit else _commit(work, message)
        else:
            made = own.id
        files = scaffold(project, patch, work.state.version, About(title))
        write_all(files)
        saved = save_locked(work, write_pin=write_pin)
    names = tuple(path.relative_to(project.root).as_posix() for path in files)
    return Created(patch, made, names, saved)


def _commit(work: Work, message: bytes) -> str:
    git = work.git
    git.run("add", "--all")
    options = ("--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim", "--file=-")
    git.run("commit", *options, stdin=message)
    return git.commit("HEAD")


def _adopt(git: Git, commits: Sequence[Commit], name: str, patch: str) -> str:
    """Give a commit an id: it and those on top of it are made anew, with the same files."""
    wanted = git.commit(name)
    at = next((n for n, commit in enumerate(commits) if commit.id == wanted), None)
    if at is None or commits[at].ids or any(len(c.parents) > 1 for c in commits):
        why = "it is none of the series" if at is None else "it, or a merge, stands in the way"
        raise BadInput(
            "authoring.no-commit",
            f"{name!r} is no commit that a patch can be made of",
            where=str(git.folder),
            why=why,
            fix="name one behind the pristine commit that has no line `Kiln-Patch:`",
        )
    above = commits[at].parents[0]
    own = ""
    for commit in commits[at:]:
        ids = [patch] if commit.id == wanted else list(commit.ids)
        message = commit.message
        for each in ids:
            message = mail.with_id(message, each)
        above = git.commit_tree(f"{commit.id}^{{tree}}", [above], message)
        own = above if commit.id == wanted else own
    git.run("update-ref", "-m", f"kiln patch new {patch}", "HEAD", above)
    return own
