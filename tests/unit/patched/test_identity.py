"""kiln-identity: which build is running, and what its patches do, on /metrics."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.helpers.patched import spec

PATCHES = ("kiln-identity", "p70-auto-strict-ngram", "p75-suffix-decoding")
Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture

BUILD = {"kiln_id": "a" * 64, "pin": "v0.32.0-cpu", "patch_set": "b" * 64}
DECLARED = {"kiln-identity": [], "p70-auto-strict-ngram": ["window-raised", "other"]}


def said_version(site: Path) -> str:
    """What vLLM calls itself there."""
    (info,) = site.glob("vllm-*.dist-info")
    return info.name.removeprefix("vllm-").removesuffix(".dist-info")


def manifest(site: Path, **changes: object) -> Path:
    files = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in site.glob("vllm/*.py")}
    content = {
        "schema": 2,
        **BUILD,
        "vllm": {"version": said_version(site), "commit": ""},
        "packages": {"torch": "2.13.0+cpu"},
        "patches": [{"id": p, "sha256": "c" * 64, "counters": c} for p, c in DECLARED.items()],
        "files": files,
    }
    path = site / "manifest.json"
    path.write_text(json.dumps(content | changes))
    return path


class App:
    """As much of FastAPI as the identity needs: routes, the first of which answers."""

    def __init__(self) -> None:
        self.routes: list[tuple[str, Callable[[], Any]]] = []

    def get(self, path: str, **_: object) -> Callable[[Callable[[], Any]], None]:
        return lambda function: self.routes.append((path, function))


def report(identity: ModuleType, registry: CollectorRegistry, path: Path) -> App:
    app = App()
    identity.report(app, registry, bytes, str(path))
    return app


def page(registry: CollectorRegistry) -> list[str]:
    """Kiln's samples on /metrics."""
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if line.startswith("kiln_")]


def build_lines(site: Path) -> list[str]:
    version = said_version(site)
    return [
        f'kiln_build_info{{kiln_id="{"a" * 64}",patch_set="{"b" * 64}",pin="v0.32.0-cpu",'
        f'vllm_version="{version}"}} 1.0',
        *(f'kiln_patch_info{{patch="{p}",sha256="{"c" * 64}"}} 1.0' for p in DECLARED),
        "kiln_modified_files 0.0",
    ]


NO_DECISIONS = [
    'kiln_patch_decisions_total{decision="other",patch="p70-auto-strict-ngram"} 0.0',
    'kiln_patch_decisions_total{decision="window-raised",patch="p70-auto-strict-ngram"} 0.0',
]
FITS = 'kiln_patch_setting_info{name="manifest",patch="kiln-identity",value="fits"} 1.0'


def test_patch_yaml_says_what_it_shows() -> None:
    patch = spec("kiln-identity")
    assert not patch.env
    assert not patch.counters
    assert {tuple(proof.settings.items()) for proof in patch.proof} == {(("manifest", "fits"),)}


def test_a_server_that_has_done_nothing(site: Path, module: Load, caplog: Log) -> None:
    caplog.set_level("INFO")
    registry = CollectorRegistry()
    report(module("_kiln_identity"), registry, manifest(site))
    assert sorted(page(registry)) == sorted([*build_lines(site), *NO_DECISIONS, FITS])
    assert "pin v0.32.0-cpu" in caplog.messages[0]
    assert "a" * 64 in caplog.messages[0]
    assert "b" * 64 in caplog.messages[0]
    assert "kiln-identity, p70-auto-strict-ngram" in caplog.messages[1]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_what_patches_do_is_shown_as_it_happens(site: Path, module: Load) -> None:
    kiln, registry = module("_kiln"), CollectorRegistry()
    report(module("_kiln_identity"), registry, manifest(site))
    kiln.count("p70-auto-strict-ngram", "window-raised", 2)
    kiln.count("undeclared", "too")
    kiln.setting("p75-suffix-decoding", "method", "suffix")
    kiln.runs("CPUModelRunner", "")
    lines = page(registry)
    for line in [
        'kiln_patch_decisions_total{decision="other",patch="p70-auto-strict-ngram"} 0.0',
        'kiln_patch_decisions_total{decision="window-raised",patch="p70-auto-strict-ngram"} 2.0',
        'kiln_patch_decisions_total{decision="too",patch="undeclared"} 1.0',
        'kiln_patch_setting_info{name="method",patch="p75-suffix-decoding",value="suffix"} 1.0',
        'kiln_runtime_info{proposer="",runner="CPUModelRunner"} 1.0',
    ]:
        assert lines.count(line) == 1
    text = generate_latest(registry).decode()
    assert "# TYPE kiln_patch_decisions_total counter" in text
    assert "# TYPE kiln_runtime_info gauge" in text


