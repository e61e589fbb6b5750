"""A source that patches are held against: vLLM's files, wherever they lie."""

from __future__ import annotations

from typing import Protocol


class Source(Protocol):
    """Pristine files by their path inside site-packages ("vllm/config/model.py")."""

    @property
    def label(self) -> str:
        """For people: "v0.24.0 (vllm-0.24.0-...whl, sha256 0f3c...)"."""

    @property
    def version(self) -> str:
        """vLLM's version, "0.24.0"."""

    def names(self) -> frozenset[str]:
        """All paths."""

    def read(self, path: str) -> bytes:
        """One file. Raises KeyError where there is none."""
