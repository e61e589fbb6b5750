"""The store: whole blobs or none, a table that several builds share, and its check."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from kiln.canonical import Digest, digest, sha256
from kiln.errors import CannotHere, Damaged
from kiln.progress import Silent
from kiln.store import Store
from kiln.store.fsck import check


def test_a_blob_is_found_under_its_hash(store: Store) -> None:
    put = store.blobs.put(b"hello")
    assert put == Digest(sha256(b"hello"), 5)
    assert store.blobs.has(put)
    assert store.blobs.read(put.sha256) == b"hello"
    assert store.blobs.path(put.sha256) == store.root / "blobs" / "sha256" / put.sha256
    assert list(store.blobs) == [put.sha256]


def test_blobs_are_read_only_files(store: Store) -> None:
    assert store.blobs.path(store.blobs.put(b"x").sha256).stat().st_mode & 0o777 == 0o444


def test_an_exception_leaves_no_blob_and_no_file(store: Store) -> None:
    def fail_halfway() -> None:
        with store.blobs.writer() as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert list(store.blobs) == []
    assert list(store.blobs.tmp.iterdir()) == []


def test_other_content_than_expected_is_refused(store: Store) -> None:
    with pytest.raises(Damaged) as error, store.blobs.writer(expect=digest(b"good")) as out:
        out.write(b"bad!")
    assert error.value.code == "store.unexpected-content"
    assert list(store.blobs) == []


def test_a_full_disk_is_an_error_of_the_machine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(CannotHere) as error:
        store.blobs.put(b"x")
    assert error.value.code == "store.no-space"
    assert error.value.exit_code == 4
    monkeypatch.undo()
    assert list(store.blobs) == []


def test_a_missing_blob_says_what_to_do(store: Store) -> None:
    with pytest.raises(Damaged) as error:
        store.blobs.path(sha256(b"gone"))
    assert error.value.code == "store.missing-blob"
    assert "kiln fsck" in error.value.fix


def test_a_name_that_is_no_hash_never_reaches_the_disk(store: Store) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        store.blobs.path("../../etc/passwd")


def test_alternates_are_read_but_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store(tmp_path / "other")
    blob = other.blobs.put(b"far")
    monkeypatch.setenv("KILN_ALTERNATES", str(other.root))
    store = Store(tmp_path / "mine")
    assert store.blobs.has(blob)
    assert store.blobs.read(blob.sha256) == b"far"
    assert list(store.blobs) == []


def test_has_looks_at_the_size(store: Store) -> None:
    put = store.blobs.put(b"abc")
    assert not store.blobs.has(Digest(put.sha256, 4))


def test_two_threads_share_the_table(store: Store) -> None:
    out = store.blobs.put(b"out")

    def write(start: int) -> None:
        for number in range(start, start + 50):
            store.actions.put(sha256(str(number).encode()), f"n{number}", b"{}", {"out": out})

    threads = [threading.Thread(target=write, args=(n * 50,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.actions.items())) == 200
    assert store.actions.get(sha256(b"7")) == {"out": out}


def test_a_damaged_table_is_an_error_of_the_store(tmp_path: Path) -> None:
    Store(tmp_path / "s")
    for name in ("actions.db-wal", "actions.db-shm"):
        (tmp_path / "s" / name).unlink(missing_ok=True)
    (tmp_path / "s" / "actions.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(Damaged) as error:
        Store(tmp_path / "s")
    assert error.value.code == "store.table"
    assert error.value.exit_code == 5


def test_a_full_disk_is_no_damage_of_the_table(store: Store) -> None:
    # SQLite's own limit answers as a full disk does.
    store.actions._run("pragma max_page_count = 1")
    with pytest.raises(CannotHere) as error:
        store.actions.put(sha256(b"k"), "n", b"x" * (1 << 20), {})
    assert error.value.code == "store.no-space"


def test_a_locked_table_is_busy_and_not_damaged(store: Store) -> None:
    store.actions._run("pragma busy_timeout = 1")
    other = sqlite3.connect(store.actions.path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(CannotHere) as error:
        store.actions.put(sha256(b"k"), "n", b"{}", {})
    other.close()
    assert error.value.code == "store.busy"
    store.actions.put(sha256(b"k"), "n", b"{}", {})


def test_a_store_of_another_user_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Damaged) as error:
        Store(store.root)
    assert error.value.code == "store.foreign-owner"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotHere) as error:
        Store(tmp_path / "file" / "store")
    assert error.value.code == "store.cannot-create"


def test_nobody_collects_while_somebody_builds(store: Store) -> None:
    with (
        store.building(),
        store.building(),
        pytest.raises(CannotHere) as error,
        store.collecting(),
    ):
        pass
    assert error.value.code == "store.busy"
    with store.collecting():
        pass


def test_sweep_removes_what_a_crash_left_but_not_while_building(store: Store) -> None:
    left = store.blobs.tmp / "blob-left"
    left.write_bytes(b"half")
    with store.building():
        store.sweep()
        assert left.exists()
    store.sweep()
    assert not left.exists()


def test_fsck_sets_a_flipped_bit_aside_and_forgets_its_result(store: Store) -> None:
    good, bad = store.blobs.put(b"good"), store.blobs.put(b"soon bad")
    store.actions.put(sha256(b"k"), "layer:x", b"{}", {"out": bad})
    store.actions.put(sha256(b"l"), "layer:y", b"{}", {"out": good})
    path = store.blobs.path(bad.sha256)
    path.chmod(0o644)
    path.write_bytes(b"soon baD")
    report = check(store, Silent())
    assert report.corrupt == (bad.sha256,)
    assert report.forgotten == ("layer:x",)
    assert report.damaged
    assert (store.root / "corrupt" / bad.sha256).read_bytes() == b"soon baD"
    assert store.actions.get(sha256(b"k")) is None
    assert store.actions.get(sha256(b"l")) == {"out": good}
    assert not check(store, Silent()).damaged


def test_fsck_notices_a_missing_blob(store: Store) -> None:
    gone = store.blobs.put(b"gone")
    store.actions.put(sha256(b"k"), "layer:x", b"{}", {"out": gone})
    store.blobs.remove(gone.sha256)
    assert check(store, Silent()).forgotten == ("layer:x",)


def test_reading_a_flipped_blob_is_an_error(store: Store) -> None:
    blob = store.blobs.put(b"good")
    path = store.blobs.path(blob.sha256)
    path.chmod(0o644)
    path.write_bytes(b"bad!")
    with pytest.raises(Damaged) as error:
        store.blobs.read(blob.sha256)
    assert error.value.code == "store.corrupt-blob"
