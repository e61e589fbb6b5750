"""The small pin from pins.yaml to digest, by the command line, as a user would."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.helpers.small import HELLO, Small, make_small, make_wheel


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return make_small(tmp_path)


@pytest.fixture
def locked(small: Small) -> Small:
    result = small.kiln("lock")
    assert result.returncode == 0, result.stderr
    return small


def blob(small: Small, digest: str) -> bytes:
    return (small.store / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def files_of(small: Small, manifest: str) -> dict[str, bytes]:
    """The image's files as an engine would see them: layer over layer."""
    found: dict[str, bytes] = {}
    for layer in json.loads(blob(small, manifest))["layers"]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(small, layer["digest"])))) as tar:
            for member in tar:
                if member.isfile():
                    content = tar.extractfile(member)
                    assert content is not None
                    found[member.name] = content.read()
    return found


SITE = "usr/local/lib/python3.11/dist-packages"


def test_lock_build_and_build_again(locked: Small) -> None:
    first = locked.kiln("build")
    assert first.returncode == 0, first.stderr
    digest = first.stdout.strip()
    assert digest.startswith("sha256:")
    assert first.stdout.count("\n") == 1, "stdout is the digest alone"
    assert hashlib.sha256(blob(locked, digest)).hexdigest() == digest.removeprefix("sha256:")

    lock = json.loads((locked.root / "images/locks/small.lock").read_text())
    assert f"sha256:{lock['outputs']['manifest']['sha256']}" == digest
    assert {w["name"]: w["version"] for w in lock["resolved"]["closures"]["image"]["wheels"]} == {
        "idle": "1.1",
        "tiny-vllm": "1.0.0",
        "torch": "2.0",
    }

    again = locked.kiln("build", "--locked")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    plan = json.loads(locked.kiln("plan", "--json").stdout)
    assert {action["state"] for action in plan["actions"]} == {"cached"}


def test_the_image_holds_the_patched_file_and_a_true_record(locked: Small) -> None:
    digest = locked.kiln("build").stdout.strip()
    files = files_of(locked, digest)
    hello = files[f"{SITE}/vllm/hello.py"]
    assert hello == HELLO.replace('"hello"', '"hello, patched"').encode()
    record = files[f"{SITE}/vllm-1.0.0+tiny.dist-info/RECORD"].decode()
    assert "vllm/hello.py,sha256=" in record
    assert str(len(hello)) in next(r for r in record.splitlines() if r.startswith("vllm/hello.py"))
    assert b"Name: vllm\nVersion: 1.0.0+tiny" in files[f"{SITE}/vllm-1.0.0+tiny.dist-info/METADATA"]
    assert files["usr/local/bin/vllm"].startswith(b"#!/usr/bin/python3.11\n")

    manifest = json.loads(files["etc/kiln/manifest.json"])
    assert manifest["pin"] == "small"
    assert manifest["files"] == {f"/{SITE}/vllm/hello.py": hashlib.sha256(hello).hexdigest()}
    config = json.loads(blob(locked, json.loads(blob(locked, digest))["config"]["digest"]))
    assert config["config"]["Entrypoint"] == ["vllm", "serve"]
    assert config["config"]["Labels"]["kiln.id"] == manifest["kiln_id"]
    assert config["config"]["Labels"]["kiln.patch-set"] == manifest["patch_set"]


def test_a_python_patch_moves_only_the_patch_and_configuration_layers(locked: Small) -> None:
    before = json.loads(blob(locked, locked.kiln("build").stdout.strip()))["layers"]
    diff = locked.root / "patches/greeting/1.0.0.patch"
    diff.write_text(diff.read_text().replace("hello, patched", "hello, changed"))
    result = locked.kiln("build")
    assert result.returncode == 0, result.stderr
    assert "patches" in result.stderr, "the difference of the local part is shown"
    after = json.loads(blob(locked, result.stdout.strip()))["layers"]
    moved = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert moved == [len(after) - 2, len(after) - 1]


