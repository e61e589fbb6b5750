"""The sandbox's command line, and what it makes of bubblewrap's ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kiln.compile import tools
from kiln.compile.sandbox import (
    Bind,
    Bubblewrap,
    Command,
    Executor,
    check,
    find_sandbox,
    tail,
)
from kiln.compile.tools import Tool
from kiln.errors import CannotHere, JudgedBad, KilnError
from kiln.store import Store

# A bubblewrap of our own: finds the descriptor for reports in $2, then does `BODY`.
FAKE = '#!/bin/sh\nwhile [ "$1" != --json-status-fd ]; do shift; done\nfd=$2\n'
REPORT = 'printf \'{ "child-pid": 1 }\\n{ "exit-code": %s }\\n\' '


def fake(tmp_path: Path, body: str) -> Bubblewrap:
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir(exist_ok=True)
    program.write_text(FAKE + body)
    program.chmod(0o755)
    return Bubblewrap(Tool("bwrap", (str(program),), "host"))


def arguments(command: Command) -> list[str]:
    return Bubblewrap(Tool("bwrap", ("loader", "bwrap"), "closure")).arguments(command, 7)


def pairs(args: list[str], option: str, count: int) -> list[list[str]]:
    return [args[i + 1 : i + 1 + count] for i, arg in enumerate(args) if arg == option]


def command(*argv: str, **more: object) -> Command:
    return Command(argv or ("/bin/true",), Path("/r"), **more)  # type: ignore[arg-type]


def refused(code: str) -> pytest.RaisesExc[KilnError]:
    return pytest.RaisesExc(KilnError, check=lambda error: error.code == code)


# ---- the command line -----------------------------------------------------------------------


def test_nothing_of_the_machine_is_shared() -> None:
    args = arguments(command())
    assert args[:2] == ["loader", "bwrap"]
    for flag in ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"):
        assert flag in args
    assert "--clearenv" in args
    assert "--share-net" not in args
    assert pairs(args, "--cap-drop", 1) == [["ALL"]]
    assert pairs(args, "--uid", 1) == pairs(args, "--gid", 1) == [["1000"]]
    assert pairs(args, "--json-status-fd", 1) == [["7"]]


def test_the_root_is_mounted_first_and_read_only() -> None:
    args = arguments(command(binds=(Bind(Path("/w"), "/build", writable=True),)))
    assert pairs(args, "--ro-bind", 2) == [["/r", "/"]]
    assert pairs(args, "--bind", 2) == [["/w", "/build"]]
    mounts = [a for a in args if a in ("--ro-bind", "--bind", "--proc", "--dev", "--tmpfs")]
    assert mounts == ["--ro-bind", "--proc", "--dev", "--tmpfs", "--bind"]


def test_the_environment_is_fixed_and_the_commands_own_wins() -> None:
    args = arguments(command(env={"TZ": "Asia/Tokyo", "NEW": "1"}))
    env = dict(pairs(args, "--setenv", 2))
    assert env == {
        "HOME": "/tmp/home",
        "LC_ALL": "C.UTF-8",
        "NEW": "1",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
        "TZ": "Asia/Tokyo",
    }
    assert list(env) == sorted(env)


def test_no_word_of_the_command_becomes_an_option() -> None:
    args = arguments(command("--share-net", "--bind", "/", "/"))
    end = args.index("--")
    assert args[end + 1 :] == ["--share-net", "--bind", "/", "/"]
    assert "--share-net" not in args[:end]


def test_a_memory_limit_is_set_by_the_shell_inside() -> None:
    args = arguments(command("cc", "a b; c", memory=3 << 20))
    assert args[args.index("--") + 1 :] == [
        "/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', "3072", "cc", "a b; c",
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["build", "/build/../etc", "/build/", "//build", "", "/./x"])
def test_odd_bind_targets_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="plain absolute path"):
        Bind(Path("/w"), target)


# ---- how it ends ----------------------------------------------------------------------------


def test_the_status_is_the_commands(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, f"echo said; {REPORT} 3 >/proc/self/fd/$fd; exit 3")
    assert sandbox.run(command(), tmp_path / "log") == 3
    assert (tmp_path / "log").read_text() == "said\n"


def test_without_a_report_the_command_never_ran(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "echo 'bwrap: No permissions to create new namespace'; exit 1")
    with refused("sandbox.setup") as error:
        sandbox.run(command(), tmp_path / "log")
    assert "No permissions" in error.value.why
    assert error.value.exit_code == 4


def test_an_exit_0_without_a_report_is_no_success(tmp_path: Path) -> None:
    with refused("sandbox.setup"):
        fake(tmp_path, "exit 0").run(command(), tmp_path / "log")


def test_a_missing_program_is_127_as_in_a_shell(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "echo 'bwrap: execvp cc: No such file or directory'; exit 1")
    assert sandbox.run(command(), tmp_path / "log") == 127


def test_a_killed_sandbox_is_128_and_the_signal(tmp_path: Path) -> None:
    assert fake(tmp_path, "kill -KILL $$").run(command(), tmp_path / "log") == 137


def test_ctrl_c_that_reached_only_bubblewrap_ends_kiln_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fake(tmp_path, "kill -INT $$").run(command(), tmp_path / "log")


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, f"echo $$ > {tmp_path}/pid; echo waiting; exec sleep 60")
    start = time.monotonic()
    with refused("compile.timeout") as error:
        sandbox.run(command("cc", seconds=0.5), tmp_path / "log")
    assert time.monotonic() - start < 10
    assert error.value.why == "waiting"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_nothing_of_our_environment_reaches_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    sandbox = fake(tmp_path, f'echo "<$LD_PRELOAD>"; umask; {REPORT} 0 >/proc/self/fd/$fd')
    old = os.umask(0o077)
    try:
        assert sandbox.run(command(), tmp_path / "log") == 0
    finally:
        os.umask(old)
    assert (tmp_path / "log").read_text() == "<>\n0022\n"


# ---- finding one ----------------------------------------------------------------------------


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one folder in it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tools, "SYSTEM", ())
    return tmp_path


def test_no_bubblewrap_is_a_refusal(store: Store, only: Path) -> None:
    with refused("sandbox.none") as error:
        find_sandbox(store)
    assert error.value.exit_code == 4
    assert "bubblewrap" in error.value.fix


def test_a_bubblewrap_that_may_not_work_is_a_refusal(store: Store, only: Path) -> None:
    fake(only, "echo 'bwrap: setting up uid map: Permission denied'; exit 1")
    with refused("sandbox.none") as error:
        find_sandbox(store)
    assert "uid map" in error.value.why
    assert "user.max_user_namespaces" in error.value.fix


def test_a_bubblewrap_that_works_is_taken(store: Store, only: Path) -> None:
    fake(only, f"{REPORT} 0 >/proc/self/fd/$fd")
    found: Executor = find_sandbox(store)
    assert isinstance(found, Bubblewrap)
    assert found.tool == Tool("bwrap", (str(only / "bin" / "bwrap"),), "host")


# ---- commands that have to end well ------------------------------------------------------------


class Ends:
    """An executor whose commands say `text` and end with `status`."""

    def __init__(self, status: int, text: bytes) -> None:
        self.status, self.text = status, text

    def run(self, command: Command, log: Path) -> int:
        log.write_bytes(self.text)
        return self.status


def test_a_failure_shows_the_end_of_the_log_and_keeps_all_of_it(
    store: Store, tmp_path: Path
) -> None:
    text = b"".join(b"line %d\n" % n for n in range(1000))
    with refused("compile.failed") as error:
        check(Ends(2, text), command(), tmp_path / "log", "the build", store)
    assert isinstance(error.value, JudgedBad)
    assert "status 2" in error.value.what
    assert error.value.why.splitlines()[-1] == "line 999"
    assert len(error.value.why.splitlines()) == 40
    assert Path(error.value.where).read_bytes() == text


def test_success_says_nothing(store: Store, tmp_path: Path) -> None:
    check(Ends(0, b"warning"), command(), tmp_path / "log", "the build", store)
    assert list(store.blobs) == []


def test_a_log_cannot_steer_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b]0;owned\x07ok\ttab\n\xff\xfe\n")
    shown = tail(log)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "ok\ttab" in shown


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (1 << 20))
    assert len(tail(log)) == 1 << 16


def test_cannot_here_is_never_a_verdict() -> None:
    assert not issubclass(CannotHere, JudgedBad)
