"""A root of real Debian packages, none of them installed: its own programs find it sound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln.canonical import Digest
from kiln.compile.sandbox import Command, find_sandbox
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.settings import read_settings
from kiln.graph.action import Context, Locked, Step
from kiln.graph.steps import DEB, SYSTEM, TOOLS
from kiln.layer.system import parameters
from kiln.pins.model import Runtime
from kiln.progress import Silent
from kiln.resolve.debian import solve
from kiln.source.entry import Entry, merge
from kiln.source.tree import read_tree, unpack
from kiln.store import Store

pytestmark = [pytest.mark.apt, pytest.mark.net]

BASE = ["base-files", "base-passwd", "libc-bin", "dash", "coreutils", "ca-certificates", "tzdata"]
RUNTIME = Runtime(entrypoint=(), env={}, user="1000:0", cache="/var/cache/vllm")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Digest]]:
    """A store, and the inputs of SYSTEM: "deb:NAME" and "tree:NAME"."""
    store = Store(tmp_path_factory.mktemp("store"))
    debs, suites = solve({"base": BASE}, "bookworm", True, "amd64", Silent())
    files = {d.name: Locked(Digest(d.sha256, d.size), d.name, d) for d in debs}
    StoreFetcher(store, read_settings(), Silent(), suites=suites).fetch(list(files.values()))
    inputs: dict[str, Digest] = {}
    for name, file in files.items():
        inputs[f"deb:{name}"] = file.digest
        inputs[f"tree:{name}"] = run(store, DEB, {"deb": file.digest}, store.blobs.tmp)
    return store, inputs


def run(store: Store, step: Step, inputs: Mapping[str, Digest], tmp: Path) -> Digest:
    params = parameters(RUNTIME) if step is SYSTEM else {}
    return step.run(Context(store, inputs, params, Silent(), tmp))["out"]


def entries(store: Store, digest: Digest) -> list[Entry]:
    return read_tree(store.blobs.path(digest.sha256))


def test_the_root_is_sound(packages: tuple[Store, dict[str, Digest]], tmp_path: Path) -> None:
    store, inputs = packages
    trees = {name: digest for name, digest in inputs.items() if name.startswith("tree:")}
    system = run(store, SYSTEM, inputs, tmp_path)
    made = set()
    for folder in (tmp_path / "here", tmp_path / "a/place elsewhere"):
        folder.mkdir(parents=True)
        made.add(run(store, TOOLS, {**trees, "system": system}, folder))
    (tools,) = made

    everything = merge(entries(store, digest) for digest in (*trees.values(), system, tools))
    files = {entry.path: entry for entry in everything}
    assert not [e.path for e in everything if e.kind == "file" and e.mode & 0o7022]
    assert len([path for path in files if path.startswith("etc/ssl/certs/")]) > 200

    mounts = [Entry(name, "dir", 0o755) for name in ("dev", "proc", "tmp", "sys")]
    root = tmp_path / "root"
    unpack(merge([everything, [m for m in mounts if m.path not in files]]), root)
    said = tmp_path / "said"
    script = """
        set -e
        [ "$(getent passwd 1000)" = 'vllm:*:1000:0:vllm:/var/cache/vllm:/bin/sh' ]
        [ "$(readlink -f /bin/awk)" = /usr/bin/mawk ]
        [ "$(date +%Z)" = UTC ]
        dpkg --audit
        dpkg --verify
        dpkg -S /usr/bin/dash
        openssl verify -CApath /etc/ssl/certs /etc/ssl/certs/ISRG_Root_X1.pem
        ldconfig -p | tail -n 1
    """
    status = find_sandbox(store).run(Command(("/bin/sh", "-c", script), root), said)
    assert status == 0, said.read_text()
    assert said.read_text().splitlines()[:2] == [
        "dash: /usr/bin/dash",
        "/etc/ssl/certs/ISRG_Root_X1.pem: OK",
    ]
