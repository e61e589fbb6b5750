"""Layers: winners and their RECORDs, set-user-ID (W16), case (W20)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln.canonical import Digest
from kiln.errors import BadInput, KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import LAYER
from kiln.layer.encode import ENCODER
from kiln.layer.listing import Line, parse_listing
from kiln.layer.step import Params, Source, TreeSource, WheelSource, layer_node
from kiln.lock.model import Encoder
from kiln.progress import Silent
from kiln.source.entry import Entry, data_entry
from kiln.source.tree import write_tree
from kiln.store import Store
from tests.helpers.wheels import INSTALL, Made

SITE = INSTALL.site


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Layers:
    """Makes layers in one store; inputs by name."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.inputs: dict[str, Digest] = {}
        self.notes = Notes()

    def tree(self, name: str, *entries: Entry) -> TreeSource:
        self.inputs[name] = write_tree(self.store.blobs, entries)
        return TreeSource(name)

    def wheel(self, name: str, made: Made) -> WheelSource:
        path = made.write(self.folder)
        self.inputs[name] = self.store.blobs.put_file(path)
        return WheelSource(name, path.name, INSTALL)

    def make(self, *sources: Source, **params: object) -> dict[str, Digest]:
        node = layer_node("layer:x", self.inputs, Params(sources, **params))  # type: ignore[arg-type]
        assert node.step is LAYER
        tmp = self.store.blobs.tmp
        return dict(LAYER.run(Context(self.store, self.inputs, node.params, self.notes, tmp)))

    def refused(self, *sources: Source, **params: object) -> list[str]:
        before = set(self.store.blobs)
        with pytest.raises((BadInput, Problems)) as caught:
            self.make(*sources, **params)
        assert set(self.store.blobs) == before
        error: KilnError = caught.value
        return [e.code for e in error.errors] if isinstance(error, Problems) else [error.code]

    def tar(self, outputs: Mapping[str, Digest]) -> tarfile.TarFile:
        blob = self.store.blobs.read(outputs["blob"].sha256)
        return tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz")

    def names(self, outputs: Mapping[str, Digest]) -> list[str]:
        return self.tar(outputs).getnames()


@pytest.fixture
def layers(store: Store, tmp_path: Path) -> Layers:
    return Layers(store, tmp_path / "wheels")


def wheel(name: str, files: dict[str, bytes]) -> Made:
    return Made(name, "1.0", files)


def test_a_layer_of_a_wheel_and_a_tree(layers: Layers) -> None:
    config = layers.tree(
        "config",
        data_entry("etc/vllm.conf", b"on\n"),
        Entry("lib", "symlink", 0o777, target="usr/lib"),
    )
    outputs = layers.make(layers.wheel("demo", Made()), config)
    tar = layers.tar(outputs)
    members = tar.getmembers()
    assert [m.name for m in members] == sorted((m.name for m in members), key=str.encode)
    assert {(m.uid, m.gid, m.uname, m.mtime) for m in members} == {(0, 0, "", 315532800)}
    assert len({m.name for m in members}) == len(members)
    content = tar.extractfile(f"{SITE}/demo/__init__.py")
    assert content is not None
    assert content.read() == b"x = 1\n"
    assert tar.getmember("lib").linkname == "usr/lib"


def test_the_meta_and_the_listing_are_true(layers: Layers) -> None:
    outputs = layers.make(
        layers.wheel("demo", Made()), layers.tree("t", data_entry("etc/x", b"1", 0o755))
    )
    blobs = layers.store.blobs
    meta = json.loads(blobs.read(outputs["meta"].sha256))
    tar = layers.tar(outputs)
    raw = gzip.decompress(blobs.read(outputs["blob"].sha256))
    assert meta == {
        "diff_id": hashlib.sha256(raw).hexdigest(),
        "digest": outputs["blob"].sha256,
        "size": outputs["blob"].size,
        "tar_size": len(raw),
        "files": sum(not m.isdir() for m in tar.getmembers()),
    }
    lines = {line.path: line for line in parse_listing(blobs.read(outputs["files"].sha256))}
    assert lines.keys() == set(tar.getnames())
    for member in tar.getmembers():
        content = tar.extractfile(member)
        expected = "dir" if content is None else hashlib.sha256(content.read()).hexdigest()
        assert lines[member.name] == Line(member.name, f"{member.mode:04o}", expected)


