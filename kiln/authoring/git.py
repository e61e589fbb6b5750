"""git, run so that nothing of the user's setup can change what it does.

Work trees lie inside the project's own repository as a rule, and users have settings
(line ends, signatures, hooks, other prefixes). Here git gets an environment of its own:
no settings but those of the work tree itself, the repository named outright, so that an
outer one is never taken, no hooks, one locale, one clock.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kiln.errors import CannotHere

OLDEST = (2, 34)  # the first that merges with merge-ort, which follows renamed folders
_VERSION = re.compile(r"(\d+)\.(\d+)")
_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
_NAME, _MAIL = "Kiln", "kiln@localhost"
_WHEN = "946684800 +0000"  # 1 January 2000, as in the shipped patches
AUTHOR = f"{_NAME} <{_MAIL}> {_WHEN}".encode()
# Over the work tree's own settings, which the user may have changed.
_ALWAYS = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.quotePath=true",
    "commit.gpgSign=false",
    "merge.conflictStyle=diff3",
    "merge.renames=true",
    "merge.renameLimit=20000",
    "merge.directoryRenames=conflict",
    "rerere.enabled=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.mergeConflict=false",
)


def git_environment() -> dict[str, str]:
    """What git gets to see of the environment; without anything that begins with GIT_."""
    env = {key: os.environ[key] for key in _KEPT if key in os.environ}
    return env | {
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": ":",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_DEFAULT_REF_FORMAT": "files",  # a newer git's other format hides CHERRY_PICK_HEAD
        "GIT_MERGE_AUTOEDIT": "no",
        "GIT_AUTHOR_NAME": _NAME,
        "GIT_AUTHOR_EMAIL": _MAIL,
        "GIT_AUTHOR_DATE": _WHEN,
        "GIT_COMMITTER_NAME": _NAME,
        "GIT_COMMITTER_EMAIL": _MAIL,
        "GIT_COMMITTER_DATE": _WHEN,
    }


def check_git() -> None:
    """Raise CannotHere("authoring.no-git" or "authoring.git-too-old") unless git will do."""
    out = _run(["git", "--version"], git_environment()).stdout.decode(errors="replace")
    found = _VERSION.search(out)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CannotHere(
            "authoring.git-too-old",
            f"work trees need git {oldest} or newer",
            why=f"`git --version` says: {out.strip()[:100]}",
            fix="install a newer git (Debian 12 has 2.39); building and gating do not need it",
        )


def _run(
    command: Sequence[str], env: Mapping[str, str], stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end, even where Ctrl-C is pressed: a killed git leaves its lock files."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise
        raise CannotHere(
            "authoring.no-git",
            "git is not installed",
            fix="install it (`apt-get install git`); building and gating do not need it",
        ) from error
    try:
        out, err = process.communicate(stdin)
    except KeyboardInterrupt:
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Git:
    """One repository with its work tree. folder: the top of the work tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.dir = self.folder / ".git"

    def attempt(
        self, *arguments: str, stdin: bytes = b"", index: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of git, whatever comes of it. index: one to use instead."""
        env = git_environment() | {
            "GIT_DIR": str(self.dir),
            "GIT_WORK_TREE": str(self.folder),
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
        }
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        settings = [part for setting in _ALWAYS for part in ("-c", setting)]
        return _run(["git", *settings, *arguments], env, stdin, self.folder)

    def run(self, *arguments: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """What a command prints. Raises CannotHere("authoring.git-failed") if it fails."""
        done = self.attempt(*arguments, stdin=stdin, index=index)
        if done.returncode:
            raise failed(self.folder, arguments, done)
        return done.stdout

    def line(self, *arguments: str) -> str:
        """The one line that a command prints."""
        return self.run(*arguments).decode(errors="surrogateescape").strip("\n")

    def commit(self, name: str) -> str:
        """The full id of the commit that a name means, "" if it means none."""
        done = self.attempt("rev-parse", "--quiet", "--verify", f"{name}^{{commit}}")
        return done.stdout.decode().strip() if done.returncode == 0 else ""

    def init(self, branch: str) -> None:
        """A new repository; `index` lines of patches need SHA-1, whatever the default is."""
        command = ["git", "init", "--quiet", "--template=", "--object-format=sha1"]
        command += [f"--initial-branch={branch}", str(self.folder)]
        done = _run(command, git_environment())
        if done.returncode:
            raise failed(self.folder, command[1:], done)

    def blobs(self, names: Iterable[str]) -> dict[str, bytes]:
        """The contents of blobs, by what they were asked for ("<commit>:<path>" or an id).

        Those that are not there are left out.
        """
        asked = sorted(set(names))
        if not asked:
            return {}
        stdin = b"".join(name.encode(errors="surrogateescape") + b"\n" for name in asked)
        out = self.run("cat-file", "--batch", stdin=stdin)
        found: dict[str, bytes] = {}
        at = 0
        for name in asked:
            end = out.index(b"\n", at)
            head = out[at:end].rsplit(b" ", 2)
            at = end + 1
            if head[-1] in (b"missing", b"ambiguous"):
                continue
            size = int(head[2])
            if head[1] == b"blob":
                found[name] = out[at : at + size]
            at += size + 1
        return found

    def write_blob(self, data: bytes) -> str:
        """Store a blob; returns its id."""
        return self.run("hash-object", "-w", "--stdin", stdin=data).decode().strip()

    def tree_with(self, base: str, files: Mapping[str, tuple[int, str]]) -> str:
        """The id of base's tree with some files put in: path -> (mode, blob); a blob of ""
        takes it out."""
        index = self.dir / f"kiln-index-{os.getpid()}"
        lines = [
            f"{mode if blob else 0:o} {blob or '0' * 40}\t{path}\0"
            for path, (mode, blob) in files.items()
        ]
        try:
            self.run("read-tree", base, index=index)
            stdin = "".join(lines).encode(errors="surrogateescape")
            self.run("update-index", "-z", "--index-info", stdin=stdin, index=index)
            return self.run("write-tree", index=index).decode().strip()
        finally:
            index.unlink(missing_ok=True)

    def commit_tree(self, tree: str, parents: Sequence[str], message: bytes) -> str:
        """A commit object, by Kiln, of a fixed date; returns its id."""
        options = [part for parent in parents for part in ("-p", parent)]
        return self.run("commit-tree", tree, *options, "-F", "-", stdin=message).decode().strip()

    def changed(self) -> list[str]:
        """Paths with changes that no commit has: edited, staged, unmerged or new."""
        out = self.run("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        return [part[3:].decode(errors="surrogateescape") for part in out.split(b"\0") if part]

    def unmerged(self) -> dict[str, str]:
        """Path -> the two letters that `git status --short` shows for it."""
        out = self.run("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no")
        rows = [(part[:2].decode(), part[3:]) for part in out.split(b"\0") if part]
        return {
            path.decode(errors="surrogateescape"): letters
            for letters, path in rows
            if "U" in letters or letters in ("AA", "DD")
        }


def failed(
    folder: Path, arguments: Sequence[str], done: subprocess.CompletedProcess[bytes]
) -> CannotHere:
    """The error for a git that did not do what it had to."""
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    return CannotHere(
        "authoring.git-failed",
        f"`git {arguments[0]}` failed",
        where=str(folder),
        why="\n".join(said.splitlines()[-12:]) or f"exit code {done.returncode}, without a word",
        fix="mend what it names; nothing of the project was changed",
    )
