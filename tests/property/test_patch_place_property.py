"""Two patches to one file, each made against the pristine one: what we make of both.

The judge composes them by the lines of the pristine file, without hunks and offsets; where
the second was made on top of the first, git is the judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kiln.errors import KilnError
from kiln.pins.patch import PatchFile
from kiln.source.apply import fit_patch, no_modes
from kiln.source.diff import FileDiff, parse, split_lines
from kiln.source.fit import Files
from tests.property.test_patch_property import NAME, TEXTS, edited, gits, make_patch, mixes

NUMBERED = st.integers(1, 15).map(lambda n: b"".join(b"%d\n" % i for i in range(n)))
BETWEEN = b"".join(b"between %d\n" % n for n in range(7))


def edits(diff: FileDiff) -> tuple[set[int], dict[int, list[bytes]]]:
    """What a diff takes out of its file, by index, and what it puts before each index."""
    gone: set[int] = set()
    added: dict[int, list[bytes]] = {}
    for hunk in diff.hunks:
        at, after = hunk.start, iter(hunk.after)
        for tag in hunk.tags.decode():
            if tag == "+":
                added.setdefault(at, []).append(next(after))
                continue
            if tag == "-":
                gone.add(at)
            else:
                next(after)
            at += 1
    return gone, added


def composed(text: bytes, diffs: Sequence[FileDiff]) -> bytes:
    """The pristine lines with all that the diffs take out and put in."""
    lines, out = split_lines(text), []
    parts = [edits(diff) for diff in diffs]
    for at in range(len(lines) + 1):
        out += [line for _, added in parts for line in added.get(at, [])]
        if at < len(lines) and not any(at in gone for gone, _ in parts):
            out.append(lines[at])
    return b"".join(out)


def diffs_of(text: bytes, *others: bytes, context: int) -> list[tuple[bytes, FileDiff]]:
    patches = [make_patch(text, other, context) for other in others]
    return [(patch, parse(patch, "p")[0]) for patch in patches]


def in_a_row(text: bytes, *patches: bytes) -> tuple[bytes, bool] | None:
    """The file after the patches, and whether the last counts in the pristine file."""
    files, pristine = Files({NAME: text}.get, [NAME], no_modes), True
    for number, patch in enumerate(patches):
        try:
            fit = fit_patch(PatchFile(f"p{number}", patch), files)
        except KilnError:
            return None
        if fit.errors:
            return None
        files, pristine = fit.after, all(p.pristine for p in fit.files[0].hunks)
    file = files.get(NAME)
    assert file is not None
    return file.text.data, pristine


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.data(), st.integers(1, 3))
def test_what_we_accept_is_what_both_say(text: bytes, data: st.DataObject, context: int) -> None:
    one, two = data.draw(edited(text)), data.draw(edited(text))
    assume(text and one and two and text not in (one, two))
    (first, a), (second, b) = diffs_of(text, one, two, context=context)
    found = in_a_row(text, first, second)
    if found is None:
        return
    result, pristine = found
    if pristine:
        assert result == composed(text, [a, b])
    else:
        assert result == gits(one, second)


@settings(max_examples=200, deadline=None)
@given(NUMBERED, NUMBERED, st.data(), st.integers(1, 3))
def test_what_does_not_touch_fits_in_either_order(
    above: bytes, below: bytes, data: st.DataObject, context: int
) -> None:
    """Edits above and below seven lines that both leave alone."""
    text = above + BETWEEN + below
    one = data.draw(edited(above).filter(lambda t: t.endswith(b"\n"))) + BETWEEN + below
    two = above + BETWEEN + data.draw(edited(below))
    assume(text not in (one, two) and not mixes(text, one + two))
    (first, a), (second, b) = diffs_of(text, one, two, context=context)
    expected = (composed(text, [a, b]), True)
    assert in_a_row(text, first, second) == expected
    assert in_a_row(text, second, first) == expected


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.data(), st.integers(1, 3))
def test_what_is_made_on_top_is_what_git_makes_of_it(
    text: bytes, data: st.DataObject, context: int
) -> None:
    one = data.draw(edited(text))
    two = data.draw(edited(one))
    assume(text and one and two and one not in (text, two))
    first, second = make_patch(text, one, context), make_patch(one, two, context)
    found = in_a_row(text, first, second)
    if found is not None and not found[1]:
        assert found[0] == two == gits(one, second)
    whole = mails(first, second)
    if (result := in_a_row(text, whole)) is not None:
        assert result[0] == two


def mails(*patches: bytes) -> bytes:
    """The patches as mails of one file."""
    head = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n\n"
    return b"".join(head + patch + b"-- \n2.39\n\n" for patch in patches)