def test_locked_refuses_what_the_lock_does_not_say(locked: Small) -> None:
    assert locked.kiln("build").returncode == 0
    path = locked.root / "images/locks/small.lock"
    before = path.read_bytes()
    diff = locked.root / "patches/greeting/1.0.0.patch"
    diff.write_text(diff.read_text().replace("hello, patched", "hello, changed"))
    result = locked.kiln("build", "--locked")
    assert result.returncode == 2
    assert "lock.local-changed" in result.stderr
    assert "greeting" in result.stderr
    assert path.read_bytes() == before


def test_a_pin_that_moved_on_makes_the_lock_stale(locked: Small) -> None:
    pins = locked.root / "pins.yaml"
    pins.write_text(pins.read_text().replace('version: "2.0"', 'version: "2.1"'))
    result = locked.kiln("build")
    assert result.returncode == 2
    assert "lock.stale" in result.stderr
    assert "torch" in result.stderr
    assert "2.0" in result.stderr
    assert "2.1" in result.stderr
    assert result.stdout == ""


def test_no_lock_says_how_to_get_one(small: Small) -> None:
    result = small.kiln("build")
    assert result.returncode == 2
    assert "lock.missing" in result.stderr
    assert "kiln lock small" in result.stderr


def test_a_wheel_with_other_bytes_than_locked_is_refused(locked: Small) -> None:
    make_wheel(locked.wheels, "idle", "1.1", {"idle/__init__.py": "evil = True\n"})
    # The lock step fetched nothing that a build needs from this store.
    result = locked.kiln("build", KILN_STORE=str(locked.store) + "-other")
    assert result.returncode == 3, result.stderr
    assert "idle-1.1-py3-none-any.whl" in result.stderr
    assert "fetch." in result.stderr


def test_an_output_that_differs_names_layer_and_file(locked: Small) -> None:
    assert locked.kiln("build").returncode == 0
    path = locked.root / "images/locks/small.files"
    lines = path.read_text().splitlines()
    lock = locked.root / "images/locks/small.lock"
    data = json.loads(lock.read_text())
    layer = next(x for x in data["outputs"]["layers"] if x["name"] == "wheels")
    wrong = "0" * 64
    lock.write_text(lock.read_text().replace(layer["diff_id"], wrong))
    changed = []
    for line in lines:
        name, diff_id, prints = line.split(" ")
        if name == "wheels":
            prints = prints[:-4] + "AAAA"  # the last file of this layer hashes otherwise
            diff_id = wrong
        changed.append(f"{name} {diff_id} {prints}")
    path.write_text("\n".join(changed) + "\n")
    result = locked.kiln("build", "--locked")
    assert result.returncode == 1, result.stderr
    assert "outputs.mismatch" in result.stderr
    assert "wheels" in result.stderr
    assert SITE in result.stderr


def test_show_says_what_a_pin_and_a_digest_are(locked: Small) -> None:
    digest = locked.kiln("build").stdout.strip()
    shown = locked.kiln("show")
    assert shown.returncode == 0, shown.stderr
    assert digest in shown.stdout
    found = json.loads(locked.kiln("show", digest, "--json").stdout)
    assert found["kind"] == "manifest"
    assert found["pin"] == "small"
    nothing = locked.kiln("show", "sha256:" + "0" * 64)
    assert nothing.returncode == 2
    assert "show.unknown" in nothing.stderr


def test_fsck_finds_a_flipped_bit_and_the_next_build_mends_it(locked: Small) -> None:
    digest = locked.kiln("build").stdout.strip()
    layer = json.loads(blob(locked, digest))["layers"][0]["digest"].removeprefix("sha256:")
    path = locked.store / "blobs" / "sha256" / layer
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    checked = locked.kiln("fsck")
    assert checked.returncode == 5
    assert layer in checked.stdout
    again = locked.kiln("build", "--locked")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == digest
    assert locked.kiln("fsck").returncode == 0


