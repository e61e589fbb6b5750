"""patch.yaml: which file of a patch is taken, and what patches say of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.lock.model import patch_set_id
from kiln.pins.patch import Patch, PatchFile, PatchVersion, read_series, select
from kiln.pins.project import Project
from tests.helpers.patching import HEADER, HUNK, TREE, apply, new_file, project

# ---- which file of a patch


def spec(*ranges: str) -> Patch:
    versions = tuple(PatchVersion(r, f"{n}.patch") for n, r in enumerate(ranges))
    return Patch(title="t", why="w", origin="o", versions=versions)


@pytest.mark.parametrize(
    ("version", "file"),
    [("0.32.0+cpu", "0.patch"), ("0.23.1rc1.dev748+g2dfaae752", "1.patch"), ("0.24.0", "2.patch")],
)
def test_select(version: str, file: str) -> None:
    patch = spec("==0.32.0", ">0.23.0,<0.24.dev0", ">=0.24.0,<0.25")
    assert select(patch, version, "patch.yaml") == file


def test_select_refuses() -> None:
    for ranges, code in [
        (("==0.32.0",), "patch.no-version"),
        ((">=0.23", "<0.25"), "patch.two-versions"),
        (("about 0.24",), "patch.range"),
    ]:
        with pytest.raises(BadInput) as caught:
            select(spec(*ranges), "0.24.0", "patch.yaml")
        assert caught.value.code == code
    with pytest.raises(BadInput) as caught:
        select(spec("==0.32.0"), "0.24.0", "patch.yaml")
    assert "==0.32.0" in caught.value.why


def found(one: Project, ids: list[str], version: str = "1.0") -> list[KilnError]:
    with pytest.raises(KilnError) as caught:
        read_series(one, ids, version)
    error = caught.value
    return list(error.errors) if isinstance(error, Problems) else [error]


def codes(one: Project, *ids: str, version: str = "1.0") -> list[str]:
    return [error.code for error in found(one, list(ids), version)]


def test_read_series(tmp_path: Path) -> None:
    one = project(
        tmp_path, base="counters: {b: x, a: y}\nunproven: a test", more="requires: [base]"
    )
    series = read_series(one, ["base", "more"], "1.0")
    assert [(p.id, p.file) for p in series] == [
        ("base", "patches/base/1.patch"),
        ("more", "patches/more/1.patch"),
    ]
    assert series[0].data == HEADER + HUNK
    assert (series[0].counters, series[0].rules) == (("a", "b"), "")


def test_read_series_refuses(tmp_path: Path) -> None:
    one = project(tmp_path, base="", more="requires: [base]")
    (tmp_path / "patches/base/1.patch").unlink()
    assert codes(one, "more") == ["patch.requires"]
    assert codes(one, "more", "base") == ["patch.no-file", "patch.requires"]
    assert codes(one, "base", "more", version="2.0") == ["patch.no-version"] * 2
    (error,) = found(one, ["mor"])
    assert error.code == "pins.unknown-patch"
    assert "`more`" in error.fix


def test_each_of_many_faults_is_told_at_once(tmp_path: Path) -> None:
    one = project(tmp_path, a="requires: [b]\nconflicts: [c]", b="", c="title: again")
    assert codes(one, "a", "b", "c", "d") == [
        "pins.duplicate-key", "pins.unknown-patch", "patch.requires", "patch.conflicts",
    ]  # fmt: skip


def test_p11_only_the_order_of_the_pin_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the folder's listing, nor of numbers in names."""
    second = HEADER + HUNK.replace(b"'ten'", b"'TEN'").replace(b"= 10\n", b"= 'ten'\n")
    orders: list[list[PatchFile]] = []
    for listing in (sorted, lambda names: sorted(names, reverse=True)):
        root = tmp_path / str(len(orders))
        one = project(root, p10_b="", p2_a="")
        (root / "patches/p2-a/1.patch").write_bytes(second)
        glob = Path.glob
        monkeypatch.setattr(Path, "glob", lambda s, p, f=listing, g=glob: f(g(s, p)))
        orders.append(read_series(one, ["p10-b", "p2-a"], "1.0"))
        applied = apply(TREE, *orders[-1])
        assert b"'TEN'" in (applied.files["vllm/config/m.py"] or b"")
        with pytest.raises(KilnError) as caught:
            apply(TREE, *read_series(one, ["p2-a", "p10-b"], "1.0"))
        assert caught.value.code == "patch.conflict"
    assert orders[0] == orders[1]


def test_p11_the_order_is_in_the_lock(tmp_path: Path) -> None:
    one = project(tmp_path, a="", b="")
    (tmp_path / "patches/b/1.patch").write_bytes(new_file("vllm/b.py"))
    ids = [patch_set_id(apply(TREE, *read_series(one, order, "1.0")).patches)
           for order in (["a", "b"], ["b", "a"])]  # fmt: skip
    assert ids[0] != ids[1]


