"""The action graph: keys, plans, early cut-off, failure, and what is fetched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from kiln.canonical import Digest, digest
from kiln.errors import BadInput
from kiln.graph.action import Context, Graph, Locked, Node, Output, Run, Step
from kiln.graph.build import build
from kiln.graph.plan import make_plan
from kiln.progress import Silent
from kiln.store import Store


class Shelf:
    """A fetcher that has everything, and remembers what it was asked for."""

    def __init__(self, store: Store, files: Mapping[str, bytes]) -> None:
        self.store, self.files, self.asked = store, files, list[str]()

    def fetch(self, wanted: Sequence[Locked]) -> None:
        for item in wanted:
            self.asked.append(item.name)
            self.store.blobs.put(self.files[item.name])


def text_step(
    function: Callable[[Mapping[str, bytes]], bytes], log: list[str] | None = None
) -> Run:
    def run(context: Context) -> Mapping[str, Digest]:
        if log is not None:
            log.append(str(context.params.get("name")))
        read = {name: context.store.blobs.read(d.sha256) for name, d in context.inputs.items()}
        return {"out": context.store.blobs.put(function(read))}

    return run


def chain(log: list[str], source: bytes, cut: bool = False) -> Graph:
    """source -> strip -> upper; strip forgets blanks, so that a blank cuts off early."""
    strip = Step("strip", 1, text_step(lambda i: i["in"].strip(), log))
    upper = Step("upper", 1, text_step(lambda i: i["in"].upper(), log))
    locked = Locked(digest(source), "source.txt", None)
    return Graph(
        [
            Node("upper", upper, {"in": Output("strip")}, {"name": "upper"}),
            Node("strip", strip, {"in": locked}, {"name": "strip"}),
        ]
    )


def test_a_build_runs_in_order_and_the_second_runs_nothing(store: Store) -> None:
    log: list[str] = []
    shelf = Shelf(store, {"source.txt": b"abc "})
    results = build(store, chain(log, b"abc "), "upper", shelf, Silent())
    assert store.blobs.read(results["upper"]["out"].sha256) == b"ABC"
    assert log == ["strip", "upper"]
    build(store, chain(log, b"abc "), "upper", shelf, Silent())
    assert log == ["strip", "upper"]
    assert shelf.asked == ["source.txt"]


def test_an_equal_input_cuts_off_early(store: Store) -> None:
    log: list[str] = []
    build(store, chain(log, b"abc"), "upper", Shelf(store, {"source.txt": b"abc"}), Silent())
    build(store, chain(log, b"abc "), "upper", Shelf(store, {"source.txt": b"abc "}), Silent())
    assert log == ["strip", "upper", "strip"]


def test_the_plan_says_what_runs_and_why(store: Store) -> None:
    log: list[str] = []
    plan = make_plan(store, chain(log, b"abc"), "upper")
    assert [(a.name, a.state) for a in plan.actions] == [("strip", "run"), ("upper", "waits")]
    assert plan.actions[0].why == "never run in this store"
    assert plan.actions[1].why == "for strip"
    assert [f.name for f in plan.fetches] == ["source.txt"]

    build(store, chain(log, b"abc"), "upper", Shelf(store, {"source.txt": b"abc"}), Silent())
    assert make_plan(store, chain(log, b"abc"), "upper").todo == ()
    changed = make_plan(store, chain(log, b"abcd"), "upper")
    assert changed.actions[0].why == "changed: in"
    assert log == ["strip", "upper"], "a plan runs nothing"


def test_a_lost_blob_is_made_again_with_what_it_needs(store: Store) -> None:
    log: list[str] = []
    shelf = Shelf(store, {"source.txt": b"abc"})
    results = build(store, chain(log, b"abc"), "upper", shelf, Silent())
    store.blobs.remove(results["upper"]["out"].sha256)
    plan = make_plan(store, chain(log, b"abc"), "upper")
    assert [(a.name, a.state) for a in plan.todo] == [("upper", "run")]
    assert "blob" in plan.todo[0].why
    build(store, chain(log, b"abc"), "upper", shelf, Silent())
    assert log == ["strip", "upper", "upper"]


def test_a_middle_blob_that_nobody_needs_may_be_gone(store: Store) -> None:
    log: list[str] = []
    shelf = Shelf(store, {"source.txt": b"abc"})
    results = build(store, chain(log, b"abc"), "upper", shelf, Silent())
    store.blobs.remove(results["strip"]["out"].sha256)
    assert make_plan(store, chain(log, b"abc"), "upper").todo == ()


def test_a_failure_keeps_what_was_done_and_starts_nothing_new(store: Store) -> None:
    def fail(_: Context) -> Mapping[str, Digest]:
        raise BadInput("test.broken", "broken on purpose")

    done: list[str] = []
    ok = Step("ok", 1, text_step(lambda _: b"ok", done))
    graph = Graph(
        [
            Node("first", ok, {}, {"name": "first"}, estimate=9),
            Node("bad", Step("bad", 1, fail), {"in": Output("first")}),
            Node("last", ok, {"in": Output("bad")}, {"name": "last"}),
        ]
    )
    with pytest.raises(BadInput) as error:
        build(store, graph, "last", Shelf(store, {}), Silent())
    assert error.value.code == "test.broken"
    assert done == ["first"]
    assert [a.name for a in make_plan(store, graph, "last").todo] == ["bad", "last"]
    assert list(store.blobs.tmp.iterdir()) == []


def test_independent_actions_run_side_by_side(store: Store) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(context: Context) -> Mapping[str, Digest]:
        both.wait()
        return {"out": context.store.blobs.put(b"met")}

    step = Step("meet", 1, meet)
    last = Step("last", 1, text_step(lambda _: b"done"))
    graph = Graph(
        [
            Node("a", step, {}, {"n": 1}),
            Node("b", step, {}, {"n": 2}),
            Node("last", last, {"a": Output("a"), "b": Output("b")}),
        ]
    )
    start = time.monotonic()
    build(store, graph, "last", Shelf(store, {}), Silent(), jobs=2)
    assert time.monotonic() - start < 10


def test_the_key_changes_with_each_part_and_with_nothing_else() -> None:
    run = text_step(lambda _: b"")
    node = Node("n", Step("m", 1, run), {"in": digest(b"1")}, {"p": 1}, estimate=1)
    key = node.key({"in": digest(b"1")})
    assert key == Node("other", Step("m", 1, run), {}, {"p": 1}, 99).key({"in": digest(b"1")})
    others = [
        Node("n", Step("k", 1, run), {}, {"p": 1}).key({"in": digest(b"1")}),
        Node("n", Step("m", 2, run), {}, {"p": 1}).key({"in": digest(b"1")}),
        Node("n", Step("m", 1, run), {}, {"p": 2}).key({"in": digest(b"1")}),
        Node("n", Step("m", 1, run), {}, {"p": 1}).key({"in": digest(b"2")}),
        Node("n", Step("m", 1, run), {}, {"p": 1}).key({"on": digest(b"1")}),
    ]
    assert len({key, *others}) == 6


def test_two_nodes_of_one_name_are_a_mistake() -> None:
    node = Node("n", Step("m", 1, text_step(lambda _: b"")))
    with pytest.raises(ValueError, match="two nodes"):
        Graph([node, node])


def test_what_most_waits_for_runs_first(store: Store) -> None:
    log: list[str] = []
    step = Step("s", 1, text_step(lambda i: b"".join(i.values()), log))
    graph = Graph(
        [
            Node("big", step, {}, {"name": "big"}, estimate=1000),
            Node("small", step, {}, {"name": "small"}, estimate=1),
            Node("middle", step, {"in": Output("small")}, {"name": "middle"}),
            Node("last", step, {"a": Output("middle"), "b": Output("big")}, {"name": "last"}),
        ]
    )
    build(store, graph, "last", Shelf(store, {}), Silent(), jobs=1)
    assert log[0] == "small"
    assert log[-1] == "last"