def test_whiteouts_only_from_where_they_may_be(layers: Layers) -> None:
    hides = data_entry("usr/.wh.x", b"")
    assert layers.refused(layers.tree("t", hides)) == ["layer.whiteout"]
    files = {"demo/.wh.x.py": b"", "demo/__init__.py": b""}
    assert layers.refused(layers.wheel("demo", Made(files=files))) == ["layer.whiteout"]
    tree = layers.tree("t", hides)
    outputs = layers.make(TreeSource(tree.input, whiteouts=True))
    assert layers.names(outputs) == ["usr", "usr/.wh.x"]


def test_order_of_sources_and_zip_does_not_matter(
    layers: Layers, tmp_path: Path, store: Store
) -> None:
    files = {f"demo/{n}.py": b"%d" % n for n in range(30)}
    one = layers.make(layers.wheel("a", Made(files=files)), layers.tree("t", data_entry("x", b"1")))
    other = Layers(store, tmp_path / "other")
    shuffled = Made(
        files=dict(sorted(files.items(), reverse=True)), date=(1999, 9, 9, 9, 9, 9), method=0
    )
    tree = other.tree("t", data_entry("x", b"1"))
    assert other.make(tree, other.wheel("a", shuffled)) == one


def test_layers_in_two_threads_are_the_same(layers: Layers) -> None:
    sources = layers.wheel("demo", Made(files={"demo/big": bytes(range(256)) * 30_000}))
    results: list[dict[str, Digest]] = []
    threads = [threading.Thread(target=lambda: results.append(layers.make(sources))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == layers.make(sources)


def test_the_encoder_is_part_of_the_key(layers: Layers) -> None:
    tree = layers.tree("t", data_entry("x", b"1"))
    old = Encoder("isal-gzip-1", "0.1", 1 << 20)
    one = layer_node("l", layers.inputs, Params((tree,)))
    two = layer_node("l", layers.inputs, Params((tree,), encoder=old))
    assert one.key(layers.inputs) != two.key(layers.inputs)
    assert one.params["encoder"] == {
        "name": ENCODER.name,
        "version": ENCODER.version,
        "block": 1 << 20,
    }


# ---- clashes and winners -----------------------------------------------------------------------


def clashing(layers: Layers) -> tuple[WheelSource, WheelSource]:
    """As nvidia-cutlass-dsl-libs-base and -cu13: shared paths, some with other bytes."""
    one = wheel("base_libs", {"c/same.py": b"=", "c/x.so": b"old", "c/y.so": b"o", "c/one": b"1"})
    two = wheel("cu13_libs", {"c/same.py": b"=", "c/x.so": b"new!", "c/y.so": b"n", "c/two": b"2"})
    return layers.wheel("base-libs", one), layers.wheel("cu13-libs", two)


def record_paths(layers: Layers, outputs: dict[str, Digest], folder: str) -> list[str]:
    content = layers.tar(outputs).extractfile(f"{SITE}/{folder}/RECORD")
    assert content is not None
    return [cells[0] for cells in csv.reader(io.StringIO(content.read().decode()))]


def test_two_wheels_with_other_bytes_at_one_path_are_an_error(layers: Layers) -> None:
    assert layers.refused(*clashing(layers)) == ["source.path-clash"] * 2


@pytest.mark.parametrize(
    "winners",
    [
        {f"{SITE}/c/x.so": "cu13-libs", f"{SITE}/c/y.so": "cu13-libs"},
        {f"{SITE}/c/": "cu13-libs"},
    ],
)
def test_the_winner_stays_and_the_losers_record_follows(
    layers: Layers, winners: dict[str, str]
) -> None:
    outputs = layers.make(*clashing(layers), winners=winners)
    content = layers.tar(outputs).extractfile(f"{SITE}/c/x.so")
    assert content is not None
    assert content.read() == b"new!"
    loser = record_paths(layers, outputs, "base_libs-1.0.dist-info")
    winner = record_paths(layers, outputs, "cu13_libs-1.0.dist-info")
    assert "c/x.so" not in loser
    assert "c/one" in loser
    assert {"c/x.so", "c/y.so", "c/two", "c/same.py"} <= set(winner)


def test_a_tree_can_lose_and_win(layers: Layers) -> None:
    demo = layers.wheel("demo", Made())
    path = f"{SITE}/demo/__init__.py"
    tree = layers.tree("t", data_entry(path, b"other"), data_entry("etc/x", b"1"))
    for winner, bytes_ in (("demo", b"x = 1\n"), ("t", b"other")):
        outputs = layers.make(demo, tree, winners={path: winner})
        content = layers.tar(outputs).extractfile(path)
        assert content is not None
        assert content.read() == bytes_
        listed = "demo/__init__.py" in record_paths(layers, outputs, "demo-1.0.dist-info")
        assert listed == (winner == "demo")


@pytest.mark.parametrize(
    "winners",
    [
        {f"{SITE}/c/gone": "cu13-libs"},
        {f"{SITE}/c/one": "base-libs"},  # only one claims it
        {f"{SITE}/c/x.so": "nobody"},
        {"elsewhere/": "cu13-libs"},
    ],
)
def test_a_rule_that_decides_nothing_is_an_error(layers: Layers, winners: dict[str, str]) -> None:
    assert layers.refused(*clashing(layers), winners=winners) == ["layer.winner-unused"]


def test_a_file_below_a_link_of_the_same_layer_is_refused(layers: Layers) -> None:
    tree = layers.tree("t", Entry("lib", "symlink", 0o777, target="usr/lib"))
    other = layers.tree("o", data_entry("lib/x.so", b"x"))
    assert layers.refused(tree, other) == ["source.path-clash", "source.below-no-folder"]


# ---- modes, case, emptiness --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6711])
def test_set_id_files_are_refused(layers: Layers, mode: int) -> None:
    tree = layers.tree("t", data_entry("usr/bin/su", b"x", mode), Entry("var/mail", "dir", 0o2775))
    assert layers.refused(tree) == ["layer.setuid"]


def test_paths_that_differ_in_case_are_noted(layers: Layers) -> None:
    made = Made(files={"demo/Utils.py": b"1", "demo/utils.py": b"2"})
    layers.make(layers.wheel("demo", made))
    (note,) = layers.notes.notes
    assert f"/{SITE}/demo/Utils.py, /{SITE}/demo/utils.py" in note


def test_notes_of_wheels_are_passed_on(layers: Layers) -> None:
    made = Made(more=[("demo-1.0.dist-info/RECORD.jws", b"{}")])
    layers.make(layers.wheel("demo", made))
    assert "RECORD.jws" in layers.notes.notes[0]


def test_an_empty_layer_is_an_error(layers: Layers) -> None:
    assert layers.refused(layers.tree("t")) == ["layer.empty"]


def test_bad_wheels_are_reported_together(layers: Layers) -> None:
    bad = [Made(name, more=[("x.py", b"")]) for name in ("one", "two")]
    sources = [layers.wheel(made.name, made) for made in bad]
    assert layers.refused(*sources) == ["wheel.record-missing"] * 2


def test_a_forged_file_drops_the_layer(layers: Layers) -> None:
    made = Made(files={"demo/a": b"good"})
    made.rows = list(csv.reader(io.StringIO(made.record().decode())))
    made.files = {"demo/a": b"evil"}
    assert layers.refused(layers.wheel("demo", made)) == ["wheel.hash-mismatch"]


# ---- the listing -------------------------------------------------------------------------------
