"""Planted changes: the schema of an operator, in Python and in a compiled library."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.canonical import sha256
from kiln.drift import elf
from kiln.drift.contracts import Change, Comparison, compare_contracts
from kiln.drift.elf import parse_schema, read_library
from kiln.drift.ops import Libraries
from kiln.drift.python_ops import python_ops
from kiln.drift.resolve import Resolver
from kiln.drift.section import UnreadableError
from kiln.drift.tree import Tree
from kiln.errors import BadInput
from kiln.progress import Silent
from kiln.store import Store
from tests.helpers.drift import MINI, Texts

READ, CODE, WRITE = 4, 5, 6  # flags of a part: R, R+X, R+W
NORM = "rms_norm(Tensor! result, Tensor input, float epsilon) -> ()"
LIB = "vllm/_C.abi3.so"


def library(*parts: tuple[int, bytes], size: int = 0) -> bytes:
    """An ELF file of these parts (flags, content). size: of the file, at least."""
    at = 64 + 56 * len(parts)
    heads, body = b"", b""
    for flags, content in parts:
        heads += struct.pack("<IIQQQQQQ", 1, flags, at + len(body), 0, 0, len(content), 0, 0x1000)
        body += content
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(parts), 0, 0, 0
    )
    return (head + heads + body).ljust(size, b"\0")


def constants(*texts: str) -> tuple[int, bytes]:
    """A part of NUL-ended texts."""
    return READ, b"".join(text.encode() + b"\0" for text in texts)


def schemas(data: bytes) -> tuple[str, ...]:
    return read_library(io.BytesIO(data), "lib").schemas


@dataclass(frozen=True, eq=False)
class Built(Texts):
    """A source with libraries. opened: those that were read."""

    libraries: Mapping[str, bytes] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)

    def names(self) -> frozenset[str]:
        return super().names() | self.libraries.keys()

    def read(self, path: str) -> bytes:
        return self.libraries[path] if path in self.libraries else super().read(path)


class Wheel(Built):
    """One that need not be read whole."""

    def sha256(self, path: str) -> str:
        return sha256(self.libraries[path])

    def open(self, path: str) -> BinaryIO:
        self.opened.append(path)
        return io.BytesIO(self.libraries[path])

    def read(self, path: str) -> bytes:
        assert path not in self.libraries
        return super().read(path)


def wheel(*texts: str, needs: str = "libc.so.6", label: str = "texts") -> Wheel:
    data = library(constants("", needs, *texts), (CODE, b"\x90" * 100))
    return Wheel(MINI, label=label, libraries={LIB: data})


def compare(old: Built, new: Built, store: Store | None = None) -> Comparison:
    return compare_contracts(old, new, store, Silent())


def changes(found: Comparison) -> list[Change]:
    return [change for change in found.changes if change.contract == "compiled-op"]


# ---- libraries


def test_a_changed_schema_is_found_and_named() -> None:
    found = compare(wheel(NORM), wheel(NORM.replace("float epsilon", "float epsilon, Tensor? w")))
    (change,) = changes(found)
    assert (change.name, change.what) == ("rms_norm", "schema")
    assert change.old == "(Tensor! result, Tensor input, float epsilon) -> ()"
    assert change.new == "(Tensor! result, Tensor input, float epsilon, Tensor? w) -> ()"


def test_operators_that_come_and_go_are_found() -> None:
    found = compare(wheel(NORM, "old_op() -> int"), wheel(NORM, "new_op() -> int"))
    assert [(c.name, c.what) for c in changes(found)] == [("new_op", "added"), ("old_op", "gone")]
    assert found.same["compiled-op"] == 1


def test_one_that_lost_its_schema_but_is_called_is_told_so() -> None:
    new = wheel("other() -> ()")
    calls = {**MINI, "vllm/x.py": "import torch\n\ntorch.ops._C.rms_norm(1)\n"}
    (_, gone) = changes(compare(wheel(NORM), Wheel(calls, libraries=new.libraries)))
    assert (gone.name, gone.why) == (
        "rms_norm",
        "no library has its schema any more; vllm/x.py still calls it",
    )


def test_libraries_for_other_hardware_are_compared_by_what_they_share() -> None:
    cuda = wheel(NORM, "cuda_only() -> ()", needs="libcudart.so.13")
    found = compare(cuda, wheel(NORM.replace("epsilon", "eps"), "cpu_only() -> ()"))
    assert [(c.name, c.what) for c in changes(found)] == [("rms_norm", "schema")]
    assert found.unknown["compiled-op"] == (
        "built for cuda and for cpu: of 2 and 2 names only the 1 that both have could be compared"
    )


def test_a_source_without_libraries_or_schemas_is_unknown() -> None:
    found = compare(wheel(NORM, label="old"), Built(MINI, label="new"))
    assert found.unknown["compiled-op"].startswith("new: there are no compiled libraries in it")
    found = compare(wheel(NORM, label="old"), wheel("nothing", label="new"))
    assert found.unknown["compiled-op"] == "new: none of its 1 libraries has a schema in it"
    assert changes(found) == []


def test_a_library_is_read_once_and_then_known_by_its_hash(store: Store) -> None:
    old, new = wheel(NORM), wheel(NORM, "more() -> ()")
    first = compare(old, new, store)
    assert (old.opened, new.opened) == ([LIB], [LIB])
    again, twin = wheel(NORM), Wheel(MINI, libraries={"vllm/other.so": new.libraries[LIB]})
    second = compare(again, twin, store)
    assert (again.opened, twin.opened) == ([], [])
    assert second == first


def test_a_library_that_both_have_is_read_once() -> None:
    old, new = wheel(NORM), wheel(NORM)
    assert compare(old, new).same["compiled-op"] == 1
    assert len(old.opened) + len(new.opened) == 1


def test_a_result_whose_blob_is_gone_is_made_again(store: Store) -> None:
    compare(wheel(NORM), wheel(NORM), store)
    for _, node, outputs in store.actions.items():
        assert node == "drift:library"
        store.blobs.remove(outputs["out"].sha256)
    again = wheel(NORM)
    assert compare(again, again, store).same["compiled-op"] == 1
    assert again.opened == [LIB]


def test_a_source_that_offers_no_streams_is_read_whole(store: Store) -> None:
    plain = Built(MINI, libraries=wheel(NORM).libraries)
    assert not isinstance(plain, Libraries)
    assert compare(plain, wheel(NORM), store).same["compiled-op"] == 1


def test_a_damaged_library_is_an_error_that_names_it() -> None:
    broken = Wheel(MINI, label="new", libraries={LIB: b"MZ"})
    with pytest.raises(BadInput) as caught:
        compare(wheel(NORM), broken)
    assert (caught.value.code, caught.value.where) == ("drift.elf", f"new: {LIB}")


# ---- where schemas are looked for


def test_only_constants_are_looked_at() -> None:
    data = library(constants("", NORM), (WRITE, f"\0{NORM.replace('rms', 'no')}\0".encode()))
    assert schemas(data + b"\0other() -> ()\0") == (NORM,)


def test_constants_may_stand_beside_code() -> None:
    assert schemas(library((CODE, b"\x90\0" + NORM.encode() + b"\0"))) == (NORM,)


@pytest.mark.parametrize("shift", range(0, 64, 7))
def test_a_schema_over_two_pieces_is_found(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_CHUNK", 32)
    assert schemas(library((READ, b"x" * shift + b"\0" + NORM.encode() + b"\0"))) == (NORM,)


def test_a_text_that_does_not_end_is_no_schema() -> None:
    assert schemas(library((READ, b"\0" + NORM.encode()))) == ()
    assert schemas(library((READ, b"\0f(" + b"x" * (20 << 10) + b") -> ()\0"))) == ()


def test_what_looks_like_schemas_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_MAX_ARROWS", 100)
    with pytest.raises(BadInput) as caught:
        schemas(library((READ, b") ->" * 101)))
    assert caught.value.code == "drift.elf"
    monkeypatch.setattr(elf, "_MAX_SCHEMAS", 3)
    with pytest.raises(BadInput) as caught:
        schemas(library(constants("", *(f"op{n}() -> ()" for n in range(4)))))
    assert caught.value.code == "drift.elf"


GOOD = library(constants("", NORM))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:40],
        GOOD[:80],
        GOOD[:-1],
        b"\x7fELF\1\1" + GOOD[6:],
        b"\x7fELF\2\2" + GOOD[6:],
        GOOD[:54] + struct.pack("<HH", 55, 1) + GOOD[58:],
        GOOD[:54] + struct.pack("<HH", 56, 60000) + GOOD[58:],
        GOOD[:32] + struct.pack("<Q", 1 << 40) + GOOD[40:],
        GOOD[:32] + struct.pack("<Q", 0) + GOOD[40:],
        GOOD[: 64 + 32] + struct.pack("<Q", 1 << 60) + GOOD[64 + 40 :],
        library((READ, b"\0"), (READ, b"\0" * 200))[: 64 + 32] + struct.pack("<Q", 100)
        + library((READ, b"\0"), (READ, b"\0" * 200))[64 + 40 :],
    ],
    ids=["empty", "head", "headers", "part", "32-bit", "big-endian", "size", "count", "far",
         "at-0", "long", "overlap"],
)  # fmt: skip
def test_a_library_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        schemas(data)
    assert caught.value.code == "drift.elf"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (b"", GOOD[:16], GOOD[:64], GOOD):
        with contextlib.suppress(BadInput):  # and nothing but that
            assert isinstance(schemas(start + data), tuple)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("f() -> ()", "f() -> ()"),
        ("f()->Tensor", "f() -> Tensor"),
        ("ns::f.out(Tensor a) -> Tensor[]", "ns::f.out(Tensor a) -> Tensor[]"),
        ("f(  Tensor   a,int b ) -> ( Tensor,  Tensor )", "f(Tensor a, int b) -> (Tensor, Tensor)"),
        ("f(Tensor(a!) x, Tensor[](a!)? y) -> Tensor(a!)",
         "f(Tensor(a!) x, Tensor[](a!)? y) -> Tensor(a!)"),
        ("f(Tensor !x) -> ()", "f(Tensor! x) -> ()"),
        ("f(int[2] s=[1, 2], *, str t='a, b') -> ()", "f(int[2] s=[1, 2], *, str t='a, b') -> ()"),
        ("f(__torch__.torch.classes._C.S s) -> int", "f(__torch__.torch.classes._C.S s) -> int"),
        ("f(paths: list[str]) -> list[bool]\n\nChecks files.", ""),
        ("f(const T&) -> T", ""),
        ("f(a b c) -> ()", ""),
        ("operator()(int) -> ()", ""),
        ("f(Tensor a -> ()", ""),
        ("f(Tensor a) => ()", ""),
        ("f(Tensor a) -> (Tensor", ""),
    ],
)  # fmt: skip
def test_what_is_a_schema(text: str, schema: str) -> None:
    assert parse_schema(text) == schema


@given(st.text("f(),->[]!?= \"'abT*.:"))
def test_any_text_is_a_schema_or_none(text: str) -> None:
    once = parse_schema(text)
    assert parse_schema(once) == once


# ---- Python


def ops(text: str, *others: tuple[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The operators of a source's one file, and what could not be read."""
    files = {**MINI, "vllm/x.py": text, **dict(others)}
    found = python_ops(Resolver(Tree(Texts(files))))
    return {name: entry.text for name, entry in found.entries.items()}, found.unread