def test_it_reports_once_and_to_every_registry(site: Path, module: Load, caplog: Log) -> None:
    caplog.set_level("INFO")
    identity, path = module("_kiln_identity"), manifest(site)
    first, second = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    for registry in (first, first, second):
        report(identity, registry, path)
    assert page(first) == page(second) != []
    assert sum("Kiln build" in message for message in caplog.messages) == 1


def test_modified_and_missing_files_are_counted_and_named(
    site: Path, module: Load, caplog: Log
) -> None:
    path, registry = manifest(site), CollectorRegistry()
    (site / "vllm/_kiln_p70.py").write_text("raise SystemExit\n")
    (site / "vllm/_kiln_p75.py").unlink()
    report(module("_kiln_identity"), registry, path)
    assert "kiln_modified_files 2.0" in page(registry)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "2 of 4 patched files" in warning
    assert "_kiln_p70.py" in warning
    assert "_kiln_p75.py" in warning


def test_no_metric_has_a_name_that_an_old_vllm_would_drop(site: Path, module: Load) -> None:
    registry = CollectorRegistry()
    report(module("_kiln_identity"), registry, manifest(site))
    assert not any("vllm" in line.partition("{")[0] for line in page(registry))


def test_decisions_that_cannot_be_read_are_absent(
    site: Path, module: Load, caplog: Log, tmp_path: Path
) -> None:
    """A 0 in their place would say that nothing was decided."""
    kiln, registry = module("_kiln"), CollectorRegistry()
    report(module("_kiln_identity"), registry, manifest(site))
    kiln.count("p70-auto-strict-ngram", "window-raised")
    Path(os.environ["KILN_COUNTERS"]).rename(tmp_path / "elsewhere")
    assert sorted(page(registry)) == sorted(build_lines(site))
    assert "cannot be read" in caplog.text


def test_a_server_that_cannot_count_does_not_start(
    site: Path, module: Load, monkeypatch: MP, tmp_path: Path
) -> None:
    kiln, identity = module("_kiln"), module("_kiln_identity")
    kiln.begin()
    monkeypatch.setenv("KILN_COUNTERS", str(tmp_path / "gone" / "folder"))
    with pytest.raises(identity.IdentityError, match="cannot be counted"):
        report(identity, CollectorRegistry(), manifest(site))


# ---- a manifest that proves nothing


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 1},
        {"kiln_id": ""},
        {"pin": None},
        {"patches": [{"id": "x"}]},
        {"patches": [{"id": "x", "sha256": "c" * 64}]},
        {"patches": [{"id": "x", "sha256": "c" * 64, "counters": [1]}]},
        {"patches": "x"},
        {"files": {}},
        {"files": {"/elsewhere/vllm/_kiln.py": "0" * 64}},
        {"vllm": {"version": "0.22.0", "commit": ""}},
        {"vllm": {}},
    ],
)
def test_a_manifest_that_proves_nothing(
    site: Path, module: Load, changes: Mapping[str, object]
) -> None:
    identity, registry = module("_kiln_identity"), CollectorRegistry()
    with pytest.raises(identity.IdentityError, match="does not prove"):
        report(identity, registry, manifest(site, **changes))
    assert page(registry) == []


def test_no_manifest_and_one_that_is_no_json(site: Path, module: Load) -> None:
    identity, registry = module("_kiln_identity"), CollectorRegistry()
    with pytest.raises(identity.IdentityError, match="FileNotFoundError"):
        report(identity, registry, site / "none.json")
    (site / "broken.json").write_text('{"schema": 2')
    with pytest.raises(identity.IdentityError, match="JSONDecodeError"):
        report(identity, registry, site / "broken.json")


def test_no_vllm_installed(site: Path, module: Load) -> None:
    identity, path = module("_kiln_identity"), manifest(site)
    (info,) = site.glob("vllm-*.dist-info")
    (info / "METADATA").unlink()
    info.rmdir()
    importlib.invalidate_caches()
    with pytest.raises(identity.IdentityError, match="PackageNotFoundError"):
        report(identity, CollectorRegistry(), path)


