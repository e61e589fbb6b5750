"""Starts against a server that only pretends: when it is ready, and whose fault it is."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from kiln.errors import BadInput, CannotHere, JudgedBad, Unavailable
from kiln.run.client import CallFailed, Client, Reply
from kiln.run.diagnose import died, in_words, too_late
from kiln.run.endpoint import EndpointRunner
from kiln.run.folder import dead, run_folder, runs, sweep
from kiln.run.process import Log, members, pid_namespace, run_bounded
from kiln.run.runner import Launch, Stopped, wait_ready
from kiln.store import Store
from tests.helpers.server import Answer, Notes, Server, closed_port
from tests.unit.test_run_spec import IMAGE

DONE = b'{"choices": [{"text": "x"}]}'


class Pretender:
    """A server whose completions end as the script says; the last entry stays."""

    model, confirms = "m", ""

    def __init__(self, *script: tuple[int, bytes] | str, lives: float = 99, log: str = "") -> None:
        self._script, self._log, self.asked = list(script), log, 0
        self._end = time.monotonic() + lives

    @property
    def client(self) -> Client:
        return self  # type: ignore[return-value]

    def post_json(self, path: str, obj: dict[str, object], seconds: float) -> Reply:
        assert path == "/v1/completions"
        assert obj["max_tokens"] == 1
        self.asked += 1
        entry = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(entry, str):
            if entry == "run.timeout":
                time.sleep(seconds)
            raise CallFailed(entry, entry)
        return Reply(entry[0], {}, entry[1], 0.0)

    def alive(self) -> bool:
        return time.monotonic() < self._end

    def exit_status(self) -> int | None:
        return None if self.alive() else 7

    def log_tail(self, lines: int) -> str:
        return "\n".join(self._log.splitlines()[-lines:])

    def execute(self, argv: object, seconds: float) -> None:
        return None

    def stop(self) -> Stopped:
        return Stopped(0, True)


def test_refusals_and_errors_are_waited_out() -> None:
    server = Pretender("run.refused", "run.broken", (503, b""), (404, b"{}"), (200, DONE))
    assert 0 < wait_ready(server, "m", 20, Notes()) < 20
    assert server.asked == 5


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices": []}', b"<html>choices</html>", b"[]"])
def test_two_hundred_without_a_token_is_not_ready(body: bytes) -> None:
    with pytest.raises(JudgedBad) as caught:
        wait_ready(Pretender((200, body)), "m", 0.4, Notes())
    assert caught.value.code == "run.start-timeout"
    assert "HTTP 200" in caught.value.why


def test_a_hanging_completion_ends_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(JudgedBad) as caught:
        wait_ready(Pretender("run.timeout", log="loading\nengine up"), "m", 0.5, Notes())
    assert caught.value.code == "run.start-timeout"
    assert "engine up" in caught.value.why
    assert time.monotonic() - start < 3


def test_death_is_told_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(JudgedBad) as caught:
        wait_ready(Pretender("run.refused", lives=0.1, log="a\nImportError: x"), "m", 60, Notes())
    assert caught.value.code == "run.died"
    assert "status 7" in caught.value.why
    assert "ImportError: x" in caught.value.why
    assert time.monotonic() - start < 5


ENVIRONMENT = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "run.gpu-memory"),
    (
        "ValueError: Free memory on device cuda:0 (3.1/79 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71 GiB).",
        "run.gpu-memory",
    ),
    (
        "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free "
        "memory 72.4 GiB. This happens when other processes sharing the same container",
        "run.memory-profile",
    ),
    ("Bus error (core dumped)", "run.shared-memory"),
    ("Error while creating shared memory segment /dev/shm/nccl-A (size 9)", "run.shared-memory"),
    ("torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:317", "run.nccl"),
    ("Error 803: system has unsupported display driver / cuda driver combination", "run.driver"),
    ("Error 804: forward compatibility was attempted on non supported HW", "run.driver"),
    ("CUDA driver version is insufficient for CUDA runtime version", "run.driver"),
    ("The NVIDIA driver on your system is too old (found version 11040).", "run.driver"),
    ("RuntimeError: Found no NVIDIA driver on your system.", "run.no-gpu"),
    ("ImportError: libcuda.so.1: cannot open shared object file", "run.no-gpu"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code"), ENVIRONMENT)
def test_the_machines_faults_are_no_verdict(line: str, code: str) -> None:
    """However much the process that noticed last says after it."""
    log = f"INFO start\n(EngineCore pid=9) {line}\n" + "  File x, line 1\n" * 200
    for error in (died(1, log, 3.0), too_late("nobody listens", log, 60)):
        assert isinstance(error, CannotHere)
        assert error.code == code
        assert line in error.why
        assert error.fix
        assert len(error.why.splitlines()) < 40


@pytest.mark.parametrize(
    "log",
    [
        "",
        "ImportError: _C.abi3.so: undefined symbol: _ZN3c10",
        "INFO gpu_memory_utilization=0.9 cuda graphs take memory",
        "ValueError: Unknown attention backend",
        "NCCL version 2.28.9+cuda13.0",
    ],
)
def test_all_else_is_the_images(log: str) -> None:
    assert died(1, log, 1).code == "run.died"
    assert died(1, log, 1).exit_code == 1
    assert too_late("x", log, 1).code == "run.start-timeout"


def test_a_kill_that_was_not_ours() -> None:
    assert died(137, "loading", 1).code == "run.killed"
    assert died(137, "loading", 1).exit_code == 4
    assert "SIGILL" in died(132, "", 1).why
    assert in_words(None) == "an unknown status"
    assert in_words(255) == "status 255"


# ---- folders and processes ------------------------------------------------------------------


def test_a_folder_lives_as_long_as_its_start(store: Store) -> None:
    with run_folder(store, "kiln-1") as folder:
        assert not dead(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "socket").stat().st_mode & 0o777 == 0o777
        assert sweep(store) == []
        (folder / "bundle").mkdir()
        (folder / "bundle/x").touch()
    assert not folder.exists()
    assert dead(folder)


def test_what_a_killed_start_left_is_swept(store: Store) -> None:
    left = runs(store) / "kiln-2"
    (left / "bundle").mkdir(parents=True)
    (left / "lock").touch()
    told = store.root / "told"
    delete = ["sh", "-c", f'echo "$0" > {told}']
    (left / "runtime").write_text(json.dumps(delete))
    argument = ["sh", "-c", "sleep 60; true", "--bundle", str(left / "bundle"), "kiln-2"]
    runtime = subprocess.Popen(argument)
    other = subprocess.Popen([*argument[:4], str(left / "bundle-of-another")])
    try:
        with run_folder(store, "kiln-1") as alive:
            assert sweep(store) == ["kiln-2"]
            assert alive.exists()
        assert told.read_text() == "kiln-2\n"
        assert not left.exists()
        assert runtime.wait(5) == -9
        assert other.poll() is None
    finally:
        other.kill()
        runtime.kill()


def test_commands_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_bounded(["sh", "-c", "echo a; echo b >&2; exit 3"], 10) == (3, b"a\n", b"b\n")
    ended: list[bool] = []
    with pytest.raises(CallFailed) as caught:
        run_bounded(["sleep", "60"], 0.1, lambda: ended.append(True))
    assert caught.value.code == "run.timeout"
    assert ended
    monkeypatch.setattr("kiln.run.process.MAX_OUTPUT", 1000)
    with pytest.raises(CallFailed) as caught:
        run_bounded(["sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxx; done"], 30)
    assert caught.value.code == "run.too-much-output"


def test_logs_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.run.process.MAX_LOG", 100_000)
    count = "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done; printf last"
    process = subprocess.Popen(["sh", "-c", count], stdout=subprocess.PIPE)
    assert process.stdout is not None
    log = Log(process.stdout, tmp_path / "log")
    process.wait()
    log.finish()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 400_000
    assert log.tail(2) == "line 39999\nlast"
    assert len(log.tail(3000).splitlines()) == 3000


def test_members_of_a_namespace() -> None:
    import os

    own = pid_namespace(os.getpid())
    assert own is not None
    assert any(f"process {os.getpid()} " in line for line in members(own))
    assert members(1) == ()
    assert pid_namespace(1 << 22) is None


# ---- endpoints --------------------------------------------------------------------------------


def launch() -> Launch:
    return Launch(Path("/nowhere"), "unused")


def models(*names: str) -> Answer:
    return Answer(json.dumps({"data": [{"id": name} for name in names]}).encode())


def test_an_endpoint_gives_partial_evidence_only() -> None:
    with Server() as server:
        server.on("/v1/models", models("org/model"))
        with EndpointRunner(server.url("")).start(IMAGE, launch()) as found:
            assert found.model == "org/model"
            assert found.alive()
            assert found.confirms == ""
            assert found.exit_status() is None
            assert found.execute(["true"], 1) is None
            assert not found.stop().ours
            assert found.alive()
            with EndpointRunner(server.url(""), "other").start(IMAGE, launch()) as other:
                assert other.model == "other"
        assert server.paths().count("/v1/models") == 3


@pytest.mark.parametrize(
    "answer", [models("a", "b"), models(), Answer(b"{}", 401), Answer(b'{"data": {"x": 1}}')]
)
def test_which_model(answer: Answer) -> None:
    with Server() as server:
        server.on("/v1/models", answer)
        with (
            pytest.raises(BadInput) as caught,
            EndpointRunner(server.url("")).start(IMAGE, launch()),
        ):
            pass
    assert caught.value.code == "run.which-model"


def test_unreachable_endpoints() -> None:
    with (
        pytest.raises(Unavailable) as caught,
        EndpointRunner(f"http://127.0.0.1:{closed_port()}").start(IMAGE, launch()),
    ):
        pass
    assert caught.value.code == "run.unreachable"


def test_the_cause_in_the_engine_is_told_and_the_whole_log_is_kept(store: Store) -> None:
    log = "\n".join(
        [
            "(EngineCore pid=20) ERROR 11-29 17:01:59 [core.py:1510] Traceback (most recent call):",
            "(EngineCore pid=20) ERROR 11-29 17:01:59 [core.py:1510]   File core.py, line 1",
            "(EngineCore pid=20) ERROR 11-29 17:01:59 [core.py:1510] x.CalledProcessError: lscpu",
            *(f"(APIServer pid=1) line {n}" for n in range(100)),
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    server = Pretender("run.refused", lives=0.1, log=log)
    with pytest.raises(JudgedBad) as error:
        wait_ready(server, "m", 60, Notes(), store.blobs)
    assert "EngineCore: x.CalledProcessError: lscpu" in error.value.why
    assert Path(error.value.where).read_text() == log