FUNCTION = """\
def f(x: torch.Tensor, y: Tensor | None, n: int = 1, *, out: Optional[torch.Tensor] = None,
      sizes: list[int] = (), kind: "torch.dtype" = torch.half) -> tuple[Tensor, Tensor]:
    return x, y
"""
WRITTEN = (
    "(Tensor x, Tensor? y, int n=1, *, Tensor!? out=None, int[] sizes=(), "
    "ScalarType kind=torch.half) -> (Tensor, Tensor)"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f'{FUNCTION}\n\ndirect_register_custom_op("f", f, ["out"])\n', "vllm::f"),
        (f'{FUNCTION}\n\ndirect_register_custom_op(\n    op_name="f",  # (\n    op_func=f,\n'
         '    mutates_args=["out"],\n    fake_impl=g,\n)\n', "vllm::f"),
        (f'{FUNCTION}\n\nlib = Library("mine", "FRAGMENT")\n'
         'register = partial(direct_register_custom_op, target_lib=lib)\n'
         'register(op_name="f", op_func=f, mutates_args=["out"])\n', "mine::f"),
        (f'@torch.library.custom_op("ns::f", mutates_args=("out",))\n{FUNCTION}', "ns::f"),
        (f'@triton_op("ns::f", mutates_args=["out"])\n{FUNCTION}', "ns::f"),
        ('from vllm.y import f\n\ndirect_register_custom_op("f", f, ["out"])\n', "vllm::f"),
    ],
    ids=["position", "name", "partial", "decorator", "triton", "import"],
)  # fmt: skip
def test_every_way_to_register_an_operator_is_read(text: str, name: str) -> None:
    found, unread = ops(text, ("vllm/y.py", FUNCTION))
    assert (found, unread) == ({name: WRITTEN}, ())


