"""git, as the judge of our applier: run apart from the user's settings and outer repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        **{
            f"GIT_{who}_{what}": "x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=env, input=stdin, capture_output=True, check=False
    )


def git_apply(folder: Path, patch: bytes) -> bool:
    """Whether `git apply` takes the patch; then it is applied to the files of the folder."""
    return git(folder, "apply", "--whitespace=nowarn", "-", stdin=patch).returncode == 0


def git_diff(folder: Path, *options: str) -> bytes:
    """The difference between the two last commits."""
    done = git(folder, "diff", *options, "HEAD~", "HEAD")
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(folder: Path) -> None:
    """All files of a folder as a commit; it becomes a repository."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x", "--allow-empty"]):
        done = git(folder, *command)
        assert done.returncode == 0, done.stderr
