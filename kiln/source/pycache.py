"""Where Python keeps the bytecode of a source."""

from __future__ import annotations

import posixpath
import re

_INTERPRETER = re.compile(r"python(\d+)\.(\d+)\Z")


def cache_path(path: str, tag: str) -> str:
    """Where Python looks for a source's bytecode (PEP 3147): a/b.py -> a/__pycache__/b.TAG.pyc."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, "__pycache__", f"{name.removesuffix('.py')}.{tag}.pyc")


def cache_tag(interpreter: str) -> str:
    """The tag in such names, "cpython-311" for /usr/bin/python3.11; ValueError if unclear."""
    match = _INTERPRETER.search(interpreter)
    if match is None:
        raise ValueError(f"{interpreter} does not say which Python it is")
    return f"cpython-{match[1]}{match[2]}"
