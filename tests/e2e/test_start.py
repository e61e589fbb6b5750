"""Starting a real image in every runner, in every state that a server can be in (G4)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.compile.tools import SYSTEM, Runtime, find_runtime
from kiln.errors import CannotHere, JudgedBad, KilnError
from kiln.gate.model import LaunchPlan, Patch, Work
from kiln.gate.start import judge_launches
from kiln.gate.workloads import WORKLOADS
from kiln.image.read import Image, read_image
from kiln.pins.model import Preset
from kiln.pins.patch import Proof
from kiln.run.bundle import BundleRunner
from kiln.run.client import CallFailed
from kiln.run.docker import DockerRunner
from kiln.run.engine import Engine
from kiln.run.folder import runs
from kiln.run.load import default_name
from kiln.run.runner import Launch, Runner, Server, new_nonce
from kiln.store import Store
from tests.helpers.dockerd import dockerd
from tests.helpers.fake_openai import expected
from tests.helpers.server import Notes
from tests.helpers.tiny_image import tiny_image

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM))
_FOUND = [name for name in ("crun", "runc") if shutil.which(name, path=_PATH)]
KINDS = [*(_FOUND or ["crun"]), "docker"]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    folder = Path(tempfile.mkdtemp(prefix="kiln-e2e-"))
    yield Store(folder)
    assert [path.name for path in runs(Store(folder)).iterdir()] == ["lock"]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(store: Store) -> Image:
    return read_image(store, tiny_image(store).sha256)


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    with dockerd(folder) as url:
        yield url
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(params=KINDS)
def runner(request: pytest.FixtureRequest, store: Store) -> Runner:
    return make_runner(request.param, store, request)


def make_runner(kind: str, store: Store, request: pytest.FixtureRequest) -> Runner:
    notes = Notes()
    if kind == "docker":
        return DockerRunner(store, Engine.connect(request.getfixturevalue("engine_url")), notes)
    if not _FOUND:
        find_runtime(store, notes)  # raises, and says what is missing
    path = shutil.which(kind, path=_PATH)
    assert path is not None
    return BundleRunner(store, Runtime(kind, (path,), "host"), notes)


def launch(model: Path, state: str = "ready", start: float = 30, stop: float = 10) -> Launch:
    args = ("--state", state)
    return Launch(model, new_nonce(), args, {"B": "2"}, start_seconds=start, stop_seconds=stop)


def servers() -> list[str]:
    """The fake servers of ours that run on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if b"/opt/fake_vllm.py\0/models/tiny-model" in line:
                found.append(line.decode())
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left(store: Store) -> Iterator[None]:
    yield
    assert servers() == []
    assert str(store.root) not in Path("/proc/mounts").read_text()


def python(server: Server, code: str) -> str:
    found = server.execute(["/usr/bin/python3", "-S", "-c", code], 20)
    assert found is not None
    assert found[0] == 0, found
    return found[1].decode()


