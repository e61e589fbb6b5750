"""A speculative config as patches see it, for tests of p70 and p75."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Load = Callable[[str], ModuleType]


def config(**fields: Any) -> SimpleNamespace:
    """One that vLLM has completed for ngram, but for the fields given."""
    defaults: dict[str, Any] = {
        "method": "ngram",
        "model": None,
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 5,
        "prompt_lookup_max": 5,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "suffix_decoding_max_cached_requests": 10000,
    }
    return SimpleNamespace(**(defaults | fields))


def setenv(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set KILN_ variables."""
    for name, value in variables.items():
        monkeypatch.setenv(f"KILN_{name}", value)
