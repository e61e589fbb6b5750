from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere, KilnError, Problems
from kiln.lock.file import dump_lock, locks_path, read_lock, write_lock
from kiln.lock.model import (
    Base,
    Closure,
    Deb,
    Encoder,
    Layer,
    Local,
    Lock,
    LockedPatch,
    Outputs,
    PatchedFile,
    Resolved,
    Suite,
    Wheel,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "lock" / "small.lock"


def sha(number: int) -> str:
    return f"{number:064x}"


def deb(name: str, number: int = 1) -> Deb:
    pool = f"pool/main/{name[0]}/{name}/{name}_1.0-1+b1_amd64.deb"
    return Deb(name, "1.0-1+b1", "amd64", pool, 1000 + number, sha(number), "base", "bookworm")


def wheel(name: str, number: int = 1) -> Wheel:
    file = f"{name}-1.0+cpu-py3-none-any.whl"
    return Wheel(name, "1.0+cpu", file, 2000 + number, sha(number), "pytorch-cpu")


SMALL = Lock(
    pin="small",
    resolved=Resolved(
        request={
            "pin": {"recipe": "cpu", "vllm": {"wheel": "vllm==0.23.0"}, "base": None, "models": []},
            "recipe": {"wheels": {"requirements": ["intel-openmp", "ümlaut"], "exclude": {}}},
        },
        closures={
            "image": Closure(
                debs=(deb("bash", 1), deb("libc6", 2)),
                wheels=(wheel("numpy", 3), wheel("torch", 4)),
            ),
            "build/arctic-inference": Closure(
                sources=(Wheel("arctic-inference", "0.1.1", "arctic.tar.gz", 5, sha(5)),)
            ),
        },
        suites={"bookworm": Suite("20250517T094534Z", sha(6))},
        base=Base("docker.io/vllm/vllm-openai", "", f"sha256:{sha(7)}"),
    ),
    local=Local(
        recipe=sha(8),
        components={"arctic-inference": sha(9)},
        patches=(
            LockedPatch(
                "kiln-identity",
                sha(10),
                (PatchedFile("vllm/_kiln.py", "", sha(11)), PatchedFile("vllm/a.py", sha(12), "")),
            ),
            LockedPatch("a-later-one", sha(13), ()),
        ),
        steps={"layer": 1, "bytecode": 2},
        encoder=Encoder("isal", "1.9.1", 1048576),
    ),
    outputs=Outputs(
        layers=(
            Layer("torch", sha(14), Digest(sha(15), 100), 300),
            Layer("base", sha(16), Digest(sha(17), 101), 301),
        ),
        config=Digest(sha(18), 102),
        manifest=Digest(sha(19), 103),
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.lock"
    write_lock(path, SMALL)
    return path


def refuse(path: Path) -> list[KilnError]:
    with pytest.raises(KilnError) as caught:
        read_lock(path)
    error = caught.value
    found = list(error.errors) if isinstance(error, Problems) else [error]
    assert all(isinstance(e, BadInput) and e.exit_code == 2 for e in found)
    return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def one(path: Path, code: str) -> KilnError:
    (error,) = refuse(path)
    assert error.code == code
    assert error.where.startswith(str(path))
    return error


def test_golden(path: Path) -> None:
    """The layout is a contract with everyone who reviews diffs of locks."""
    assert path.read_bytes() == GOLDEN.read_bytes()
    assert read_lock(GOLDEN) == SMALL


def test_round_trip(path: Path) -> None:
    assert read_lock(path) == SMALL
    bare = Lock("bare", Resolved({}))
    write_lock(path.with_name("bare.lock"), bare)
    assert read_lock(path.with_name("bare.lock")) == bare


def test_one_artifact_is_one_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    for name in ("bash", "libc6", "numpy", "torch", "kiln-identity", "a-later-one"):
        assert sum(f'"{name}"' in line and "sha256" in line for line in lines) == (
            2 if name == "torch" else 1  # a wheel and a layer
        )
    for number in range(1, 20):
        assert sum(sha(number) in line for line in lines) == 1
    for key in ("local", "outputs", "pin", "resolved", "schema"):
        assert sum(line.startswith(f'  "{key}": ') for line in lines) == 1


def test_the_order_of_layers_and_patches_is_kept(path: Path) -> None:
    lock = read_lock(path)
    assert lock.outputs is not None
    assert lock.local is not None
    assert [layer.name for layer in lock.outputs.layers] == ["torch", "base"]
    assert [patch.id for patch in lock.local.patches] == ["kiln-identity", "a-later-one"]


def test_locks_path(tmp_path: Path) -> None:
    assert locks_path(tmp_path, "v1") == tmp_path / "images" / "locks" / "v1.lock"


# ---- what is refused ---------------------------------------------------------------------


def test_missing(tmp_path: Path) -> None:
    error = one(tmp_path / "v1.lock", "lock.missing")
    assert "kiln lock v1" in error.fix


def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "v1.lock").mkdir()
    one(tmp_path / "v1.lock", "lock.unreadable")


def test_syntax(path: Path) -> None:
    edit(path, '  "pin": "small",', '  "pin": small,')
    line = GOLDEN.read_text().splitlines().index('  "pin": "small",') + 1
    assert one(path, "lock.syntax").where == f"{path}:{line}"


def test_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    one(path, "lock.syntax")
    path.write_bytes(b"")
    one(path, "lock.syntax")


def test_not_utf8(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace("ü".encode(), b"\xff"))
    one(path, "lock.syntax")


def test_merge_conflict(path: Path) -> None:
    edit(path, '  "pin"', '<<<<<<< ours\n  "pin"')
    assert "merge conflict" in one(path, "lock.syntax").what


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema": 1', '"schema": 1,\n  "extra": 1'),
        ('"index":"pytorch-cpu"', '"index":"pytorch-cpu","host":"x"'),
        ('"size":1001', '"size":"1001"'),
        ('"size":1001', '"size":1001.5'),
        ('"pin": "small",', ""),
        ('"suites": {', '"suits": {'),
        ('"schema": 1', '"schema": 0'),
        ('"schema": 1', '"schema": "1"'),
        ('"recipe": "cpu"', '"recipe": 1.5'),
    ],
)
def test_another_shape(path: Path, old: str, new: str) -> None:
    edit(path, old, new)
    one(path, "lock.schema")


