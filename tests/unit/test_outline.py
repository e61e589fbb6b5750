"""The outline of a pin without a lock, or with a recipe that cannot be built yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.image.outline import Outline, outline
from kiln.image.plan import plan_pin
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.report.plan import plan_data, plan_text
from kiln.store import Store
from tests.helpers.small import PATCH, Small, make_small

DIGEST = "sha256:" + "6a" * 32
OVERLAY = f"""\
  onbase:
    recipe: overlay
    vllm: {{version: 1.0.0+tiny}}
    base: {{repository: registry.example/vllm, digest: "{DIGEST}"}}
    torch: {{version: "2.0"}}
    patches: [greeting]
"""
DEBIAN = """\
debian:
  release: bookworm
  groups:
    base: [bash, libc6]
    python: [python3.11]
  scripts: {}
"""


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return make_small(tmp_path)


def edit(small: Small, name: str, old: str, new: str) -> None:
    path = small.root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def append(small: Small, name: str, text: str) -> None:
    with (small.root / name).open("a") as file:
        file.write(text)


def add_component(small: Small) -> None:
    edit(small, "pins.yaml", "    patches:", "    components: {extra: '0.1'}\n    patches:")
    files = {
        "build/extra/recipe.yaml": "title: x\nsdist: extra-lib\nroot: cxx\nscript: build.sh\n",
        "build/extra/build.sh": "true\n",
        "build/roots/cxx.yaml": "title: a compiler\nrelease: bookworm\ndebian: [g++]\n"
        "interpreter: /usr/bin/python3.11\nsite: /usr/lib/python3\n",
    }
    for name, text in files.items():
        path = small.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def outlined(small: Small, pin: str = "small") -> Outline:
    return outline(load_project(small.root), pin)


def rows(found: Outline) -> dict[str, str]:
    return {part.name: part.what for part in found.parts}


def codes(error: KilnError) -> list[str]:
    return [e.code for e in error.errors] if isinstance(error, Problems) else [error.code]


def test_a_pin_without_a_lock_has_its_parts_in_the_order_of_the_layers(small: Small) -> None:
    append(small, "images/tiny.yaml", DEBIAN)
    add_component(small)
    found = outlined(small)
    assert [part.name for part in found.parts] == [
        "layer:base",
        "layer:python",
        "layer:system",
        "layer:torch",
        "layer:wheels",
        "layer:vllm",
        "patch:greeting",
        "layer:patches",
        "component:extra",
        "layer:extra",
        "layer:configuration",
        "image",
    ]
    assert found.missing == ("no lock: run `kiln lock small`",)
    assert {part.why for part in found.parts} == set(found.missing)
    what = rows(found)
    assert "bash, libc6" in what["layer:base"]
    assert "bookworm" in what["layer:base"]
    assert "torch 2.0" in what["layer:torch"]
    assert "tiny-vllm==1.0.0" in what["layer:vllm"]
    assert "vllm==1.0.0+tiny" in what["layer:vllm"]
    assert what["patch:greeting"] == "patches/greeting/1.0.0.patch"
    assert "extra-lib 0.1" in what["component:extra"]
    assert "cxx" in what["component:extra"]


def test_a_pin_without_debian_patches_or_components_has_no_rows_for_them(small: Small) -> None:
    edit(small, "pins.yaml", "    patches: [greeting]\n", "")
    names = [part.name for part in outlined(small).parts]
    assert names == [
        "layer:torch",
        "layer:wheels",
        "layer:vllm",
        "layer:configuration",
        "image",
    ]


def test_an_overlay_is_its_base_by_digest_and_what_comes_on_top(small: Small) -> None:
    append(small, "pins.yaml", OVERLAY)
    (small.root / "images/overlay.yaml").write_text(
        "title: on a base\noverlay: true\nmissing: bases are not read yet\n"
    )
    found = outlined(small, "onbase")
    assert [part.name for part in found.parts] == [
        "base",
        "patch:greeting",
        "layer:patches",
        "layer:configuration",
        "image",
    ]
    assert rows(found)["base"] == f"registry.example/vllm@{DIGEST}"
    assert found.missing == ("bases are not read yet",)


def test_what_the_recipe_says_is_missing_is_the_reason_of_every_part(small: Small) -> None:
    append(small, "images/tiny.yaml", "missing: no such machine\n")
    found = outlined(small)
    assert found.missing == ("no such machine",)
    assert {part.why for part in found.parts} == {"no such machine"}


def test_a_patch_without_a_file_for_this_vllm_says_so_and_the_others_keep_theirs(
    small: Small,
) -> None:
    edit(small, "pins.yaml", "[greeting]", "[greeting, later]")
    later = small.root / "patches/later/patch.yaml"
    later.parent.mkdir()
    later.write_text(PATCH.replace("==1.0.0+tiny", ">=2"))
    found = outlined(small)
    part = next(part for part in found.parts if part.name == "patch:later")
    assert part.what == ""
    assert "no file for vLLM 1.0.0+tiny" in part.why
    assert ">=2" in part.why
    assert found.missing == ("no lock: run `kiln lock small`", part.why)
    assert rows(found)["patch:greeting"] == "patches/greeting/1.0.0.patch"


def test_other_faults_of_patches_are_raised_all_at_once(small: Small) -> None:
    edit(small, "pins.yaml", "[greeting]", "[greeting, odd]")
    edit(small, "patches/greeting/patch.yaml", "title:", "requires: [odd]\ntitle:")
    odd = small.root / "patches/odd/patch.yaml"
    odd.parent.mkdir()
    odd.write_text(PATCH.replace("==1.0.0+tiny", "about one"))
    with pytest.raises(Problems) as error:
        outlined(small)
    assert codes(error.value) == ["patch.range", "patch.requires"]


def test_a_component_whose_script_is_gone_is_an_error(small: Small) -> None:
    add_component(small)
    (small.root / "build/extra/build.sh").unlink()
    with pytest.raises(BadInput) as error:
        outlined(small)
    assert error.value.code == "pins.no-script"


def test_plan_guesses_no_sizes_and_ends_with_what_is_missing(small: Small, store: Store) -> None:
    planned = plan_pin(load_project(small.root), None, store, Silent())
    lines = plan_text(planned).splitlines()
    assert all(line.startswith("waits ") for line in lines[:-2])
    assert "unknown" in lines[-2]
    assert lines[-1] == "  - no lock: run `kiln lock small`"
    assert "~" not in "".join(lines)

    data = json.loads(json.dumps(plan_data(planned)))
    assert data["pin"] == "small"
    assert data["missing"] == ["no lock: run `kiln lock small`"]
    assert data["fetch"] is None
    assert {action["bytes"] for action in data["actions"]} == {None}
    assert {action["state"] for action in data["actions"]} == {"waits"}


def test_plan_of_an_unknown_pin_is_an_error(small: Small, store: Store) -> None:
    with pytest.raises(BadInput) as error:
        plan_pin(load_project(small.root), "smal", store, Silent())
    assert error.value.code == "pins.unknown-pin"
