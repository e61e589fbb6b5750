"""What a build would consist of, from pin and recipe alone: a plan before there is a lock.

A lock names every file and every size; without one, or with a recipe that this version of
Kiln cannot build, only the parts are known. They stand here in the order of the layers
(kiln.image.assemble), each with what is known of it; no size is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kiln.errors import raise_problems
from kiln.image.stack import PATCHES
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe
from kiln.pins.patch import PatchFile, read_each


@dataclass(frozen=True)
class Part:
    """One part of an image. name: as its action would be called. what: what goes into it.
    why: why it cannot be made now."""

    name: str
    what: str
    why: str


@dataclass(frozen=True)
class Outline:
    """All parts in order. missing: each thing that a build still needs, one sentence each."""

    parts: tuple[Part, ...]
    missing: tuple[str, ...]


def no_lock(name: str) -> str:
    """What a pin without a lock needs."""
    return f"no lock: run `kiln lock {name}`"


def outline(project: Project, name: str) -> Outline:
    """The outline of a pin that has no lock, or that cannot be built yet.

    A patch without a file for the pin's vLLM is noted; everything else that is wrong with
    patches, components and build roots is raised, as a plan of a locked pin would.
    """
    pin = project.pin(name)
    recipe = project.recipe(pin.recipe)
    series = _series(project, pin)
    reason = recipe.missing or no_lock(name)
    lines = [
        *(_base(pin) if recipe.overlay else _packages(pin, recipe)),
        *((f"patch:{patch}", file, lack) for patch, (file, lack) in series.items()),
        *([(f"layer:{PATCHES}", "the files that the patches change", "")] if series else []),
        *_components(project, pin),
        ("layer:configuration", "/etc/kiln/manifest.json", ""),
        ("image", "config, labels and manifest", ""),
    ]
    parts = tuple(Part(part, what, why or reason) for part, what, why in lines)
    return Outline(parts, (reason, *dict.fromkeys(lack for _, lack in series.values() if lack)))


_Line = tuple[str, str, str]  # name, what, and a reason of its own ("" = that of the pin)


def _base(pin: Pin) -> Iterator[_Line]:
    if pin.base is not None:
        yield "base", f"{pin.base.repository}@{pin.base.digest}", ""


def _packages(pin: Pin, recipe: Recipe) -> Iterator[_Line]:
    """Debian's groups, what their scripts would have made, and the wheels."""
    if recipe.debian is not None:
        for group, packages in recipe.debian.groups.items():
            asked = f"{', '.join(packages)} and what they need ({recipe.debian.release})"
            yield f"layer:{group}", asked, ""
        if recipe.runtime is not None:
            yield "layer:system", "what maintainer scripts would have made", ""
    versions = {"torch": f"torch {pin.torch.version} (index {pin.torch.index})"}
    for title, packages in recipe.wheels.layers.items():
        yield f"layer:{title}", ", ".join(versions.get(p, p) for p in packages), ""
    rest = ["the other wheels that vLLM asks for", *recipe.wheels.requirements]
    left_out = ", ".join(recipe.wheels.exclude)
    yield "layer:wheels", " and ".join(rest) + (f", without {left_out}" if left_out else ""), ""
    vllm = pin.vllm
    source = vllm.wheel or f"commit {vllm.commit}"
    yield "layer:vllm", source + (f", relabelled {vllm.relabel}" if vllm.relabel else ""), ""


def _series(project: Project, pin: Pin) -> dict[str, tuple[str, str]]:
    """Patch -> its file ("" where there is none) and why there is none."""
    series, errors = read_each(project, pin.patches, pin.vllm.version)
    raise_problems(errors)
    return {
        name: (patch.file, "")
        if isinstance(patch, PatchFile)
        else ("", f"no file for vLLM {pin.vllm.version} in patches/{name} ({patch.why})")
        for name, patch in series.items()
    }


def _components(project: Project, pin: Pin) -> Iterator[_Line]:
    for name, version in pin.components.items():
        component = project.component(name)
        project.build_root(component.root)
        built = f"{component.sdist} {version}, built from its sdist in the root {component.root}"
        yield f"component:{name}", built, ""
        yield f"layer:{name}", f"what {name} installs", ""