def test_the_very_image_answers_alone(runner: Runner, image: Image, model: Path) -> None:
    start = launch(model)
    with runner.start(image, start) as server:
        assert server.confirms in (f"manifest {image.manifest}", f"config {image.config}")
        assert server.model == start.served_name
        listed = server.client.get("/v1/models").json()
        assert isinstance(listed, dict)
        assert [m["id"] for m in listed["data"]] == [start.served_name]
        stream = server.client.stream(
            "/v1/completions", {"model": server.model, "prompt": "x", "stream": True}
        )
        assert len(stream.events) == 3
        assert stream.done
        assert "starting /models/tiny-model in state ready" in server.log_tail(10)

        # No network but loopback, of the server and of what is run beside it alike.
        namespaces = (
            "import os; print(os.readlink('/proc/1/ns/net'), os.readlink('/proc/self/ns/net'))"
        )
        first, own = python(server, namespaces).split()
        assert first == own
        assert own != str(Path("/proc/self/ns/net").readlink())
        devices = python(server, "print(open('/proc/net/dev').read())").splitlines()
        assert [line.split(":")[0].strip() for line in devices if ":" in line] == ["lo"]
        loopback = "import socket as s; a=s.create_server(('127.0.0.1', 0)); "
        python(server, loopback + "s.create_connection(a.getsockname())")

        # As the image's user, with no rights, and nothing writable but what is declared.
        assert python(server, "import os; print(os.getuid(), os.getgid())") == "1000 0\n"
        status = python(server, "print(open('/proc/self/status').read())").splitlines()
        words = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        assert {words[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert words["NoNewPrivs"] == "1"
        python(server, "for p in ('/tmp/a', '/var/cache/vllm/a', '/dev/shm/a'): open(p, 'w')")
        refused = server.execute(
            ["/usr/bin/python3", "-S", "-c", "open('/models/tiny-model/x', 'w')"], 20
        )
        assert refused is not None
        assert b"Read-only" in refused[2]
        for path in ("/opt/x", "/etc/passwd", "/usr/bin/python3"):
            found = server.execute(["/usr/bin/python3", "-S", "-c", f"open({path!r}, 'a')"], 20)
            assert found is not None
            assert found[0] == 1
        shm = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize)"
        assert int(python(server, shm)) == 1 << 30
        env = "import os; print(os.environ['A'], os.environ['B'], os.getcwd())"
        assert python(server, env) == "image 2 /var/cache/vllm\n"

        assert server.alive()
        assert server.exit_status() is None
        stopped = server.stop()
        assert stopped.clean
        assert stopped.left == ()
        assert server.stop() is stopped
        assert not server.alive()
        assert server.exit_status() == 0


def test_commands_end_in_time(runner: Runner, image: Image, model: Path) -> None:
    with runner.start(image, launch(model)) as server:
        with pytest.raises(CallFailed) as caught:
            server.execute(["/usr/bin/python3", "-S", "-c", "import time; time.sleep(600)"], 1)
        assert caught.value.code == "run.timeout"
        assert server.alive()
        found = server.execute(["/usr/bin/python3", "-S", "-c", "raise SystemExit(5)"], 20)
        assert found == (5, b"", b"")


@pytest.mark.parametrize("state", ["refuse=1.5", "early=1.5"])
def test_ready_is_when_a_token_comes(runner: Runner, image: Image, model: Path, state: str) -> None:
    begin = time.monotonic()
    with runner.start(image, launch(model, state)) as server:
        assert time.monotonic() - begin > 1.5
        assert server.client.get("/health").status == 200


@pytest.mark.parametrize(
    ("state", "code", "words", "exit_code"),
    [
        ("die", "run.died", "ImportError: libfoo.so.1", 1),
        ("oom", "run.gpu-memory", "CUDA out of memory", 4),
        ("hang", "run.start-timeout", "no whole reply", 1),
        ("sleep", "run.start-timeout", "nobody listens", 1),
    ],
)
def test_failed_starts(
    runner: Runner, image: Image, model: Path, state: str, code: str, words: str, exit_code: int
) -> None:
    begin, limit = time.monotonic(), 4 if exit_code == 1 and state != "die" else 60
    with pytest.raises(KilnError) as caught, runner.start(image, launch(model, state, limit)):
        pass
    assert isinstance(caught.value, JudgedBad | CannotHere)
    assert caught.value.code == code
    assert words in caught.value.why
    assert f"in state {state}" in caught.value.why
    assert caught.value.exit_code == exit_code
    assert time.monotonic() - begin < 30  # and not the 60 s of those that died


def test_a_server_that_is_deaf_to_sigterm_is_killed(
    runner: Runner, image: Image, model: Path
) -> None:
    with runner.start(image, launch(model, "deaf", stop=1)) as server:
        stopped = server.stop()
        assert not stopped.clean
        assert stopped.seconds >= 1
        assert stopped.left == ()
        assert server.exit_status() == 137


def test_a_grandchild_does_not_outlive_its_server(
    runner: Runner, image: Image, model: Path
) -> None:
    with runner.start(image, launch(model, "orphan")) as server:
        assert len(servers()) == 2
        stopped = server.stop()
        assert stopped.clean
        assert stopped.left == ()
        assert servers() == []


def test_a_failing_gate_leaves_nothing(runner: Runner, image: Image, model: Path) -> None:
    with pytest.raises(ZeroDivisionError), runner.start(image, launch(model)):
        raise ZeroDivisionError


def test_two_at_once_do_not_meet(runner: Runner, image: Image, model: Path) -> None:
    with runner.start(image, launch(model)) as one, runner.start(image, launch(model)) as two:
        assert one.model != two.model
        assert two.client.post_json("/v1/completions", {"model": one.model}).status == 404
        assert one.alive()


def test_several_launches_of_one_image_are_judged_in_turn(
    runner: Runner, image: Image, model: Path, store: Store
) -> None:
    """A patch that is in use in one launch, idle in the next; a launch that dies in between."""
    speculates, asked = ("--speculative-config=x",), len(WORKLOADS["repeat"].prompts)
    proof = Proof(
        launch="used", runner="FakeRunner", proposer="FakeProposer", counters={"taken": asked}
    )
    works, proofs = (Work("repeat"),), {"fake": (proof,)}
    known = expected(
        digest=image.manifest.sha256,
        pin="tiny",
        kiln_id="1",
        patch_set="2",
        vllm_version="0.0.0",
        patches=(Patch("fake", "3"),),
        extensions={},
        decisions={"fake": ("taken",)},
        launches=(
            LaunchPlan(works=works),
            LaunchPlan("used", speculates, {"FAKE_PATCH": "1"}, True, works, proofs),
            LaunchPlan("dies", ("--state", "die"), {}, False, works, proofs),
            LaunchPlan("idle", speculates, {}, True, works, proofs),
        ),
    )
    preset = Preset("tiny-model", ("--state", "ready"), start_seconds=30)
    evidence = judge_launches(runner, image, preset, {"": model}, known, store, Notes())
    verdicts = {case.id: case.verdict for case in evidence.cases}
    failed = {case.id: case for case in evidence.cases if case.verdict == "fail"}
    assert {name for name in failed if name.startswith(("launch/", "proof/"))} == {
        "launch/dies/start",
        "proof/fake/dies",
        "proof/fake/idle",
    }
    assert failed["proof/fake/idle"].problems == ("not-taken",)
    assert failed["launch/dies/start"].problems == ("run.died",)
    assert "ImportError: libfoo.so.1" in failed["launch/dies/start"].reason
    for name in ("used", "idle"):
        for what in ("identity-before", "speculation", "same-text", "identity-after", "stop"):
            assert verdicts[f"launch/{name}/{what}"] == "pass"
    assert verdicts["proof/fake/used"] == "pass"
    assert [launch.started for launch in evidence.launches] == [True, True, False, True]
    assert [each.counted for each in evidence.proofs] == [{"taken": asked}, {"taken": 0}]


START = """
import sys, time
from pathlib import Path
from kiln.compile.tools import Runtime
from kiln.image.read import read_image
from kiln.progress import Silent
from kiln.run.bundle import BundleRunner
from kiln.run.docker import DockerRunner
from kiln.run.engine import Engine
from kiln.run.runner import Launch, new_nonce
from kiln.store import Store
store = Store(Path(sys.argv[1]))
kind, where = sys.argv[3], sys.argv[4]
runner = (
    DockerRunner(store, Engine.connect(where), Silent())
    if kind == "docker" else BundleRunner(store, Runtime(kind, (where,), "host"), Silent())
)
launch = Launch(Path(sys.argv[5]), new_nonce(), ("--state", sys.argv[6]))
with runner.start(read_image(store, sys.argv[2]), launch) as server:
    print("ready", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def other_kiln(
    kind: str, store: Store, image: Image, model: Path, state: str, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[bytes]]:
    where = request.getfixturevalue("engine_url") if kind == "docker" else None
    where = where or str(shutil.which(kind, path=_PATH))
    command = [sys.executable, "-c", START, str(store.root), image.manifest.sha256, kind, where]
    process = subprocess.Popen(
        [*command, str(model), state], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["ready", "sleep"])
def test_ctrl_c_leaves_nothing(
    kind: str, state: str, store: Store, image: Image, model: Path, request: pytest.FixtureRequest
) -> None:
    with other_kiln(kind, store, image, model, state, request) as process:
        wait_for(lambda: len(servers()) == 1)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert b"KeyboardInterrupt" in process.communicate()[1]
    wait_for(lambda: servers() == [])


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_start_sweeps_after_kill_9(
    kind: str, store: Store, image: Image, model: Path, request: pytest.FixtureRequest
) -> None:
    runner = make_runner(kind, store, request)
    with runner.start(image, launch(model)) as alive:
        with other_kiln(kind, store, image, model, "deaf", request) as process:
            wait_for(lambda: len(servers()) == 2)
            process.kill()
            process.wait()
        assert len(servers()) == 2  # it is still there: nobody could stop it
        with runner.start(image, launch(model)) as server:
            wait_for(lambda: len(servers()) == 2)
            assert server.alive()
            # Only what was dead: a start that lives is left alone.
            assert alive.alive()
            assert alive.client.get("/health").status == 200


def wait_for(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, servers()
        time.sleep(0.05)


def test_docker_starts_the_digest_and_not_the_name(
    store: Store, image: Image, model: Path, engine_url: str
) -> None:
    """R11, R15: somebody gave the image's name to another image."""
    engine = Engine.connect(engine_url)
    runner = DockerRunner(store, engine, Notes())
    with runner.start(image, launch(model)):
        pass
    other = read_image(store, tiny_image(store, user="0:0").sha256)
    name = default_name(image)
    with runner.start(other, launch(model)) as server:
        assert server.confirms.endswith((str(other.config), str(other.manifest)))
    engine.client.images.get(str(other.config)).tag(*name.split(":"))
    assert engine.client.images.get(name).id != engine.client.images.get(str(image.config)).id
    with runner.start(image, launch(model)) as server:
        assert server.confirms.endswith((str(image.config), str(image.manifest)))
        assert python(server, "import os; print(os.getuid())") == "1000\n"
    assert engine.client.containers.list(all=True) == []
    assert engine.client.volumes.list() == []


def test_a_container_that_is_not_ours_is_never_swept(
    store: Store, image: Image, model: Path, engine_url: str
) -> None:
    engine = Engine.connect(engine_url)
    runner = DockerRunner(store, engine, Notes())
    with runner.start(image, launch(model)):
        pass
    foreign = engine.client.containers.create(
        str(image.config), labels={"kiln.gate": "kiln-0", "kiln.store": "elsewhere:/store"}
    )
    try:
        with runner.start(image, launch(model)):
            pass
        assert [c.id for c in engine.client.containers.list(all=True)] == [foreign.id]
    finally:
        foreign.remove(force=True)
