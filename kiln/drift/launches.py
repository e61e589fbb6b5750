"""What a pin's launches name: parsers, speculative methods, environment variables.

A contract that changed is a fact about a version; one that a launch of the pin uses is
something that will happen to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from kiln.pins.model import Pin

_PARSERS = {"--tool-call-parser": "tool-parser", "--reasoning-parser": "reasoning-parser"}
_SPECULATIVE = ("--speculative-config", "-sc")
_PROPOSERS = ("proposer-v1", "proposer-v2")

Uses = Mapping[tuple[str, str], str]
"""(contract, name) -> the first launch that uses it, "preset default" or "launch ngram"."""


def uses(pin: Pin) -> Uses:
    """All that the presets and launches of a pin name."""
    found: dict[tuple[str, str], str] = {}
    starts = [(f"preset {n}", preset.args, preset.env) for n, preset in pin.presets.items()]
    starts += [(f"launch {n}", launch.args, launch.env) for n, launch in pin.launches.items()]
    for where, args, env in starts:
        for contract, name in _named(args):
            if name:
                found.setdefault((contract, name), where)
        for name in env:
            found.setdefault(("environment", name), where)
    return found


def _named(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(args):
        option, joined, value = word.partition("=")
        if not joined:
            value = args[number + 1] if number + 1 < len(args) else ""
        option = option.replace("_", "-")
        if option in _PARSERS:
            yield _PARSERS[option], value
        elif option in _SPECULATIVE:
            yield from ((proposer, _method(value)) for proposer in _PROPOSERS)
        elif option == "--speculative-config.method":
            yield from ((proposer, value) for proposer in _PROPOSERS)


def _method(config: str) -> str:
    try:
        read = json.loads(config)
    except ValueError:
        return ""
    return str(read.get("method", "")) if isinstance(read, dict) else ""
