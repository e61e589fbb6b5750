"""What patches of one series say of each other: who must stand before whom, who excludes
whom; and what a patch.yaml says of itself that cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kiln.errors import BadInput, KilnError
from kiln.pins.patch import Patch, read_document
from kiln.pins.problems import listed, near
from kiln.pins.project import Project
from kiln.pins.yaml import Document


def check_series(
    project: Project, ids: Sequence[str], documents: Mapping[str, Document[Patch]]
) -> list[KilnError]:
    """All that is wrong with a series as such. documents: those that could be read.

    BadInput: patch.requires (what must stand before it does not), patch.conflicts,
    patch.provides (two answer to one name), patch.unknown-name (of no patch that there is),
    patch.contradiction, patch.proof, patch.retire-when.
    """
    errors: list[KilnError] = []
    for number, name in enumerate(ids):
        if name in documents:
            errors += check_patch(documents[name], name)
            errors += _check_relations(project, name, ids[:number], ids, documents)
    return errors


def _names(name: str, documents: Mapping[str, Document[Patch]]) -> set[str]:
    """What a patch answers to."""
    provides = documents[name].value.provides if name in documents else ()
    return {name, *provides}


def _holders(
    wanted: str, ids: Iterable[str], documents: Mapping[str, Document[Patch]]
) -> list[str]:
    """The patches among `ids` that answer to a name."""
    return [name for name in ids if wanted in _names(name, documents)]


def _check_relations(
    project: Project,
    name: str,
    before: Sequence[str],
    ids: Sequence[str],
    documents: Mapping[str, Document[Patch]],
) -> Iterator[KilnError]:
    document = documents[name]
    patch = document.value
    others = [other for other in ids if other != name]
    for number, wanted in enumerate(patch.requires):
        if _holders(wanted, before, documents):
            continue
        where = document.where("requires", number)
        behind = _holders(wanted, others, documents)
        if not behind and (error := _unknown(project, wanted, where)):
            yield error
            continue
        stands = f"{behind[0]} stands behind it" if behind else f"before it stand: {_row(before)}"
        needed = behind[0] if behind else wanted
        yield BadInput(
            "patch.requires",
            f"patch {name} requires {wanted} before it",
            where=where,
            why=stands,
            fix=f"put {needed} before {name} in the pin's patches",
        )
    for number, wanted in enumerate(patch.conflicts):
        where = document.where("conflicts", number)
        found = _holders(wanted, others, documents)
        if not found and (error := _unknown(project, wanted, where)):
            yield error
        for other in found:
            if name in _conflicts(other, name, documents) and other in before:
                continue  # said there
            yield BadInput(
                "patch.conflicts",
                f"patches {name} and {other} exclude each other",
                where=where,
                why=f"{name} says that it conflicts with {wanted}"
                + (f", which {other} provides" if wanted != other else ""),
                fix="take one of them out of the pin's patches",
            )
    for number, given in enumerate(patch.provides):
        for other in _holders(given, before, documents):
            yield _provided_twice(name, other, given, document.where("provides", number))
    for other in before:
        if other in documents and name in documents[other].value.provides:
            yield _provided_twice(name, other, name, f"patches/{name}/patch.yaml")


def _conflicts(of: str, name: str, documents: Mapping[str, Document[Patch]]) -> set[str]:
    """`name`, if the patch `of` says that they conflict."""
    mine = _names(name, documents)
    there = documents[of].value.conflicts if of in documents else ()
    return {name} if mine & set(there) else set()


def _provided_twice(name: str, other: str, given: str, where: str) -> BadInput:
    return BadInput(
        "patch.provides",
        f"patches {other} and {name} both answer to {given!r}",
        where=where,
        why="what another patch requires by this name would not be clear",
        fix="take one of them out of the pin's patches",
    )


def _unknown(project: Project, wanted: str, where: str) -> BadInput | None:
    """ "patch.unknown-name", unless a patch of the project has the name or provides it."""
    known = set(project.names("patch"))
    if wanted in known:
        return None
    for name in sorted(known):
        try:
            known |= set(read_document(project, name).value.provides)
        except KilnError:
            continue  # its own errors are told where it is listed
    if wanted in known:
        return None
    return BadInput(
        "patch.unknown-name",
        f"no patch is called {wanted!r}, and none provides it",
        where=where,
        why=f"there are: {listed(known)}",
        fix=near(wanted, known) or "correct the name: a rule for what is not there does nothing",
    )


def _row(names: Sequence[str]) -> str:
    return ", ".join(names) or "no patches"


# ---- one patch.yaml


def check_patch(document: Document[Patch], name: str) -> Iterator[KilnError]:
    """What a patch.yaml says that cannot be: patch.contradiction, patch.proof,
    patch.retire-when."""
    patch = document.value
    own = {name, *patch.provides}
    for field in ("requires", "conflicts"):
        for number, other in enumerate(getattr(patch, field)):
            both = other in patch.requires and other in patch.conflicts
            if other in own or (both and field == "conflicts"):
                yield BadInput(
                    "patch.contradiction",
                    f"patch {name} {field} {'itself' if other in own else other + ' too'}",
                    where=document.where(field, number),
                )
    if name in patch.provides:
        yield BadInput(
            "patch.contradiction",
            f"patch {name} answers to its own id anyway",
            where=document.where("provides"),
        )
    for number, rule in enumerate(patch.retire_when):
        if not _is_inside(rule.file):
            yield BadInput(
                "patch.retire-when",
                f"{rule.file!r} is not a plain path inside vllm/",
                where=document.where("retire_when", number, "file"),
            )
    yield from _check_proof(document, name)


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return parts[0] == "vllm" and len(parts) > 1 and not {"", ".", ".."} & set(parts)


def _check_proof(document: Document[Patch], name: str) -> Iterator[KilnError]:
    patch = document.value
    unproven = bool(patch.unproven.strip())
    if patch.proof and unproven:
        yield BadInput(
            "patch.proof",
            f"patch {name} has a proof, and says why it has none",
            where=document.where("unproven"),
            fix="keep one of the two",
        )
    if patch.counters and not patch.proof and not unproven:
        yield BadInput(
            "patch.proof",
            f"patch {name} counts decisions, and nothing proves that it takes them",
            where=document.where("counters"),
            why="installed is not in use",
            fix="add `proof`, or say under `unproven` why no gate can see it at work",
        )
    for number, proof in enumerate(patch.proof):
        if not proof.counters and not proof.settings:
            yield BadInput(
                "patch.proof",
                f"a proof of patch {name} asks for nothing",
                where=document.where("proof", number),
                fix="say which decisions or settings a gate has to see",
            )
        for counter in proof.counters:
            if counter in patch.counters:
                continue
            yield BadInput(
                "patch.proof",
                f"a proof of patch {name} asks for {counter!r}, which it does not count",
                where=document.where("proof", number, "counters", counter),
                why=f"counters: {listed(patch.counters)}",
                fix=near(counter, patch.counters) or "declare it under `counters`",
            )
