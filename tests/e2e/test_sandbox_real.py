"""The sandbox and what runs in it, for real: with this machine's kernel and bubblewrap.

The first tests use the machine itself as the root; the others real packages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from kiln.canonical import JSON, Digest
from kiln.compile import tools
from kiln.compile.root import TreePart, materialise, root_inputs
from kiln.compile.sandbox import Bind, Bubblewrap, Command, find_sandbox
from kiln.compile.tools import find_runtime, install_tools
from kiln.errors import JudgedBad
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.settings import read_settings
from kiln.graph.action import Graph, Input, Locked, Node
from kiln.graph.build import build
from kiln.graph.steps import BYTECODE, COMPONENT
from kiln.lock.model import Wheel
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.run import isolate
from kiln.source.entry import data_entry
from kiln.source.tree import read_tree, write_tree
from kiln.store import Store
from tests.helpers import foreign
from tests.helpers.wheels import INSTALL

ROOT = Path(__file__).parents[2]
ARCTIC = Wheel(
    name="arctic-inference",
    version="0.1.1",
    file="arctic_inference-0.1.1.tar.gz",
    size=122018,
    sha256="36857e2fbe3ead34821a04be98dfab95086050c1e38199c8fdfe308234fdcf63",
)
PYTHON = ("dash", "coreutils", "python3.11")


@pytest.fixture
def sandbox(store: Store) -> Bubblewrap:
    return find_sandbox(store)


def sh(sandbox: Bubblewrap, log: Path, script: str, **more: object) -> tuple[int, str]:
    command = Command(("/bin/sh", "-c", script), Path("/"), **more)  # type: ignore[arg-type]
    return sandbox.run(command, log), log.read_text()


# ---- the world inside ------------------------------------------------------------------------


def test_there_is_no_network(sandbox: Bubblewrap, tmp_path: Path) -> None:
    status, said = sh(sandbox, tmp_path / "log", "cat /proc/net/dev")
    assert status == 0
    assert [line.split(":")[0].strip() for line in said.splitlines()[2:]] == ["lo"]


def test_the_root_is_read_only(sandbox: Bubblewrap, tmp_path: Path) -> None:
    for place in ("/x", "/etc/x", "/usr/x"):
        status, said = sh(sandbox, tmp_path / "log", f"echo x > {place}")
        assert status != 0
        assert "Read-only file system" in said
    assert sh(sandbox, tmp_path / "log", "echo x > /tmp/x && cat /tmp/x") == (0, "x\n")


def test_the_environment_is_clean(
    sandbox: Bubblewrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    old = os.umask(0o077)
    try:
        status, said = sh(sandbox, tmp_path / "log", "env; umask; id -u; id -g; uname -n; ls /tmp")
    finally:
        os.umask(old)
    assert status == 0
    assert "s3cret" not in said
    assert said.splitlines()[-5:] == ["0022", "1000", "1000", "kiln", "home"]


def test_no_descriptor_is_inherited(sandbox: Bubblewrap, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        _, said = sh(sandbox, tmp_path / "log", "ls /proc/$$/fd")
    assert set(said.split()) <= {"0", "1", "2", "10"}  # 10: a shell's own


def test_only_writable_binds_can_be_written(sandbox: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    binds = (Bind(tmp_path / "in", "/tmp/in"), Bind(tmp_path / "out", "/tmp/out", writable=True))
    script = "echo x > /tmp/out/x && ! echo x > /tmp/in/x"
    status, _ = sh(sandbox, tmp_path / "log", script, binds=binds)
    assert status == 0
    assert list((tmp_path / "in").iterdir()) == []
    made = tmp_path / "out/x"
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (os.geteuid(), 0o644)


def test_there_are_no_other_processes_and_no_powers(sandbox: Bubblewrap, tmp_path: Path) -> None:
    script = "ls /proc | grep -c '^[0-9]'; grep CapEff /proc/self/status"
    _, said = sh(sandbox, tmp_path / "log", script)
    count, caps = said.splitlines()
    assert int(count) < 8
    assert int(caps.split()[1], 16) == 0


@pytest.mark.root
def test_an_ordinary_user_sees_the_same_world(sandbox: Bubblewrap, tmp_path: Path) -> None:
    script = "id -u; id -g; env; umask; ls -ln /tmp; cat /proc/net/dev | wc -l"
    command = Command(("/bin/sh", "-c", script), Path("/"))
    said = []
    for user in ([], ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]):
        with (tmp_path / "status").open("w") as status:
            argv = [*user, *sandbox.arguments(command, status.fileno())]
            done = subprocess.run(
                argv, check=True, capture_output=True, text=True, pass_fds=[status.fileno()]
            )
        said.append([line for line in done.stdout.splitlines() if "home" not in line])
    assert said[0] == said[1]
    assert said[0][:2] == ["1000", "1000"]


@pytest.mark.root
def test_a_machine_without_user_namespaces_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kiln.store import Store\n"
        "from kiln.compile.sandbox import find_sandbox; from kiln.errors import KilnError\n"
        "try: find_sandbox(Store(Path(sys.argv[1])))\n"
        "except KilnError as error: print(error.code, error.exit_code)\n"
    )
    # A user namespace of our own, in which no further one may be made.
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    argv = ["unshare", "-Ur", "/bin/sh", "-c", forbid, "sh", sys.executable, "-c", code]
    done = subprocess.run(
        [*argv, str(tmp_path / "store")], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "sandbox.none 4\n"


# ---- how it ends -----------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """Processes of this machine with `mark` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not marked(mark)


