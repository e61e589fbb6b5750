"""Symbols: what the patches' own lines rely on, and what the new source makes of it.

    found = check_symbols(series, old, new)     # series: what applies to `old`, in its order
    found.findings                              # most pressing first; empty = nothing certain
    found.checked, found.unresolved             # names held against `new`; names left alone

Each line that a patch adds is parsed where it stands: in the old file as the series leaves
it, or in the file that the patch adds. What it imports, calls, reads of `self`, of
modules and of things whose class is written down is looked up in the old source and, by
the same way, in the new one. Everything is read as text and syntax; nothing is imported
or run. Only what is certain is reported: a name that cannot be followed (an argument
without a type, a class with bases outside vLLM) is counted in `unresolved`, no more.

For a patch that has a file of its own for the new version call it with old = new: names
that are not there and calls that do not fit are then found all the same (kind "absent",
"signature").

The results are frozen structs, for --json as they are. Nothing here prints or exits; a
report with a finding whose `breaks` is true is work that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from kiln.drift.bindings import FunctionNode
from kiln.drift.finding import Finding, Kind
from kiln.drift.frames import Definition, Frames, Side
from kiln.drift.hooks import Served, Sources, check_hooks
from kiln.drift.lines import Patched, patched
from kiln.drift.names import Key
from kiln.drift.prune import parse_changed
from kiln.drift.resolve import Resolver
from kiln.drift.source import Source
from kiln.drift.syntax import Module
from kiln.drift.tree import Overlay, many_nodes, module_name, tree_of
from kiln.drift.uses import Uses
from kiln.drift.walk import Given
from kiln.drift.whereabouts import Whereabouts
from kiln.errors import BadInput
from kiln.pins.patch import PatchFile

__all__ = ["Finding", "Kind", "Symbols", "check_symbols"]

_MOST = 3000  # runs through functions of the series, each with what it is given


class Symbols(msgspec.Struct, frozen=True):
    """What was found for a series. checked: names that could be followed in the old source
    and were held against the new one. unresolved: names that could not."""

    findings: tuple[Finding, ...]
    checked: int
    unresolved: int


def check_symbols(series: Sequence[PatchFile], old: Source, new: Source) -> Symbols:
    """Hold what a series relies on against a new source.

    Raises what `kiln.source.apply.apply_series` raises where the series does not fit `old`,
    and BadInput("drift.nested") for sources that no honest person writes.
    """
    with many_nodes():
        resolvers = Resolver(tree_of(old)), Resolver(tree_of(new))
        served = Served(resolvers[0]), Served(resolvers[1])
        check = _Check(
            patched(series, old), Sources(*resolvers, served, Whereabouts(resolvers[1].tree))
        )
        try:
            check.run()
        except RecursionError as error:
            raise BadInput(
                "drift.nested",
                "what the patches stand in is nested too deeply to be read",
                where=old.label if old is new else f"{old.label}, {new.label}",
            ) from error
    findings = sorted(_merged(check.findings), key=_rank)
    return Symbols(tuple(findings), len(check.checked), len(check.unresolved - check.checked))


def _rank(finding: Finding) -> tuple[bool, str, str]:
    return not finding.breaks, finding.patch, finding.name


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each name of a patch, with all of its places."""
    found: dict[tuple[str, str, str, str], Finding] = {}
    for one in findings:
        key = (one.patch, one.kind, one.name, one.why)
        if key in found:
            places = tuple(dict.fromkeys((*found[key].places, *one.places)))
            breaks = found[key].breaks or one.breaks
            one = msgspec.structs.replace(one, places=places, breaks=breaks)
        found[key] = one
    return list(found.values())


@dataclass
class _Check:
    """The series as a whole on the old source: later patches may rely on earlier ones, and
    what counts is what runs."""

    patched: Patched
    sources: Sources
    findings: list[Finding] = field(default_factory=list)
    checked: set[Key] = field(default_factory=set)
    unresolved: set[Key] = field(default_factory=set)

    def run(self) -> None:
        """Fill the rest."""
        old, new = self.sources.old.tree, self.sources.new.tree
        parsed: dict[str, Module] = {}
        after = Resolver(Overlay(old, self.patched.files, parsed))
        added = {path: data for path, data in self.patched.files.items() if path not in old.names}
        # Added files are one and the same module on both sides: so are their functions.
        sides = [Resolver(Overlay(tree, added, parsed)) for tree in (old, new)]
        files: list[tuple[Uses, list[tuple[Definition, ...]]]] = []
        # Files that the source has come first: what they pass on is then known.
        for lines in sorted(self.patched.lines, key=lambda lines: lines.whole):
            own, data = old.at(lines.path), self.patched.files[lines.path] or b""
            if own is not None and not own.why and not lines.whole:
                parsed[lines.path] = parse_changed(own, lines, data)
            module = after.tree.at(lines.path)
            if module is None or module.why:
                continue  # that a file is no longer Python after a patch is said elsewhere
            name = module_name(lines.path)
            before, later = (Side(side, side.tree.module(name)) for side in sides)
            frames = Frames(module, lines, before, later)
            uses = Uses(frames, patched=after, hints=self.sources.hints)
            files.append((uses, uses.run()))
            if not lines.whole:
                self.findings += check_hooks(frames, self.sources)
        self._functions(files)
        for uses, _ in files:
            self.findings += uses.findings
            self.checked |= uses.checked
            self.unresolved |= uses.unresolved

    def _functions(self, files: Sequence[tuple[Uses, list[tuple[Definition, ...]]]]) -> None:
        """The functions of added files: with what the lines before give to them, and those
        that nobody is seen to call with what their annotations say."""
        homes: dict[FunctionNode, tuple[Uses, tuple[Definition, ...]]] = {}
        for uses, chains in files:
            for chain in chains:
                if isinstance(chain[-1], FunctionNode):
                    homes[chain[-1]] = (uses, chain)
        done: set[tuple[FunctionNode, frozenset[tuple[str, object]]]] = set()
        reached: set[FunctionNode] = set()
        for wave in (False, True):
            todo: list[tuple[FunctionNode, Given]] = []
            if wave:
                todo = [(node, {}) for node in homes if node not in reached]
            while len(done) < _MOST:
                for uses, _ in files:
                    todo += uses.calls
                    uses.calls.clear()
                if not todo:
                    break
                node, given = todo.pop(0)
                key = (node, frozenset(given.items()))
                if node in homes and key not in done:
                    done.add(key)
                    reached.add(node)
                    uses, chain = homes[node]
                    uses.run_function(chain, given)
