"""Run by a Python that has torch: does block verification keep the target's distribution?

Draws many drafts from random conditional distributions, has them verified, goes on from
the target, and compares how often each sequence comes with how often it should (chi
squared). Prints one JSON array. With --shared all lengths of a draft are tried with one
random number, which is the fault that this must be able to see.
"""

import itertools
import json
import sys

import torch  # type: ignore[import-not-found]
from vllm import _kiln_p71  # type: ignore[import-not-found]

VOCABULARY, DRAFTS, REQUESTS = 3, 3, 300_000
SEEDS = (1, 5, 9)


def tables(seed: int) -> list[torch.Tensor]:
    """A distribution of the next token for every prefix of 0 to DRAFTS tokens."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(VOCABULARY,) * (length + 1) for length in range(DRAFTS + 1)]
    return [torch.randn(shape, generator=generator).softmax(-1) for shape in shapes]


def conditional(table: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """[requests, vocabulary]: the rows of a table for these prefixes."""
    return table[tuple(prefix.T)] if prefix.shape[1] else table.expand(len(prefix), -1)


def run(seed: int, shared: bool) -> dict[str, float]:
    """chi squared over all sequences, and the mean length kept by this rule and by the usual."""
    torch.manual_seed(seed)
    target, draft = tables(seed), tables(seed + 1)
    tokens = torch.empty((REQUESTS, 0), dtype=torch.long)
    for position in range(DRAFTS):
        new = torch.multinomial(conditional(draft[position], tokens), 1)
        tokens = torch.cat((tokens, new), dim=1)
    target_rows, draft_rows = (
        torch.stack([conditional(table[i], tokens[:, :i]) for i in range(DRAFTS)], dim=1)
        for table in (target, draft)
    )
    uniform = torch.rand(REQUESTS, DRAFTS, dtype=torch.float64)
    out = _kiln_p71.verify(
        tokens.reshape(-1).int(),
        torch.arange(1, REQUESTS + 1, dtype=torch.int32) * DRAFTS,
        draft_rows.reshape(-1, VOCABULARY),
        target_rows.reshape(-1, VOCABULARY),
        torch.multinomial(conditional(target[DRAFTS], tokens), 1),
        (uniform[:, :1].expand(-1, DRAFTS) if shared else uniform).reshape(-1),
        torch.empty(REQUESTS, VOCABULARY).exponential_(),
        torch.full((REQUESTS, DRAFTS + 1), -1, dtype=torch.int32),
    ).long()
    kept = (out >= 0).sum(dim=1) - 1
    for position in range(DRAFTS + 1):
        missing = out[:, position] < 0
        prefix = out[missing, :position]
        if len(prefix):
            out[missing, position] = torch.multinomial(conditional(target[position], prefix), 1)[
                :, 0
            ]
    chi = 0.0
    for sequence in itertools.product(range(VOCABULARY), repeat=DRAFTS + 1):
        chance = 1.0
        for i, token in enumerate(sequence):
            chance *= float(target[i][sequence[:i]][token])
        seen = int((out == torch.tensor(sequence)).all(dim=1).sum())
        chi += (seen - chance * REQUESTS) ** 2 / (chance * REQUESTS)
    ratio = (target_rows.gather(2, tokens[..., None]) / draft_rows.gather(2, tokens[..., None]))[
        ..., 0
    ]
    usual = (torch.rand(REQUESTS, DRAFTS) < ratio).long().cumprod(1).sum(1)
    return {"chi": chi, "kept": float(kept.double().mean()), "usual": float(usual.double().mean())}


def edges() -> dict[str, list[list[int]]]:
    """Small batches whose rows can be told beforehand."""
    certain = torch.eye(4)
    noise = torch.ones(3, 4)
    output = torch.full((3, 3), -1, dtype=torch.int32)
    # Three requests with two, no and one draft; the target is sure of 1, 2 and 3.
    ids, counts = torch.tensor([1, 2, 3]), torch.tensor([2, 2, 3])
    bonus = torch.tensor([[0], [1], [2]])
    uniform = torch.tensor([0.9, 0.9, 0.9])

    def rows(ids: torch.Tensor, draft: torch.Tensor, target: torch.Tensor) -> list[list[int]]:
        said = _kiln_p71.verify(ids, counts, draft, target, bonus, uniform, noise, output)
        found: list[list[int]] = said.tolist()
        return found

    same = certain[[1, 2, 3]]
    return {
        "the same distributions": rows(ids, same, same),
        "the target wants another second token": rows(ids, same, certain[[1, 0, 3]]),
        "a hole in the draft": rows(torch.tensor([1, -1, 3]), same, same),
        "a draft of no probability": rows(ids, certain[[0, 2, 3]], same),
    }


if __name__ == "__main__":
    shared = "--shared" in sys.argv
    sys.stdout.write(json.dumps({"runs": [run(s, shared) for s in SEEDS], "edges": edges()}))
