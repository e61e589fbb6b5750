"""What a pin is, and what a digest is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kiln.errors import BadInput
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Lock, kiln_id, patch_set_id
from kiln.pins.load import Project
from kiln.progress import human
from kiln.store import Store


@dataclass(frozen=True)
class Shown:
    """Rows of label and text for people, and the same as data."""

    rows: tuple[tuple[str, str], ...]
    data: dict[str, object]

    def text(self) -> str:
        """Two columns."""
        width = max((len(label) for label, _ in self.rows), default=0)
        return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in self.rows)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return self.data


def show_pin(project: Project, store: Store, name: str | None) -> Shown:
    """The pin, its lock, and what was built; works for pins that cannot be built yet."""
    name = name or project.pins.default
    pin = project.pin(name)
    recipe = project.recipe(pin.recipe)
    rows = [
        ("pin", name),
        ("recipe", f"{pin.recipe}: {recipe.title}"),
        ("vllm", pin.vllm.version + (f" from {pin.vllm.wheel}" if pin.vllm.wheel else "")),
        ("commit", pin.vllm.commit or "unknown"),
        ("torch", pin.torch.version),
    ]
    if pin.base is not None:
        rows.append(("base", f"{pin.base.repository}@{pin.base.digest}"))
        rows.append(("base tag", f"{pin.base.tag or 'none'} (for people only)"))
    rows += [("component", f"{n} {version}") for n, version in pin.components.items()]
    rows += [("patch", patch) for patch in pin.patches]
    rows += [("preset", f"{n}: {preset.model}") for n, preset in pin.presets.items()]
    data: dict[str, object] = {"pin": name, "definition": msgspec.to_builtins(pin)}
    if recipe.missing:
        rows.append(("cannot be built", recipe.missing))
        data["missing"] = recipe.missing
    path = locks_path(project.root, name)
    if path.exists():
        lock = read_lock(path)
        rows += _lock_rows(lock)
        data["lock"] = _lock_data(lock)
        rows += [
            ("evidence", f"{preset}: sha256:{sha}")
            for preset in pin.presets
            if lock.outputs
            for sha in store.actions.evidence(lock.outputs.manifest.sha256, preset)[:1]
        ]
    else:
        rows.append(("lock", "none"))
    return Shown(tuple(rows), data)


def _lock_rows(lock: Lock) -> Iterator[tuple[str, str]]:
    for name, closure in lock.resolved.closures.items():
        size = human(
            sum(deb.size for deb in closure.debs)
            + sum(wheel.size for wheel in (*closure.wheels, *closure.sources))
        )
        yield (
            "locked",
            f"{name}: {len(closure.debs)} packages, {len(closure.wheels)} wheels, {size}",
        )
    if lock.local is not None:
        yield "kiln.id", kiln_id(lock.pin, lock.resolved, lock.local)
        yield "patch set", patch_set_id(lock.local.patches)
        yield from (
            ("left out", f"{patch.id}: {', '.join(patch.left_out)}")
            for patch in lock.local.patches
            if patch.left_out
        )
    if lock.outputs is not None:
        for layer in lock.outputs.layers:
            sizes = f"{human(layer.digest.size):>9} of {human(layer.tar_size):>9}"
            yield "layer", f"{layer.digest}  {sizes}  {layer.name}"
        yield "config", str(lock.outputs.config)
        yield "digest", str(lock.outputs.manifest)


def _lock_data(lock: Lock) -> dict[str, object]:
    data: dict[str, object] = {"outputs": msgspec.to_builtins(lock.outputs)}
    if lock.local is not None:
        data["kiln_id"] = kiln_id(lock.pin, lock.resolved, lock.local)
        data["patch_set"] = patch_set_id(lock.local.patches)
    return data


def show_digest(project: Project, store: Store, text: str) -> Shown:
    """What a digest, or the first digits of one, is: in the locks, then in the store.

    Raises BadInput("show.unknown" | "show.ambiguous").
    """
    prefix = text.removeprefix("sha256:").lower()
    found = {sha: what for sha, what in _known(project, store) if sha.startswith(prefix)}
    if len(prefix) < 4 or not found:
        raise BadInput(
            "show.unknown",
            f"{text!r} is no pin, and no digest that a lock or the store knows",
            fix=f"pins: {', '.join(project.pins.pins)}; a digest needs 4 digits or more",
        )
    if len(found) > 1:
        raise BadInput(
            "show.ambiguous",
            f"{text!r} begins {len(found)} digests",
            why="\n".join(f"sha256:{sha} ({what})" for sha, (what, _) in sorted(found.items())),
            fix="give more digits",
        )
    sha, (kind, pin) = next(iter(found.items()))
    rows = [("digest", f"sha256:{sha}"), ("kind", kind), ("pin", pin or "none")]
    size = None
    if any(sha == own for own in store.blobs):
        size = store.blobs.path(sha).stat().st_size
    rows.append(("store", f"here, {human(size)}" if size is not None else "not here"))
    return Shown(tuple(rows), {"digest": f"sha256:{sha}", "kind": kind, "pin": pin, "size": size})


def _known(project: Project, store: Store) -> Iterator[tuple[str, tuple[str, str]]]:
    """Hashes with what they are; the most telling description comes last and wins."""
    for sha in store.blobs:
        yield sha, ("blob", "")
    for key, node, outputs in store.actions.items():
        yield key, (f"key of action {node}", "")
        for name, digest in outputs.items():
            yield digest.sha256, (f"output {name} of {node}", "")
    for pin in project.pins.pins:
        path = locks_path(project.root, pin)
        if not path.exists():
            continue
        lock = read_lock(path)
        for closure_name, closure in lock.resolved.closures.items():
            for deb in closure.debs:
                yield deb.sha256, (f"package {deb.name} {deb.version} of {closure_name}", pin)
            for wheel in (*closure.wheels, *closure.sources):
                yield wheel.sha256, (f"{wheel.file} of {closure_name}", pin)
        if lock.local is not None:
            yield kiln_id(pin, lock.resolved, lock.local), ("kiln.id", pin)
            yield patch_set_id(lock.local.patches), ("patch set", pin)
        if lock.outputs is not None:
            for layer in lock.outputs.layers:
                yield layer.diff_id, (f"diffID of layer {layer.name}", pin)
                yield layer.digest.sha256, (f"layer {layer.name}", pin)
            yield lock.outputs.config.sha256, ("config", pin)
            yield lock.outputs.manifest.sha256, ("manifest", pin)
    for sha, image, preset in store.actions.all_evidence():
        yield sha, (f"evidence for sha256:{image}, preset {preset}", "")
