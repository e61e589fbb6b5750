"""Runs an image without any engine: its layers unpacked, and crun or runc.

The runtime is started inside namespaces that end with it (kiln.run.isolate), and all of
the container's processes live in a pid namespace of their own, whose first process is
the server: when that ends, the kernel ends the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kiln.canonical import JSON
from kiln.compile.tools import Runtime
from kiln.errors import CannotHere
from kiln.image.read import Image
from kiln.progress import Reporter
from kiln.run import isolate, spec
from kiln.run.client import CallFailed, Client
from kiln.run.folder import GONE, end, run_folder, sweep
from kiln.run.gpu import find_gpu
from kiln.run.process import Log, kill_with_argument, members, pid_namespace, run_bounded
from kiln.run.rootfs import image_root
from kiln.run.runner import SOCKET, Launch, Server, Stopped, check_launch, wait_ready
from kiln.store import Store

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class BundleRunner:
    """Starts images with a container runtime. Needs root."""

    name = "bundle"

    def __init__(self, store: Store, runtime: Runtime, reporter: Reporter) -> None:
        """runtime: crun or runc, of the host or of a closure (kiln.compile.tools)."""
        self._store, self._runtime, self._reporter = store, runtime, reporter

    @contextlib.contextmanager
    def start(self, image: Image, launch: Launch) -> Iterator[Server]:
        """See `Runner.start`. Raises CannotHere with run.needs-root, run.architecture
        or run.no-gpu."""
        self._check_machine(image)
        gpu = find_gpu() if launch.gpus else None
        for name in sweep(self._store):
            self._reporter.note(f"removed what the killed run {name} had left behind")
        with self._store.building(), run_folder(self._store, launch.served_name) as folder:
            root = image_root(self._store, image, self._reporter)
            user = spec.user_of(image, launch, root)
            check_launch(image, launch, *user)
            config = spec.config(image, launch, root, folder / "socket", user, gpu)
            commands = _Commands(self._runtime, folder)
            try:
                server = _BundleServer(folder, commands, image, launch, config)
                wait_ready(
                    server,
                    launch.served_name,
                    launch.start_seconds,
                    self._reporter,
                    self._store.blobs,
                )
                yield server
                server.stop()
            except BaseException:
                end(folder)  # at once: whoever waits for a failure waits long enough
                raise

    def _check_machine(self, image: Image) -> None:
        if os.geteuid() != 0:
            raise CannotHere(
                "run.needs-root",
                "without an engine, only root can start an image",
                fix="run as root, or use --runner docker",
            )
        here = _ARCHITECTURES.get(os.uname().machine, os.uname().machine)
        if image.architecture != here:
            raise CannotHere(
                "run.architecture",
                f"the image is for {image.architecture}, this machine is {here}",
                where=str(image),
            )


class _Commands:
    """The runtime's command lines for one container, whose name is its folder's."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.id, self._state = folder.name, str(folder / "state")
        self._argv = [*runtime.argv, "--root", self._state]
        self._isolate = [sys.executable, "-I", "-S", isolate.__file__]
        self._options: list[str] = []
        if runtime.name == "crun":
            self._argv.append("--cgroup-manager=disabled")
            self._options.append("--cgroups")

    def start(self, *arguments: str) -> list[str]:
        """A command in a new network namespace."""
        return self._wrapped("--network", arguments)

    def beside(self, pid: int, *arguments: str) -> list[str]:
        """A command in the network namespace of a process."""
        return self._wrapped(f"--join={pid}", arguments)

    def __call__(self, *arguments: str) -> list[str]:
        """Any other command."""
        return self._wrapped("--host", arguments)

    def _wrapped(self, network: str, arguments: Sequence[str]) -> list[str]:
        return [*self._isolate, network, *self._options, "--", *self._argv, *arguments]


class _BundleServer:
    def __init__(
        self,
        folder: Path,
        commands: _Commands,
        image: Image,
        launch: Launch,
        config: dict[str, JSON],
    ) -> None:
        self.client = Client.unix(folder / "socket" / SOCKET)
        self.model, self.confirms = launch.served_name, f"manifest {image.manifest}"
        self._folder, self._commands, self._launch = folder, commands, launch
        self._process_spec = config["process"]
        self._stopped: Stopped | None = None
        self._namespace: int | None = None
        bundle, self._pid_file = folder / "bundle", folder / "pid"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(config))
        (folder / "runtime").write_bytes(msgspec.json.encode(commands("delete", "--force")))
        self._process = subprocess.Popen(
            commands.start(
                "run", "--pid-file", str(self._pid_file), "--bundle", str(bundle), commands.id
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we stop the container in order
        )
        assert self._process.stdout is not None
        self._log = Log(self._process.stdout, folder / "log")

    def alive(self) -> bool:
        self._find_namespace()
        if self._process.poll() is None:
            return True
        self._log.finish()
        return False

    def _find_namespace(self) -> None:
        if self._namespace is None and self._pid_file.exists():
            with contextlib.suppress(ValueError):  # not written yet
                self._namespace = pid_namespace(int(self._pid_file.read_text()))

    def exit_status(self) -> int | None:
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def log_tail(self, lines: int) -> str:
        return self._log.tail(lines)

    def execute(self, argv: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
        assert isinstance(self._process_spec, dict)
        name = f"exec-{secrets.token_hex(4)}"
        process, pid = self._folder / name, self._folder / f"{name}.pid"
        process.write_text(json.dumps({**self._process_spec, "args": list(argv)}))

        def kill() -> None:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), 9)

        command = self._commands.beside(
            int(self._pid_file.read_text()),
            *("exec", "--process", str(process), "--pid-file", str(pid), self._commands.id),
        )
        try:
            return run_bounded(command, seconds, kill)
        except CallFailed as error:
            error.why = " ".join(argv)[:500]
            raise

    def stop(self) -> Stopped:
        if self._stopped is None:
            start, clean = time.monotonic(), False
            if self.alive():
                self._command("kill", self._commands.id, "TERM")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(self._launch.stop_seconds)
                    clean = True
            left = self._destroy()
            self._stopped = Stopped(time.monotonic() - start, clean, left)
        return self._stopped

    def _destroy(self) -> tuple[str, ...]:
        self._find_namespace()
        self._command("delete", "--force", self._commands.id)
        kill_with_argument("--bundle", str(self._folder / "bundle"))
        self._process.wait(GONE)
        self._log.finish()
        return members(self._namespace, GONE) if self._namespace else ()

    def _command(self, *arguments: str) -> None:
        """A command that may fail because the container is gone: what is left is looked
        for afterwards in any case."""
        run_bounded(self._commands(*arguments), GONE)
