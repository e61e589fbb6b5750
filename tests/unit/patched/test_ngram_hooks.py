"""Where P77 and PN72 take hold of vLLM: the patched functions of the real wheels, run.

Of a patched file one function is taken as it stands and called with as little around it
as it asks for, since all of vLLM does not run here.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel
from tests.helpers.patched import VERSIONS, added_files, real_wheel, series

PATCHES = ("kiln-identity", "p77-adaptive-ngram-k", "pn72-ngram-frequency-filter")
PROPOSER = "vllm/v1/spec_decode/ngram_proposer.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"

Load = Callable[[str], ModuleType]
Files = Mapping[str, str]


@pytest.fixture(scope="session", params=VERSIONS)
def wheel(request: pytest.FixtureRequest, shared_store: Path) -> tuple[str, Wheel]:
    """A version and its wheel."""
    return request.param, real_wheel(request.param, shared_store)


@pytest.fixture(scope="session")
def files(wheel: tuple[str, Wheel]) -> Files:
    """Path -> text of what both patches make of it."""
    return patched(*wheel, PATCHES)


def patched(version: str, wheel: Wheel, patches: tuple[str, ...]) -> Files:
    applied = patch_wheel(wheel, series(version, patches))
    assert [patch.id for patch in applied.patches] == [*patches]
    return {path: (data or b"").decode() for path, data in applied.files.items()}


def function(source: str, within: str, name: str) -> Callable[..., Any]:
    """A method of a class, without its annotations, as a function."""
    classes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef)]
    (body,) = [node.body for node in classes if node.name == within]
    (found,) = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == name]
    found.returns = None
    found.decorator_list = []
    for argument in found.args.args:
        argument.annotation = None
    space: dict[str, Any] = {}
    exec(compile(ast.Module([found], []), name, "exec"), space)
    return space[name]  # type: ignore[no-any-return]


def test_one_text_for_all_versions() -> None:
    for patch in PATCHES[1:]:
        assert len({frozenset(added_files(patch, v).items()) for v in VERSIONS}) == 1


@pytest.mark.net
def test_their_order_does_not_matter(wheel: tuple[str, Wheel], files: Files) -> None:
    assert patched(*wheel, (PATCHES[0], PATCHES[2], PATCHES[1])) == files


@pytest.mark.net
def test_each_does_without_the_other(wheel: tuple[str, Wheel]) -> None:
    p77, pn72 = (patched(*wheel, (PATCHES[0], patch)) for patch in PATCHES[1:])
    assert "pn72" not in p77[PROPOSER] + p77[RUNNER]
    assert "p77" not in pn72[PROPOSER]
    assert RUNNER not in pn72.keys() - patched(*wheel, PATCHES[:1]).keys()


@pytest.mark.net
def test_both_are_there_before_the_constructor_tries_to_draft(files: Files) -> None:
    text = files[PROPOSER]
    assert text.index("_kiln_p77.adaptive(self.k, vllm_config.p") < text.index("self.propose(")
    assert text.index("_kiln_pn72.frequency(vllm_config.p") < text.index("self.propose(")


@pytest.mark.net
def test_a_server_that_would_not_draft_is_refused_when_its_config_is_made(files: Files) -> None:
    create = files["vllm/engine/arg_utils.py"].partition("    def create_engine_config(")[2]
    places = ["config = VllmConfig(", "_kiln_p77.check(config)", "return config"]
    assert sorted(places, key=create.index) == places
    init = files["vllm/config/vllm.py"].partition("    def __post_init__(")[2]
    assert init.index("self._validate_v2_model_runner()") < init.index("_kiln_pn72.check(self)")


class Drafter:
    """A proposer that would draft five tokens for whoever has some."""

    def __init__(self, kiln_p77: Any) -> None:
        self.kiln_p77 = kiln_p77

    def propose(self, *arguments: Any, slot_mappings: Any) -> list[list[int]]:
        sampled = next(each for each in arguments if isinstance(each, list))
        return [[1, 2, 3, 4, 5] if tokens else [] for tokens in sampled]


def draft(
    files: Files, adaptive: Any, verified: Mapping[str, list[int]], sampled: list[list[int]]
) -> Any:
    """The runner's drafts after a step of requests a and b."""
    runner = SimpleNamespace(
        drafter=Drafter(adaptive),
        speculative_config=SimpleNamespace(method="ngram"),
        requests={"a": 1, "b": 1, "waiting": 1},
        input_batch=SimpleNamespace(
            req_ids=["b", "a"], num_tokens_no_spec=None, token_ids_cpu=None
        ),
    )
    output = SimpleNamespace(
        total_num_scheduled_tokens=9,
        num_spec_tokens_to_schedule=5,
        scheduled_spec_decode_tokens=verified,
    )
    run = function(files[RUNNER], "GPUModelRunner", "propose_draft_token_ids")
    return run(runner, output, sampled, *[None] * 7)


@pytest.fixture
def proposer(monkeypatch: pytest.MonkeyPatch, module: Load) -> None:
    """The module that the runner imports when it drafts."""
    module("_kiln")
    name = "vllm.v1.spec_decode.ngram_proposer"
    for part in ("vllm.v1", "vllm.v1.spec_decode", name):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setattr(sys.modules[name], "NgramProposer", Drafter, raising=False)


@pytest.mark.net
@pytest.mark.usefixtures("proposer")
def test_the_runner_says_what_became_of_whose_drafts(files: Files, module: Load) -> None:
    p77 = module("_kiln_p77")
    adaptive = p77.AdaptiveK(5, p77.Tuning(warm_up=1, every=1, alpha=1))
    step = functools.partial(draft, files, adaptive)
    assert step({}, [[7], [7]]) == [[1, 2, 3], [1, 2, 3]]
    # a, in the second slot, had all of its three accepted, and b none.
    assert step({"a": [1, 2, 3], "b": [1, 2, 3]}, [[7], [1, 2, 3, 7]]) == [[1], [1, 2, 3, 4, 5]]
    assert step({"a": [1, 2, 3, 4, 5], "b": [1]}, [[7], []]) == [[], []]
    assert adaptive.requests.keys() == {"a", "b"}


@pytest.mark.net
@pytest.mark.usefixtures("proposer")
def test_off_the_runner_does_as_it_did(files: Files) -> None:
    assert draft(files, None, {}, [[7], [7]]) == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.net
def test_the_proposer_lets_its_drafts_be_filtered(files: Files, wheel: tuple[str, Wheel]) -> None:
    seen: list[Any] = []

    def keep(*arguments: Any) -> str:
        seen.extend(arguments)
        return "filtered"

    itself = SimpleNamespace(
        k=5,
        max_model_len=100,
        batch_propose=lambda *_: "drafts",
        kiln_pn72=SimpleNamespace(keep=keep),
    )
    number = () if wheel[0] == "0.23.0" else (5,)
    propose = function(files[PROPOSER], "NgramProposer", "propose")
    assert propose(itself, *number, [[7]], [3], "tokens") == "filtered"
    assert seen == ["drafts", [3], "tokens"]
    itself.kiln_pn72 = None
    assert propose(itself, *number, [[7]], [3], "tokens") == "drafts"
