"""Drift as a whole: what the target's version has already, what waits, what is not judged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kiln.drift import compare
from kiln.drift.compare import Drift, find_drift
from kiln.drift.launches import uses
from kiln.errors import KilnError
from kiln.pins.load import load_project
from kiln.pins.model import LaunchSpec, Pin, Preset, Torch, Vllm
from kiln.progress import Silent
from kiln.store import Store
from tests.helpers.drift import MINI, Texts, checkout, diff, make_pin, manifest
from tests.helpers.small import make_wheel

CONFIG = "vllm/config/speculative.py"
TEXT = MINI[CONFIG]
FIX = diff(CONFIG, TEXT, TEXT.replace("prompt_lookup_min = 5", "prompt_lookup_min = 8"))
OTHER = TEXT.replace('self.method == "ngram"', 'self.method in ("ngram", "other")')
FIX_OTHER = diff(CONFIG, OTHER, OTHER.replace("prompt_lookup_min = 5", "prompt_lookup_min = 8"))
OWN = {"patch.yaml": manifest({"==1.0.0": "1.0.0.patch"}), "1.0.0.patch": FIX}
BOTH = {
    "patch.yaml": manifest({"==1.0.0": "1.0.0.patch", "==2.0.0": "2.0.0.patch"}),
    "1.0.0.patch": FIX,
    "2.0.0.patch": FIX_OTHER,
}
Judge = Callable[..., Drift]


@pytest.fixture
def judge(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge pin `small` with one patch on a source of these files (None: its own)."""
    own = Texts(MINI, "1.0.0+tiny")
    monkeypatch.setattr(compare, "pin_source", lambda *_: own)  # resolving has its own tests

    def run(
        patch: Mapping[str, str], new: Mapping[str, str] | None, version: str = "2.0.0"
    ) -> Drift:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        small = make_pin(folder, {"fix": patch})
        to = None
        if new is not None:
            files = {"vllm/__init__.py": "", **new}
            to = str(
                make_wheel(folder, "vllm", version, files)
                if version
                else checkout(folder / "new", new)
            )
        return find_drift(load_project(small.root), "small", to, store, Silent())

    return run


def test_the_own_source_is_judged_where_no_other_is_named(judge: Judge) -> None:
    found = judge(OWN, None)
    assert [(p.state, p.target.fits, p.waits) for p in found.patches] == [("OK", True, False)]
    assert (found.waits, found.contracts, found.version) == (False, None, "1.0.0+tiny")


def test_on_the_own_source_everything_but_ok_waits(judge: Judge) -> None:
    merged = diff(CONFIG, TEXT.replace("_min = 5", "_min = 4"), TEXT)
    found = judge({**OWN, "1.0.0.patch": merged}, None)
    (patch,) = found.patches
    assert (patch.state, patch.retired, patch.waits) == ("ALREADY_UPSTREAM", True, True)


def test_a_misfit_without_a_file_for_the_version_waits(judge: Judge) -> None:
    found = judge(OWN, {**MINI, CONFIG: OTHER})
    (patch,) = found.patches
    assert (patch.state, patch.target.file, patch.waits) == ("CONFLICT", "", True)
    assert found.waits


def test_a_misfit_with_a_file_that_fits_does_not_wait(judge: Judge) -> None:
    found = judge(BOTH, {**MINI, CONFIG: OTHER})
    (patch,) = found.patches
    assert (patch.state, patch.waits) == ("CONFLICT", False)
    assert (patch.target.file, patch.target.fits) == ("patches/fix/2.0.0.patch", True)
    assert not found.waits


def test_a_file_for_the_version_that_does_not_fit_waits(judge: Judge) -> None:
    found = judge(BOTH, {**MINI, CONFIG: f"# a line\n{OTHER}"})
    (patch,) = found.patches
    assert (patch.target.fits, patch.waits) == (False, True)
    assert patch.target.reason == f"OFFSET: {CONFIG}: of 1 hunk: 1 OFFSET by +1"
    fits = judge(BOTH, MINI).patches[0]
    assert (fits.state, fits.target.fits, fits.waits) == ("OK", False, True)