# ---- what patches say of each other


def test_requires_names_that_others_provide(tmp_path: Path) -> None:
    one = project(tmp_path, base="provides: [switches]", more="requires: [switches]")
    assert [p.id for p in read_series(one, ["base", "more"], "1.0")] == ["base", "more"]
    (error,) = found(one, ["more", "base"])
    assert (error.code, error.where) == ("patch.requires", "patches/more/patch.yaml:4:12")
    assert "base stands behind it" in error.why
    assert "put base before more" in error.fix


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("conflicts: [b]", ""),
        ("", "conflicts: [a]"),
        ("conflicts: [b]", "conflicts: [a]"),
        ("conflicts: [name]", "provides: [name]"),
        ("provides: [name]", "conflicts: [name]"),
    ],
)
def test_conflicts_in_either_direction_and_either_order(tmp_path: Path, a: str, b: str) -> None:
    one = project(tmp_path, a=a, b=b)
    for ids in (["a", "b"], ["b", "a"]):
        (error,) = found(one, ids)
        assert error.code == "patch.conflicts"
    assert len(read_series(one, ["a"], "1.0")) == 1


def test_two_that_answer_to_one_name(tmp_path: Path) -> None:
    one = project(tmp_path, a="provides: [x]", b="provides: [x]", c="provides: [a]")
    assert codes(one, "a", "b") == ["patch.provides"]
    assert codes(one, "a", "c") == codes(one, "c", "a") == ["patch.provides"]
    assert len(read_series(one, ["b", "c"], "1.0")) == 2


def test_names_that_no_patch_has(tmp_path: Path) -> None:
    one = project(tmp_path, kiln_identity="provides: [flags]", a="requires: [kiln-identiy]",
                  b="conflicts: [flagz]")  # fmt: skip
    (error,) = found(one, ["kiln-identity", "a"])
    assert error.code == "patch.unknown-name"
    assert "`kiln-identity`" in error.fix
    (error,) = found(one, ["b"])
    assert error.code == "patch.unknown-name"
    assert "`flags`" in error.fix


CONTRADICTIONS = {
    "requires itself": "requires: [a]",
    "excludes itself": "conflicts: [a]",
    "excludes its own name": "provides: [x]\nconflicts: [x]",
    "provides its id": "provides: [a]",
    "requires and excludes": "requires: [b]\nconflicts: [b]",
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(tmp_path: Path, name: str) -> None:
    one = project(tmp_path, a=CONTRADICTIONS[name], b="")
    assert "patch.contradiction" in codes(one, "b", "a")


PROOF = "proof: [{launch: ngram, runner: R, "
PROOFS = {
    "counters without a proof": ("counters: {n: x}", 1),
    "both": (f"counters: {{n: x}}\n{PROOF}counters: {{n: 1}}}}]\nunproven: why", 1),
    "an empty reason": ("counters: {n: x}\nunproven: ' '", 1),
    "a proof of nothing": (f"counters: {{n: x}}\n{PROOF}}}]", 1),
    "a counter that is not declared": (f"counters: {{n: x}}\n{PROOF}counters: {{m: 1}}}}]", 1),
    "proven": (f"counters: {{n: x}}\n{PROOF}counters: {{n: 1}}}}]", 0),
    "proven by a setting": (f"{PROOF}settings: {{n: '8'}}}}]", 0),
    "unproven": ("counters: {n: x}\nunproven: needs a GPU", 0),
    "nothing to prove": ("", 0),
}


@pytest.mark.parametrize("name", PROOFS)
def test_proof(tmp_path: Path, name: str) -> None:
    text, wrong = PROOFS[name]
    one = project(tmp_path, a=text)
    if wrong:
        assert codes(one, "a") == ["patch.proof"] * wrong
    else:
        assert len(read_series(one, ["a"], "1.0")) == 1


def test_a_marker_is_in_a_file_of_the_package(tmp_path: Path) -> None:
    for number, file in enumerate(["../x.py", "vllm", "torch/x.py", "vllm//x.py"]):
        one = project(tmp_path / str(number), a=f"retire_when: [{{file: {file}, contains: x}}]")
        assert codes(one, "a") == ["patch.retire-when"]


def test_the_rules_of_a_patch_are_in_its_hash(tmp_path: Path) -> None:
    marker = "retire_when: [{file: vllm/x.py, contains: %s}]"
    one = project(tmp_path, a="", b="leave_out: [docs/**]", c=marker % "x", d=marker % "y")
    rules = {p.rules for p in read_series(one, ["a", "b", "c", "d"], "1.0")}
    assert len(rules) == 4
    assert "" in rules