# ---- two API servers and a worker

# vLLM with two API servers: the first process makes prometheus_client's folder, and the
# route that vLLM adds makes a registry of its own for each request, as its instrumentator
# does. "vllm:" metrics stand for vLLM's own.
SERVERS = """
import json, multiprocessing, os, sys
from vllm import _kiln

def worker(number):
    _kiln.runs("CPUModelRunner", "NgramProposer")
    _kiln.count("p70-auto-strict-ngram", "window-raised", number)

def server(number, pages, kiln):
    from vllm import _kiln_identity
    assert "prometheus_client" not in sys.modules
    import prometheus_client as client
    from prometheus_client import multiprocess
    shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
    client.Counter("vllm:requests", "Own.").inc(number)
    registry = client.CollectorRegistry() if shared else client.REGISTRY
    if shared:
        multiprocess.MultiProcessCollector(registry)
    else:
        client.Info("vllm:cache_config", "Own.").info({"block_size": "16"})

    routes = []
    class App:
        def get(self, path, **_):
            assert path == "/metrics"
            return routes.append

    if kiln:
        _kiln_identity.report(App(), registry, bytes, sys.argv[1])
        _kiln.count("p75-suffix-decoding", "switched")

    @App().get("/metrics")
    def metrics():
        fresh = registry
        if shared:
            fresh = client.CollectorRegistry()
            multiprocess.MultiProcessCollector(fresh)
        return client.generate_latest(fresh)

    pages.put(routes[0]().decode())

if __name__ == "__main__":
    _kiln.begin()
    context = multiprocessing.get_context("spawn")
    pages = context.Queue()
    for target, arguments in [(worker, (2,)), (worker, (3,)),
                              (server, (1, pages, True)), (server, (2, pages, True)),
                              (server, (0, pages, False))]:
        child = context.Process(target=target, args=arguments)
        child.start()
        if target is server:
            print(json.dumps(pages.get(timeout=60)))
        child.join()
        assert not child.exitcode
"""


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "multiprocess"])
def test_any_of_several_servers_shows_all(site: Path, tmp_path: Path, shared: bool) -> None:
    (site / "vllm/__init__.py").write_text("from . import _kiln\n_kiln.inherit()\n")
    program = site / "servers.py"
    program.write_text(SERVERS)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)} if shared else {}
    done = subprocess.run(
        [sys.executable, str(program), str(manifest(site))],
        env={"PYTHONPATH": str(site), "TMPDIR": str(tmp_path), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, without = [json.loads(line).splitlines() for line in done.stdout.splitlines()]
    for lines, switched in [(first, 1), (second, 2)]:
        shown = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}
        raised = '{decision="window-raised",patch="p70-auto-strict-ngram"}'
        assert shown[f"kiln_patch_decisions_total{raised}"] == "5.0"
        other = '{decision="switched",patch="p75-suffix-decoding"}'
        assert shown[f"kiln_patch_decisions_total{other}"] == f"{switched}.0"
        runner = '{proposer="NgramProposer",runner="CPUModelRunner"}'
        assert shown[f"kiln_runtime_info{runner}"] == "1.0"
        assert sum(line.startswith("kiln_build_info{") for line in lines) == 1
    # vLLM's own are what they would be without Kiln, and in nobody's way.
    own = [line for line in second if line.startswith("vllm:")]
    assert any(line.startswith("vllm:requests_total") for line in own)
    if shared:
        assert not [path for path in folder.iterdir() if b"kiln" in path.read_bytes()]
        assert [line for line in without if "kiln_" in line] == []
        assert own == [line for line in without if line.startswith("vllm:")]
    else:
        assert 'vllm:cache_config_info{block_size="16"} 1.0' in own


def test_the_page_is_read_fast(site: Path, module: Load) -> None:
    """A look at /metrics with the files of a large start: 64 processes, 8 decisions each."""
    kiln, registry = module("_kiln"), CollectorRegistry()
    report(module("_kiln_identity"), registry, manifest(site))
    for _ in range(64):
        for number in range(8):
            kiln.count("p", f"d{number}")
        kiln._here.forget()
    import time

    times: list[Any] = []
    for _ in range(10):
        start = time.perf_counter()
        lines = page(registry)
        times.append(time.perf_counter() - start)
    assert 'kiln_patch_decisions_total{decision="d0",patch="p"} 64.0' in lines
    assert min(times) < 0.25
