"""The Docker engine: finding it, and which image it has.

An engine calls an image by a digest of its own choosing: the config's in the classic
store, the manifest's in the containerd store. Kiln knows both and takes nothing else;
names are never asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kiln.errors import CannotHere
from kiln.image.read import Image

if TYPE_CHECKING:
    from docker import DockerClient

_SOCKET = "unix:///var/run/docker.sock"
_SECONDS = 60  # for one call


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """CannotHere("run.engine-call") for an engine that refuses a call or leaves it unanswered."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        raise CannotHere(
            "run.engine-call",
            "the engine did not do what it was asked",
            why=str(error),
            fix="see the engine's own log; --runner bundle needs no engine",
        ) from error


class Engine:
    """A Docker engine on this machine that answers. version: "20.10.24"."""

    def __init__(self, client: DockerClient, version: str) -> None:
        self.client, self.version = client, version

    @classmethod
    def connect(cls, url: str = "") -> Engine:
        """The engine at `url`, DOCKER_HOST or the usual socket.

        Raises CannotHere("run.no-engine"), or ("run.remote-engine") for one on another
        machine, which could not share a socket folder with us.
        """
        import docker
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        url = url or os.environ.get("DOCKER_HOST", "") or _SOCKET
        if not url.startswith("unix://"):
            raise CannotHere(
                "run.remote-engine",
                "the engine is on another machine",
                where=url,
                why="the gate talks to the server over a Unix socket in a shared folder",
                fix="gate there, use an engine of this machine, or --runner bundle",
            )
        try:
            client = docker.DockerClient(base_url=url, timeout=_SECONDS)
            version = str(client.version()["Version"])
        except (DockerException, RequestException, OSError) as error:
            raise CannotHere(
                "run.no-engine",
                "no Docker engine answers",
                where=url,
                why=str(error),
                fix="start it, set DOCKER_HOST to its unix:// socket (a rootless one is at "
                "$XDG_RUNTIME_DIR/docker.sock), or use --runner bundle",
            ) from error
        return cls(client, version)

    def find(self, image: Image) -> str | None:
        """The engine's id of this image, which is one of its two digests; None without."""
        from docker.errors import ImageNotFound

        known = (str(image.manifest), str(image.config))
        for digest in known:
            try:
                found = self.client.images.get(digest).id
            except ImageNotFound:
                continue
            if found in known:
                return found
        return None

    def confirms(self, engine_id: str, image: Image) -> str:
        """What an engine's id of an image says: "manifest sha256:...", "config ...".

        Raises CannotHere("run.engine-digest") for any other id.
        """
        if engine_id == str(image.manifest):
            return f"manifest {engine_id}"
        if engine_id == str(image.config):
            return f"config {engine_id}"
        raise CannotHere(
            "run.engine-digest",
            "the engine knows the image by a digest that is not the image's",
            where=engine_id,
            why=f"manifest: {image.manifest}, config: {image.config}; engine {self.version}",
            fix="use --runner bundle, or another engine; this one rewrites images",
        )
