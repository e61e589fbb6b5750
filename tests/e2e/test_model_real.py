"""The gates' model, made for real from the default pin's lock: the same bytes each time,
and read alike by the transformers that made it and by the one that serves it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kiln.canonical import Digest
from kiln.compile.root import Part, TreePart, WheelPart, materialise
from kiln.compile.sandbox import Bind, Command, find_sandbox
from kiln.graph.action import Locked
from kiln.graph.build import build
from kiln.image.prepare import LockFetcher
from kiln.image.roots import locked, model_graph
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Closure
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.source.deb import Deb
from kiln.source.tree import read_tree, unpack, write_tree
from kiln.source.wheel import Wheel
from kiln.store import Store
from tests.conftest import cache_dir
from tests.helpers.wheels import INSTALL

pytestmark = [pytest.mark.net, pytest.mark.slow]

NAME = "smollm2-135m"
PROJECT = load_project(Path(__file__).parents[2])
LOCK = read_lock(locks_path(PROJECT.root, PROJECT.pins.default))
MAKER, SERVER = LOCK.resolved.closures[f"model/{NAME}"], LOCK.resolved.closures["image"]

READ = """
import json, sys, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained("/build")
ids = [tokenizer(text)["input_ids"] for text in json.loads(sys.argv[1])]
chat = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Is it 25 degrees?"}], tokenize=False, add_generation_prompt=True,
    tools=[{"type": "function", "function": {"name": "weather", "parameters": {}}}],
)
print("\\n" + json.dumps({"version": transformers.__version__, "read": {
    "ids": ids,
    "texts": [tokenizer.decode(one) for one in ids],
    "tokens": [tokenizer.convert_ids_to_tokens(one) for one in ids],
    "chat": chat,
    "chat ids": tokenizer(chat)["input_ids"],
    "end": tokenizer.eos_token_id,
}}))
"""
TEXTS = [
    "",
    "  25",
    "The capital of France is Paris, isn't it ?",
    "  two  blanks\tand\r\n\nlines ",
    "Café façade, “naïve” ½ €, Привет, 日本語, 한국어",
    "🙂 👩‍👧 a▁b",
    "def square(x):\n    return x**2  # 3.14",
    "<|im_start|>user\nHi<|im_end|>\n",
    "\x14",  # a byte that no token spells
]
START, END = 1, 2


class Downloads:
    """Fetches what the lock names, into a store that the tests keep."""

    root = cache_dir() / "locked"

    def fetch(self, wanted: Sequence[Locked]) -> None:
        kept = Store(self.root)
        missing = [item for item in wanted if not kept.blobs.has(item.digest)]
        LockFetcher(PROJECT, LOCK, kept, Silent()).fetch(missing)


def new_store(path: Path) -> Store:
    """A store with nothing but the downloads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILN_ALTERNATES", str(Downloads.root))
        return Store(path)


def make(store: Store) -> Digest:
    """The tree of the model."""
    graph, goal = model_graph(PROJECT, LOCK.resolved, NAME)
    return build(store, graph, goal, Downloads(), Silent())[goal]["out"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = new_store(tmp_path_factory.mktemp("model") / "store")
    yield store
    shutil.rmtree(store.root)  # 1.5 GB


@pytest.fixture(scope="module")
def model(store: Store) -> Path:
    """The model's folder."""
    folder = store.root / NAME
    unpack(read_tree(store.blobs.path(make(store).sha256)), folder)
    return folder


def test_it_is_fit_to_be_served(model: Path) -> None:
    def read(name: str) -> dict[str, Any]:
        return dict(json.loads((model / name).read_bytes()))

    assert {path.stat().st_mode & 0o777 for path in model.iterdir()} == {0o644}
    assert read("config.json")["dtype"] == "bfloat16"
    assert read("generation_config.json")["eos_token_id"] == END
    assert "temperature" not in read("generation_config.json")  # gates say how to sample
    # transformers 5 decodes to raw byte symbols if it says LlamaTokenizer.
    assert read("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    # Not only transformers reads this one: llguidance learns from it how tokens are spelt.
    assert read("tokenizer.json")["decoder"]["type"] == "ByteLevel"
    with (model / "model.safetensors").open("rb") as source:
        header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    del header["__metadata__"]
    assert len(header) == 272
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}


def test_its_maker_and_its_server_read_it_alike(store: Store, model: Path) -> None:
    maker, server = (read_with(store, closure, model) for closure in (MAKER, SERVER))
    assert (maker["version"][0], server["version"][0]) == ("4", "5")
    assert maker["read"] == server["read"]
    said = server["read"]
    assert said["texts"] == [*TEXTS[:-1], ""]
    assert said["tokens"][1] == ["ĠĠ", "2", "5"]
    assert said["end"] == END
    # Nothing puts a start token before a text: a chat begins with one of its own.
    assert said["ids"][0] == []
    assert said["chat"].startswith("<|im_start|>system\n")
    assert said["chat ids"].count(START) == said["chat"].count("<|im_start|>") == 3
    assert '<tools>[{"type": "function"' in said["chat"]


def test_its_bytes_depend_on_no_place_time_zone_umask_or_cores(
    store: Store, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "another place"
    elsewhere.mkdir()
    (elsewhere / "roots").symlink_to(store.roots)  # a cache, and large
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    cores, umask = os.sched_getaffinity(0), os.umask(0o077)
    os.sched_setaffinity(0, {min(cores)})
    try:
        other = make(new_store(elsewhere))
    finally:
        os.sched_setaffinity(0, cores)
        os.umask(umask)
    assert other == make(store)  # which has it already


def read_with(store: Store, closure: Closure, model: Path) -> dict[str, Any]:
    """What READ says of the model, with a closure's transformers, on the maker's Debian."""
    parts: list[Part] = [
        TreePart(write_tree(store.blobs, Deb(store.blobs.path(deb.sha256)).entries()))
        for deb in MAKER.debs
    ]
    for item in reader(store, closure):
        parts.append(WheelPart(item.digest, item.name, INSTALL))
    command = Command(
        ("python3.11", "-c", READ, json.dumps(TEXTS)),
        materialise(store, parts),
        env={"HF_HUB_OFFLINE": "1"},
        binds=(Bind(model, "/build"),),
    )
    log = store.root / "log"
    assert find_sandbox(store).run(command, log) == 0, log.read_text()
    return dict(json.loads(log.read_text().splitlines()[-1]))


def reader(store: Store, closure: Closure) -> list[Locked]:
    """transformers, its templates' jinja2, and what these require: no torch."""
    wheels = {wheel.name: locked(wheel) for wheel in closure.wheels}
    found, todo = list[Locked](), ["transformers", "jinja2"]
    while todo:
        item = wheels.pop(todo.pop(), None)
        if item is None:
            continue  # seen already, or left out of the closure
        found.append(item)
        Downloads().fetch([item])
        wheel = Wheel(store.blobs.path(item.digest.sha256), item.name)
        metadata, _ = parse_email(wheel.read(f"{wheel.dist_info}/METADATA"))
        for requirement in map(Requirement, metadata.get("requires_dist", ())):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(requirement.name))
    return found