def test_vllm_s_own_operators_are_read() -> None:
    text = "@register_op\ndef g(x: Tensor) -> Tensor: ...\n\n\n@register_op(name='h', a=1)\n"
    found, _ = ops(f"{text}def k(x: Tensor) -> None: ...\n")
    assert found == {"vllm_ir::g": "(Tensor x) -> Tensor", "vllm_ir::h": "(Tensor x) -> ()"}


def test_what_cannot_be_read_is_named() -> None:
    twice = f"{FUNCTION}\n\nif x:\n\n    def f(): ...\n"
    found, unread = ops(f'{twice}\n\ndirect_register_custom_op("f", f)\n')
    assert (found, unread) == ({"vllm::f": ""}, ("vllm/x.py:11",))
    found, unread = ops(f'{FUNCTION}\ndirect_register_custom_op(NAME, f)\n'
                        'direct_register_custom_op("g", f)\n')  # fmt: skip
    assert (sorted(found), unread) == (["vllm::g"], ("vllm/x.py:5",))
    with pytest.raises(UnreadableError):
        ops("x = 1\n")


def test_an_operator_whose_schema_cannot_be_read_is_neither_gone_nor_changed() -> None:
    old = {**MINI, "vllm/x.py": f'{FUNCTION}\n\ndirect_register_custom_op("f", f)\n'}
    new = {**MINI, "vllm/x.py": f'{FUNCTION}\n\ndirect_register_custom_op("f", wrap(f))\n'}
    found = compare_contracts(Texts(old, label="old"), Texts(new, label="new"), None, Silent())
    assert found.changes == ()
    assert found.unread == {"python-op": ("new: vllm/x.py:6",)}


def test_a_changed_schema_of_python_is_found_and_named() -> None:
    sources: Sequence[Texts] = [
        Texts({**MINI, "vllm/x.py": f'{text}\n\ndirect_register_custom_op("f", f)\n'})
        for text in (FUNCTION, FUNCTION.replace("n: int = 1", "n: int = 2"))
    ]
    (change,) = compare_contracts(sources[0], sources[1], None, Silent()).changes
    assert (change.contract, change.name, change.what) == ("python-op", "vllm::f", "schema")
    assert "int n=2" in change.new