def test_a_timeout_kills_the_whole_tree(sandbox: Bubblewrap, tmp_path: Path) -> None:
    mark = f"9{os.getpid()}1"
    with pytest.raises(JudgedBad) as error:
        sh(sandbox, tmp_path / "log", f"sleep {mark} & setsid sleep {mark}", seconds=1)
    assert error.value.code == "compile.timeout"
    assert gone(mark)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_kiln(tmp_path: Path, number: signal.Signals) -> None:
    mark = f"9{os.getpid()}2"
    code = (
        "import sys; from pathlib import Path; from kiln.store import Store\n"
        "from kiln.compile.sandbox import Command, find_sandbox\n"
        "sandbox = find_sandbox(Store(Path(sys.argv[1]) / 'store'))\n"
        "command = Command(('/bin/sh', '-c', sys.argv[2]), Path('/'))\n"
        "sandbox.run(command, Path(sys.argv[1]) / 'log')\n"
    )
    script = f"setsid sleep {mark} & echo started; sleep {mark}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), script], stderr=subprocess.DEVNULL
    )
    log, deadline = tmp_path / "log", time.monotonic() + 30
    while not (log.is_file() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(20)
    assert gone(mark)


def test_a_memory_limit_holds(sandbox: Bubblewrap, tmp_path: Path) -> None:
    script = "head -c 300m /dev/zero | tail > /dev/null"
    assert sh(sandbox, tmp_path / "log", script)[0] == 0
    status, _ = sh(sandbox, tmp_path / "log", script, memory=100 << 20)
    assert status != 0


# ---- from the closure --------------------------------------------------------------------------


@pytest.mark.net
@pytest.mark.apt
def test_bubblewrap_of_the_closure(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_closure(store, monkeypatch, tmp_path)
    sandbox = find_sandbox(store)
    assert sandbox.tool.origin == "closure"
    assert sh(sandbox, tmp_path / "log", "exit 7")[0] == 7
    status, said = sh(sandbox, tmp_path / "log", "id -u; cat /proc/net/dev")
    assert (status, said.splitlines()[0], "eth" in said) == (0, "1000", False)


@pytest.mark.root
@pytest.mark.net
@pytest.mark.apt
def test_crun_of_the_closure_runs_a_bundle(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = materialise(store, [TreePart(tree) for tree in foreign.trees(store, "dash")])
    _install_closure(store, monkeypatch, tmp_path)
    runtime = find_runtime(store, Silent())
    assert (runtime.name, runtime.origin) == ("crun", "closure")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "rootfs").symlink_to(root)
    (bundle / "config.json").write_text(
        '{"ociVersion": "1.0.2", "root": {"path": "rootfs", "readonly": true},'
        ' "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/",'
        '  "args": ["/bin/sh", "-c", "echo from $$"], "env": ["PATH=/usr/bin:/bin"]},'
        ' "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],'
        ' "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}'
    )
    options = ["--cgroup-manager=disabled", "--root", str(tmp_path / "state")]
    done = subprocess.run(
        [
            *(sys.executable, isolate.__file__, "--host", "--cgroups", "--"),
            *(*runtime.argv, *options, "run", "--bundle", str(bundle), "kiln-test"),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": os.defpath},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "from 1\n", "")


def _install_closure(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tools of Debian's packages, and a PATH without the host's."""
    closure = foreign.trees(store, "bubblewrap", "crun")
    install_tools(store, [TreePart(tree) for tree in closure])
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(tools, "SYSTEM", ())


# ---- steps -------------------------------------------------------------------------------------


class NoFetch:
    """All is there."""

    def fetch(self, wanted: object) -> None:
        assert not wanted


def outputs(store: Store, node: Node) -> dict[str, str]:
    made = build(store, Graph([node]), node.name, NoFetch(), Silent())[node.name]
    return {name: digest.sha256 for name, digest in made.items()}


@pytest.mark.net
@pytest.mark.apt
def test_bytecode_is_the_same_in_any_store_and_on_one_core(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    results = []
    for name, use in (("a", cores), ("a longer/b", {min(cores)})):
        store = Store(tmp_path / name)
        trees = foreign.trees(store, *PYTHON)
        inputs, root = root_inputs(trees, [], INSTALL)
        stdlib = [
            data_entry(f"{INSTALL.site}/copy/{path.name}", path.read_bytes())
            for path in sorted(Path(os.__file__).parent.glob("*.py"))
        ]
        stdlib.append(data_entry(f"{INSTALL.site}/old.py", b"print 'old'\n"))
        inputs["source"] = write_tree(store.blobs, stdlib)
        params: dict[str, JSON] = {
            "kind": "tree", "filename": "copy", "install": asdict(INSTALL), "checked": False,
            "root": root,
        }  # fmt: skip
        os.sched_setaffinity(0, use)
        try:
            results.append(outputs(store, Node("bytecode", BYTECODE, inputs, params)))
        finally:
            os.sched_setaffinity(0, cores)
    assert results[0] == results[1]
    entries = read_tree(store.blobs.path(results[0]["out"]))
    assert sum(entry.kind == "file" for entry in entries) == len(stdlib) - 1
    assert b"old.py" in store.blobs.read(results[0]["skipped"])


@pytest.mark.net
@pytest.mark.apt
@pytest.mark.slow
def test_arctic_inference_builds_twice_to_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name, umask, zone in (("a", 0o022, "UTC"), ("another place", 0o077, "Asia/Tokyo")):
        monkeypatch.setenv("TZ", zone)
        old = os.umask(umask)
        try:
            results.append(outputs(*_arctic(Store(tmp_path / name))))
        finally:
            os.umask(old)
    assert results[0] == results[1]


def _arctic(store: Store) -> tuple[Store, Node]:
    project = load_project(ROOT)
    component = project.component("arctic-inference")
    recipe = project.build_root(component.root)
    inputs, root = root_inputs(
        foreign.trees(store, *recipe.debian), foreign.wheels(store, *recipe.wheels), INSTALL
    )
    # Kiln's own fetcher: pip would run the sdist to see what it needs.
    locked = Locked(Digest(ARCTIC.sha256, ARCTIC.size), ARCTIC.file, ARCTIC)
    StoreFetcher(store, read_settings(), Silent()).fetch([locked])
    folder = ROOT / "build/arctic-inference"
    script = folder / component.script
    files = [data_entry(script.name, script.read_bytes())]
    more: dict[str, Input] = {"sdist": locked, "recipe": write_tree(store.blobs, files)}
    params: dict[str, JSON] = {
        "name": "arctic-inference", "version": "0.1.1", "sdist": ARCTIC.file,
        "script": component.script, "expect": list(component.expect), "root": root,
    }  # fmt: skip
    return store, Node("arctic", COMPONENT, {**inputs, **more}, params)
