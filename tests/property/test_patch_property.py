"""Our applier against `git apply`: whatever we accept, git accepts, with the same bytes.

The other way round git takes more: hunks that fit some lines away.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.errors import KilnError
from kiln.pins.patch import PatchFile
from kiln.source.apply import apply_series
from kiln.source.diff import split_lines
from tests.helpers.git_apply import git_apply

NAME = "vllm/t.txt"
# Few different lines, so that contexts repeat and hunks could fit in several places.
LINES = st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"  a\n", b"a\r\n", b"caf\xe9\n", b"-x\n"])
TEXTS = st.builds(
    lambda lines, cut: b"".join(lines)[: -1 if cut else None],
    st.lists(LINES, max_size=14),
    st.booleans(),
)


@st.composite
def edited(draw: st.DrawFn, text: bytes) -> bytes:
    """The text after a few lines were put in, taken out or replaced."""
    lines = split_lines(text)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINES, max_size=2))
    done = [line if line.endswith(b"\n") else line + b"\n" for line in lines]
    return b"".join(done)[: -1 if draw(st.booleans()) else None]


def mixes(old: bytes, new: bytes) -> bool:
    """Whether a file whose lines all end alike gets others; that we refuse, and git does not."""
    ends = [
        {line.endswith(b"\r\n") for line in split_lines(text) if line.endswith(b"\n")}
        for text in (old, new)
    ]
    return len(ends[0]) == 1 < len(ends[1])


def make_patch(old: bytes, new: bytes, context: int) -> bytes:
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        split_lines(old),
        split_lines(new),
        f"a/{NAME}".encode(),
        f"b/{NAME}".encode(),
        n=context,
    )
    out = b""
    for line in lines:
        marked = b"" if line.endswith(b"\n") else b"\n\\ No newline at end of file\n"
        out += line + marked
    return out


def ours(target: bytes, patch: bytes) -> bytes | None:
    try:
        applied = apply_series({NAME: target}.get, [NAME], [PatchFile("p", patch)])
    except KilnError:
        return None
    return applied.files[NAME]


def gits(target: bytes, patch: bytes) -> bytes | None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "vllm").mkdir()
        (root / NAME).write_bytes(target)
        return (root / NAME).read_bytes() if git_apply(root, patch) else None


def check(target: bytes, patch: bytes) -> None:
    result = ours(target, patch)
    if result is not None:
        assert gits(target, patch) == result


@st.composite
def changes(draw: st.DrawFn) -> tuple[bytes, bytes]:
    old = draw(TEXTS)
    return old, draw(edited(old))


@settings(max_examples=120, deadline=None)
@given(changes(), st.integers(1, 3))
def test_a_patch_fits_what_it_was_made_from(change: tuple[bytes, bytes], context: int) -> None:
    old, new = change
    patch = make_patch(old, new, context)
    if old == new or not old or not new or mixes(old, new):
        return
    assert ours(old, patch) == new == gits(old, patch)


@settings(max_examples=120, deadline=None)
@given(changes(), st.integers(0, 3), st.data())
def test_what_we_accept_git_accepts(
    change: tuple[bytes, bytes], context: int, data: st.DataObject
) -> None:
    old, new = change
    target = data.draw(edited(old))
    check(target, make_patch(old, new, context))
    check(new, make_patch(old, new, context))


@settings(max_examples=150, deadline=None)
@given(changes(), st.data())
def test_what_we_accept_of_a_damaged_patch_git_accepts(
    change: tuple[bytes, bytes], data: st.DataObject
) -> None:
    old, new = change
    lines: Sequence[bytes] = split_lines(make_patch(old, new, 3))
    if not lines:
        return
    at = data.draw(st.integers(0, len(lines) - 1))
    junk = data.draw(st.sampled_from([b"", b" a\n", b"+a\n", b"-a\n", b"\n", b"@@ -1 +1 @@\n",
                                      b"\\ No newline at end of file\n", b"-- \n"]))  # fmt: skip
    drop = data.draw(st.integers(0, 1))
    check(old, b"".join([*lines[:at], junk, *lines[at + drop :]]))
