"""What a lock is resolved from, and what it notes of the repository.

`request` is kept in the lock's resolved part: where today's differs, the lock is
older than its pin. `components` go into the local part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kiln.canonical import JSON, dumps, key, sha256
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe


def request(project: Project, pin: Pin) -> dict[str, JSON]:
    """The parts of pin, recipe, components, models and roots that decide the closure."""
    recipe = project.recipe(pin.recipe)
    chosen: dict[str, JSON] = {
        "pin": {
            "recipe": pin.recipe,
            "python": pin.python,
            "cuda": pin.cuda,
            "vllm": msgspec.to_builtins(pin.vllm),
            "torch": msgspec.to_builtins(pin.torch),
            "base": msgspec.to_builtins(pin.base),
            "components": pin.components,
            "models": pin.models,
        },
        "recipe": {"architecture": recipe.architecture, **_closure_fields(recipe)},
    }
    roots: dict[str, JSON] = {}
    for kind, names in (("components", pin.components), ("models", pin.models)):
        parts: dict[str, JSON] = {}
        for name in names:
            made = project.component(name) if kind == "components" else project.asset(name)
            parts[name] = msgspec.to_builtins(made)
            roots[made.root] = msgspec.to_builtins(project.build_root(made.root))
        chosen[kind] = parts
    chosen["roots"] = roots
    # As a lock that was read has it (lists, no tuples): `kiln lock` compares the two.
    plain: dict[str, JSON] = msgspec.json.decode(dumps(chosen))
    return plain


def _closure_fields(recipe: Recipe) -> dict[str, JSON]:
    wheels = recipe.wheels
    fields: dict[str, JSON] = {
        "wheels": {
            "requirements": wheels.requirements,
            "constraints": wheels.constraints,
            "exclude": sorted(wheels.exclude),
        }
    }
    if recipe.debian is not None:
        debian = recipe.debian
        fields["debian"] = {
            "release": debian.release,
            "security": debian.security,
            # A list: what a group holds depends on the groups before it.
            "groups": [[name, list(packages)] for name, packages in debian.groups.items()],
        }
    return fields


def made_hashes(project: Project, pin: Pin) -> dict[str, str]:
    """Component or model -> hash of its folder's files: recipe and scripts."""
    folders = {name: project.root / "build" / name for name in pin.components}
    folders |= {f"models/{m}": project.root / "build" / "models" / m for m in pin.models}
    return {name: folder_hash(folder) for name, folder in sorted(folders.items())}


def folder_hash(folder: Path) -> str:
    """Hex sha256 over the names and bytes of a folder's files."""
    files: Mapping[str, str] = {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return key(files)
