"""`kiln drift` by the command line: planted changes, exit codes, and the real wheels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kiln.pins.load import load_project
from tests.helpers.default_pin import ROOT, kiln
from tests.helpers.drift import MINI, checkout, diff, make_pin, manifest
from tests.helpers.small import Small

CONFIG, PROPOSERS = "vllm/config/speculative.py", "vllm/v1/proposers.py"
HERMES = "vllm/tool_parsers/hermes.py"


def changed(path: str, old: str, new: str) -> str:
    assert old in MINI[path]
    return diff(path, MINI[path], MINI[path].replace(old, new))


def patch(text: str) -> dict[str, str]:
    return {"patch.yaml": manifest({"==1.0.0": "1.0.0.patch"}), "1.0.0.patch": text}


PATCHES = {
    "window": patch(changed(CONFIG, "prompt_lookup_min = 5", "prompt_lookup_min = 8")),
    "longer": patch(changed(PROPOSERS, "tokens[-1:]", "tokens[-2:]")),
    "marks": patch(changed(HERMES, "'<tool_call>',", "'<tool_call>', '<call>',")),
}


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return make_pin(tmp_path, PATCHES)


def drift(small: Small, *arguments: str, code: int, **extra: str) -> dict[str, Any]:
    done = small.kiln("drift", "--json", *arguments, **extra)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(small: Small, new: Mapping[str, str], code: int = 1) -> dict[str, Any]:
    folder = checkout(small.root.parent / "new", {**MINI, **new})
    return drift(small, "--to", str(folder), code=code)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {patch["id"]: patch["state"] for patch in found["patches"]}


def test_the_own_source_without_and_with_a_lock(small: Small) -> None:
    found = drift(small, code=0)
    assert set(states(found).values()) == {"OK"}
    assert not found["waits"]
    first = small.kiln("drift")
    assert "not locked: wheel tiny_vllm-1.0.0-py3-none-any.whl" in first.stderr
    assert first.stdout.splitlines()[-1] == "3 patches: 3 OK; nothing to do"
    assert small.kiln("lock").returncode == 0
    assert "not locked" not in small.kiln("drift").stderr
    shutil.rmtree(small.wheels)  # what is in the store is enough
    drift(small, code=0)


def test_an_unlocked_pin_is_judged_offline_the_next_time(small: Small) -> None:
    drift(small, code=0)
    shutil.rmtree(small.wheels)
    drift(small, code=0)


def test_planted_changes_are_each_found_and_named(small: Small) -> None:
    table = MINI["vllm/tool_parsers/__init__.py"]
    found = judged(
        small,
        {
            # one changed line of context
            CONFIG: MINI[CONFIG].replace('if self.method == "ngram" and', "if self.ngram() and"),
            # merged
            PROPOSERS: "import os\n\n\n" + MINI[PROPOSERS].replace("tokens[-1:]", "tokens[-2:]"),
            # a parser's name on another class
            "vllm/tool_parsers/__init__.py": table.replace(
                '"vllm.tool_parsers.qwen", "Qwen"', '"vllm.tool_parsers.hermes", "Hermes"'
            ),
        },
    )
    assert states(found) == {"window": "CONFLICT", "longer": "ALREADY_UPSTREAM", "marks": "OK"}
    assert [patch["waits"] for patch in found["patches"]] == [True, False, False]
    (hunk,) = found["patches"][0]["files"][0]["hunks"]
    assert "if self.ngram() and" in hunk["reason"]
    remaps = [c for c in found["contracts"]["changes"] if c["what"] == "remapped"]
    assert [(c["contract"], c["name"]) for c in remaps] == [("tool-parser", "qwen")]


def test_a_moved_file_is_found_and_named(small: Small) -> None:
    new = {**MINI, "vllm/parsers/hermes.py": MINI[HERMES]}
    del new[HERMES]
    found = drift(small, "--to", str(checkout(small.root.parent / "new", new)), code=1)
    assert states(found)["marks"] == "MOVED"
    assert found["patches"][2]["files"][0]["moved_to"] == "vllm/parsers/hermes.py"


def test_a_pin_on_another_version_and_the_table(small: Small) -> None:
    pins = small.root / "pins.yaml"
    other = "\n".join(pins.read_text().split("pins:\n")[1].splitlines())
    pins.write_text(f"{pins.read_text()}{other.replace('  small:', '  next:', 1)}\n")
    done = small.kiln("drift", "small", "--to", "next")
    assert done.returncode == 0, done.stderr
    assert "for 1.0.0+tiny" in done.stdout
    assert done.stdout.count("1.0.0.patch fits") == 3


def test_exit_codes(small: Small) -> None:
    (wheel,) = small.wheels.glob("tiny_vllm-*")
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-100])
    assert drift(small, code=2)["error"]["code"] == "zip.malformed"
    wheel.unlink()
    nowhere = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    assert drift(small, code=3, **nowhere)["error"]["code"] == "fetch.unreachable"
    wheel.write_bytes(whole)
    drift(small, code=0)
    assert drift(small, "--to", "nowhere", code=2)["error"]["code"] == "drift.unknown-source"
    assert drift(small, "none", code=2)["error"]["code"] == "pins.unknown-pin"


def test_what_cannot_be_judged_is_no_pass(small: Small) -> None:
    new = {path: text for path, text in MINI.items() if not path.startswith("vllm/reasoning/")}
    found = drift(small, "--to", str(checkout(small.root.parent / "new", new)), code=4)
    assert [text.partition(" ")[0] for text in found["partial"]] == ["reasoning-parser"]


# ---- the real wheels


@pytest.mark.net
@pytest.mark.parametrize("to", ["v0.24.0", "v0.32.0-cpu"])
def test_the_shipped_series_on_real_wheels(shared_store: Path, to: str) -> None:
    done = kiln(ROOT, "drift", "v0.23.0", "--to", to, "--json", store=shared_store)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    pins = load_project(ROOT).pins.pins
    assert [patch["id"] for patch in found["patches"]] == list(pins["v0.23.0"].patches)
    for patch in found["patches"]:
        # Each has a file for the version, or a verdict that says why it needs none.
        assert patch["target"]["fits"] or patch["retired"], patch
        assert not patch["waits"], patch
    by_id = {patch["id"]: patch for patch in found["patches"]}
    state = "OFFSET" if to == "v0.24.0" else "CONFLICT"
    assert by_id["p70-auto-strict-ngram"]["state"] == state
    assert found["partial"] == []
    remapped = {c["name"] for c in found["contracts"]["changes"] if c["what"] == "remapped"}
    assert {"qwen3_coder", "glm45"} <= remapped


@pytest.mark.net
@pytest.mark.parametrize("pin", ["v0.23.0", "v0.24.0", "v0.32.0-cpu"])
def test_the_shipped_series_fits_its_own_pins(shared_store: Path, pin: str) -> None:
    done = kiln(ROOT, "drift", pin, store=shared_store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing to do" in done.stdout