def test_a_schema_of_the_future(path: Path) -> None:
    edit(path, '"schema": 1', '"new": {},\n  "schema": 2')
    error = one(path, "lock.future-schema")
    assert "schema is 2" in error.why


def test_the_lock_of_another_pin(path: Path) -> None:
    other = path.with_name("other.lock")
    path.rename(other)
    assert "small" in one(other, "lock.wrong-pin").what


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('  "pin": "small"', '   "pin": "small"'),  # blanks
        ('"schema": 1\n', '"schema": 1,\n  "schema": 1\n'),  # a key twice
        ("ümlaut", "\\u00fcmlaut"),  # another way to write it
        ('"architecture":"amd64","group":"base"', '"group":"base","architecture":"amd64"'),
        ('{"block":1048576,"name":"isal"', '{"name":"isal","block":1048576'),
        ('"size":102}', '"size":102,"unknown":1}'),
    ],
)
def test_edited_by_hand(path: Path, old: str, new: str) -> None:
    edit(path, old, new)
    error = one(path, "lock.not-canonical")
    line = int(error.where.rsplit(":", 1)[1])
    edited, golden = path.read_bytes().split(b"\n"), GOLDEN.read_bytes().split(b"\n")
    assert edited[: line - 1] == golden[: line - 1]
    assert edited[line - 1] != golden[line - 1]
    assert "kiln lock small" in error.fix


def test_no_newline_at_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    error = one(path, "lock.not-canonical")
    assert error.where == f"{path}:{GOLDEN.read_text().count(chr(10))}"
    assert "end of file" in error.why


def test_something_behind_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")
    one(path, "lock.not-canonical")


def test_an_edited_long_line_shows_where(path: Path) -> None:
    edit(path, '"version":"1.0-1+b1"}', '"version" :"1.0-1+b1"}')
    assert '"version" :"1.0' in one(path, "lock.not-canonical").why


