"""FILES: a tree of small files whose text is in the parameters (configuration)."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.canonical import Digest
from kiln.graph.action import Context
from kiln.source.entry import data_entry
from kiln.source.tree import write_tree


def run(context: Context) -> dict[str, Digest]:
    """params: files {path: text}. output: "out", a tree."""
    files = context.params["files"]
    assert isinstance(files, Mapping)
    entries = [data_entry(path, str(text).encode()) for path, text in files.items()]
    return {"out": write_tree(context.store.blobs, entries)}
