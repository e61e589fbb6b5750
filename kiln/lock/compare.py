"""What differs between a lock and today: its request, its local part, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kiln.canonical import dumps
from kiln.errors import BadInput, JudgedBad
from kiln.lock.fingerprints import first_difference, read_fingerprints
from kiln.lock.model import Encoder, Layer, Local, Outputs

_ABSENT = "nothing"


@dataclass(frozen=True)
class Change:
    """One thing that is not as locked. path: dotted name. source: the file that says `today`.

    locked, today: for people.
    """

    path: str
    locked: str
    today: str
    source: str = ""

    def __str__(self) -> str:
        says = f"{self.source} says" if self.source else "now"
        return f"{self.path}: locked {self.locked}, {says} {self.today}"


# ---- resolved --------------------------------------------------------------------------


def stale(locked_request: Mapping[str, Any], request: Mapping[str, Any]) -> list[Change]:
    """What changed since a lock was resolved; empty if it still holds.

    Both are requests as kiln/lock/request.py makes them.
    """
    old, new = _plain(locked_request), _plain(request)
    recipe = str(new.get("pin", {}).get("recipe", "")) if isinstance(new.get("pin"), dict) else ""
    return [_requested(path, was, now, recipe) for path, was, now in _differing(old, new, ())]


def stale_error(pin: str, where: str, changes: Sequence[Change]) -> BadInput:
    """ "lock.stale", with every change."""
    return BadInput(
        "lock.stale",
        f"the lock of {pin!r} is older than what it was made from",
        where=where,
        why="\n".join(str(change) for change in changes),
        fix=f"run `kiln lock {pin}`; it keeps what did not change",
    )


def _requested(path: tuple[str, ...], was: Any, now: Any, recipe: str) -> Change:
    """A change of the request, named as the file that a person edits names it."""
    part, *rest = path
    name = rest[0] if rest else ""
    source, inner = {
        "pin": ("pins.yaml", rest),
        "recipe": (f"images/{recipe}.yaml", rest),
        "components": (f"build/{name}/recipe.yaml", rest[1:]),
        "models": (f"build/models/{name}/recipe.yaml", rest[1:]),
        "roots": (f"build/roots/{name}.yaml", rest[1:]),
    }.get(part, ("", list(path)))
    locked, today = _texts(was, now)
    return Change(".".join(inner) or ".".join(path), locked, today, source)


# ---- local -----------------------------------------------------------------------------


def difference(old: Local, new: Local) -> list[Change]:
    """What of the repository changed; patches are compared by id, and by their order."""
    changes = []
    before, after = (_by_patch(local) for local in (old, new))
    for path, was, now in _differing(before, after, ()):
        changes.append(Change(".".join(path), *_texts(was, now)))
    one, two = ([p.id for p in local.patches] for local in (old, new))
    if one != two and sorted(one) == sorted(two):
        changes.append(Change("order of patches", ", ".join(one), ", ".join(two)))
    return changes


def _by_patch(local: Local) -> dict[str, Any]:
    plain = _plain(msgspec.to_builtins(local))
    for patch in plain["patches"]:
        patch["files"] = {file.pop("path"): file for file in patch["files"]}
    plain["patches"] = {patch.pop("id"): patch for patch in plain["patches"]}
    return plain


# ---- outputs ---------------------------------------------------------------------------


def compare_outputs(
    locked: Outputs,
    built: Outputs,
    *,
    where: str = "",
    encoders: tuple[Encoder, Encoder] | None = None,
    listing: Callable[[str], bytes] | None = None,
    fingerprints: Path | None = None,
) -> JudgedBad | None:
    """The first way in which what was built is not what was locked, or None.

    "outputs.mismatch": the content differs; the first layer is named, and the first file
    where `listing` (layer name -> listing of the built layer) and `fingerprints` (the
    pin's file of them) are given. "outputs.encoder": every layer has the locked content
    and only the compressed bytes differ; encoders are the locked one and today's.
    """
    if built == locked:
        return None
    names, built_names = ([layer.name for layer in o.layers] for o in (locked, built))
    if names != built_names:
        return _mismatch(
            "the image has other layers than the lock says",
            where,
            f"locked: {', '.join(names)}\nbuilt:  {', '.join(built_names)}",
        )
    pairs = list(zip(locked.layers, built.layers, strict=True))
    for old, new in pairs:
        if old.diff_id != new.diff_id:
            why = f"diffID locked {old.diff_id}, {_bytes(old)}\n"
            why += f"       built  {new.diff_id}, {_bytes(new)}\n"
            why += _first_file(old, listing, fingerprints)
            return _mismatch(f"layer {old.name} has other content than locked", where, why)
    for old, new in pairs:
        if old.digest != new.digest:
            return JudgedBad(
                "outputs.encoder",
                f"layer {old.name} has the locked content, in other compressed bytes",
                where=where,
                why=f"diffID of all layers as locked; blob locked {old.digest}, "
                f"built {new.digest}\n{_encoders(encoders)}",
                fix="use the Kiln of that lock, or move the lock with `kiln build --new-encoder`",
            )
        if old != new:
            why = f"locked {_bytes(old)}, built {_bytes(new)}; the lock contradicts itself"
            return _mismatch(f"layer {old.name} has another size than locked", where, why)
    what = "config" if locked.config != built.config else "manifest"
    one, two = getattr(locked, what), getattr(built, what)
    why = f"all layers are as locked; {what} locked {one}, built {two}"
    return _mismatch(f"the image's {what} differs from the lock", where, why)


def _mismatch(what: str, where: str, why: str) -> JudgedBad:
    fix = "a step is not reproducible, or its code changed without its version: report it"
    return JudgedBad("outputs.mismatch", what, where=where, why=why, fix=fix)


def _bytes(layer: Layer) -> str:
    return f"{layer.tar_size} bytes"


def _encoders(encoders: tuple[Encoder, Encoder] | None) -> str:
    if encoders is None:
        return "another version of the encoder does that"
    one, two = (f"{e.name} {e.version} fed {e.block} bytes at once" for e in encoders)
    if one == two:
        return f"both by {one}: the encoder itself behaves differently here"
    return f"encoder locked {one}, today's {two}"


def _first_file(
    layer: Layer, listing: Callable[[str], bytes] | None, fingerprints: Path | None
) -> str:
    """The first file that differs, or why it cannot be named. Never hides the mismatch."""
    if listing is None or fingerprints is None:
        return "the files were not compared"
    try:
        diff_id, prints = read_fingerprints(fingerprints).get(layer.name, ("", ""))
    except BadInput as error:
        return f"the first file cannot be named: {error.what} ({error.where})"
    if diff_id != layer.diff_id:
        return f"the first file cannot be named: {fingerprints.name} is of another layer"
    found = first_difference(listing(layer.name), prints)
    return f"first file: {found}" if found else "no file differs; order or tar headers do"


# ---- trees of plain values -------------------------------------------------------------


def _plain(value: Any) -> dict[str, Any]:
    """As it would come out of a lock's file: tuples are lists, and so on."""
    plain: dict[str, Any] = msgspec.json.decode(dumps(value))
    return plain


def _differing(
    old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Path, old and new value of each difference, mappings taken apart."""
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differing(was, now, (*path, key))
        elif was != now or (key in old) != (key in new):
            yield (*path, key), was, now


def _texts(was: Any, now: Any) -> tuple[str, str]:
    """Both sides for people; of two lists, only what the other lacks."""
    if isinstance(was, list) and isinstance(now, list):
        gone = [item for item in was if item not in now]
        came = [item for item in now if item not in was]
        if gone or came:
            locked = _text(gone) if gone else f"without {_text(came)}"
            return locked, _text(came) if came else f"without {_text(gone)}"
    return _text(was), _text(now)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value or _ABSENT
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or _ABSENT
    return dumps(value).decode()
