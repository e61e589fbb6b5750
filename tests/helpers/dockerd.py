"""A Docker engine of the tests' own, in a folder; needs root and dockerd."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from kiln.errors import CannotHere
from kiln.run.engine import Engine

# No bridge and no firewall rules: containers have `--network none` (or `host`), which
# needs neither, and the machine's own network stays as it is.
FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false")


@contextlib.contextmanager
def dockerd(folder: Path, seconds: float = 60) -> Iterator[str]:
    """The URL of an engine that lives while the block runs; its data goes with it.

    folder: below a short path, since the engine's own sockets lie in it.
    """
    url, log = f"unix://{folder}/s", folder / "log"
    command = ["dockerd", f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    command += ["-H", url, "--pidfile", f"{folder}/pid", *FLAGS]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        _wait(process, url, log, seconds)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        # Mounts of containers that a failed test left would keep the folder.
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (target := line.split()[1]).startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", target], check=False)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            Engine.connect(url)
        except CannotHere as error:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"dockerd: {error}\n{log.read_text()[-3000:]}") from error
            time.sleep(0.1)
        else:
            return
