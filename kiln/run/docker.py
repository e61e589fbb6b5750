"""Runs an image in a Docker engine of this machine, loading it where it is missing.

The container is made from the digest under which the engine knows the image, has no
network but loopback, no capabilities and a read-only root, and is removed with its
volumes when the start ends. Its labels say whose it is: `kiln.gate` (the start) and
`kiln.store`, so that the containers of a killed Kiln are found by the next start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.errors import CannotHere
from kiln.image.read import Image
from kiln.progress import Reporter
from kiln.run.client import CallFailed, Client
from kiln.run.engine import Engine, engine_errors
from kiln.run.folder import GONE, dead, run_folder, runs, sweep
from kiln.run.load import default_name, load
from kiln.run.process import MAX_OUTPUT, members, pid_namespace
from kiln.run.runner import (
    SOCKET,
    SOCKET_FOLDER,
    Launch,
    Server,
    Stopped,
    check_launch,
    wait_ready,
)
from kiln.store import Store

if TYPE_CHECKING:
    from docker.models.containers import Container

_GATE, _STORE = "kiln.gate", "kiln.store"
_LOG = {"max-size": "32m", "max-file": "2"}


class DockerRunner:
    """Starts images in a Docker engine."""

    name = "docker"

    def __init__(self, store: Store, engine: Engine, reporter: Reporter) -> None:
        self._store, self._engine, self._reporter = store, engine, reporter
        self._owner = f"{socket.gethostname()}:{store.root}"

    @contextlib.contextmanager
    def start(self, image: Image, launch: Launch) -> Iterator[Server]:
        """See `Runner.start`. Raises what `load` raises, and CannotHere("run.engine-start")."""
        with engine_errors():
            yield from self._start(image, launch)

    def _start(self, image: Image, launch: Launch) -> Iterator[Server]:
        user, uid, gid = self._user(image, launch)
        check_launch(image, launch, uid, gid)
        self._sweep()
        with self._store.building(), run_folder(self._store, launch.served_name) as folder:
            if (engine_id := self._engine.find(image)) is None:
                load(self._store, image, self._engine, default_name(image), self._reporter)
                engine_id = self._engine.find(image)
                assert engine_id is not None
            container = self._create(engine_id, image, launch, folder / "socket", user, uid)
            try:
                server = self._server(container, image, launch, folder)
                wait_ready(
                    server,
                    launch.served_name,
                    launch.start_seconds,
                    self._reporter,
                    self._store.blobs,
                )
                yield server
                server.stop()
            finally:
                _remove(container)

    def _user(self, image: Image, launch: Launch) -> tuple[str, int, int]:
        """Whom to run as, for the engine and as (uid, gid); -1 for a name that only the
        image can look up, of whom we know no more than that it is none of the owners."""
        wanted = launch.user or image.user or "0:0"
        user, _, group = wanted.partition(":")
        own = os.geteuid()
        if own not in (0, int(user) if user.isdecimal() else -1):
            self._reporter.note(
                f"the server runs as uid {own}, gid 0, not as the image's user {wanted!r}: "
                "only root can talk to another user's socket"
            )
            return f"{own}:0", own, 0
        numbers = [int(part) if part.isdecimal() else -1 for part in (user, group or "0")]
        return wanted, numbers[0], numbers[1]

    def _sweep(self) -> None:
        for container in self._engine.client.containers.list(
            all=True, ignore_removed=True, filters={"label": f"{_STORE}={self._owner}"}
        ):
            nonce = container.labels.get(_GATE, "")
            if nonce and dead(runs(self._store) / nonce):
                _remove(container)
                self._reporter.note(f"removed the container of the killed run {nonce}")
        for name in sweep(self._store):
            self._reporter.note(f"removed what the killed run {name} had left behind")

    def _create(
        self, engine_id: str, image: Image, launch: Launch, sockets: Path, user: str, uid: int
    ) -> Container:
        from docker.types import DeviceRequest, LogConfig, Mount

        gpus = [DeviceRequest(count=-1, capabilities=[["gpu"]])] if launch.gpus else None
        # runc gives a tmpfs the mode of the folder below it, whatever is asked for.
        owner = f",uid={uid}" if uid >= 0 else ""
        options = "rw,nosuid,nodev,exec"  # compilers load what they just wrote
        return self._engine.client.containers.create(
            engine_id,
            list(launch.command()),
            name=launch.served_name,
            labels={_GATE: launch.served_name, _STORE: self._owner},
            environment=dict(launch.env),
            user=user,
            network_mode="none",
            read_only=launch.read_only,
            shm_size=launch.shm_bytes,
            tmpfs={
                "/tmp": f"{options},mode=1777",  # noqa: S108
                **dict.fromkeys(image.volumes, f"{options},mode=1777{owner}"),
            },
            mounts=[
                Mount(SOCKET_FOLDER, str(sockets), type="bind"),
                Mount(launch.model_path, str(launch.model), type="bind", read_only=True),
            ],
            device_requests=gpus,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            log_config=LogConfig(type=LogConfig.types.JSON, config=_LOG),
        )

    def _server(
        self, container: Container, image: Image, launch: Launch, folder: Path
    ) -> _DockerServer:
        from docker.errors import APIError

        try:
            container.start()
        except APIError as error:
            raise CannotHere(
                "run.engine-start",
                "the engine cannot start the container",
                where=f"engine {self._engine.version}",
                why=str(error),
                fix="--runner bundle needs no engine",
            ) from error
        container.reload()
        confirms = self._engine.confirms(str(container.attrs["Image"]), image)
        return _DockerServer(container, launch, folder, confirms)


class _DockerServer:
    def __init__(self, container: Container, launch: Launch, folder: Path, confirms: str) -> None:
        self.client = Client.unix(folder / "socket" / SOCKET)
        self.model, self.confirms = launch.served_name, confirms
        self._container, self._launch = container, launch
        self._stopped: Stopped | None = None
        self._namespace = pid_namespace(int(self._state()["Pid"]))

    def _state(self) -> dict[str, Any]:
        self._container.reload()
        state: dict[str, Any] = self._container.attrs["State"]
        return state

    def alive(self) -> bool:
        return bool(self._state()["Running"])

    def exit_status(self) -> int | None:
        state = self._state()
        return None if state["Running"] else int(state["ExitCode"])

    def log_tail(self, lines: int) -> str:
        return self._container.logs(tail=lines).decode(errors="replace").rstrip("\n")

    def execute(self, argv: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
        api = self._container.client.api  # type: ignore[union-attr]
        created = api.exec_create(self._container.id, list(argv))
        output, over = (bytearray(), bytearray()), threading.Event()

        def read() -> None:
            for parts in api.exec_start(created["Id"], stream=True, demux=True):
                for buffer, part in zip(output, parts, strict=True):
                    buffer += part or b""
                if max(map(len, output)) > MAX_OUTPUT:
                    over.set()
                    return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(seconds)
        found = api.exec_inspect(created["Id"])
        if over.is_set() or reader.is_alive():
            with contextlib.suppress(OSError):  # not ours to end; the container's end ends it
                os.kill(int(found["Pid"]), signal.SIGKILL)
            what = "wrote without end" if over.is_set() else f"did not end within {seconds:g} s"
            code = "run.too-much-output" if over.is_set() else "run.timeout"
            raise CallFailed(code, f"a command {what}", why=" ".join(argv)[:500])
        return int(found["ExitCode"]), bytes(output[0]), bytes(output[1])

    def stop(self) -> Stopped:
        if self._stopped is None:
            start, was_alive = time.monotonic(), self.alive()
            self._container.stop(timeout=max(1, round(self._launch.stop_seconds)))
            state = self._state()
            killed = state["ExitCode"] == 128 + signal.SIGKILL
            left = members(self._namespace, GONE) if self._namespace else ()
            if state["Running"]:
                left = (f"container {self._container.name}", *left)
            clean = was_alive and not killed and not state["Running"]
            self._stopped = Stopped(time.monotonic() - start, clean, left)
        return self._stopped


def _remove(container: Container) -> None:
    """Kill and remove; none there is fine."""
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        container.remove(force=True, v=True)
