"""Launches in pins.yaml, and the proofs of patches that name them: what is refused, where."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.gate.model import LaunchPlan, Work
from kiln.gate.plan import Plan, asks_for_speculation, plan
from kiln.gate.workloads import WORKLOADS
from kiln.lock.request import request
from kiln.pins.load import Project, load_project

PINS = """\
default: cpu
pins:
  cpu:
    recipe: cpu
    vllm: {version: 0.32.0, wheel: vllm==0.32.0}
    torch: {version: 2.13.0}
    patches: [identity, p77, p99]
    presets:
      default:
        model: tiny
        args: [--enforce-eager]
        env: {A: "1"}
    launches:
      ngram:
        args: ['--speculative-config={"method":"ngram"}', --max-num-seqs=2]
        env: {KILN_P77_K: "1"}
      plain:
        env: {KILN_P99: "1"}
  gpu:
    recipe: cpu
    vllm: {version: 0.24.0, wheel: vllm==0.24.0}
    torch: {version: 2.11.0}
    patches: [identity, p77]
    launches:
      ngram-gpu: {args: [--speculative-config=x]}
"""
IDENTITY = """\
title: who it is
why: a test
origin: own
versions: [{range: ">=0.24", file: x.patch}]
proof:
  - {launch: default, runner: CPUModelRunner, settings: {manifest: fits}}
"""
P77 = """\
title: adaptive
why: a test
origin: own
versions: [{range: ">=0.24", file: x.patch}]
counters: {raised: one more, lowered: one less}
proof:
  - launch: ngram
    runner: CPUModelRunner
    proposer: NgramProposer
    counters: {raised: 3}
  - launch: ngram
    runner: CPUModelRunner
    proposer: NgramProposer
    workload: sample
    temperature: 0.8
    counters: {lowered: 3}
  - launch: ngram-gpu
    runner: GPUModelRunner
    proposer: NgramProposerGPU
    counters: {raised: 3}
"""
P99 = """\
title: seen by nobody
why: a test
origin: own
versions: [{range: ">=0.24", file: x.patch}]
unproven: it needs a model that reasons
"""
FILES = {
    "pins.yaml": PINS,
    "images/cpu.yaml": """\
title: CPU
python: {interpreter: /usr/bin/python3.11, site: /usr/lib/python3, scripts: /usr/bin}
runtime: {entrypoint: [vllm, serve], env: {}, user: "1000:0", cache: /var/cache/vllm}
""",
    "patches/identity/patch.yaml": IDENTITY,
    "patches/p77/patch.yaml": P77,
    "patches/p99/patch.yaml": P99,
    "build/models/tiny/recipe.yaml": "title: m\nwheel: llm-m\nroot: cxx\nscript: a.py\n",
    "build/models/tiny/a.py": "",
    "build/roots/cxx.yaml": """\
