"""The comparison: the same wheels and patched files, by `docker build` and `docker push`.

A Dockerfile as people write it: uv installs exactly the locked wheels (vLLM's relabelled
one and the built ones among them) on the pin's own Debian layers. All that can be had
before is given to Docker for nothing: the base and uv are in the engine and in the
registry, and the wheels come over loopback by sendfile, so that they are in no layer.

The builder is the classic one, which old engines have and which every client can drive.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from kiln.canonical import Digest
from kiln.errors import CannotHere
from kiln.run.load import write_archive
from kiln.source.tree import unpack
from tests.bench.registry import Registry
from tests.bench.stores import Ran, run
from tests.bench.subject import Subject
from tests.helpers.dockerd import dockerd

NEEDED = 16e9  # bytes of disk: two images in the engine, what is pushed, one of Kiln's stores
QUICK_WHEELS = 8  # of the smallest wheels, for `--quick`
BASE = "kiln-bench/base"


@dataclass
class Comparison:
    """An engine with the base image, and the Dockerfile's folder (its context)."""

    context: Path
    environment: Mapping[str, str]
    registry: Registry
    version: str
    _built: dict[bool, tuple[float, float]] = field(default_factory=dict)

    def docker(self, *arguments: str) -> Ran:
        """Run the client."""
        return run(["docker", *arguments], self.environment, self.context)

    def name(self, bytecode: bool) -> str:
        """The image's name in the registry."""
        kind = "bytecode" if bytecode else "plain"
        return f"{self.registry.address}/docker:{kind}"

    def build(self, bytecode: bool) -> Ran:
        """`docker build`: the first one installs, a second finds all steps cached."""
        option = "--compile-bytecode" if bytecode else ""
        arguments = ["--network=host", f"--build-arg=COMPILE={option}", "-t", self.name(bytecode)]
        return self.docker("build", *arguments, ".")

    def push(self, bytecode: bool) -> Ran:
        """`docker push` to the registry on loopback."""
        return self.docker("push", self.name(bytecode))

    def whole(self, bytecode: bool) -> tuple[float, float]:
        """Seconds of the first build, and of the push after it; done once."""
        if bytecode not in self._built:
            build = self.build(bytecode)
            self._built[bytecode] = (build.seconds, self.push(bytecode).seconds)
        return self._built[bytecode]


@contextlib.contextmanager
def comparison(
    folder: Path, subject: Subject, registry: Registry, quick: bool
) -> Iterator[Comparison]:
    """An engine of the bench's own, ready to build.

    Raises CannotHere with bench.not-root, bench.no-docker or bench.no-space.
    """
    if os.geteuid() != 0:
        raise CannotHere("bench.not-root", "a Docker engine of its own needs root")
    for program in ("docker", "dockerd"):
        if shutil.which(program) is None:
            raise CannotHere("bench.no-docker", f"there is no {program} (Debian: docker.io)")
    if (free := shutil.disk_usage(folder).free) < NEEDED and not quick:
        why = f"{free / 1e9:.0f} GB are free, {NEEDED / 1e9:.0f} GB are needed"
        raise CannotHere("bench.no-space", "too little space", where=str(folder), why=why)
    engine, context = folder / "engine", folder / "context"
    engine.mkdir()
    wheels = subject.wheels
    if quick:
        small = sorted(wheels, key=lambda name: wheels[name].size)[:QUICK_WHEELS]
        wheels = {name: wheels[name] for name in small}
    with dockerd(engine) as url, serve(_wheelhouse(folder / "wheels", subject, wheels)) as index:
        environment = {
            "DOCKER_HOST": url,
            "DOCKER_BUILDKIT": "0",
            "DOCKER_CONFIG": str(folder / "no-docker-config"),
        }
        asked = ["docker", "version", "--format", "{{.Server.Version}}"]
        version = run(asked, environment).output.strip()
        _load_base(folder, subject, environment)
        _write_context(context, subject, index)
        made = Comparison(context, environment, registry, version)
        made.docker("tag", f"{BASE}:uv", f"{registry.address}/docker:base")
        made.docker("push", f"{registry.address}/docker:base")
        yield made


def _wheelhouse(folder: Path, subject: Subject, wheels: Mapping[str, Digest]) -> Path:
    """The wheels under their own names, and requirements that name each exactly."""
    folder.mkdir()
    lines = []
    for name, blob in wheels.items():
        (folder / name).symlink_to(subject.store.blobs.path(blob.sha256))
        package, version = name.split("-")[:2]
        lines.append(f"{package}=={version}\n")
    (folder / "requirements.txt").write_text("".join(sorted(lines)))
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what failed is in uv's own words."""

    def copyfile(self, source: object, outputfile: object) -> None:
        """By sendfile(2) where it is a file, so that serving costs Docker next to nothing."""
        try:
            self.connection.sendfile(cast(BinaryIO, source))
        except BrokenPipeError:
            self.close_connection = True


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The URL of a folder, over HTTP on loopback."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _load_base(folder: Path, subject: Subject, environment: Mapping[str, str]) -> None:
    """The Debian layers, through Kiln's own archive, and uv on top of them."""
    from uv import find_uv_bin

    client = subprocess.Popen(
        ["docker", "load", "--quiet"],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert client.stdin is not None
    with client.stdin:
        stream = cast(BinaryIO, client.stdin)
        write_archive(subject.store, subject.base(), f"{BASE}:debian", stream)
    if client.wait() != 0:
        raise CannotHere("bench.base", "`docker load` did not take the base")
    context = folder / "base"
    context.mkdir()
    shutil.copy(find_uv_bin(), context / "uv")
    (context / "Dockerfile").write_text(f"FROM {BASE}:debian\nCOPY uv /usr/local/bin/uv\n")
    run(["docker", "build", "-t", f"{BASE}:uv", "."], environment, context)


def _write_context(context: Path, subject: Subject, index: str) -> None:
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {BASE}:uv\n"
        "ARG COMPILE\n"
        "RUN uv pip install --system --break-system-packages --no-cache --no-deps --no-index"
        f" $COMPILE --find-links {index}/ -r {index}/requirements.txt\n"
        "COPY patched/ /\n"
    )
    unpack(subject.patched_files(), context / "patched")