def test_an_unknown_pin_shows_close_names(small: Small) -> None:
    result = small.kiln("plan", "smal")
    assert result.returncode == 2
    assert "pins.unknown-pin" in result.stderr
    assert "small" in result.stderr


def test_errors_come_as_data_with_json(small: Small) -> None:
    result = small.kiln("build", "--json")
    assert json.loads(result.stdout)["error"]["code"] == "lock.missing"


def test_another_encoder_is_told_apart_and_accepted_only_when_asked(locked: Small) -> None:
    """The lock says another version of the encoder, and blobs that it would have made."""
    assert locked.kiln("build").returncode == 0
    path = locked.root / "images/locks/small.lock"
    data = json.loads(path.read_text())
    blobs = [layer["digest"]["sha256"] for layer in data["outputs"]["layers"]]
    text = path.read_text()
    for number, sha in enumerate(blobs):
        text = text.replace(sha, f"{number:064d}")
    path.write_text(text.replace('"version":"1.9.1"', '"version":"1.0.0"'))
    result = locked.kiln("build", "--locked")
    assert result.returncode == 1, result.stderr
    assert "outputs.encoder" in result.stderr
    assert "1.0.0" in result.stderr
    assert locked.kiln("build").returncode == 1
    moved = locked.kiln("build", "--new-encoder")
    assert moved.returncode == 0, moved.stderr
    assert json.loads(path.read_text())["outputs"] == data["outputs"]
    assert locked.kiln("build", "--locked").returncode == 0


def test_the_order_of_layers_in_a_recipe_counts(locked: Small) -> None:
    recipe = locked.root / "images/tiny.yaml"
    recipe.write_text(recipe.read_text().replace("torch: [torch]", "one: [torch]\n    two: [idle]"))
    first = locked.kiln("build").stdout
    recipe.write_text(
        recipe.read_text().replace("one: [torch]\n    two: [idle]", "two: [idle]\n    one: [torch]")
    )
    result = locked.kiln("build")
    assert result.returncode == 0, result.stderr
    assert result.stdout != first


def test_a_winner_that_is_not_in_the_image_is_an_error(locked: Small) -> None:
    recipe = locked.root / "images/tiny.yaml"
    recipe.write_text(
        recipe.read_text().replace("wheels:\n", "wheels:\n  winners: {usr/x: nobody}\n")
    )
    result = locked.kiln("build")
    assert result.returncode == 2
    assert "image.unknown-winner" in result.stderr
    assert "images/tiny.yaml:7" in result.stderr


def test_an_image_that_is_not_in_this_store_says_build_it(locked: Small) -> None:
    assert locked.kiln("build").returncode == 0
    elsewhere = str(locked.store) + "-elsewhere"
    result = locked.kiln("load", "--output", "x.tar", KILN_STORE=elsewhere)
    assert result.returncode == 2, result.stderr
    assert "target.not-here" in result.stderr
    assert "kiln build small" in result.stderr
    assert not (locked.root / "x.tar").exists()


def test_a_new_lock_of_the_same_image_keeps_what_was_built(locked: Small) -> None:
    assert locked.kiln("build").returncode == 0
    path = locked.root / "images/locks/small.lock"
    outputs = json.loads(path.read_text())["outputs"]
    recipe = locked.root / "images/tiny.yaml"
    recipe.write_text(
        recipe.read_text().replace("wheels:\n", 'wheels:\n  constraints: ["idle<2"]\n')
    )
    assert "lock.stale" in locked.kiln("build").stderr
    assert locked.kiln("lock").returncode == 0
    assert json.loads(path.read_text())["outputs"] == outputs, "the closure is the same"
    make_wheel(locked.wheels, "idle", "1.5", {"idle/__init__.py": "new = 1\n"})
    moved = locked.kiln("lock", "--upgrade", "idle")
    assert "idle 1.1 -> 1.5" in moved.stdout
    assert json.loads(path.read_text())["outputs"] is None
    assert locked.kiln("build").returncode == 0
