"""What is said of one name on which a patch relies."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["gone", "absent", "signature", "bases", "overridden", "not-built"]


class Finding(msgspec.Struct, frozen=True):
    """One name on which a patch relies and which is not what it was.

    patch: its id. places: "patches/p77/0.23.0.patch:41", the lines of the patch that use
    it. name: in full, "vllm.v1.spec_decode.ngram_proposer.NgramProposer.propose"; a local
    name of a function as "...NgramProposer.propose:valid_ngram_requests". breaks: the
    patch's lines cannot work as they stand; otherwise somebody should look. why: one
    sentence for people. old, new: what stands there (signature, bases, who builds it),
    "" where nothing does. hint: where a thing of that name is now, "" if nowhere or in
    too many places.

    kind: gone (was there, is not), absent (neither source has it, nor the series),
    signature (of a function that the patch calls, or that its hunks stand in), bases (of
    the class that its hunks stand in), overridden (by a subclass, the method that its
    hunks stand in), not-built (the class is still there, but no
    longer what vLLM uses for what it used it for).
    """

    patch: str
    kind: Kind
    name: str
    breaks: bool
    why: str
    places: tuple[str, ...]
    old: str = ""
    new: str = ""
    hint: str = ""
