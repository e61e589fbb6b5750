"""Check a store: every blob's bytes, every result's blobs."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from kiln.progress import Reporter, human
from kiln.store import Store


@dataclass(frozen=True)
class Report:
    """What a check found. corrupt: blobs set aside; forgotten: results without blobs."""

    blobs: int
    bytes: int
    results: int
    corrupt: tuple[str, ...]
    forgotten: tuple[str, ...]
    aside: Path

    @property
    def damaged(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.corrupt or self.forgotten)

    def text(self) -> str:
        """For people."""
        lines = [f"{self.blobs} blobs ({human(self.bytes)}), {self.results} results"]
        lines += [f"corrupt: sha256:{sha} (moved to {self.aside})" for sha in self.corrupt]
        lines += [
            f"forgotten: the result of {node}, whose blobs are gone" for node in self.forgotten
        ]
        lines.append("damaged; build again to make what is missing" if self.damaged else "all good")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "blobs": self.blobs,
            "bytes": self.bytes,
            "results": self.results,
            "corrupt": list(self.corrupt),
            "forgotten": list(self.forgotten),
        }


def check(store: Store, reporter: Reporter) -> Report:
    """Hash all blobs; set the corrupt ones aside; forget results that lost a blob.

    Holds the store alone. Raises CannotHere("store.busy") while a build runs.
    """
    with store.collecting():
        aside = store.root / "corrupt"
        names = list(store.blobs)
        total = sum(store.blobs.path(sha).stat().st_size for sha in names)
        corrupt = []
        with reporter.task("hash all blobs", total) as task:
            for sha in names:
                path = store.blobs.path(sha)
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                task.advance(path.stat().st_size)
                if found != sha:
                    aside.mkdir(exist_ok=True)
                    os.replace(path, aside / sha)
                    corrupt.append(sha)
        forgotten, results = [], 0
        for key, node, outputs in list(store.actions.items()):
            results += 1
            if not all(store.blobs.has(digest) for digest in outputs.values()):
                store.actions.forget(key)
                forgotten.append(node)
        # Unpacked roots are copies of blobs. A damaged one cannot be told from a good one,
        # and they are made again in seconds: so they go.
        for root in store.roots.iterdir():
            shutil.rmtree(root)
        return Report(len(names), total, results, tuple(corrupt), tuple(forgotten), aside)
