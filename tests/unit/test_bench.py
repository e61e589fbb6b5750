"""The bench: its table, its budgets, and the stores that it measures in."""

from __future__ import annotations

import sqlite3
import sys
import urllib.request
from pathlib import Path

import pytest

from kiln.errors import CannotHere
from kiln.store import Store
from tests.bench import table
from tests.bench.comparison import serve
from tests.bench.sections import SECTIONS, comment_line
from tests.bench.stores import Ran, best, copy_table, of_layers, run
from tests.bench.table import Budget, Row, amount, markdown

SPEED = Path(__file__).parents[2] / "docs" / "speed.md"


def test_the_budgets_are_those_of_the_design() -> None:
    # The words of its page "Budgets", one of them for each constant.
    design = {
        "UNCHANGED": "under 0.3 s",
        "PATCH_SECONDS": "under 2 s",
        "PATCH_BYTES": "under 2 MB",
        "LAYERS_SPEED": "at least 180 MB/s",
        "LAYERS_MEMORY": "under 500 MB",
        "WHOLE": "at least 6x",
        "DRIFT": "under 5 s",
    }
    budgets = {name: str(b) for name, b in vars(table).items() if isinstance(b, Budget)}
    assert budgets == design
    page = SPEED.read_text()
    assert [text for text in design.values() if text not in page] == []
    assert [name for name in SECTIONS if f"`{name}`" not in page] == []


def test_the_page_holds_a_table_of_the_generator() -> None:
    assert markdown([]) in SPEED.read_text()


def test_a_budget_is_kept_up_to_its_limit() -> None:
    assert Budget("under", 2, "s").holds(1.99)
    assert not Budget("under", 2, "s").holds(2)
    assert Budget("at least", 6, "x").holds(6)
    assert not Budget("at least", 6, "x").holds(5.99)


def test_the_table_judges_the_figure_that_the_budget_is_about() -> None:
    rows = [
        Row("fast", "s", 0.25, 0.1, Budget("under", 0.3, "s")),
        Row("whole", "s", 20, 119, Budget("at least", 6, "x"), "build 12 s"),
        Row("no engine", "s", 20, None, Budget("at least", 6, "x")),
        Row("docker alone", "s", None, 150.4),
    ]
    assert markdown(rows).splitlines() == [
        "| work | kiln | docker | ratio | budget | kept | detail |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| fast | 0.25 s | 0.1 s | 0.4x | under 0.3 s | yes |  |",
        "| whole | 20 s | 119 s | 5.95x | at least 6x | **no** | build 12 s |",
        "| no engine | 20 s |  |  | at least 6x |  |  |",
        "| docker alone |  | 150 s |  |  |  |  |",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234 s"), (99.96, "100 s"), (0.1234, "0.123 s"), (None, "")]
)
def test_amounts_have_three_digits(value: float | None, text: str) -> None:
    assert amount(value, "s") == text


def test_a_store_of_the_bench_keeps_what_is_asked_and_the_evidence(tmp_path: Path) -> None:
    store = Store(tmp_path / "user")
    blob = store.blobs.put(b"x")
    for number, node in enumerate(["layer:torch", "image", "whole:p", "bytecode:torch", "deb:a"]):
        store.actions.put(f"{number:064}", node, b"{}", {"out": blob})
    store.actions.add_evidence("d" * 64, "default", "e" * 64)
    target = tmp_path / "actions.db"
    copy_table(store.actions.path, target, lambda node: not of_layers(node))
    with sqlite3.connect(target) as copied:
        nodes = {row[0] for row in copied.execute("select node from action")}
        evidence = copied.execute("select count(*) from evidence").fetchone()[0]
    assert nodes == {"bytecode:torch", "deb:a"}
    assert evidence == 1
    assert len(list(store.actions.items())) == 5, "the user's own table is left alone"


def test_a_run_is_timed_with_its_memory() -> None:
    ran = run([sys.executable, "-c", "x = bytearray(b'x') * (200 << 20); print('done')"])
    assert ran.output == "done\n"
    assert ran.seconds > 0
    assert 200 << 20 < ran.peak < 500 << 20


def test_a_run_that_fails_says_its_last_words() -> None:
    with pytest.raises(CannotHere) as failed:
        run([sys.executable, "-c", "import sys; sys.exit('no more')"])
    assert failed.value.code == "bench.command"
    assert "no more" in failed.value.why


def test_the_best_run_counts() -> None:
    times = iter([3.0, 1.0, 2.0])
    assert best(3, lambda: Ran(next(times), 0, "")).seconds == 1.0


def test_the_edited_line_is_a_comment_of_a_python_file() -> None:
    diff = "+++ b/a.txt\n+# no\n+++ b/v/b.py\n+x = 1\n #  not added\n+    # why\n+# more\n"
    assert comment_line(diff) == ("v/b.py", "    # why")
    with pytest.raises(CannotHere) as failed:
        comment_line("+++ b/v/b.py\n+x = 1\n")
    assert failed.value.code == "bench.no-comment"


def test_wheels_are_served_as_they_are(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "real").write_bytes(data)
    (tmp_path / "a-1+cpu.whl").symlink_to(tmp_path / "real")
    with serve(tmp_path) as url, urllib.request.urlopen(f"{url}/a-1%2Bcpu.whl") as answer:
        assert answer.read() == data
    with serve(tmp_path) as url, urllib.request.urlopen(f"{url}/") as answer:
        assert b'href="a-1%2Bcpu.whl"' in answer.read()
