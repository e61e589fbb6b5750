"""Where a file of the old source stands in the new one, if it has gone from its place.

A name alone proves nothing (there is always a `utils.py`), so whatever is found has to
hold the old file's lines as well; how many is said. A file that was there before is a new
place only for lines that it did not have then: models of one family share most of theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from kiln.drift.source import Source

_TELLING = 12  # characters of a line that is likely to stand in one file only
_SAME_NAME = 0.3  # share of the old lines that a file of the same name has to hold
_OTHER_NAME = 0.6  # the same for a file of another name
_AHEAD = 0.2  # by how much the best file of another name has to lead


@dataclass(frozen=True)
class Move:
    """Where a file went.

    path: "" where that cannot be said. how: by what it was found, or why it was not.
    candidates: several files that are equally likely; then `path` is "".
    """

    path: str
    how: str
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mover:
    """Looks for files of `old` (None: unknown) in `new`; what it reads, it keeps."""

    old: Source | None
    new: Source
    _lines: dict[tuple[bool, str], frozenset[bytes]] = field(default_factory=dict, repr=False)

    def find(self, path: str, shown: Collection[bytes]) -> Move:
        """Where `path` went. shown: the lines of it that a patch shows, which have to do
        where the old file is not to be had."""
        known = self.old is not None and path in self.old.names()
        lines = _telling(self._read(path, old=True) if known else shown)
        what = "its lines" if known else "the lines that the patch shows of it"
        if not lines:
            return Move("", "the patch shows too little of it to look for it elsewhere")
        fresh = self.new.names() - (self.old.names() if self.old is not None else frozenset())
        name = path.rpartition("/")[2]
        named = sorted(other for other in fresh if other.rpartition("/")[2] == name)
        if len(named) == 1 and (count := len(self._held(named[0], lines))) >= _SAME_NAME * len(
            lines
        ):
            how = f"the only new file of that name; it holds {count} of {len(lines)} of {what}"
            return Move(named[0], how)
        end = name.rpartition(".")[2]
        rest = sorted(
            p for p in self.new.names() if p.endswith(f".{end}") and p.startswith("vllm/")
        )
        found = self._by_content([p for p in rest if p in fresh], lines, what)
        if not found.path and not found.candidates:
            found = self._by_content([p for p in rest if p not in fresh], lines, what)
        if not found.path and not found.candidates and named:
            others = ", ".join(named)
            return Move("", f"{found.how}; of its name there is {others}, with other content")
        return found

    def _by_content(self, paths: Iterable[str], lines: frozenset[bytes], what: str) -> Move:
        ranked = sorted(
            ((len(self._held(p, lines)), p) for p in paths), key=lambda s: (-s[0], s[1])
        )
        best = ranked[0][0] if ranked else 0
        least = max(_OTHER_NAME * len(lines), best - _AHEAD * len(lines))
        near = [path for count, path in ranked if count >= least]
        if len(near) == 1:
            return Move(near[0], f"by content: it holds {best} of {len(lines)} of {what}")
        if near:
            return Move("", f"{len(near)} files hold {what}", tuple(near))
        return Move("", f"no file holds {what}")

    def _held(self, path: str, lines: frozenset[bytes]) -> frozenset[bytes]:
        """Which of the lines have come into a file of the new source."""
        held = lines & self._read(path)
        # Few files hold many of them, so few old ones are read.
        if self.old is not None and path in self.old.names() and len(held) * 3 > len(lines):
            held -= self._read(path, old=True)
        return held

    def _read(self, path: str, *, old: bool = False) -> frozenset[bytes]:
        source = self.old if old else self.new
        assert source is not None
        if (old, path) not in self._lines:
            self._lines[old, path] = frozenset(source.read(path).split(b"\n"))
        return self._lines[old, path]


def _telling(lines: Collection[bytes]) -> frozenset[bytes]:
    plain = (line.rstrip(b"\r\n") for line in lines)
    return frozenset(line for line in plain if len(line.strip()) >= _TELLING)
