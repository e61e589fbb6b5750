"""Signatures of functions as written: what changed, and whether a call still fits."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from kiln.drift.bindings import FunctionNode


@dataclass(frozen=True)
class Parameter:
    """One parameter. default: its text, None where there is none. annotation: its text."""

    name: str
    kind: str  # "positional", "plain", "*", "keyword", "**"
    default: str | None = None
    annotation: str = ""

    def __str__(self) -> str:
        star = self.kind if self.kind in ("*", "**") else ""
        return f"{star}{self.name}" + (f"={self.default}" if self.default is not None else "")


@dataclass(frozen=True)
class Signature:
    """Parameters in their order. asynchronous: `async def`."""

    parameters: tuple[Parameter, ...]
    asynchronous: bool = False

    def __str__(self) -> str:
        shown: list[str] = []
        kinds = [p.kind for p in self.parameters]
        for index, parameter in enumerate(self.parameters):
            if parameter.kind == "keyword" and not {"*", "keyword"} & set(kinds[:index]):
                shown.append("*")
            shown.append(str(parameter))
            if parameter.kind == "positional" and "positional" not in kinds[index + 1 :]:
                shown.append("/")
        return ("async " if self.asynchronous else "") + f"({', '.join(shown)})"

    @property
    def named(self) -> dict[str, Parameter]:
        """By name, without * and **."""
        return {p.name: p for p in self.parameters if p.kind not in ("*", "**")}

    @property
    def ordered(self) -> list[Parameter]:
        """What can be passed by position, without *."""
        return [p for p in self.parameters if p.kind in ("positional", "plain")]

    def has(self, kind: str) -> bool:
        """Whether it has a parameter of the kind "*" or "**"."""
        return any(p.kind == kind for p in self.parameters)

    def plus(self, parameters: Iterable[Parameter]) -> Signature:
        """With more parameters, which may be passed by position or by name, or not."""
        more = (Parameter(p.name, "plain", p.default or "...") for p in parameters)
        return Signature((*self.parameters, *more), self.asynchronous)

    def bound(self) -> Signature:
        """Without the receiver."""
        if self.parameters and self.parameters[0].kind in ("positional", "plain"):
            return Signature(self.parameters[1:], self.asynchronous)
        return self


def signature(node: FunctionNode) -> Signature:
    """The signature of a definition, receiver included."""
    args = node.args
    found: list[Parameter] = []
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    for number, (argument, default) in enumerate(
        zip(plain, [*defaults, *args.defaults], strict=True)
    ):
        kind = "positional" if number < len(args.posonlyargs) else "plain"
        found.append(_parameter(argument, kind, default))
    if args.vararg is not None:
        found.append(_parameter(args.vararg, "*", None))
    for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(_parameter(argument, "keyword", default))
    if args.kwarg is not None:
        found.append(_parameter(args.kwarg, "**", None))
    return Signature(tuple(found), isinstance(node, ast.AsyncFunctionDef))


def _parameter(argument: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
    return Parameter(
        argument.arg,
        kind,
        None if default is None else text(default),
        "" if argument.annotation is None else text(argument.annotation),
    )


def text(node: ast.AST) -> str:
    """A node as Python, "..." where it is too deep to write."""
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        return "..."


def changes(old: Signature, new: Signature) -> list[str]:
    """What a caller or a body would notice, in words; [] if nothing. Annotations are not
    looked at: they bind nobody."""
    before, after = old.named, new.named
    found: list[str] = []
    added = [p for p in after.values() if p.name not in before]
    for parameter in added:
        need = "required" if parameter.default is None else f"default {parameter.default}"
        only = ", by keyword only" if parameter.kind == "keyword" else ""
        found.append(f"gained {parameter.name} ({need}{only})")
    found += [f"lost {name}" for name in before if name not in after]
    kept = [p.name for p in old.ordered if p.name in {q.name for q in new.ordered}]
    if kept != [p.name for p in new.ordered if p.name in kept]:
        found.append("takes its parameters in another order")
    for name in before.keys() & after.keys():
        a, b = before[name], after[name]
        if a.kind != b.kind:
            found.append(f"takes {name} {_KINDS[b.kind]} now")
        if a.default != b.default:
            if b.default is None:
                found.append(f"requires {name} now")
            elif a.default is None:
                found.append(f"has a default for {name} now, {b.default}")
            else:
                found.append(f"has the default {b.default} for {name}, not {a.default}")
    for star in ("*", "**"):
        if old.has(star) != new.has(star):
            found.append(f"{'takes' if new.has(star) else 'no longer takes'} {star} arguments")
    if old.asynchronous != new.asynchronous:
        found.append("is now asynchronous" if new.asynchronous else "is no longer asynchronous")
    return found


_KINDS = {
    "positional": "by position only",
    "plain": "by position or name",
    "keyword": "by keyword only",
}


@dataclass(frozen=True)
class Shape:
    """How a call passes its arguments. star, stars: it has *x or **x as well, whose
    contents nobody can see; `positional` then counts those before *x."""

    positional: int
    keywords: tuple[str, ...]
    star: bool = False
    stars: bool = False


def shape(call: ast.Call) -> Shape:
    """The shape of a call."""
    positional, star = 0, False
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            star = True
        elif not star:
            positional += 1
    names = tuple(k.arg for k in call.keywords if k.arg is not None)
    return Shape(positional, names, star, any(k.arg is None for k in call.keywords))


def misfit(call: Shape, to: Signature) -> str:
    """Why the call fails with certainty, "" if it may work."""
    ordered, named = to.ordered, to.named
    if call.positional > len(ordered) and not to.has("*"):
        return f"passes {call.positional} arguments by position; {len(ordered)} fit"
    taken = {p.name for p in ordered[: call.positional]}
    for name in call.keywords:
        found = named.get(name)
        if (found is None or found.kind == "positional") and not to.has("**"):
            return f"passes {name}=, which it does not take"
        if name in taken:
            return f"passes {name} twice: by position and by name"
    if call.stars or call.star:
        return ""
    given = taken | set(call.keywords)
    missing = [p.name for p in named.values() if p.default is None and p.name not in given]
    return f"does not pass {', '.join(missing)}" if missing else ""


def moved(call: Shape, old: Signature, new: Signature) -> str:
    """Which argument by position would reach another parameter, "" if none does."""
    for index, (a, b) in enumerate(zip(old.ordered, new.ordered, strict=False)):
        if index >= call.positional:
            break
        if a.name != b.name and (b.name in old.named or a.name in new.named):
            return f"passes its argument {index + 1} to {b.name}; it was {a.name}"
    return ""


def too_narrow(override: Signature, base: Signature) -> str:
    """What a caller of `base` may pass that `override` refuses, "" if nothing."""
    mine = override.named
    if not override.has("**"):
        for parameter in base.parameters:
            if parameter.kind in ("plain", "keyword") and parameter.name not in mine:
                spare = override.has("*") or len(override.ordered) >= len(base.ordered)
                if not (parameter.kind == "plain" and spare):
                    return f"has no parameter {parameter.name}"
    if len(override.ordered) < len(base.ordered) and not override.has("*"):
        return f"takes {len(override.ordered)} arguments by position, not {len(base.ordered)}"
    for parameter in override.parameters:
        if parameter.kind in ("*", "**") or parameter.default is not None:
            continue
        if parameter.name not in base.named and len(override.ordered) > len(base.ordered):
            return f"requires {parameter.name}, which nobody passes"
    return ""