def test_a_patch_that_fits_as_it_is_waits_only_where_a_pin_lists_it(judge: Judge) -> None:
    found = judge(OWN, MINI)
    assert [(p.state, p.target.file, p.waits) for p in found.patches] == [("OK", "", False)]


def test_a_source_of_unknown_version_has_no_files_of_its_own(judge: Judge) -> None:
    found = judge(BOTH, {**MINI, CONFIG: OTHER}, version="")
    (patch,) = found.patches
    assert (found.version, patch.state, patch.target.file, patch.waits) == (
        *("", "CONFLICT", "", True),
    )


def test_a_patch_without_a_file_for_the_pin(judge: Judge) -> None:
    only_new = {"patch.yaml": manifest({"==2.0.0": "2.0.0.patch"}), "2.0.0.patch": FIX_OTHER}
    (patch,) = judge(only_new, None).patches
    assert (patch.state, patch.waits) == ("NO_FILE", True)
    assert patch.reason == "no file for the pin's version (it has: ==2.0.0)"
    (patch,) = judge(only_new, {**MINI, CONFIG: OTHER}).patches
    assert (patch.state, patch.target.fits, patch.waits) == ("NO_FILE", True, False)


RETIRE = f'retire_when:\n  - {{file: {CONFIG}, contains: "native_min", superseded_by: "natives"}}\n'


def test_a_retired_patch_waits_only_for_a_pin_that_lists_it(judge: Judge) -> None:
    own = {**OWN, "patch.yaml": manifest({"==1.0.0": "1.0.0.patch"}, RETIRE)}
    found = judge(own, {**MINI, CONFIG: f"native_min = 8\n{OTHER}"})
    (patch,) = found.patches
    assert (patch.state, patch.retired, patch.waits) == ("SUPERSEDED_BY", True, False)


def test_a_misfit_on_the_own_source_is_said(judge: Judge) -> None:
    found = judge({**OWN, "1.0.0.patch": FIX_OTHER}, {**MINI, CONFIG: OTHER})
    (patch,) = found.patches
    assert (patch.state, patch.reason) == ("OK", "on the pin's own source it is CONFLICT")


def test_a_remapped_parser_is_named_and_waits(judge: Judge) -> None:
    path = "vllm/tool_parsers/__init__.py"
    new = MINI[path].replace(
        '"vllm.tool_parsers.qwen", "Qwen"', '"vllm.tool_parsers.hermes", "Hermes"'
    )
    found = judge(OWN, {**MINI, path: new})
    (change,) = found.changed()
    assert (change.contract, change.name, change.what) == ("tool-parser", "qwen", "remapped")
    assert found.waits
    assert not any(patch.waits for patch in found.patches)


def test_what_cannot_be_compared_is_no_pass(judge: Judge) -> None:
    new = {path: text for path, text in MINI.items() if not path.startswith("vllm/reasoning/")}
    found = judge(OWN, new)
    assert [text.partition(" ")[0] for text in found.partial] == ["reasoning-parser"]


def test_a_patch_that_is_none_is_refused(judge: Judge) -> None:
    with pytest.raises(KilnError) as caught:
        judge({**OWN, "1.0.0.patch": "no patch\n"}, MINI)
    assert (caught.value.code, caught.value.exit_code) == ("patch.corrupt", 2)


def test_uses_of_a_pins_launches() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4}'
    args = ("--tool-call-parser=hermes", "--reasoning_parser", "deep")
    pin = Pin(
        "tiny",
        Vllm("1.0"),
        Torch("2.0"),
        presets={"default": Preset("m", args, {"VLLM_SPEED": "2"})},
        launches={
            "ngram": LaunchSpec((f"--speculative-config={config}",)),
            "odd": LaunchSpec(("-sc", "no json")),
        },
    )
    assert uses(pin) == {
        ("tool-parser", "hermes"): "preset default",
        ("reasoning-parser", "deep"): "preset default",
        ("environment", "VLLM_SPEED"): "preset default",
        ("proposer-v1", "ngram"): "launch ngram",
        ("proposer-v2", "ngram"): "launch ngram",
    }