title: a compiler
release: bookworm
debian: [g++]
interpreter: /usr/bin/python3.11
site: /usr/lib/python3
""",
}
REPEAT, SAMPLE = Work("repeat"), Work("sample", 0.8)


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
    return list(error.errors) if isinstance(error, Problems) else [error]


def one(root: Path, code: str, where: str) -> KilnError:
    (error,) = refuse(root)
    assert (error.code, error.where) == (code, where)
    assert isinstance(error, BadInput)
    return error


def planned(root: Path, *chosen: str, pin: str = "cpu") -> Plan:
    project = load_project(root)
    preset = project.pin("cpu").presets["default"]
    return plan(project, pin, preset, chosen)


# ---- pins.yaml -----------------------------------------------------------------------------------


def test_launches_are_read(root: Path) -> None:
    launches = load_project(root).pin("cpu").launches
    assert [*launches] == ["ngram", "plain"]
    assert launches["ngram"].args[1] == "--max-num-seqs=2"
    assert launches["plain"].env == {"KILN_P99": "1"}


def test_default_is_the_preset_itself(root: Path) -> None:
    change(root, "      plain:\n", "      default:\n")
    one(root, "pins.reserved-launch", "pins.yaml:17:7")


@pytest.mark.parametrize("text", ["{}", "{args: [], env: {}}"])
def test_a_launch_adds_something(root: Path, text: str) -> None:
    change(root, '\n        env: {KILN_P99: "1"}', f" {text}")
    one(root, "pins.empty-launch", "pins.yaml:17:7")


@pytest.mark.parametrize(
    ("arg", "code"),
    [
        ("--uds=/tmp/x", "pins.reserved-arg"),
        ("--served-model-name=x", "pins.reserved-arg"),
        ("--port=80", "pins.reserved-arg"),
        ('"--max-num-seqs 2"', "pins.two-args-in-one"),
    ],
)
def test_arguments_of_a_launch_are_refused_as_those_of_a_preset(
    root: Path, arg: str, code: str
) -> None:
    change(root, "--max-num-seqs=2", arg)
    one(root, code, "pins.yaml:15:59")


def test_so_is_its_environment(root: Path) -> None:
    change(root, "{KILN_P99:", "{VLLM_API_KEY:")
    one(root, "pins.reserved-env", "pins.yaml:18:29")


def test_launches_do_not_make_a_lock_stale(root: Path) -> None:
    project = load_project(root)
    before = request(project, project.pin("cpu"))
    change(root, "--max-num-seqs=2", "--max-num-seqs=3")
    change(
        root,
        "counters: {raised: 3}\n  - launch: ngram\n",
        "counters: {raised: 4}\n  - launch: ngram\n",
        "patches/p77/patch.yaml",
    )
    project = load_project(root)
    assert request(project, project.pin("cpu")) == before


# ---- patch.yaml against pins.yaml ----------------------------------------------------------------


def test_a_proof_is_for_a_launch_of_a_pin_that_has_the_patch(root: Path) -> None:
    change(root, "launch: ngram-gpu", "launch: ngrams", "patches/p77/patch.yaml")
    error = one(root, "pins.unknown-launch", "patches/p77/patch.yaml:17:13")
    assert error.fix == "did you mean `ngram` or `ngram-gpu`?"
    assert error.why == "they have: default, ngram, ngram-gpu, plain"


def test_a_launch_of_a_pin_without_the_patch_does_not_count(root: Path) -> None:
    change(root, "patches: [identity, p77]", "patches: [identity]")
    one(root, "pins.unknown-launch", "patches/p77/patch.yaml:17:13")


def test_a_patch_yaml_that_cannot_be_read_is_told_with_its_series(root: Path) -> None:
    """As before: a project loads although a patch.yaml is broken, but it does not gate."""
    change(root, "title:", "titel:", "patches/p77/patch.yaml")
    load_project(root)
    with pytest.raises(Problems) as caught:
        planned(root)
    assert {error.code for error in caught.value.errors} == {
        "pins.unknown-key",
        "pins.missing-key",
    }


# ---- the plan ------------------------------------------------------------------------------------


def test_all_launches_with_their_proofs(root: Path) -> None:
    found = planned(root)
    default, ngram, plain = found.launches
    assert found.whole
    # It answers for itself, and says what the greedy answers of the others have to be.
    assert (default.name, default.works, default.speculates) == ("default", (REPEAT,), False)
    assert [*default.proofs] == ["identity"]
    assert (ngram.name, ngram.works, ngram.speculates) == ("ngram", (REPEAT, SAMPLE), True)
    assert [proof.counters for proof in ngram.proofs["p77"]] == [{"raised": 3}, {"lowered": 3}]
    assert plain == LaunchPlan("plain", (), {"KILN_P99": "1"})
    assert found.unproven == {"p99": "it needs a model that reasons"}


def test_a_patch_is_unproven_where_no_launch_of_its_pin_proves_it(root: Path) -> None:
    change(root, "    launches:\n      ngram-gpu: {args: [--speculative-config=x]}\n", "")
    change(root, "  - launch: ngram-gpu\n", "  - launch: ngram\n", "patches/p77/patch.yaml")
    assert planned(root, pin="gpu").unproven == {"p77": ""}


def test_another_model_is_asked_what_its_proofs_ask(root: Path) -> None:
    """What the preset's model says is no measure for it, nor is what suits that one."""
    change(root, "      ngram:\n        args", "      ngram:\n        model: tiny\n        args")
    change(root, "workload: sample", "workload: wander", "patches/p77/patch.yaml")
    change(root, "temperature: 0.8", "temperature: 0", "patches/p77/patch.yaml")
    default, ngram, _ = planned(root).launches
    assert (ngram.model, ngram.works) == ("tiny", (REPEAT, Work("wander")))
    assert default.works == (REPEAT,)  # its own proof's


