"""What patches say of themselves, within one process: counts, settings, and their folder."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

PATCHES = ("kiln-identity",)
Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


def folder() -> Path:
    return Path(os.environ["KILN_COUNTERS"])


def files() -> list[str]:
    """The files of the folder, less what differs from process to process."""
    return sorted(",".join(path.name.split(",")[:3]) for path in folder().iterdir())


def test_counts_settings_and_classes(module: Load) -> None:
    kiln = module("_kiln")
    kiln.count("p", "one")
    kiln.count("p", "one", 4)
    kiln.count("q", "one", 0)
    kiln.setting("p", "depth", 8)
    kiln.setting("p", "depth", 9)
    kiln.setting("p", "method", 'a "b", c')
    kiln.runs("GPUModelRunner", "")
    kiln.runs("GPUModelRunner", "NgramProposer")
    assert kiln.said() == (
        {("p", "one"): 5, ("q", "one"): 0},
        {("p", "depth"): "9", ("p", "method"): 'a "b", c'},
        {("GPUModelRunner", "NgramProposer")},
    )


@pytest.mark.parametrize("name", ["", "Upper", "a,b", "../x", "a/b", ".a", "a b", "a" * 65])
def test_a_bad_name_is_an_error(module: Load, name: str) -> None:
    kiln = module("_kiln")
    for names in ((name, "x"), ("x", name)):
        with pytest.raises(ValueError, match="is no name"):
            kiln.count(*names)
        with pytest.raises(ValueError, match="is no name"):
            kiln.setting(*names, 1)
    assert kiln.said() == ({}, {}, set())


def test_a_count_never_falls(module: Load) -> None:
    kiln = module("_kiln")
    kiln.count("p", "x", 2)
    with pytest.raises(ValueError, match="not taken back"):
        kiln.count("p", "x", -1)
    assert kiln.said().counts == {("p", "x"): 2}


def test_no_count_of_several_threads_is_lost(module: Load) -> None:
    kiln = module("_kiln")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [kiln.count("p", "x") for _ in range(3000)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert kiln.said().counts == {("p", "x"): 24000}


def test_a_count_is_cheap(module: Load) -> None:
    """In the hot path of an engine: the best of many runs, as others use this machine too."""
    kiln = module("_kiln")
    kiln.count("p", "x")
    best = min(timeit.repeat(lambda: kiln.count("p", "x"), number=200, repeat=200)) / 200
    assert best < 3e-6


def test_a_counter_that_is_being_made_counts_0(module: Load) -> None:
    kiln = module("_kiln")
    kiln.count("p", "x", 3)
    for length in (0, 7):
        (folder() / f"count,p,y,{length}").write_bytes(b"\1" * length)
    (folder() / ".draft").write_text("{")
    assert kiln.said() == ({("p", "x"): 3, ("p", "y"): 0}, {}, set())


# ---- the folder


def test_the_folder_is_named_at_once_and_made_when_needed(module: Load) -> None:
    kiln = module("_kiln")
    kiln.inherit()
    assert not folder().exists()
    kiln.count("p", "x")
    status = folder().stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == os.geteuid()
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder().iterdir()} == {0o600}
    assert files() == ["count,p,x"]


def test_each_start_has_its_own(module: Load) -> None:
    kiln = module("_kiln")
    kiln.inherit()
    kiln.count("p", "x")
    first = folder()
    kiln.begin()
    assert folder() != first
    assert kiln.said().counts == {}
    kiln.count("p", "x", 2)
    assert kiln.said().counts == {("p", "x"): 2}


def test_the_name_of_a_living_process_is_inherited(module: Load) -> None:
    kiln = module("_kiln")
    kiln.begin()
    name = folder()
    kiln.inherit()
    assert folder() == name
    kiln.count("p", "x")
    kiln.inherit()
    assert folder() == name


def _dead() -> int:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          stdout=subprocess.PIPE, check=True)  # fmt: skip
    return int(done.stdout)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x", "no name that Kiln gives"),
        ("kiln-counters-{uid}-{pid}-{start}-0123456789abcdeg", "no name that Kiln gives"),
        ("kiln-counters-{other}-{pid}-{start}-0123456789abcdef", "is of user {other}"),
        ("kiln-counters-{uid}-{dead}-{start}-0123456789abcdef", "process that has ended"),
        # The same pid, another process: a container that started again.
        ("kiln-counters-{uid}-{pid}-1-0123456789abcdef", "process that has ended"),
    ],
)
def test_a_left_over_name_is_not_used(
    module: Load, monkeypatch: MP, caplog: Log, tmp_path: Path, name: str, words: str
) -> None:
    kiln = module("_kiln")
    own = {
        "uid": os.geteuid(),
        "other": os.geteuid() + 1,
        "pid": os.getpid(),
        "dead": _dead(),
        "start": kiln._started(os.getpid()),
    }
    path = str(tmp_path / name.format(**own))
    monkeypatch.setenv("KILN_COUNTERS", path)
    kiln.inherit()
    assert os.environ["KILN_COUNTERS"] != path
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert words.format(**own) in record.getMessage()
    kiln.count("p", "x")
    assert not Path(path).exists()
    assert kiln.said().counts == {("p", "x"): 1}


@pytest.mark.parametrize("kind", ["file", "link", "open"])
def test_a_folder_that_others_prepared_is_not_used(
    module: Load, caplog: Log, tmp_path: Path, kind: str
) -> None:
    kiln = module("_kiln")
    kiln.begin()
    path = folder()
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(target)
    else:
        path.mkdir()
        path.chmod(0o777)
    # While it is in use, nothing is counted there, and the log says so ...
    kiln.count("p", "x")
    assert "cannot be counted" in caplog.text
    assert not any(target.iterdir())
    with pytest.raises(OSError, match=path.name):
        kiln.said()
    # ... and a process that starts later takes another.
    kiln.inherit()
    assert folder() != path
    kiln.count("p", "x")
    assert kiln.said().counts == {("p", "x"): 1}


def test_what_cannot_be_written_is_logged_and_harms_nothing(module: Load, caplog: Log) -> None:
    kiln = module("_kiln")
    kiln.count("p", "x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        for _ in range(3):
            kiln.count("p", "y")
            kiln.count("p", "x")
        kiln.setting("p", "name", "value")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "decisions y of p cannot be counted" in caplog.messages[0]
    assert "name='value' cannot be said" in caplog.messages[1].replace("setting,p,", "")
    assert kiln.said().counts == {("p", "x"): 4, ("p", "y"): 0}
    assert kiln.said().settings == {}
