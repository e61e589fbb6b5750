"""The files of a new patch: patch.yaml with a guide, and a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from kiln.authoring.meta import public
from kiln.errors import BadInput
from kiln.pins.forms import NAME
from kiln.pins.project import Project

TODO = "TODO"

_YAML = """\
title: {title}
why: >-
  {why}
origin: {origin}
versions:
  - {{range: "=={version}", file: {version}.patch}}
{leave_out}\
# What stands before it in every series, and what never beside it: ids of patches, or names
# that others give under `provides`.
# requires: [kiln-identity]
# conflicts: []
# provides: []
# The switches that it adds, with what holds where one is unset:
# env:
#   KILN_X_FLAG: {{default: "0", meaning: 1 turns it on}}
# The decisions that its code counts (`_kiln.count(id, decision)`), shown on /metrics:
# counters:
#   used: what has happened when it counts one
# What in a version's source shows that the patch has no place there any more:
# retire_when:
#   - {{file: vllm/x.py, contains: "def x(", superseded_by: ""}}
# How a gate sees it at work; or `unproven:` and why no gate can.
# proof:
#   - {{launch: default, runner: GPUModelRunner, workload: repeat, counters: {{used: 1}}}}
"""

_README = """\
# {id}

TODO what it does, which switches it has, what it costs, when not to use it.
"""


@dataclass(frozen=True)
class About:
    """What is known of a new patch; "" is for a person to write."""

    title: str = ""
    why: str = ""
    origin: str = ""
    leave_out: Sequence[str] = ()


def check_id(patch: str) -> None:
    """Raise BadInput("authoring.bad-id") for what cannot be the name of a patch."""
    if not NAME.fits(patch):
        raise BadInput(
            "authoring.bad-id", f"{patch!r} is no name for a patch", why=f"wanted: {NAME.wanted}"
        )


def scaffold(project: Project, patch: str, version: str, about: About) -> dict[Path, bytes]:
    """The files of a patch that has none yet."""
    folder = project.root / "patches" / patch
    leave_out = f"leave_out: {json.dumps(list(about.leave_out))}\n" if about.leave_out else ""
    text = _YAML.format(
        title=_scalar(about.title or f"{TODO} what changes for whoever runs it, in one line"),
        why=" ".join(about.why.split()) or f"{TODO} what goes wrong without it",
        origin=_scalar(about.origin or f"{TODO} an upstream pull request, or whose own idea"),
        version=public(version),
        leave_out=leave_out,
    )
    files = {folder / "patch.yaml": text, folder / "README.md": _README.format(id=patch)}
    return {path: text.encode() for path, text in files.items() if not path.exists()}


def _scalar(text: str) -> str:
    """One line of text as YAML reads it back."""
    text = " ".join(text.split())
    try:
        plain = yaml.safe_load(f"a: {text}\n") == {"a": text}
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)
