"""What there is: patches, their versions, the pins that use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.authoring.listing import list_patches
from kiln.report.patches import list_text
from tests.helpers.patch_work import Bench, added, make_bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = make_bench(tmp_path)
    more = (
        'retire_when:\n  - {file: vllm/x.py, contains: y, superseded_by: "native z"}\n'
        "proof:\n  - {launch: default, runner: Runner, proposer: P, counters: {used: 3}}\n"
        "counters: {used: x}\n"
    )
    bench.patch("base", added("vllm/_base.py", "x = 1\n"), more=more)
    bench.patch("alone", added("vllm/_alone.py", "x = 1\n"), "1.0.0 3.0.0", "unproven: no way\n")
    (bench.root / "patches/alone/3.0.0.patch").unlink()
    bench.write("patches/broken/patch.yaml", "title: x\n")
    return bench


def test_every_patch_is_there_with_its_state_in_each_pin(bench: Bench) -> None:
    found = {patch.id: patch for patch in list_patches(bench.project)}
    assert list(found) == ["alone", "base", "broken", "config", "engine"]
    uses = {use.pin: (use.state, use.ready) for use in found["base"].pins}
    assert uses == {
        "v1": ("1.0.0.patch", True),
        "v2": ("no file (retired where the source has native z)", False),
    }
    assert found["base"].proofs == ("launch default (Runner, P): used >= 3",)
    assert found["alone"].pins == ()
    assert found["alone"].proofs == ("unproven: no way",)
    assert found["alone"].problems == ("3.0.0.patch is not there",)
    assert "pins.missing" in " ".join(found["broken"].problems)


def test_a_pins_own_in_its_order(bench: Bench) -> None:
    found = list_patches(bench.project, "v1")
    assert [patch.id for patch in found] == ["base", "engine", "config"]
    assert {use.pin for patch in found for use in patch.pins} == {"v1"}
    text = list_text(found)
    assert "base  do base\n" in text
    assert "  pin v1  1.0.0: 1.0.0.patch\n" in text


def test_the_command_line(bench: Bench) -> None:
    done = bench.kiln("patch", "list", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [patch["id"] for patch in found] == ["alone", "base", "broken", "config", "engine"]
    assert bench.kiln("patch", "list", "v9").returncode == 2
