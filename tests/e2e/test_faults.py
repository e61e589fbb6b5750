"""Kills, races and interruptions: whatever happens, the next build gives the digest."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.small import Small, make_small


@pytest.fixture
def built(tmp_path: Path) -> tuple[Small, str]:
    """A small project with a complete lock, and the digest it gives."""
    small = make_small(tmp_path)
    assert small.kiln("lock").returncode == 0
    result = small.kiln("build")
    assert result.returncode == 0, result.stderr
    return small, result.stdout.strip()


def start(small: Small, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kiln", *arguments],
        cwd=small.root,
        env=small.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_killed_at_many_moments_it_builds_to_the_same_digest(built: tuple[Small, str]) -> None:
    small, digest = built
    begin = time.monotonic()
    shutil.rmtree(small.store)
    assert small.kiln("build", "--locked").returncode == 0
    whole = time.monotonic() - begin
    moments = random.Random()  # another run kills at other moments
    killed = 0
    for turn in range(24):
        if turn % 4 == 0:  # from nothing again; between, from whatever the kill left
            shutil.rmtree(small.store, ignore_errors=True)
        process = start(small, "build", "--locked")
        time.sleep(moments.uniform(0.1, 1.0) * whole)
        process.kill()
        process.communicate(timeout=30)
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 5, "the kills came too late to test anything"
    result = small.kiln("build", "--locked")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest
    checked = small.kiln("fsck")
    assert checked.returncode == 0, checked.stdout
    assert not list((small.store / "tmp").iterdir()), "what a crash left is swept"


def test_killed_while_locking_the_lock_is_whole_or_absent(tmp_path: Path) -> None:
    small = make_small(tmp_path)
    path = small.root / "images/locks/small.lock"
    for delay in (0.1, 0.3, 0.5, 0.7, 0.9):
        process = start(small, "lock")
        time.sleep(delay)
        process.kill()
        process.communicate(timeout=30)
        if path.exists():
            assert small.kiln("plan").returncode == 0
    assert small.kiln("lock").returncode == 0
    assert small.kiln("build").returncode == 0


def test_two_builds_at_once_do_not_disturb_each_other(built: tuple[Small, str]) -> None:
    small, digest = built
    shutil.rmtree(small.store)
    processes = [start(small, "build", "--locked") for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.strip() == digest


def test_an_interrupted_build_says_so_and_goes_on(built: tuple[Small, str]) -> None:
    small, digest = built
    shutil.rmtree(small.store)
    process = start(small, "build", "--locked")
    while not (small.store / "actions.db").exists() and process.poll() is None:
        time.sleep(0.002)  # bounded: the process ends
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    # It may have been faster than the signal; it must never be anything else.
    assert process.returncode in (130, 0), err
    if process.returncode == 130:
        assert "Traceback" not in err
    assert small.kiln("build", "--locked").stdout.strip() == digest


def test_no_space_for_the_store_is_an_error_of_the_machine(built: tuple[Small, str]) -> None:
    small, digest = built
    shutil.rmtree(small.store)
    # A limit on the size of files stands for a full disk: the kernel refuses the write.
    limited = subprocess.run(
        ["sh", "-c", f'ulimit -f 8; trap "" XFSZ; exec {sys.executable} -m kiln build --locked'],
        cwd=small.root,
        env=small.environment(),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert limited.returncode in (4, 5), limited.stderr
    assert "Traceback" not in limited.stderr
    result = small.kiln("build", "--locked")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest
