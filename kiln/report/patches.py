"""Patches for people: what each is, where it is used, and what came of moving them."""

from __future__ import annotations

from kiln.authoring.listing import Listed
from kiln.authoring.pick import Refreshed


def list_text(patches: tuple[Listed, ...]) -> str:
    """One block for each patch: its title, its versions, its pins, its proofs."""
    blocks = []
    for patch in patches:
        lines = [f"{patch.id}  {patch.title}"]
        lines += [f"  {entry.file:<24} {entry.range}" for entry in patch.versions]
        width = max((len(use.pin) for use in patch.pins), default=0)
        lines += [f"  pin {use.pin:<{width}}  {use.version}: {use.state}" for use in patch.pins]
        if not patch.pins:
            lines.append("  in no pin")
        lines.append(f"  proof: {'; '.join(patch.proofs) or 'none'}")
        lines += [f"  {problem}" for problem in patch.problems]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def refresh_text(refreshed: Refreshed) -> str:
    """A row for each patch, then what is left to do."""
    plan = refreshed.plan
    names = [*plan.results, *(move.id for move in plan.waiting)]
    width = max((len(name) for name in names), default=0)
    rows: list[str] = []
    for name, moved in plan.results.items():
        first, *rest = moved.detail.split("\n")
        rows.append(f"{name:<{width}}  {moved.state:<8} {first}".rstrip())
        rows += [f"{'':<{width}}           {line}" for line in rest]
    for move in plan.waiting:
        state = "CONFLICT" if move.id == plan.picking else "waits"
        rows.append(f"{move.id:<{width}}  {state}")
        if move.id == plan.picking:
            rows += [f"{'':<{width}}    {path}: {why}" for path, why in refreshed.conflict.items()]
    if plan.picking:
        rows += [
            "",
            f"Solve {plan.picking} in {refreshed.work.folder}:",
            "  edit the files (`git diff` shows old, new and patch), `git add` them, then",
            "  `kiln patch refresh --continue` (or --skip to leave the patch out, --abort)",
        ]
    if refreshed.saved is not None:
        rows += ["", refreshed.saved.text()]
        if {"MERGED", "SOLVED"} & {moved.state for moved in plan.results.values()}:
            rows.append(f"`kiln drift {refreshed.work.state.pin}` says whether the names that "
                        "they call are still there")  # fmt: skip
    return "\n".join(rows)
