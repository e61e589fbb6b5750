"""vLLM as P77 sees it, step by step, for its tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Accept = Callable[[int], int]  # length of a draft -> how many of its tokens the model takes


def all_of(length: int) -> int:
    return length


def none_of(length: int) -> int:
    return 0


def first_of(length: int) -> int:
    return min(1, length)


class Engine:
    """vLLM as the patch sees it: what it drafts in one step, the next one verifies.

    Every request is drafted for whenever it may be, with as many tokens as are allowed.
    """

    def __init__(self, p77: ModuleType, most: int, **tuning: Any) -> None:
        self.adaptive = p77.AdaptiveK(most, p77.Tuning(**tuning))
        self.most = most
        self.allowed: tuple[int, ...] = p77.steps(most)
        self.alive: dict[str, Accept] = {}
        self.drafts: dict[str, list[int]] = {}

    def step(self, slots: Sequence[str] | None = None, allowed: int | None = None) -> None:
        """One step with the requests in these slots; allowed: vLLM's own number for it."""
        slots = [*self.alive] if slots is None else slots
        verified = {name: self.drafts.pop(name) for name in slots if name in self.drafts}
        sampled = [[7] * (1 + self.alive[s](len(verified.get(s, ())))) for s in slots]
        tokens, lengths = self.adaptive.before(self.alive, slots, sampled, verified)
        longest = self.most if allowed is None else allowed
        proposed = [[7] * (longest if each else 0) for each in tokens]
        for name, draft in zip(slots, self.adaptive.shorten(proposed, lengths), strict=True):
            if draft:
                self.drafts[name] = draft

    def steps(self, number: int) -> list[int]:
        """The lengths of the first request's drafts in so many steps, runs of one merged."""
        seen: list[int] = []
        for _ in range(number):
            self.step()
            length = len(self.drafts.get(next(iter(self.alive)), ()))
            if seen[-1:] != [length]:
                seen.append(length)
        return seen

    def end(self, name: str) -> None:
        """A request is done."""
        del self.alive[name]
        self.drafts.pop(name, None)

    def length(self, name: str) -> int:
        """How long the next draft of a request may be."""
        level: int = self.adaptive.requests[name].level
        return self.allowed[level]
