"""A work tree: pristine vLLM as a commit, and a pin's series as commits on top of it.

It is a repository of its own, below .work/ of the project as a rule. What Kiln has to
know of it stands in .git/kiln/work.json. The settings that could change bytes are fixed
in it, so that plain git does there what it does everywhere, whoever the user is; and two
hooks let the patch files follow each commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

import kiln
from kiln.authoring.files import umask
from kiln.authoring.git import Git, check_git
from kiln.errors import BadInput
from kiln.pins.problems import listed

WORK = ".work"
_STATE = "work.json"

_CONFIG = """\
[core]
\tautocrlf = false
\tsafecrlf = false
\teol = lf
\tfileMode = false
\tfsmonitor = false
\thooksPath = .git/hooks
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tbigFileThreshold = 512m
\tlogAllRefUpdates = true
[user]
\tname = Kiln
\temail = kiln@localhost
[commit]
\tgpgSign = false
[tag]
\tgpgSign = false
[merge]
\tconflictStyle = diff3
\trenames = true
\trenameLimit = 20000
\tdirectoryRenames = conflict
\trenormalize = false
[diff]
\trenameLimit = 20000
[rerere]
\tenabled = false
\tautoUpdate = false
[apply]
\twhitespace = warn
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""

_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !merge !diff\n"
_EXCLUDE = "__pycache__/\n*.pyc\n"

_HOOK = """\
#!/bin/sh
# Written by Kiln: the patch files of the project follow the commits of this work tree.
PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
{python} -P -m kiln patch save --from-hook {event} ||
    echo "kiln: the patch files may not be those of these commits; see above, and run" \\
        "\\`kiln patch save\\`" >&2
"""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What Kiln keeps of a work tree.

    project: its folder, from the work tree's where it lies inside of it. pin: whose
    series this is; "" for a version that no pin has. version, label: of the source. base:
    the commit of the pristine files. head, files: the commit that the patch files were
    last like, and their sha256 then, by patch.
    """

    project: str
    pin: str
    version: str
    label: str
    base: str
    head: str = ""
    files: dict[str, str] = {}


@dataclass(frozen=True)
class Work:
    """A work tree that is there."""

    folder: Path
    state: State

    @property
    def git(self) -> Git:
        """Its repository."""
        return Git(self.folder)

    @property
    def kept(self) -> Path:
        """Kiln's own folder in it."""
        return self.folder / ".git" / "kiln"

    @property
    def project(self) -> Path:
        """The project's folder."""
        return (self.folder / self.state.project).resolve()

    @property
    def name(self) -> str:
        """For messages and branches: the pin, or the version."""
        return self.state.pin or self.state.version

    @property
    def tag(self) -> str:
        """The tag of its pristine commit."""
        return tag_name(self.state.version)

    def names(self) -> frozenset[str]:
        """All paths of the pristine source, those of binary files included."""
        return frozenset((self.kept / "names").read_text("utf-8", "surrogateescape").split("\n"))

    def parts(self, patch: str) -> bytes:
        """The parts of a patch that no wheel has, for its file of this version."""
        try:
            return (self.kept / "parts" / patch).read_bytes()
        except FileNotFoundError:
            return b""

    def keep_parts(self, patch: str, data: bytes) -> None:
        """Keep them until that file is written."""
        (self.kept / "parts").mkdir(exist_ok=True)
        (self.kept / "parts" / patch).write_bytes(data)

    def with_state(self, **changes: object) -> Work:
        """Keep other values in the state; returns the work tree as it is now."""
        state = msgspec.structs.replace(self.state, **changes)
        write_state(self.folder, state)
        return Work(self.folder, state)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the work tree: a second command waits for the first."""
        with locked(self.kept / "lock"):
            yield

    def unfinished(self) -> str:
        """What git is in the middle of: "rebase", "cherry-pick", "merge", ...; "" if nothing."""
        git = self.git.dir
        if (git / "rebase-merge").is_dir() or (git / "rebase-apply").is_dir():
            return "rebase"
        for name in ("CHERRY_PICK_HEAD", "REVERT_HEAD", "MERGE_HEAD"):
            if (git / name).exists():
                return name.removesuffix("_HEAD").lower().replace("_", "-")
        return "cherry-pick" if (git / "sequencer").is_dir() else ""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file or folder (made as a file if it is not there)."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def default_folder(project: Path, name: str) -> Path:
    """Where the work tree of a pin or version lies unless another folder is named."""
    return project / WORK / name


def find_work(start: Path) -> Work | None:
    """The work tree that holds a folder, or None."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / ".git" / "kiln" / _STATE).is_file():
            return read_work(folder)
        if (folder / ".git").exists():
            return None
    return None


