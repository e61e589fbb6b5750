"""The two programs that Kiln runs as they are: bubblewrap, and a container runtime.

The host's copies come first. Where it has none, the copies from the locked closure
"sandbox" (Debian packages, unpacked to a root by `install_tools`) are started through
that root's own dynamic loader, so that nothing has to be installed and the host's libc
does not matter. Which copy runs is said in a note and by `kiln doctor`; it is in no key:
both only put a root in place, and what is built or served sees the root alone.

crun executes a sealed copy of /proc/self/exe (against CVE-2019-5736). Through the loader
that file is the loader; crun hands it the command line it was started with, loader
options and all, so the second start finds its libraries as the first did.

What crun dislikes of a host (both versions of cgroups mounted) is hidden from it by
kiln/run/isolate.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kiln.compile.root import TreePart, materialise
from kiln.errors import CannotHere
from kiln.progress import Reporter
from kiln.store import Store

Origin = Literal["host", "closure"]

# In `store.roots`: a link to the root that holds the closure's tools.
LINK = "tools"
# glibc's loader on x86-64, and where Debian's multiarch puts libraries. The loader's own
# file: the link to it in /lib64 is absolute, and so leads to the host's loader from here.
LOADER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib")
# Folders of system programs that an ordinary user's PATH may lack.
SYSTEM = ("/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Tool:
    """A program and how to start it: `[*argv, *its own arguments]`."""

    name: str
    argv: tuple[str, ...]
    origin: Origin

    def __str__(self) -> str:
        return f"{self.name} from the {self.origin} ({self.argv[-1]})"


# What kiln.run needs of a container runtime is the same: a name and how to start it.
Runtime = Tool


def find_runtime(store: Store, reporter: Reporter) -> Runtime:
    """A container runtime: the host's crun or runc, else the closure's crun.

    `argv` is a prefix: `[*runtime.argv, "--root", DIR, "run", ...]`. Only crun knows
    `--cgroup-manager=disabled`; see `name`. Raises CannotHere("runtime.none").
    """
    tool = find_tool(store, ("crun", "runc"))
    if tool is None:
        raise CannotHere(
            "runtime.none",
            "no container runtime on this machine",
            why="neither crun nor runc is in PATH, and the store holds no closure with crun",
            fix="install the package crun (or runc), or let `kiln build` fetch the "
            "closure `sandbox` of the lock",
        )
    reporter.note(f"runtime: {tool}")
    return tool


def find_tool(store: Store, names: Sequence[str]) -> Tool | None:
    """The first of `names` that the host has, else the first that the closure has."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM))
    for name in names:
        if found := shutil.which(name, path=path):
            return Tool(name, (found,), "host")
    root = store.roots / LINK
    for name in names:
        if (root / "usr/bin" / name).is_file():
            return _through_loader(root.resolve(), name)
    return None


def _through_loader(root: Path, name: str) -> Tool:
    libraries = os.pathsep.join(str(root / folder) for folder in LIBRARIES)
    program = str(root / "usr/bin" / name)
    return Tool(name, (str(root / LOADER), "--library-path", libraries, program), "closure")


def install_tools(store: Store, parts: Sequence[TreePart]) -> None:
    """Make the closure "sandbox" usable: unpack it and let `roots/tools` point to it."""
    root = materialise(store, parts)
    with tempfile.TemporaryDirectory(dir=store.blobs.tmp) as scratch:
        link = Path(scratch) / LINK
        link.symlink_to(root.name)
        link.replace(store.roots / LINK)