def test_line_ends_of_windows(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert one(path, "lock.not-canonical").where == f"{path}:1"


@pytest.mark.parametrize("number", [*range(1, 7), *range(8, 20)])
@pytest.mark.parametrize("form", ["A" * 64, "a" * 63, "sha256:" + "a" * 64, "x" * 64])
def test_the_form_of_every_hash(path: Path, number: int, form: str) -> None:
    edit(path, sha(number), form)
    one(path, "lock.hash-form")


def test_base_digests_have_their_algorithm(path: Path) -> None:
    edit(path, f"sha256:{sha(7)}", sha(7))
    one(path, "lock.hash-form")
    edit(path, '"index_digest":""', '"index_digest":"latest"')
    assert len(refuse(path)) == 2


def test_an_artifact_twice(path: Path) -> None:
    text = path.read_text()
    line = next(line for line in text.splitlines(True) if '"numpy"' in line)
    path.write_text(text.replace(line, line * 2))
    one(path, "lock.duplicate")


def test_two_versions_of_one_wheel(path: Path) -> None:
    text = path.read_text()
    line = next(line for line in text.splitlines(True) if '"numpy"' in line)
    path.write_text(text.replace(line, line + line.replace('"1.0+cpu"', '"1.1+cpu"')))
    one(path, "lock.duplicate")


def test_wrong_order(path: Path) -> None:
    lines = path.read_text().splitlines(True)
    at = next(number for number, line in enumerate(lines) if '"bash"' in line)
    lines[at], lines[at + 1] = lines[at + 1].replace("}\n", "},\n"), lines[at].replace("},", "}")
    path.write_text("".join(lines))
    one(path, "lock.unsorted")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numpy-1.0+cpu-py3", "../numpy-1.0+cpu-py3"),
        ("numpy-1.0+cpu-py3", ".numpy"),
        ("arctic.tar.gz", "http://x/arctic.tar.gz"),
        ("pool/main/b/bash", "pool/main/../../etc"),
        ("pool/main/b/bash", "/pool/main/b/bash"),
        ('"size":1001', '"size":-1'),
    ],
)
def test_names_that_leave_their_place(path: Path, old: str, new: str) -> None:
    edit(path, old, new)
    one(path, "lock.odd-name")


def test_all_problems_at_once(path: Path) -> None:
    edit(path, sha(1), "x")
    edit(path, sha(19), "y")
    edit(path, "arctic.tar.gz", "a/b")
    assert [e.code for e in refuse(path)] == ["lock.hash-form", "lock.hash-form", "lock.odd-name"]


# ---- writing -----------------------------------------------------------------------------


def test_nothing_wrong_is_written(path: Path) -> None:
    before = path.read_bytes()
    closure = Closure(wheels=(wheel("torch"), wheel("numpy")))
    resolved = msgspec.structs.replace(SMALL.resolved, closures={"image": closure})
    with pytest.raises(BadInput) as caught:
        write_lock(path, msgspec.structs.replace(SMALL, resolved=resolved))
    assert caught.value.code == "lock.unsorted"
    assert path.read_bytes() == before


def test_a_float_is_not_written() -> None:
    with pytest.raises(BadInput) as caught:
        dump_lock(Lock("p", Resolved({"a": 1.5})))
    assert caught.value.code == "lock.schema"


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotHere) as caught:
        write_lock(path, msgspec.structs.replace(SMALL, outputs=None))
    assert caught.value.code == "lock.cannot-write"
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["small.lock"]


def test_a_crash_before_the_rename_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    seen = []

    def crash(source: Path, target: Path) -> None:
        seen.append(source.read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_lock(path, msgspec.structs.replace(SMALL, outputs=None))
    assert path.read_bytes() == before
    assert seen == [dump_lock(msgspec.structs.replace(SMALL, outputs=None))]


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_lock(tmp_path / "new" / "small.lock", SMALL)
    finally:
        os.umask(old)
    assert (tmp_path / "new" / "small.lock").stat().st_mode & 0o777 == 0o644


def test_reading_is_fast(tmp_path: Path) -> None:
    """The no-op path reads a lock; 250 artifacts take about 3 ms on the slowest machine seen."""
    names = [f"p{number:03}" for number in range(125)]
    closure = Closure(debs=tuple(map(deb, names)), wheels=tuple(map(wheel, names)))
    resolved = msgspec.structs.replace(SMALL.resolved, closures={"image": closure})
    path = tmp_path / "small.lock"
    write_lock(path, msgspec.structs.replace(SMALL, resolved=resolved))
    best = 1.0
    for _ in range(10):
        start = time.process_time()
        read_lock(path)
        best = min(best, time.process_time() - start)
    assert best < 0.05
