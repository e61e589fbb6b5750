"""What the files that the patches add to vLLM do, run as they stand in the patches.

They import nothing of vLLM but each other, so they run here without it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kiln.pins.patch import Patch
from kiln.pins.yaml import load
from kiln.source.diff import parse

PATCHES = Path(__file__).parents[2] / "patches"
SERIES = ("kiln-identity", "p70-auto-strict-ngram", "p75-suffix-decoding")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the files that the series adds, and metadata of vLLM."""
    site = tmp_path / "site"
    for patch in SERIES:
        data = (PATCHES / patch / "0.32.0.patch").read_bytes()
        for diff in parse(data, patch):
            if diff.new:
                path = site / diff.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(line for hunk in diff.hunks for line in hunk.after))
    info = site / "vllm-0.32.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n")
    return site


@pytest.fixture
def module(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports one of the added modules by name, as part of a vllm package of their own."""
    monkeypatch.syspath_prepend(site)
    yield lambda name: importlib.import_module(f"vllm.{name}")
    for name in [*sys.modules]:
        if name.partition(".")[0] == "vllm":
            del sys.modules[name]


@pytest.fixture
def arctic(site: Path) -> None:
    """An arctic_inference that can be found."""
    (site / "arctic_inference").mkdir()
    (site / "arctic_inference/__init__.py").touch()


def config(**fields: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "method": "ngram",
        "model": None,
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 5,
        "prompt_lookup_max": 5,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "suffix_decoding_max_cached_requests": 10000,
    }
    return SimpleNamespace(**(defaults | fields))


def setenv(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"KILN_{name}", value)


Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture

# ---- switches


@pytest.mark.parametrize(("text", "on"), [(None, False), ("0", False), ("1", True)])
def test_flag(module: Load, monkeypatch: MP, text: str | None, on: bool) -> None:
    if text is not None:
        monkeypatch.setenv("X", text)
    assert module("_kiln").flag("X") is on


@pytest.mark.parametrize("text", ["", "yes", "true", "2", " 1", "on"])
def test_a_flag_that_is_neither_is_an_error(module: Load, monkeypatch: MP, text: str) -> None:
    monkeypatch.setenv("X", text)
    with pytest.raises(ValueError, match=r"X=.*0 or 1"):
        module("_kiln").flag("X")


def test_number(module: Load, monkeypatch: MP) -> None:
    kiln = module("_kiln")
    assert kiln.number("X", int, 0) is None
    for text, kind, value in [("0", int, 0), ("8", int, 8), ("2.5", float, 2.5), ("2", float, 2.0)]:
        monkeypatch.setenv("X", text)
        assert kiln.number("X", kind, 0) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", int), ("-1", int), ("1.", int), ("1_0", int), (" 1", int), ("11", int), ("9" * 50, int),
     ("", float), ("nan", float), ("inf", float), ("-0.1", float), ("10.1", float), ("1e1", float)],
)  # fmt: skip
def test_an_odd_number_is_an_error(module: Load, monkeypatch: MP, text: str, kind: type) -> None:
    monkeypatch.setenv("X", text)
    with pytest.raises(ValueError):
        module("_kiln").number("X", kind, 0, 10)


def test_the_switches_in_patch_yaml_are_those_in_the_code(module: Load) -> None:
    p70, p75 = module("_kiln_p70"), module("_kiln_p75")
    for patch, names in [
        ("kiln-identity", set[str]()),
        ("p70-auto-strict-ngram", {p70.FLAG, p70.FLOOR}),
        ("p75-suffix-decoding", {p75.FLAG, *p75.SETTINGS}),
    ]:
        spec = load(PATCHES / patch / "patch.yaml", Patch)
        assert spec.env.keys() == names
    floor = load(PATCHES / "p70-auto-strict-ngram/patch.yaml", Patch).env[p70.FLOOR]
    assert floor.default == str(p70.DEFAULT_FLOOR)


# ---- P70


def test_p70_is_off_by_default(module: Load, caplog: Log) -> None:
    one = config()
    module("_kiln_p70").apply(one)
    assert one == config()
    assert caplog.messages == []


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_p70_raises_both_ends_and_says_so(
    module: Load, monkeypatch: MP, caplog: Log, method: str
) -> None:
    setenv(monkeypatch, P70_STRICT_NGRAM="1")
    one = config(method=method, prompt_lookup_min=2, prompt_lookup_max=5)
    module("_kiln_p70").apply(one)
    assert one == config(method=method, prompt_lookup_min=8, prompt_lookup_max=8)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "prompt_lookup_min 2 -> 8, prompt_lookup_max 5 -> 8" in record.getMessage()


@pytest.mark.parametrize(
    ("window", "floor", "result"),
    [
        ((5, 5), 8, (8, 8)),
        ((8, 8), 8, (8, 8)),
        ((2, 10), 8, (8, 10)),
        ((9, 12), 8, (9, 12)),
        ((5, 5), 3, (5, 5)),
    ],
)
def test_p70_window(
    module: Load, window: tuple[int, int], floor: int, result: tuple[int, int]
) -> None:
    assert module("_kiln_p70").strict_lookup(*window, floor) == result


def test_p70_floor(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P70_STRICT_NGRAM="1", P70_MIN_LOOKUP="12")
    one = config(prompt_lookup_max=10)
    module("_kiln_p70").apply(one)
    assert (one.prompt_lookup_min, one.prompt_lookup_max) == (12, 12)


@pytest.mark.parametrize(
    ("variables", "fields", "said"),
    [
        ({"P70_STRICT_NGRAM": "1"}, {"method": "mtp"}, "no effect: the method is mtp"),
        ({"P70_STRICT_NGRAM": "1"}, {"method": "suffix"}, "no effect: the method is suffix"),
        ({"P70_MIN_LOOKUP": "9"}, {}, "P70_MIN_LOOKUP has no effect"),
    ],
)
def test_p70_says_what_has_no_effect(
    module: Load,
    monkeypatch: MP,
    caplog: Log,
    variables: Mapping[str, str],
    fields: Mapping[str, Any],
    said: str,
) -> None:
    setenv(monkeypatch, **variables)
    one = config(**fields)
    module("_kiln_p70").apply(one)
    assert one == config(**fields)
    assert said in caplog.text


@pytest.mark.parametrize(
    "variables",
    [
        {"P70_STRICT_NGRAM": "yes"},
        {"P70_STRICT_NGRAM": "1", "P70_MIN_LOOKUP": "0"},
        {"P70_MIN_LOOKUP": "eight"},
        {"P70_STRICTNGRAM": "1"},
    ],
)
def test_p70_odd_switches(module: Load, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, **variables)
    with pytest.raises(ValueError, match="KILN_P70_"):
        module("_kiln_p70").apply(config())


# ---- P75


def test_p75_is_off_by_default(module: Load, caplog: Log) -> None:
    one = config()
    module("_kiln_p75").apply(one)
    module("_kiln_p75").require_speculation()
    assert one == config()
    assert caplog.messages == []


@pytest.mark.usefixtures("arctic")
def test_p75_turns_ngram_into_suffix(module: Load, monkeypatch: MP, caplog: Log) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    one = config(model="ngram")
    module("_kiln_p75").apply(one)
    none = dict.fromkeys(["model", "num_speculative_tokens", "prompt_lookup_min",
                          "prompt_lookup_max"])  # fmt: skip
    assert one == config(method="suffix", **none)
    assert "method 'ngram' -> 'suffix'" in caplog.text
    assert "num_speculative_tokens 4 -> None" in caplog.text


@pytest.mark.usefixtures("arctic")
def test_p75_settings_apply_when_set_zero_included(
    module: Load, monkeypatch: MP, caplog: Log
) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_NUM_TOKENS="6", P75_TREE_DEPTH="32",
           P75_SPEC_FACTOR="2.0", P75_MIN_PROB="0", P75_CACHE_REQUESTS="0")  # fmt: skip
    one = config()
    module("_kiln_p75").apply(one)
    assert one.num_speculative_tokens == 6
    assert one.suffix_decoding_max_tree_depth == 32
    assert one.suffix_decoding_max_spec_factor == 2.0
    assert one.suffix_decoding_min_token_prob == 0
    assert one.suffix_decoding_max_cached_requests == 0
    assert "suffix_decoding_max_cached_requests 10000 -> 0" in caplog.text


@pytest.mark.usefixtures("arctic")
def test_p75_leaves_what_a_suffix_config_says(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_SPEC_FACTOR="2.0")
    fields = {"method": "suffix", "num_speculative_tokens": 5,
              "suffix_decoding_max_cached_requests": 0}  # fmt: skip
    one = config(**fields)
    module("_kiln_p75").apply(one)
    assert one == config(**fields, suffix_decoding_max_spec_factor=2.0)
    module("_kiln_p75").apply(one)  # a config is completed again when it is copied
    assert one == config(**fields, suffix_decoding_max_spec_factor=2.0)


@pytest.mark.usefixtures("arctic")
@pytest.mark.parametrize("method", ["mtp", "eagle3", "ngram_gpu", "draft_model"])
def test_p75_refuses_other_methods(module: Load, monkeypatch: MP, method: str) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    with pytest.raises(ValueError, match=f"the method is {method}"):
        module("_kiln_p75").apply(config(method=method))


def test_p75_refuses_no_speculation(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    with pytest.raises(ValueError, match="no speculative config"):
        module("_kiln_p75").require_speculation()


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_p75_needs_arctic_inference(module: Load, monkeypatch: MP, method: str) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    one = config(method=method)
    with pytest.raises(ImportError, match="arctic-inference"):
        module("_kiln_p75").apply(one)
    assert one == config(method=method)


def test_p75_says_what_has_no_effect(module: Load, monkeypatch: MP, caplog: Log) -> None:
    setenv(monkeypatch, P75_SPEC_FACTOR="2.0")
    one = config()
    module("_kiln_p75").apply(one)
    assert one == config()
    assert "KILN_P75_SPEC_FACTOR: no effect, since KILN_P75_SUFFIX is off" in caplog.text


@pytest.mark.usefixtures("arctic")
@pytest.mark.parametrize(
    "variables",
    [
        {"P75_SUFFIX": "true"},
        {"P75_SUFFIX": "1", "P75_MIN_PROB": "1.1"},
        {"P75_SUFFIX": "1", "P75_TREE_DEPTH": "0"},
        {"P75_SUFFIX": "1", "P75_NUM_TOKENS": ""},
        {"P75_SUFFIX": "1", "P75_SPEC_FATCOR": "2"},
    ],
)
def test_p75_odd_switches(module: Load, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, **variables)
    one = config()
    with pytest.raises(ValueError, match="KILN_P75_"):
        module("_kiln_p75").apply(one)
    assert one == config()


# ---- identity

BUILD = {"kiln_id": "a" * 64, "pin": "v0.32.0-cpu", "patch_set": "b" * 64}


def manifest(site: Path, **changes: object) -> Path:
    files = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in site.glob("vllm/*.py")}
    content = {
        "schema": 1,
        **BUILD,
        "vllm": {"version": "0.32.0+cpu", "commit": ""},
        "packages": {"torch": "2.13.0+cpu"},
        "patches": [{"id": "kiln-identity", "sha256": "c" * 64}],
        "files": files,
    }
    path = site / "manifest.json"
    path.write_text(json.dumps(content | changes))
    return path


SERVER = """
import logging, os, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from vllm import _kiln
assert not {"prometheus_client", "numba"} & sys.modules.keys()
_kiln.report(sys.argv[1])
_kiln.report(sys.argv[1])
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess
registry = REGISTRY
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
sys.stdout.write(generate_latest(registry).decode())
"""


def serve(site: Path, path: Path, **env: str) -> tuple[list[str], str]:
    """The series of a process that reports twice, and its log."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(path)],
        env={"PYTHONPATH": str(site), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("kiln_")]
    return sorted(lines), done.stderr


INFO = (
    f'kiln_build_info{{kiln_id="{"a" * 64}",patch_set="{"b" * 64}",'
    'pin="v0.32.0-cpu",vllm_version="0.32.0+cpu"} 1.0'
)
PATCH_INFO = f'kiln_patch_info{{patch="kiln-identity",sha256="{"c" * 64}"}} 1.0'


def test_identity_of_one_process(site: Path) -> None:
    series, log = serve(site, manifest(site))
    assert series == [INFO, "kiln_modified_files 0.0", PATCH_INFO]
    assert "pin v0.32.0-cpu" in log
    assert "a" * 64 in log
    assert "b" * 64 in log
    assert "WARNING" not in log
    assert log.count("Kiln build") == 1


def test_identity_of_several_servers(site: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    first, _ = serve(site, manifest(site), PROMETHEUS_MULTIPROC_DIR=str(shared))
    second, _ = serve(site, manifest(site), PROMETHEUS_MULTIPROC_DIR=str(shared))
    assert first == second == [INFO, "kiln_modified_files 0.0", PATCH_INFO]
    assert len(list(shared.glob("gauge_max_*.db"))) == 2


def test_modified_and_missing_files_are_counted_and_named(site: Path) -> None:
    path = manifest(site)
    (site / "vllm/_kiln_p70.py").write_text("raise SystemExit\n")
    (site / "vllm/_kiln_p75.py").unlink()
    series, log = serve(site, path)
    assert "kiln_modified_files 2.0" in series
    assert "2 of 3 patched files" in log
    assert "_kiln_p70.py" in log
    assert "_kiln_p75.py" in log


def test_names_of_metrics_survive_an_old_vllm(site: Path) -> None:
    series, _ = serve(site, manifest(site))
    assert not any("vllm" in line.partition("{")[0] for line in series)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"kiln_id": ""},
        {"pin": None},
        {"patches": [{"id": "x"}]},
        {"patches": "x"},
        {"files": {}},
        {"files": {"/elsewhere/vllm/_kiln.py": "0" * 64}},
        {"vllm": {"version": "0.23.0", "commit": ""}},
        {"vllm": {}},
    ],
)
def test_a_manifest_that_proves_nothing(
    site: Path, module: Load, changes: Mapping[str, object]
) -> None:
    kiln = module("_kiln")
    path = manifest(site, **changes)
    with pytest.raises(kiln.IdentityError, match="does not prove"):
        kiln.report(str(path))


def test_no_manifest_and_one_that_is_no_json(site: Path, module: Load) -> None:
    kiln = module("_kiln")
    with pytest.raises(kiln.IdentityError, match="FileNotFoundError"):
        kiln.report(str(site / "none.json"))
    (site / "broken.json").write_text('{"schema": 1')
    with pytest.raises(kiln.IdentityError, match="JSONDecodeError"):
        kiln.report(str(site / "broken.json"))


def test_no_vllm_installed(site: Path, module: Load) -> None:
    kiln = module("_kiln")
    (site / "vllm-0.32.0+cpu.dist-info/METADATA").unlink()
    (site / "vllm-0.32.0+cpu.dist-info").rmdir()
    importlib.invalidate_caches()
    with pytest.raises(kiln.IdentityError, match="PackageNotFoundError"):
        kiln.report(str(manifest(site)))
