"""The layout folder: what other tools find in it, what spoils it, and several writers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.canonical import digest
from kiln.errors import BadInput, JudgedBad, KilnError
from kiln.image.oci import MANIFEST
from kiln.registry.layout import LayoutRegistry
from kiln.registry.model import Manifest
from tests.conftest import ROOT
from tests.helpers.fake_registry import source

BLOB = b"a layer"


def manifest(note: str = "") -> Manifest:
    layer = {"mediaType": "x/y", "digest": str(digest(BLOB)), "size": len(BLOB)}
    document = {"schemaVersion": 2, "layers": [layer], "annotations": {"note": note}}
    return Manifest(json.dumps(document).encode(), MANIFEST)


def fill(folder: Path) -> LayoutRegistry:
    registry = LayoutRegistry(folder)
    registry.write_blob(digest(BLOB), source(BLOB), lambda _: None)
    registry.write_manifest(manifest(), "v1")
    return registry


def code(function: object, *arguments: object) -> str:
    assert callable(function)
    with pytest.raises(KilnError) as caught:
        function(*arguments)
    return caught.value.code


def test_it_is_a_layout_by_the_image_spec(tmp_path: Path) -> None:
    fill(tmp_path / "out")
    assert json.loads((tmp_path / "out/oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((tmp_path / "out/index.json").read_text())
    own = manifest().digest
    assert index == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": MANIFEST,
                "digest": str(own),
                "size": own.size,
                "annotations": {"org.opencontainers.image.ref.name": "v1"},
            }
        ],
    }
    assert (tmp_path / "out/blobs/sha256" / own.sha256).read_bytes() == manifest().data
    assert (tmp_path / "out/blobs/sha256" / digest(BLOB).sha256).read_bytes() == BLOB


def test_reading_makes_nothing(tmp_path: Path) -> None:
    registry = LayoutRegistry(tmp_path / "none")
    assert registry.resolve("v1") is None
    assert not registry.has_blob(digest(BLOB))
    assert code(registry.tags) == "registry.not-found"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    registry = LayoutRegistry(tmp_path)
    with pytest.raises(BadInput) as caught:
        registry.write_blob(digest(BLOB), source(BLOB), lambda _: None)
    assert caught.value.code == "registry.bad-layout"
    assert "notes.txt" in caught.value.why
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    registry = LayoutRegistry(tmp_path / "file" / "layout")
    assert code(registry.write_blob, digest(BLOB), source(BLOB), lambda _: None) == (
        "registry.cannot-create"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"manifests": [{"digest": 5}]}'])
def test_a_bad_index(tmp_path: Path, text: str) -> None:
    registry = fill(tmp_path / "out")
    (tmp_path / "out/index.json").write_text(text)
    assert code(registry.resolve, "v1") == "registry.bad-layout"


def test_an_index_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    registry = fill(tmp_path / "out")
    index = tmp_path / "out/index.json"
    index.write_text(index.read_text().replace(manifest().digest.sha256, "../../../secret"))
    assert code(registry.read_manifest, "v1") == "registry.bad-digest"


def test_damaged_files_are_found_out(tmp_path: Path) -> None:
    registry = fill(tmp_path / "out")
    blobs = tmp_path / "out/blobs/sha256"
    for name, data in ((digest(BLOB).sha256, b"a lAyer"), (manifest().digest.sha256, b"{}")):
        (blobs / name).chmod(0o644)
        (blobs / name).write_bytes(data)
    with pytest.raises(JudgedBad) as caught:
        list(registry.read_blob(digest(BLOB)))
    assert caught.value.code == "registry.digest-mismatch"
    assert code(registry.read_manifest, "v1") == "registry.digest-mismatch"
    (blobs / manifest().digest.sha256).unlink()
    assert code(registry.read_manifest, "v1") == "registry.not-found"


def test_a_layout_of_another_tool_keeps_its_entries(tmp_path: Path) -> None:
    registry = fill(tmp_path / "out")
    index = tmp_path / "out/index.json"
    document = json.loads(index.read_text())
    document["manifests"][0]["annotations"]["other.tool/key"] = "kept"
    document["manifests"][0]["platform"] = {"os": "linux", "architecture": "arm64"}
    document["annotations"] = {"of": "the index"}
    index.write_text(json.dumps(document))
    registry.write_manifest(manifest("2"), "v2")
    registry.delete("v1")
    found = json.loads(index.read_text())
    assert found["annotations"] == {"of": "the index"}
    first = found["manifests"][0]
    assert first["annotations"] == {"other.tool/key": "kept"}
    assert first["platform"] == {"os": "linux", "architecture": "arm64"}
    assert registry.tags() == ["v2"]


WRITER = """
import sys
from pathlib import Path
from tests.unit.test_registry_layout import LayoutRegistry, manifest, fill
registry = LayoutRegistry(Path(sys.argv[1]))
for number in range(20):
    registry.write_manifest(manifest(f"{sys.argv[2]}-{number}"), f"{sys.argv[2]}-{number}")
"""


def test_no_writer_loses_anothers_tag(tmp_path: Path) -> None:
    registry = fill(tmp_path / "out")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "out")]
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in "abcd"]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    expected = ["v1", *(f"{name}-{number}" for name in "abcd" for number in range(20))]
    assert registry.tags() == sorted(expected)
