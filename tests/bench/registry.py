"""A registry on loopback (Debian's docker-registry), and pushing an image of a store to it.

Distribution spec v1.1, "Pushing blobs monolithically" (POST then PUT) and "Pushing
manifests". Kiln has no push of its own yet, and a comparison with `docker push` needs one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import urllib3

from kiln.canonical import Digest
from kiln.errors import CannotHere
from kiln.image.oci import MANIFEST
from kiln.image.read import read_image
from kiln.store import Store

UPLOADS = 5  # at once, as Docker does
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Registry:
    """A registry that answers. address: host and port."""

    address: str
    http: urllib3.PoolManager

    def push(self, store: Store, manifest: str, repository: str) -> float:
        """Push an image (its manifest's digest); returns seconds. What is there is not sent."""
        os.sync()
        start = time.monotonic()
        image = read_image(store, manifest.removeprefix("sha256:"))
        blobs = {image.config, *(layer.digest for layer in image.layers)}
        with ThreadPoolExecutor(UPLOADS) as pool:
            list(pool.map(lambda blob: self._upload(store, blob, repository), blobs))
        data = store.blobs.read(image.manifest.sha256)
        url = f"/v2/{repository}/manifests/{image.manifest}"
        self._ask("PUT", url, (201,), body=data, headers={"Content-Type": MANIFEST})
        return time.monotonic() - start

    def _upload(self, store: Store, blob: Digest, repository: str) -> None:
        if self._ask("HEAD", f"/v2/{repository}/blobs/{blob}", (200, 404)).status == 200:
            return
        begun = self._ask("POST", f"/v2/{repository}/blobs/uploads/", (202,))
        target = begun.headers["Location"]
        joint = "&" if "?" in target else "?"
        headers = {"Content-Length": str(blob.size), "Content-Type": "application/octet-stream"}
        with store.blobs.open(blob.sha256) as body:
            self._ask("PUT", f"{target}{joint}digest={blob}", (201,), body=body, headers=headers)

    def blobs(self, repository: str, tag: str) -> dict[str, int]:
        """Digest -> size of manifest, config and layers of what Docker pushed."""
        url = f"/v2/{repository}/manifests/{tag}"
        answer = self._ask("GET", url, (200,), headers={"Accept": DOCKER_MANIFEST})
        manifest = json.loads(answer.data)
        parts = [manifest["config"], *manifest["layers"]]
        sizes = {part["digest"]: int(part["size"]) for part in parts}
        return {answer.headers["Docker-Content-Digest"]: len(answer.data), **sizes}

    def _ask(
        self, method: str, url: str, good: tuple[int, ...], **options: object
    ) -> urllib3.BaseHTTPResponse:
        full = url if url.startswith("http:") else f"http://{self.address}{url}"
        answer = self.http.request(method, full, redirect=False, retries=False, **options)  # type: ignore[arg-type]
        if answer.status not in good:
            raise CannotHere(
                "bench.registry",
                f"the registry answers {answer.status} to {method}",
                where=full,
                why=answer.data[:500].decode(errors="replace"),
            )
        return answer


@contextlib.contextmanager
def registry(folder: Path, seconds: float = 30) -> Iterator[Registry]:
    """A registry that lives while the block runs, its data below `folder`.

    Raises CannotHere("bench.no-registry").
    """
    program = shutil.which("docker-registry")
    if program is None:
        raise CannotHere("bench.no-registry", "there is no docker-registry (a Debian package)")
    folder.mkdir()
    address = f"127.0.0.1:{_free_port()}"
    config: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        command = [program, "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    http = urllib3.PoolManager(maxsize=UPLOADS, blocksize=1 << 20)
    try:
        _wait(process, http, address, folder / "log", seconds)
        yield Registry(address, http)
    finally:
        http.clear()
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait(
    process: subprocess.Popen[bytes],
    http: urllib3.PoolManager,
    address: str,
    log: Path,
    seconds: float,
) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            if http.request("GET", f"http://{address}/v2/", retries=False).status == 200:
                return
        if process.poll() is not None or time.monotonic() > end:
            raise CannotHere(
                "bench.no-registry",
                "docker-registry does not answer",
                where=address,
                why=log.read_text()[-2000:],
            )
        time.sleep(0.1)