def test_a_launch_has_a_model_that_there_is(root: Path) -> None:
    change(root, "      plain:\n", "      plain:\n        model: tiney\n")
    assert one(root, "pins.unknown-model", "pins.yaml:18:16").fix == "did you mean `tiny`?"


def test_a_launch_that_speculates_repeats_in_any_case(root: Path) -> None:
    change(root, '\n        env: {KILN_P99: "1"}', " {args: [--spec-method=ngram]}")
    assert planned(root).launches[2].works == (REPEAT,)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["--speculative-config={}"], True),
        (["--speculative_config", "{}"], True),
        (["--speculative-config.method=ngram"], True),
        (["-sc", "{}"], True),
        (["-sc={}"], True),
        (["--spec-tokens=4"], True),
        (["--enforce-eager", "--max-model-len=64"], False),
        (["--served=--speculative-config"], False),
        ([], False),
    ],
)
def test_what_asks_for_speculation(args: list[str], wanted: bool) -> None:
    assert asks_for_speculation(args) is wanted


def test_a_preset_may_ask_for_it_too(root: Path) -> None:
    change(root, "[--enforce-eager]", "[--enforce-eager, --speculative-config=x]")
    assert all(launch.speculates for launch in planned(root).launches)


def test_chosen_launches(root: Path) -> None:
    found = planned(root, "ngram")
    assert [launch.name for launch in found.launches] == ["ngram"]
    assert not found.whole
    assert [each.name for each in planned(root, "plain", "default").launches] == [
        "default",
        "plain",
    ]
    assert planned(root, "plain", "default", "ngram") == planned(root)
    with pytest.raises(BadInput) as caught:
        planned(root, "ngram", "ngran")
    assert (caught.value.code, caught.value.fix) == ("gate.no-launch", "did you mean `ngram`?")
    assert caught.value.why == "it has: default, ngram, plain"
    assert caught.value.where == "pins.yaml:13:5"


def test_a_workload_exists(root: Path) -> None:
    change(root, "workload: sample", "workload: samples", "patches/p77/patch.yaml")
    with pytest.raises(BadInput) as caught:
        planned(root)
    assert caught.value.code == "gate.unknown-workload"
    assert caught.value.where == "patches/p77/patch.yaml:14:15"
    assert caught.value.why == f"there are: {', '.join(sorted(WORKLOADS))}"
    assert caught.value.fix == "did you mean `sample`?"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pins.yaml", "--max-num-seqs=2", "--max-num-seqs=3"),
        ("pins.yaml", '{KILN_P99: "1"}', '{KILN_P99: "0"}'),
        ("patches/p77/patch.yaml", "temperature: 0.8", "temperature: 0.9"),
        ("patches/p77/patch.yaml", "{lowered: 3}", "{lowered: 4}"),
        ("patches/identity/patch.yaml", "manifest: fits", "manifest: is"),
        ("patches/p99/patch.yaml", "that reasons", "that thinks"),
    ],
)
def test_evidence_does_not_outlive_its_launches_and_proofs(
    root: Path, name: str, old: str, new: str
) -> None:
    before = planned(root).hash
    assert planned(root).hash == before
    change(root, old, new, name)
    assert planned(root).hash != before


def test_what_proves_nothing_does_not_matter(root: Path) -> None:
    before = planned(root).hash
    change(root, "title: adaptive", "title: adapting", "patches/p77/patch.yaml")
    assert planned(root).hash == before


def test_a_project_without_launches_has_nothing_to_check(root: Path) -> None:
    text = (root / "pins.yaml").read_text()
    start = text.index("    launches:\n      ngram:\n")
    (root / "pins.yaml").write_text(text[:start] + text[text.index("  gpu:\n") :])
    change(root, "    launches:\n      ngram-gpu: {args: [--speculative-config=x]}\n", "")
    assert isinstance(load_project(root), Project)
    assert [each.name for each in planned(root).launches] == ["default"]
