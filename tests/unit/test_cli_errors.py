"""What the command line makes of what a command raises: its exit code and its words."""

from __future__ import annotations

import errno
import json
from typing import NoReturn

import pytest

import kiln.cli
from kiln.errors import BadInput, Unavailable


def run(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a command that raises."""

    def broken(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(kiln.cli.cli, "main", broken)
    with pytest.raises(SystemExit) as stop:
        kiln.cli.main(["build", *arguments])
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def test_a_full_disk_is_this_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    code, out, err = run(full, monkeypatch, capsys)
    assert (code, out) == (4, "")
    assert "[store.no-space]" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_file_that_may_not_be_written_is_named(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(OSError(number, "no", "/some/pin.lock"), monkeypatch, capsys)
    assert code == 4
    assert err.startswith("kiln: /some/pin.lock: ")
    assert "[machine.not-allowed]" in err


@pytest.mark.parametrize("error", [RuntimeError("odd"), FileNotFoundError(errno.ENOENT, "gone")])
def test_a_fault_of_our_own_is_no_verdict(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(error, monkeypatch, capsys)
    assert (code, out) == (70, "")  # and above all not 1: nothing was judged
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141)]
)
def test_an_interrupted_run_says_so_by_its_code(
    error: BaseException,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(error, monkeypatch, capsys)
    assert code == expected
    assert "Traceback" not in err


def test_errors_have_their_class_code_and_are_data_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(BadInput("a.b", "wrong"), monkeypatch, capsys)[0] == 2
    code, out, _ = run(Unavailable("c.d", "gone"), monkeypatch, capsys, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (3, "c.d")
