"""The layer step: wheels and trees in, one compressed layer out, in one stream.

Nothing is unpacked to disk: contents go from the zips and trees through the tar writer
into the encoder.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import BinaryIO, TypeAlias

import msgspec

from kiln.canonical import JSON, Digest, dumps
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.graph.action import Context, Input, Node
from kiln.graph.steps import LAYER
from kiln.layer.encode import ENCODER, Encoding, encode
from kiln.layer.listing import Line, format_listing
from kiln.lock.model import Encoder
from kiln.progress import Reporter, Task
from kiln.source.entry import Entry, complete, merge
from kiln.source.stream import reader
from kiln.source.tar import TarWriter
from kiln.source.tree import read_tree
from kiln.source.wheel import Install, Wheel
from kiln.source.whiteout import is_whiteout

_SET_ID = 0o6000


class TreeSource(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="tree"):
    """A tree (kiln.source.tree). input: the name of the node's input. whiteouts: it may hide
    files of the layers below (kiln.source.whiteout)."""

    input: str
    whiteouts: bool = False


class WheelSource(msgspec.Struct, frozen=True, tag_field="kind", tag="wheel"):
    """A wheel. input: as above; filename: the wheel's real name; install: where to."""

    input: str
    filename: str
    install: Install


Source: TypeAlias = TreeSource | WheelSource


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a layer is made of.

    winners: path that several sources claim, or a folder of such ("a/b/"), -> the input
    whose file is taken; the RECORDs of the other wheels lose their rows.
    """

    sources: tuple[Source, ...]
    winners: dict[str, str] = {}
    encoder: Encoder = ENCODER


def layer_node(name: str, inputs: Mapping[str, Input], params: Params, estimate: int = 0) -> Node:
    """The node that makes a layer; the encoder is part of its key.

    Outputs: "blob", the gzip layer; "meta", JSON of diff_id, digest, size, tar_size
    (bytes) and files (count); "files", the listing (kiln.layer.listing).
    """
    plain: dict[str, JSON] = msgspec.to_builtins(params)
    return Node(name, LAYER, inputs, plain, estimate)


def run(ctx: Context) -> Mapping[str, Digest]:
    """Inputs as `Params.sources` names them; outputs as `layer_node` says."""
    params = msgspec.convert(ctx.params, Params)
    sources = _read_sources(ctx, params)
    done = complete(_checked(merge(sources), ctx.reporter))
    title = f"write {len(done)} entries of {_title(params.sources)}"
    with (
        ctx.reporter.task(title, sum(entry.size for entry in done)) as task,
        encode(ctx.store.blobs) as out,
    ):
        lines = _write(done, out, task)
    meta = {
        "diff_id": out.diff_id,
        "digest": out.blob.sha256,
        "size": out.blob.size,
        "tar_size": out.tar_size,
        "files": sum(entry.kind != "dir" for entry in done),
    }
    blobs = ctx.store.blobs
    return {
        "blob": out.blob,
        "meta": blobs.put(dumps(meta)),
        "files": blobs.put(format_listing(lines)),
    }


def _title(sources: Sequence[Source]) -> str:
    first = sources[0]
    name = first.filename if isinstance(first, WheelSource) else first.input
    return name if len(sources) == 1 else f"{name} and {len(sources) - 1} more"


# ---- collecting --------------------------------------------------------------------------


def _read_sources(ctx: Context, params: Params) -> list[list[Entry]]:
    """The entries of each source, without those that another source wins."""
    wheels: dict[int, Wheel] = {}
    found: list[list[Entry]] = []
    problems: list[KilnError] = []
    for number, source in enumerate(params.sources):
        try:
            if isinstance(source, WheelSource):
                wheel = wheels[number] = Wheel(ctx.path(source.input), source.filename)
                for note in wheel.notes:
                    ctx.reporter.note(note)
                found.append(wheel.entries(source.install))
            else:
                found.append(read_tree(ctx.path(source.input), source.input))
            if not (isinstance(source, TreeSource) and source.whiteouts):
                problems += _whiteouts(found[-1])
        except KilnError as error:
            problems.append(error)
    raise_problems(problems)
    losses = _losses(params, found)
    for number, paths in losses.items():
        source = params.sources[number]
        if isinstance(source, WheelSource):
            relative = {source.install.relative(path): None for path in paths}
            found[number] = wheels[number].entries(source.install, relative)
        else:
            found[number] = [entry for entry in found[number] if entry.path not in paths]
    return found


def _whiteouts(entries: Iterable[Entry]) -> list[KilnError]:
    return [
        BadInput(
            "layer.whiteout",
            f"/{entry.path} would hide a file of a layer below, in the eyes of an engine",
            where=entry.origin,
            fix="do not use this source, or leave the file out",
        )
        for entry in entries
        if is_whiteout(entry.path)
    ]


def _losses(params: Params, found: list[list[Entry]]) -> dict[int, set[str]]:
    """For each source that loses something: which paths."""
    claims: dict[str, list[int]] = {}
    for number, entries in enumerate(found):
        for entry in entries:
            if entry.kind != "dir":
                claims.setdefault(entry.path, []).append(number)
    shared = {path: numbers for path, numbers in claims.items() if len(numbers) > 1}
    names = [source.input for source in params.sources]
    losses: dict[int, set[str]] = {}
    problems: list[BadInput] = []
    for key, winner in params.winners.items():
        paths = [
            path
            for path, numbers in shared.items()
            if (path.startswith(key) if key.endswith("/") else path == key)
            and winner in (names[number] for number in numbers)
        ]
        for path in paths:
            for number in shared[path]:
                if names[number] != winner:
                    losses.setdefault(number, set()).add(path)
        if not paths:
            problems.append(
                BadInput(
                    "layer.winner-unused",
                    f"`winners` says that {winner} wins /{key}, but it shares no such file",
                    why="a rule that decides nothing hides what the layer really holds",
                    fix="remove the rule, or correct its path",
                )
            )
    raise_problems(problems)
    return losses


def _checked(entries: list[Entry], reporter: Reporter) -> list[Entry]:
    problems: list[BadInput] = []
    if not entries:
        problems.append(BadInput("layer.empty", "a layer of these sources would hold nothing"))
    problems += [
        BadInput(
            "layer.setuid",
            f"/{entry.path} has mode {entry.mode:04o}: it would run with another's rights",
            where=entry.origin,
            fix="leave it out",
        )
        for entry in entries
        if entry.kind == "file" and entry.mode & _SET_ID
    ]
    raise_problems(problems)
    if collisions := _case_collisions(entries):
        more = f", and {len(collisions) - 3} more" if len(collisions) > 3 else ""
        reporter.note(
            "paths that differ only in case, which some file systems cannot hold: "
            + "; ".join(collisions[:3])
            + more
        )
    return entries


def _case_collisions(entries: Iterable[Entry]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry.path.casefold(), []).append(entry.path)
    return [", ".join(f"/{path}" for path in paths) for paths in groups.values() if len(paths) > 1]


# ---- writing -----------------------------------------------------------------------------


class _Counted:
    def __init__(self, out: Encoding, task: Task) -> None:
        self._out, self._task = out, task

    def write(self, data: bytes, /) -> None:
        self._out.write(data)
        self._task.advance(len(data))


def _write(entries: list[Entry], out: Encoding, task: Task) -> list[Line]:
    """Stream the entries; returns the listing. Contents of wheels are hashed by the
    check against RECORD already, the others here as they pass."""
    tar = TarWriter(_Counted(out, task))
    lines: list[Line] = []
    for entry in entries:
        content = {"dir": "dir", "symlink": f"-> {entry.target}", "file": entry.sha256}[entry.kind]
        if content:
            tar.add(entry)
        else:
            digest = hashlib.sha256()
            opener = functools.partial(_hashed, entry, digest)
            tar.add(dataclasses.replace(entry, opener=opener))
            content = digest.hexdigest()
        mode = 0o777 if entry.kind == "symlink" else entry.mode  # as the tar has it
        lines.append(Line(entry.path, f"{mode:04o}", content))
    tar.close()
    return lines


def _hashed(entry: Entry, digest: hashlib._Hash) -> BinaryIO:
    def passing() -> Generator[bytes]:
        for block in entry.blocks():
            digest.update(block)
            yield block

    blocks = passing()
    return reader(blocks, blocks.close)
