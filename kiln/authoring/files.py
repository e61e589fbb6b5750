"""Files of the project, written whole or not at all."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write the files, in the order given; each appears with all of its bytes.

    All are written beside their places first, then renamed, with Ctrl-C held back for
    that moment: what fails or is stopped before it leaves every file as it was.
    """
    made: list[tuple[str, Path]] = []
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = path.stat().st_mode & 0o777 if path.exists() else None
            handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            made.append((name, path))
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o666 & ~umask() if mode is None else mode)
                os.fdatasync(file.fileno())
        held = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        )
        try:
            while made:
                os.replace(*made[0])
                made.pop(0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
    finally:
        for name, _ in made:
            Path(name).unlink(missing_ok=True)


def umask() -> int:
    """The process's umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
