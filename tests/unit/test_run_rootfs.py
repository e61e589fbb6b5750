"""Unpacking layers: what an image's root holds, and tars that mean harm."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path

import pytest

from kiln.canonical import dumps, sha256
from kiln.errors import BadInput, CannotHere, Damaged
from kiln.image.read import Image, read_image
from kiln.progress import Silent
from kiln.run.rootfs import image_root, remove_tree
from kiln.store import Store
from tests.helpers.tiny_image import manifest, member, put_image, raw_tar

DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def image_of(store: Store, *tars: bytes) -> Image:
    return read_image(store, put_image(store, tars, {}).sha256)


def root_of(store: Store, *tars: bytes) -> Path:
    return image_root(store, image_of(store, *tars), Silent())


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_files_folders_links_modes_and_times(store: Store) -> None:
    info, data = member("./usr/bin/a", b"#!", mode=0o755)
    info.mtime = 1234
    root = root_of(
        store,
        raw_tar(
            member("usr/", kind=DIR, mode=0o755),
            (info, data),
            member("bin", kind=LINK, link="usr/bin"),
            member("usr/bin/b", kind=HARD, link="usr/bin/a"),
            member("tmp", kind=DIR, mode=0o1777),
            member("closed", kind=DIR, mode=0o555),
            member("closed/x", b"1", mode=0o400),
            member("lies/deep/in/here", b"2"),
        ),
    )
    assert (root / "bin/a").read_bytes() == b"#!"
    assert stat.S_IMODE((root / "usr/bin/a").stat().st_mode) == 0o755
    assert (root / "usr/bin/a").stat().st_mtime == 1234
    assert (root / "usr/bin/a").samefile(root / "usr/bin/b")
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "closed").stat().st_mode) == 0o555
    assert stat.S_IMODE((root / "lies/deep").stat().st_mode) == 0o755
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700


def test_layers_replace_hide_and_keep(store: Store) -> None:
    below = raw_tar(
        member("tmp", kind=DIR, mode=0o1777),
        member("etc/a", b"old"),
        member("etc/gone", b"x"),
        member("etc/sub/x", b"x"),
        member("cache/1", b"x"),
        member("cache/deep/2", b"x"),
        member("was-file", b"x"),
        member("was-dir/x", b"x"),
        member("was-link", kind=LINK, link="etc"),
    )
    above = raw_tar(
        member("etc/a", b"new"),
        member("etc/.wh.gone"),
        member("etc/.wh.sub"),
        member("etc/.wh.never-was"),
        member("cache/new", b"y"),
        member("cache/.wh..wh..opq"),
        member("tmp/x", b"y"),
        member("was-file/y", b"y"),
        member("was-dir", b"y"),
        member("was-link", kind=DIR),
        member("was-link/y", b"y"),
    )
    root = root_of(store, below, above)
    assert listing(root) == [
        "cache", "cache/new", "etc", "etc/a", "tmp", "tmp/x", "was-dir", "was-file",
        "was-file/y", "was-link", "was-link/y",
    ]  # fmt: skip
    assert (root / "etc/a").read_bytes() == b"new"
    # The second layer names /tmp only as the parent of a file: its mode means nothing.
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777


def test_images_share_the_layers_that_they_share(store: Store) -> None:
    shared = raw_tar(member("lib/big", b"x" * 5000))
    one = root_of(store, shared, raw_tar(member("a", b"1")))
    two = root_of(store, shared, raw_tar(member("a", b"2")))
    assert one != two
    assert (one / "lib/big").samefile(two / "lib/big")
    assert (two / "a").read_bytes() == b"2"
    assert root_of(store, shared, raw_tar(member("a", b"1"))) == one
    assert list(store.blobs.tmp.iterdir()) == []


HOSTILE = {
    "leaves upward": [member("../evil", b"x")],
    "leaves deep inside": [member("a/../../evil", b"x")],
    "absolute": [member("/evil", b"x")],
    "through a link": [member("a", kind=LINK, link="/etc"), member("a/evil", b"x")],
    "through a relative link": [member("a", kind=LINK, link=".."), member("a/evil", b"x")],
    "folder over a link": [member("a", kind=LINK, link="/etc"), member("a", kind=DIR)],
    "below a file": [member("a", b"x"), member("a/b", b"x")],
    "hard link outside": [member("a", kind=HARD, link="/etc/passwd")],
    "hard link upward": [member("a", kind=HARD, link="../../etc/passwd")],
    "hard link to nothing": [member("a", kind=HARD, link="b")],
    "hard link to a folder": [member("b", kind=DIR), member("a", kind=HARD, link="b")],
    "hard link to itself": [member("a", kind=HARD, link="a")],
    "device": [member("x", kind=tarfile.BLKTYPE)],
    "fifo": [member("dev/../x", kind=tarfile.FIFOTYPE)],
    "whiteout of the parent": [member("a/.wh...")],
    "whiteout of itself": [member("a/.wh..")],
    "whiteout that is a folder": [member("a/.wh.b", kind=DIR), member("a/.wh.b/c", b"x")],
    "whiteout that is a link": [member("a/.wh.b", kind=LINK, link="c")],
    "whiteout with content": [member("a/.wh.b", b"x")],
    "reserved name": [member("a/.wh..wh.plnk")],
    "too long a name": [member("x" * 300, b"x")],
    "file then folder": [member("a", b"x"), member("a", kind=DIR)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layers(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput) as caught:
        root_of(store, raw_tar(*HOSTILE[name]))
    assert caught.value.code in ("image.bad-layer", "source.odd-path")
    assert not list(tmp_path.rglob("evil"))
    assert list(store.roots.iterdir()) == []
    assert list(store.blobs.tmp.iterdir()) == []


def test_a_layer_may_not_write_through_a_link_of_another(store: Store) -> None:
    with pytest.raises(BadInput) as caught:
        root_of(
            store,
            raw_tar(member("usr/lib", kind=DIR), member("lib", kind=LINK, link="usr/lib")),
            raw_tar(member("lib/x", b"x")),
        )
    assert caught.value.code == "image.through-link"


def test_device_nodes_of_dev_are_left_out_and_said(store: Store) -> None:
    from tests.helpers.server import Notes

    notes = Notes()
    image = image_of(store, raw_tar(member("dev/null", kind=tarfile.CHRTYPE), member("a", b"x")))
    root = image_root(store, image, notes)
    assert listing(root) == ["a", "dev"]
    assert ["device nodes" in line for line in notes.lines] == [True]


def layered(store: Store, blob: bytes, diff_id: str, media: str = "gzip") -> Image:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
    }
    raw = manifest(store.blobs.put(dumps(config)), [store.blobs.put(blob)])
    digest = store.blobs.put(raw.replace(b"tar+gzip", b"tar+" + media.encode()))
    return read_image(store, digest.sha256)


@pytest.mark.parametrize(
    "blob",
    [
        gzip.compress(raw_tar(member("a", b"x"))),
        gzip.compress(raw_tar(member("a", b"x")))[:-9],
        gzip.compress(raw_tar(member("a", b"x" * 9999)))[:60],
        gzip.compress(b"not a tar" * 999),
        b"not gzip",
        b"",
    ],
    ids=["other diffID", "cut at the end", "cut", "no tar", "no gzip", "empty"],
)
def test_layers_that_are_not_what_the_config_says(store: Store, blob: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        image_root(store, layered(store, blob, 64 * "0"), Silent())
    assert caught.value.code in ("image.diff-id", "image.bad-layer")
    assert list(store.roots.iterdir()) == []


def test_what_follows_the_tar_counts_too(store: Store) -> None:
    tar = raw_tar(member("a", b"x"))
    image = layered(store, gzip.compress(tar + b"more" * 9999), sha256(tar))
    with pytest.raises(BadInput) as caught:
        image_root(store, image, Silent())
    assert caught.value.code == "image.diff-id"


def test_a_flipped_bit_of_the_store_is_not_the_images_fault(store: Store) -> None:
    image = image_of(store, raw_tar(member("a", os.urandom(9999))))
    path = store.blobs.path(image.layers[0].digest.sha256)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Damaged) as caught:
        image_root(store, image, Silent())
    assert caught.value.code == "store.corrupt-blob"


def test_zstd_layers_are_for_engines(store: Store) -> None:
    image = layered(store, b"(\xb5/\xfd", 64 * "0", "zstd")
    with pytest.raises(CannotHere) as caught:
        image_root(store, image, Silent())
    assert caught.value.code == "image.zstd-layer"


def test_a_tree_that_forbids_writing_can_be_removed(tmp_path: Path) -> None:
    inner = tmp_path / "t/a/b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0o500)
    inner.parent.chmod(0o500)
    remove_tree(tmp_path / "t")
    assert not (tmp_path / "t").exists()
    remove_tree(tmp_path / "t")