def open_work(project: Path, target: str | None, here: Path) -> Work:
    """The work tree that a person means: a pin's, a folder's, the one around `here`, the only one.

    Raises BadInput("authoring.no-work-tree").
    """
    if target is not None:
        for folder in (default_folder(project, target), here / target):
            if "\0" not in target and (found := find_work(folder)) is not None:
                return found
    elif (found := find_work(here)) is not None:
        return found
    there = sorted(path.parents[2].name for path in (project / WORK).glob(f"*/.git/kiln/{_STATE}"))
    if target is None and len(there) == 1:
        return read_work(project / WORK / there[0])
    what = f"{target!r} is no work tree" if target else "several work trees could be meant"
    raise BadInput(
        "authoring.no-work-tree",
        what if target or there else "there is no work tree",
        where=str(project / WORK),
        why=f"there are: {listed(there, 'none yet')}",
        fix="make one with `kiln patch edit PIN`, or name one of these, or its folder",
    )


def read_work(folder: Path) -> Work:
    """The work tree in a folder. Raises BadInput("authoring.bad-state") if Kiln's notes are odd."""
    path = folder / ".git" / "kiln" / _STATE
    try:
        return Work(folder, msgspec.json.decode(path.read_bytes(), type=State))
    except (msgspec.DecodeError, OSError) as error:
        raise BadInput(
            "authoring.bad-state",
            "Kiln's notes of this work tree cannot be read",
            where=str(path),
            why=str(error),
            fix="move the folder away and make it again with `kiln patch edit PIN`; your commits "
            "are in it, and `git format-patch` gets them out",
        ) from error


def write_state(folder: Path, state: State) -> None:
    """Keep the state; all of it or, after a crash, the one before."""
    kept = folder / ".git" / "kiln"
    handle, name = tempfile.mkstemp(prefix="state-", dir=kept)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    os.replace(name, kept / _STATE)


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside the wanted one, which it becomes if the block ends well.

    Raises BadInput("authoring.folder-taken") where something else is in the way.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            "authoring.folder-taken",
            "the folder for the work tree has something else in it",
            where=str(folder),
            fix="move it away, or name another folder with --dir",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.glob(".new-*-*"):  # of a Kiln that was killed
        if not _runs(old.name.split("-")[1]):
            shutil.rmtree(old, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=f".new-{os.getpid()}-", dir=folder.parent))
    try:
        new.chmod(0o777 & ~umask())
        yield new
        if folder.exists():
            folder.rmdir()
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _runs(pid: str) -> bool:
    return not pid.isdigit() or Path("/proc", pid).exists()


def start_repository(folder: Path, branch: str) -> Git:
    """An empty repository with Kiln's settings and hooks."""
    check_git()
    git = Git(folder)
    git.init(branch)
    config = git.dir / "config"
    config.write_text(config.read_text() + _CONFIG)
    for name, text in (("attributes", _ATTRIBUTES), ("exclude", _EXCLUDE)):
        (git.dir / "info").mkdir(exist_ok=True)
        (git.dir / "info" / name).write_text(text)
    (git.dir / "kiln").mkdir()
    (git.dir / "hooks").mkdir(exist_ok=True)
    write_hooks(git)
    return git


def write_hooks(git: Git) -> None:
    """The hooks, for the Kiln that runs now."""
    package = Path(kiln.__file__).absolute().parents[1]
    for hook, event in (("post-commit", "commit"), ("post-rewrite", '"$1"')):
        path = git.dir / "hooks" / hook
        text = _HOOK.format(
            path=shlex.quote(str(package)), python=shlex.quote(sys.executable), event=event
        )
        path.write_text(text)
        path.chmod(0o755)


def project_from(folder: Path, project: Path) -> str:
    """How the state names the project: by a way up, where the work tree lies inside of it."""
    folder, project = folder.resolve(), project.resolve()
    inside = folder.is_relative_to(project)
    return os.path.relpath(project, folder) if inside else str(project)


def branch_name(name: str) -> str:
    """A name as git takes it for a branch."""
    safe = re.sub(r"[^A-Za-z0-9.+_-]", "-", name).strip(".-") or "work"
    return re.sub(r"\.\.+|\.lock$", "-", safe)


def unfinished(work: Work, doing: str) -> BadInput:
    """The error for a work tree in the middle of something."""
    return BadInput(
        "authoring.unfinished",
        f"git is in the middle of a {doing}",
        where=str(work.folder),
        fix=f"`git status` says what is open; then `git {doing} --continue` or `--abort`",
    )


def tag_name(version: str) -> str:
    """The tag of a version's pristine files."""
    return branch_name(f"pristine-{version}")


def write_names(folder: Path, names: Mapping[str, object] | frozenset[str]) -> None:
    """Keep the paths of the pristine source."""
    text = "\n".join(sorted(names))
    (folder / ".git" / "kiln" / "names").write_text(text, "utf-8", "surrogateescape")
