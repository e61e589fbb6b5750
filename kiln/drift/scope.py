"""In which class and function a line of Python stands, by its indentation.

A hunk whose lines stand in two twin classes fits both; only what encloses it tells one
from the other. Read off the indentation, since it has to work on files in any state,
and fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPENS = re.compile(rb"[ \t]*(?:async +def|def|class) +(\w+)")
_CLOSES = re.compile(rb"[ \t]*[)\]}]")  # the end of a signature over several lines


def scope(lines: Sequence[bytes], index: int, indent: int) -> str:
    """ "Class.method" around a line (from 0) of that indentation; "" at the module's level."""
    names: list[str] = []
    for line in reversed(lines[:index]):
        if not indent:
            break
        if not line.strip() or (depth := indentation(line)) >= indent or _CLOSES.match(line):
            continue
        indent = depth
        if opens := _OPENS.match(line):
            names.append(opens[1].decode(errors="replace"))
    return ".".join(reversed(names))


def indentation(line: bytes) -> int:
    """How many blanks a line begins with."""
    return len(line) - len(line.lstrip(b" \t"))
