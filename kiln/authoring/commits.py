"""The series as it stands in a work tree: one commit a patch, in order, from the pristine one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.authoring import mail
from kiln.authoring.git import Git
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.pins.forms import NAME

_SHORT = 10  # digits of a commit in messages
_SQUASH = (b"fixup! ", b"squash! ", b"amend! ")


@dataclass(frozen=True)
class Side:
    """A file before or after a commit. blob: "" where there is none. mode: git's."""

    blob: str
    mode: int


@dataclass(frozen=True)
class Commit:
    """A commit. ids: of the patches that its message names. message: without those lines.
    changes: path -> the file before and after."""

    id: str
    parents: tuple[str, ...]
    ids: tuple[str, ...]
    message: bytes
    changes: Mapping[str, tuple[Side, Side]]

    @property
    def patch(self) -> str:
        """The patch that it is, in a series that was checked."""
        return self.ids[0]

    @property
    def shown(self) -> str:
        """For messages."""
        subject = self.message.split(b"\n", 1)[0].decode(errors="replace")
        return f"{self.id[:_SHORT]} ({subject[:60]!r})"


def read_commits(git: Git, base: str, head: str) -> list[Commit]:
    """The commits behind `base` up to `head`, oldest first, as they are.

    Raises BadInput("authoring.lost-base") if `head` does not stand on `base`.
    """
    if git.attempt("merge-base", "--is-ancestor", base, head).returncode:
        raise BadInput(
            "authoring.lost-base",
            "the commits do not stand on the pristine sources that the work tree was made with",
            where=str(git.folder),
            why=f"{head[:_SHORT]} is no descendant of {base[:_SHORT]}",
            fix="`git rebase` them back onto it; `git tag` lists the pristine commits",
        )
    form = "--format=%H%n%P%n%B"
    out = git.run("log", "-z", "--reverse", "--topo-order", form, f"{base}..{head}")
    rows = [text.split(b"\n", 2) for text in out.split(b"\0") if text]
    changed = changes(git, [name.decode() for name, _, _ in rows])
    return [
        Commit(
            name.decode(),
            tuple(parents.decode().split()),
            tuple(mail.ids_of(message)),
            mail.without_id(message),
            changed.get(name.decode(), {}),
        )
        for name, parents, message in rows
    ]


def changes(git: Git, commits: Sequence[str]) -> dict[str, dict[str, tuple[Side, Side]]]:
    """What each commit changes (nothing is said of merges): path -> before and after."""
    if not commits:
        return {}
    options = ("--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
    out = git.run("diff-tree", *options, stdin="".join(f"{c}\n" for c in commits).encode())
    found: dict[str, dict[str, tuple[Side, Side]]] = {}
    parts = iter(out.split(b"\0"))
    current: dict[str, tuple[Side, Side]] = {}
    for part in parts:
        if part.startswith(b":"):
            old_mode, mode, old, new, _ = part.decode().removeprefix(":").split(" ")
            path = next(parts).decode(errors="surrogateescape")
            current[path] = _side(old, old_mode), _side(new, mode)
        elif part.strip():
            current = found.setdefault(part.strip().decode(), {})
    return found


def _side(blob: str, mode: str) -> Side:
    return Side("" if not blob.strip("0") else blob, int(mode, 8))


def check_series(
    commits: Sequence[Commit], known: Sequence[str], where: str, pristine: str
) -> None:
    """Raise BadInput, all that keeps the commits from being a series of patches at once:
    authoring.merge, authoring.fixup, authoring.no-id, authoring.several-ids, authoring.same-id,
    authoring.bad-id, authoring.unknown-patch. known: the project's patches. pristine: the
    tag of the pristine commit."""
    errors: list[KilnError] = []

    def refuse(code: str, what: str, why: str, fix: str) -> None:
        errors.append(BadInput(f"authoring.{code}", what, where=where, why=why, fix=fix))

    first: dict[str, Commit] = {}
    for commit in commits:
        what = f"commit {commit.shown}"
        if len(commit.parents) > 1:
            refuse(
                "merge",
                f"{what} is a merge",
                "a series is a line of commits, one a patch",
                "`git rebase` makes it a line again",
            )
        elif not commit.ids and commit.message.startswith(_SQUASH):
            refuse(
                "fixup",
                f"{what} waits to be put into another",
                "it belongs to no patch by itself; the files follow when it is in its own",
                f"`git rebase -i --autosquash {pristine}`",
            )
        elif not commit.ids:
            refuse(
                "no-id",
                f"{what} belongs to no patch",
                f"its message has no line `{mail.TRAILER.decode()}: ID`",
                f"make a patch of it: `kiln patch new ID --commit {commit.id[:_SHORT]}`; or put "
                "it into the commit of a patch (`git rebase -i`, fixup)",
            )
        elif len(set(commit.ids)) > 1:
            refuse(
                "several-ids",
                f"{what} says that it is several patches",
                ", ".join(commit.ids),
                "leave one of these lines: `git commit --amend`, or `git rebase -i`, reword",
            )
        elif not NAME.fits(commit.patch):
            refuse("bad-id", f"{what} names a patch {commit.patch!r}", NAME.wanted, "mend the line")
        elif commit.patch in first:
            refuse(
                "same-id",
                f"{what} is patch {commit.patch}, and so is {first[commit.patch].shown}",
                "a patch is one commit",
                "put one into the other (`git rebase -i`, fixup), or make a patch of its own of "
                "it: take the line out of its message, then `kiln patch new ID --commit ...`",
            )
        elif commit.patch not in known:
            refuse(
                "unknown-patch",
                f"{what} is patch {commit.patch}, which the project does not have",
                f"there is no patches/{commit.patch}/patch.yaml",
                f"`kiln patch new {commit.patch}` makes it",
            )
        for patch in commit.ids[:1]:
            first.setdefault(patch, commit)
    raise_problems(errors)
