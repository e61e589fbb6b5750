"""Contracts that no text patch sees: what stands behind the names that launches use.

    held = compare_contracts(old, new, store, reporter)
    held.changes       # what differs, by contract and name
    held.unknown       # contract -> why it could not be compared, or not wholly
    held.unread        # contract -> places whose entries could not be read
    held.same          # contract -> how many names are behind what they were behind

A parser name that upstream gave to another class serves other text while every patch
still fits (incident 51). So the class behind each tool-parser and reasoning-parser name,
the class that each model runner builds for each speculative method, the environment
variables that vLLM knows with their defaults, and the schemas of its operators are read
from both sources, as syntax, without importing anything, and compared.

A layout that cannot be read is never an empty result: it is in `unknown`, and must be
shown. `store` keeps what was read out of compiled libraries by their sha256; None reads
them each time (seconds for a CUDA wheel). The results are frozen structs, for --json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, get_args

import msgspec

from kiln.drift import environment, ops, parsers, proposers, python_ops
from kiln.drift.resolve import Resolver
from kiln.drift.section import Entry, Section, Texts, UnreadableError, behind
from kiln.drift.source import Source
from kiln.drift.tree import many_nodes, tree_of
from kiln.progress import Reporter
from kiln.store import Store

Contract = Literal[
    "tool-parser",
    "reasoning-parser",
    "proposer-v1",
    "proposer-v2",
    "environment",
    "python-op",
    "compiled-op",
]
What = Literal["added", "gone", "remapped", "rewritten", "default", "reading", "schema"]

_REWRITTEN = 0.5  # a class of which less than this share of the lines stays is another one


class Change(msgspec.Struct, frozen=True):
    """One name that is behind something else now.

    name: the parser's, method's, variable's or operator's; of several with commas, where
    a base that they share was rewritten. old, new: the class
    ("vllm.tool_parsers.x.XToolParser"), default, or schema; "" where there is none. why:
    one sentence for people.

    what: added, gone; remapped (another class, or the same class name from another
    module), rewritten (the same class, of which less than half of the lines stay),
    default (of a variable), reading (the default stays, but the variable's text is read
    differently), schema (of an operator).
    """

    contract: Contract
    name: str
    what: What
    old: str
    new: str
    why: str


class Comparison(msgspec.Struct, frozen=True):
    """Two sources' contracts. unknown: contract -> why it could not be compared, or not
    wholly. unread: contract -> the places ("<source>: <file>:<line>") of single entries
    that could not be read; the others were compared all the same."""

    changes: tuple[Change, ...]
    same: dict[Contract, int]
    unknown: dict[Contract, str]
    unread: dict[Contract, tuple[str, ...]]


def compare_contracts(
    old: Source, new: Source, store: Store | None, reporter: Reporter
) -> Comparison:
    """Read both and compare. Raises what the sources raise for damaged files (BadInput
    "drift.elf" for a library), and what the store raises."""
    with many_nodes():
        resolvers = Resolver(tree_of(old)), Resolver(tree_of(new))
        found = [_python(resolver) for resolver in resolvers]
        compiled = ops.compiled_ops([old, new], store, reporter)
        found[0]["compiled-op"], found[1]["compiled-op"] = compiled
        comparer = _Comparer(old, new, resolvers)
        for contract in get_args(Contract):
            comparer.compare(contract, found[0][contract], found[1][contract])
    return Comparison(tuple(comparer.changes), comparer.same, comparer.unknown, comparer.unread)


def _python(resolver: Resolver) -> dict[Contract, Section | UnreadableError | None]:
    """What Python files say. None: this version of vLLM has no such thing."""
    readers: dict[Contract, Callable[[], Section | None]] = {
        "tool-parser": lambda: parsers.read_parsers(resolver, parsers.TOOLS),
        "reasoning-parser": lambda: parsers.read_parsers(resolver, parsers.REASONING),
        "proposer-v1": lambda: proposers.read_v1(resolver),
        "proposer-v2": lambda: proposers.read_v2(resolver),
        "environment": lambda: environment.read_environment(resolver.tree),
        "python-op": lambda: python_ops.python_ops(resolver),
    }
    found: dict[Contract, Section | UnreadableError | None] = {}
    for contract, read in readers.items():
        try:
            found[contract] = read()
        except UnreadableError as error:
            found[contract] = error
        except RecursionError:
            found[contract] = UnreadableError("its syntax is nested too deeply")
    return found


class _Comparer:
    """Collects what differs."""

    def __init__(self, old: Source, new: Source, resolvers: tuple[Resolver, Resolver]) -> None:
        self._sources, self._resolvers, self._texts = (old, new), resolvers, Texts()
        self._broken: list[str] = []  # files of classes that cannot be parsed
        self._through: dict[str, tuple[str, list[str]]] = {}  # base -> why, and for whom
        self._environ: list[str] | None = None
        self.changes: list[Change] = []
        self.same: dict[Contract, int] = {}
        self.unknown: dict[Contract, str] = {}
        self.unread: dict[Contract, tuple[str, ...]] = {}

    def compare(
        self,
        contract: Contract,
        old: Section | UnreadableError | None,
        new: Section | UnreadableError | None,
    ) -> None:
        """One contract of both sources."""
        broken = [
            f"{source.label}: {section}"
            for source, section in zip(self._sources, (old, new), strict=True)
            if isinstance(section, UnreadableError)
        ]
        if broken:
            self.unknown[contract] = "; ".join(broken)
            return
        if old is None and new is None:
            return
        before = old if isinstance(old, Section) else Section({})
        after = new if isinstance(new, Section) else Section({})
        self._through.clear()
        self._broken.clear()
        changes = list(self._changes(contract, before, after))
        changes += [
            Change(contract, ", ".join(names), "rewritten", base, base, why)
            for base, (why, names) in self._through.items()
        ]
        self._note_unread(contract, before, after)
        if before.built_for != after.built_for and before.entries and after.entries:
            common = before.entries.keys() & after.entries.keys()
            changes = [change for change in changes if change.name in common]
            self.unknown[contract] = (
                f"built for {before.built_for} and for {after.built_for}: of "
                f"{len(before.entries)} and {len(after.entries)} names only the {len(common)} "
                "that both have could be compared"
            )
        self.changes += changes
        changed = {name for change in changes for name in change.name.split(", ")}
        kept = before.entries.keys() & after.entries.keys() - changed
        self.same[contract] = len(kept)

    def _note_unread(self, contract: Contract, old: Section, new: Section) -> None:
        places = [
            f"{source.label}: {place}"
            for source, section in zip(self._sources, (old, new), strict=True)
            for place in section.unread
        ]
        places += [f"{self._sources[1].label}: {why}" for why in self._broken]
        if places:
            self.unread[contract] = tuple(places)

    def _changes(self, contract: Contract, old: Section, new: Section) -> Iterator[Change]:
        for name in sorted(old.entries.keys() | new.entries.keys()):
            before, after = old.entries.get(name), new.entries.get(name)
            if after is None and before is not None:
                why = _GONE[contract]
                if contract == "environment" and (readers := self._readers(name)):
                    why = f"{environment.PATH} does not list it any more; {readers} still names it"
                elif contract == "compiled-op" and (callers := self._callers.get(name.encode())):
                    why = f"no library has its schema any more; {callers} still calls it"
                elif new.unread:
                    why += f", unless it is at {', '.join(new.unread)}"
                yield Change(contract, name, "gone", before.text, "", why)
            elif before is None and after is not None:
                yield Change(contract, name, "added", "", after.text, _ADDED[contract])
            elif before is not None and after is not None:
                yield from self._change(contract, name, before, after)

    def _readers(self, variable: str) -> str:
        """The files of the new source that name a variable and read the environment."""
        tree = self._resolvers[1].tree
        if self._environ is None:
            self._environ = [
                path
                for path in tree.python
                if b"environ" in (data := tree.text(path) or b"") or b"getenv" in data
            ]
        quoted = [f"{quote}{variable}{quote}".encode() for quote in "\"'"]
        others = (path for path in self._environ if path != environment.PATH)
        return ", ".join(p for p in others if any(q in (tree.text(p) or b"") for q in quoted))

    @cached_property
    def _callers(self) -> dict[bytes, str]:
        """The operators that Python code of the new source calls, and a file that does."""
        found = self._resolvers[1].tree.grep(rb"torch\.ops\.\w+\.(\w+)", b"torch.ops.")
        return {match[1]: path for path, match in found}

    def _change(self, contract: Contract, name: str, old: Entry, new: Entry) -> Iterator[Change]:
        def change(what: What, why: str, a: str = old.text, b: str = new.text) -> Change:
            return Change(contract, name, what, a, b, why)

        if contract in ("python-op", "compiled-op"):
            if old.text and new.text and old.text != new.text:
                yield change("schema", "callers of the old schema may no longer fit")
        elif contract == "environment":
            why = "the same text in the variable may now mean something else"
            if old.exact and new.exact and old.text != new.text:
                yield change("default", "where the variable is unset, another value holds")
            elif old.text != new.text:
                why = "where the variable is unset, another value may hold"
                a, b = (f"{e.text}, read by {e.reading}" for e in (old, new))
                yield change("reading", why, a, b)
            elif old.reading != new.reading:
                yield change("reading", why, old.reading, new.reading)
        elif old.text != new.text:
            yield change("remapped", self._remapped(old, new))
        else:
            why, base = self._rewritten(old, new)
            if base:
                self._through.setdefault(base, (why, []))[1].append(name)
            elif why:
                yield change("rewritten", why)

    # ---- classes

    def _remapped(self, old: Entry, new: Entry) -> str:
        gained = [
            f"{module}.{name}" for module, name in new.targets if (module, name) not in old.targets
        ]
        if set(old.targets) & set(new.targets):
            lost = [f"{m}.{n}" for m, n in old.targets if (m, n) not in new.targets]
            parts = [f"now also {', '.join(gained)}"] if gained else []
            parts += [f"no longer {', '.join(lost)}"] if lost else []
            return "; ".join(parts) or "under other conditions"
        if {name for _, name in old.targets} != {name for _, name in new.targets}:
            return "the same name is served by another class"
        a, b = behind(self._resolvers[0], old.targets), behind(self._resolvers[1], new.targets)
        return f"the same class name from another module; {self._texts.kept(a.own, b.own)}"

    def _rewritten(self, old: Entry, new: Entry) -> tuple[str, str]:
        """Why a class of the same name is another one, and through which base ("" = by
        itself); ("", "") if it is not another one."""
        trees = tuple(resolver.tree for resolver in self._resolvers)
        a = behind(self._resolvers[0], old.targets)
        paths = {cls.module.path for cls in (*a.own, *a.bases)}
        if all(trees[0].text(path) == trees[1].text(path) for path in paths):
            return "", ""  # as for most, which spares parsing the new ones
        b = behind(self._resolvers[1], new.targets)
        if broken := [m.why for path in sorted(paths) if (m := trees[1].at(path)) and m.why]:
            self._broken += [why for why in broken if why not in self._broken]
            return "", ""
        kept = self._texts.kept(a.own, b.own)
        if kept.share < _REWRITTEN:
            engines = [str(c) for c in b.own if str(c) not in {str(o) for o in a.own}]
            now = f"; its work is now in {', '.join(engines)}" if engines else ""
            return f"the same class, written anew: {kept}{now}", ""
        later = {str(cls): cls for cls in b.bases}
        for base in a.bases:
            if str(base) in later:
                kept = self._texts.kept([base], [later[str(base)]])
                if kept.share < _REWRITTEN:
                    return f"its base {base} was written anew: {kept}", str(base)
        return "", ""


_GONE: dict[Contract, str] = {
    "tool-parser": "a launch that names it does not start",
    "reasoning-parser": "a launch that names it does not start",
    "proposer-v1": "this runner builds nothing for the method any more",
    "proposer-v2": "this runner builds nothing for the method any more",
    "environment": "vLLM no longer knows the variable; setting it does nothing",
    "python-op": "whoever calls it fails",
    "compiled-op": "whoever calls it fails",
}
_ADDED: dict[Contract, str] = {
    "tool-parser": "a new name",
    "reasoning-parser": "a new name",
    "proposer-v1": "a method for which this runner built nothing",
    "proposer-v2": "a method for which this runner built nothing",
    "environment": "a new variable",
    "python-op": "a new operator",
    "compiled-op": "a new operator",
}
