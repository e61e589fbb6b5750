"""The Python that wheels are chosen for: its tags, in the order of preference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from packaging.tags import Tag, compatible_tags, cpython_tags

from kiln.errors import BadInput

# Architectures by their name in Debian: name in wheels, first glibc minor with wheels.
_MACHINES = {"amd64": ("x86_64", 5), "arm64": ("aarch64", 17)}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Target:
    """CPython of one minor version ("3.11") on glibc 2.`glibc`. architecture: "amd64"."""

    python: str
    glibc: int = 36
    architecture: str = "amd64"

    def __post_init__(self) -> None:
        major, _, minor = self.python.partition(".")
        if major != "3" or not minor.isdecimal() or self.architecture not in _MACHINES:
            raise BadInput(
                "resolve.bad-target",
                f"wheels cannot be chosen for Python {self.python!r} on {self.architecture!r}",
                why=f"known are Python 3.x on {', '.join(_MACHINES)}",
            )

    @property
    def machine(self) -> str:
        """The architecture's name in wheels, "x86_64"."""
        return _MACHINES[self.architecture][0]

    @property
    def uv_platform(self) -> str:
        """The name for uv's --python-platform."""
        return f"{self.machine}-manylinux_2_{self.glibc}"

    @cached_property
    def tags(self) -> Sequence[Tag]:
        """All compatible tags, the best first (the order of pip)."""
        version = (3, int(self.python.partition(".")[2]))
        interpreter = f"cp3{version[1]}"
        platforms = list(self._platforms())
        return [
            *cpython_tags(version, [interpreter], platforms),
            *compatible_tags(version, interpreter, platforms),
        ]

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Place of each tag in `tags`: less is better."""
        return {tag: rank for rank, tag in enumerate(self.tags)}

    def _platforms(self) -> Iterator[str]:
        first = _MACHINES[self.architecture][1]
        for minor in range(self.glibc, first - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"
