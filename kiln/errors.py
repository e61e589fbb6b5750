"""Errors as data: a code that tests assert, and what a person needs at 3 a.m.

Every refusal says where (file:line or URL), what, why and what to do
(DESIGN.md, promise 10). The class of an error decides the exit code of the
command line; `code` names the reason within it ("fetch.hash-mismatch").
"""

from __future__ import annotations

from collections.abc import Sequence


class KilnError(Exception):
    """Base of every error that Kiln raises on purpose.

    code:  stable machine name, "<stage>.<reason>"; asserted by tests.
    what:  one sentence: what is wrong.
    where: file:line[:column], URL, package or layer; "" where nothing fits.
    why:   what Kiln saw or expected; may have several lines.
    fix:   what the reader can do about it.
    """

    exit_code: int = 1

    def __init__(
        self, code: str, what: str, *, where: str = "", why: str = "", fix: str = ""
    ) -> None:
        super().__init__(what)
        self.code, self.what, self.where, self.why, self.fix = code, what, where, why, fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [f"{head} [{self.code}]"]
        for label, text in (("why", self.why), ("do", self.fix)):
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {label + ':':<5}{first}")
                lines += [f"       {line}" for line in rest]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The error for `--json`."""
        return {
            "code": self.code,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
        }


class JudgedBad(KilnError):
    """What was judged is bad: a gate failed, outputs differ, a patch drifted."""

    exit_code = 1


class BadInput(KilnError):
    """The user's input (pins, recipe, lock, patch, wheel, argument) is wrong."""

    exit_code = 2


class Unavailable(KilnError):
    """An input cannot be had: a registry, an index, a mirror, a purged file."""

    exit_code = 3


class CannotHere(KilnError):
    """This machine cannot do it (no engine, no GPU, no sandbox, no space)."""

    exit_code = 4


class Damaged(KilnError):
    """The store is damaged or not ours to write."""

    exit_code = 5


class Problems(KilnError):
    """Several errors found in one pass over one thing; the highest exit code wins."""

    def __init__(self, errors: Sequence[KilnError]) -> None:
        if not errors:
            raise ValueError("Problems needs at least one error")
        super().__init__("problems", f"{len(errors)} problems")
        self.errors = tuple(errors)
        self.exit_code = max(error.exit_code for error in self.errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)

    def as_dict(self) -> dict[str, object]:
        """All errors for `--json`."""
        return {"code": self.code, "errors": [error.as_dict() for error in self.errors]}


def raise_problems(errors: Sequence[KilnError]) -> None:
    """Raise nothing, the one error, or all of them as `Problems`."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise Problems(errors)
