"""A folder for each start, `<store>/run/<nonce>/`, and what dead starts left behind.

Whoever made a folder holds a lock on it until the end, which the kernel takes away even
from a process that is killed. So a folder whose lock is free belongs to a dead start:
the next one removes what it left, and nothing else.

    lock      held while the start lives
    socket/   mounted into the container, which may write here
    log       what the server writes
    bundle/   config.json (kiln.run.bundle)
    runtime   the command that deletes the container, but for its name (kiln.run.bundle)
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kiln.run.client import CallFailed
from kiln.run.process import kill_with_argument, run_bounded
from kiln.run.rootfs import remove_tree
from kiln.store import Store


def runs(store: Store) -> Path:
    """Where the folders of all starts are."""
    return store.root / "run"


GONE = 10.0  # seconds that killed processes get to leave (a GPU's driver can hold them)


@contextlib.contextmanager
def run_folder(store: Store, nonce: str) -> Iterator[Path]:
    """This start's folder; removed when the block ends."""
    folder = runs(store) / nonce
    with contextlib.ExitStack() as stack:
        with _alone(store):
            folder.mkdir(mode=0o700)
            stack.callback(remove_tree, folder)
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        socket = folder / "socket"
        socket.mkdir()
        # The container's user is not ours. Others cannot get here: see 0700 above.
        socket.chmod(0o777)
        yield folder


def dead(folder: Path) -> bool:
    """Whether no living start owns this folder, or it is gone."""
    try:
        with (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def sweep(store: Store) -> list[str]:
    """Remove the folders of dead starts and what they left running; returns their names.

    A container in an engine is the Docker runner's to find, by its label.
    """
    swept = []
    with _alone(store):
        for folder in sorted(path for path in runs(store).iterdir() if path.is_dir()):
            if dead(folder):
                end(folder)
                remove_tree(folder)
                swept.append(folder.name)
    return swept


def end(folder: Path) -> None:
    """Kill whatever a start may have left running, knowing its folder only."""
    kill_with_argument("--bundle", str(folder / "bundle"))
    with contextlib.suppress(FileNotFoundError, CallFailed):
        delete = msgspec.json.decode((folder / "runtime").read_bytes(), type=list[str])
        run_bounded([*delete, folder.name], GONE)


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    """So that no folder is swept between its making and its locking."""
    runs(store).mkdir(exist_ok=True)
    with (runs(store) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
