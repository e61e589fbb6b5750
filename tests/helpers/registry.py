"""A real registry on loopback: Debian's docker-registry (distribution 2.8), started as asked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import urllib3

from kiln.canonical import JSON
from tests.helpers.server import closed_port

USER, PASSWORD = "kiln", "pass word:é"
# bcrypt of PASSWORD: the one kind of hash that distribution takes.
_HTPASSWD = "kiln:$2b$05$x/jPfwO8DgHe8xMMzdjQCu3rZFl9s/LQuveUdlAF9iPETynJUbNh2\n"


class NoRegistry(Exception):
    """There is none here, or it does not start."""


class DockerRegistry:
    """A registry that answers. address: host and port. data: its storage."""

    def __init__(self, folder: Path, *, delete: bool, login: bool) -> None:
        program = shutil.which("docker-registry")
        if program is None:
            raise NoRegistry("there is no docker-registry (a Debian package)")
        folder.mkdir(parents=True)
        self.folder, self.data = folder, folder / "data"
        self.address = f"127.0.0.1:{closed_port()}"
        config: dict[str, JSON] = {
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.data)},
                "delete": {"enabled": delete},
            },
            "http": {"addr": self.address},
        }
        if login:
            (folder / "htpasswd").write_text(_HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "kiln", "path": str(folder / "htpasswd")}}
        # JSON is YAML.
        (folder / "config.yml").write_text(json.dumps(config))
        self._command = [program, "serve", str(folder / "config.yml")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 30) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if urllib3.request("GET", f"http://{self.address}/v2/", retries=False).status < 500:
                    return
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise NoRegistry((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None


@contextlib.contextmanager
def docker_registry(
    folder: Path, *, delete: bool = False, login: bool = False
) -> Iterator[DockerRegistry]:
    """A registry that lives while the block runs, its data below `folder`.

    login: it wants USER and PASSWORD. Raises NoRegistry.
    """
    registry = DockerRegistry(folder, delete=delete, login=login)
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()
        shutil.rmtree(folder, ignore_errors=True)
