"""Pushing an image of a store to a registry on loopback, to compare with `docker push`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import CannotHere
from kiln.image.read import read_image
from kiln.progress import Silent
from kiln.registry.names import parse_name
from kiln.registry.push import open_registry, push
from kiln.store import Store
from tests.helpers.registry import NoRegistry, docker_registry


@dataclass(frozen=True)
class Registry:
    """A registry that answers. address: host and port."""

    address: str

    def push(self, store: Store, manifest: str, repository: str) -> float:
        """Push an image (its manifest's digest); returns seconds. What is there is not sent."""
        os.sync()
        start = time.monotonic()
        image = read_image(store, manifest.removeprefix("sha256:"))
        push(store, image, parse_name(f"{self.address}/{repository}"), Silent())
        return time.monotonic() - start

    def blobs(self, repository: str, tag: str) -> dict[str, int]:
        """Digest -> size of manifest, config and layers of what Docker pushed."""
        registry = open_registry(parse_name(f"{self.address}/{repository}"))
        manifest = registry.read_manifest(tag)
        parts = manifest.parts()
        assert parts.config is not None
        own = manifest.digest
        sizes = {part.digest: part.size for part in (parts.config, *parts.layers)}
        return {str(own): own.size, **sizes}


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """A registry that lives while the block runs, its data below `folder`.

    Raises CannotHere("bench.no-registry").
    """
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(docker_registry(folder))
        except NoRegistry as error:
            raise CannotHere(
                "bench.no-registry", "docker-registry does not run here", why=str(error)
            ) from error
        yield Registry(started.address)
