"""How drift is told: what waits is marked, hunks are shown where somebody has to look."""

from __future__ import annotations

import json

import msgspec

from kiln.drift.compare import Drift, Use
from kiln.drift.contracts import Change, Comparison
from kiln.drift.model import FileDrift, HunkDrift, Own, PatchDrift
from kiln.drift.scope import scope
from kiln.drift.symbols import Finding, Symbols
from kiln.report.drift import drift_data, drift_text

HUNK = HunkDrift(12, "CONFLICT", reason="5 of 6 lines stand\n  table\n! \x1b[2J")
BAD = FileDrift("vllm/a.py", "CONFLICT", "of 1 hunk: 1 CONFLICT", hunks=(HUNK,), after=("first",))
FINE = FileDrift("vllm/b.py", "OK")
WAITS = PatchDrift(
    "p77", "CONFLICT", "patches/p77/1.patch", files=(BAD, FINE), waits=True,
    left_out=("tests/test_a.py",),
)  # fmt: skip
CARRIED = PatchDrift(
    "p70", "CONFLICT", "patches/p70/1.patch", files=(BAD,), target=Own("patches/p70/2.patch", True)
)
OK = PatchDrift("p1", "OK", "patches/p1/1.patch", files=(FINE,), target=Own("2.patch", False, "no"))
DRIFT = Drift("pin", "old source", "new source", "2.0", (OK, CARRIED, WAITS))


def lines(drift: Drift, *, whole: bool = False) -> list[str]:
    return drift_text(drift, whole=whole).splitlines()


def test_the_table_says_what_waits_and_what_there_is() -> None:
    assert lines(DRIFT)[:5] == [
        "old source -> new source",
        "  patch  verdict   for 2.0",
        "  p1     OK        has 2.patch, which does not fit: no",
        "  p70    CONFLICT  2.patch fits",
        "! p77    CONFLICT  none",
    ]


def test_hunks_are_shown_of_what_waits_or_of_all() -> None:
    told = lines(DRIFT)
    start = told.index("p77 (patches/p77/1.patch)")
    assert told[start : start + 7] == [
        "p77 (patches/p77/1.patch)",
        "  CONFLICT         vllm/a.py  of 1 hunk: 1 CONFLICT",
        "    hunk at line 12: CONFLICT: 5 of 6 lines stand",
        "      table",
        r"    ! \x1b[2J",
        "    it needs lines of first, which do not fit themselves",
        "  left out, as patch.yaml says: tests/test_a.py",
    ]
    assert sum("hunk at line" in line for line in told) == 1
    assert sum("hunk at line" in line for line in lines(DRIFT, whole=True)) == 2


def test_how_far_a_hunk_is_off_stands_with_its_file() -> None:
    away = HunkDrift(12, "OFFSET", 15, 3, "its lines stand at line 15")
    file = FileDrift("vllm/a.py", "OFFSET", "of 1 hunk: 1 OFFSET by +3", hunks=(away,))
    drift = Drift("pin", "", "new", "", (PatchDrift("p", "OFFSET", files=(file,), waits=True),))
    told = lines(drift)
    assert told[0] == "pin -> new"
    assert told[2] == "! p      OFFSET   of unknown version"
    assert "  OFFSET           vllm/a.py  of 1 hunk: 1 OFFSET by +3" in told
    assert not any("hunk at line" in line for line in told)
    assert any("hunk at line" in line for line in lines(drift, whole=True))


def test_the_sum_counts_what_waits() -> None:
    assert lines(DRIFT)[-1] == (
        "3 patches: 1 OK, 2 CONFLICT; 1 with a file that fits 2.0; work waits: 1 patch"
    )
    alone = Drift("pin", "a", "a", "2.0", (msgspec.structs.replace(OK, target=Own("f", True)),))
    assert lines(alone)[0] == "a"
    assert lines(alone)[-1] == "1 patch: 1 OK; nothing to do"
    assert lines(Drift("pin", "a", "a", "2.0", ()))[-1] == "no patches; nothing to do"


def test_names_that_break_are_marked() -> None:
    gone = Finding(
        "p70", "gone", "vllm.a.f", True, "it is gone", ("p.patch:3",), "f(x)", "", "vllm.b.f"
    )
    look = Finding("p70", "bases", "vllm.a.C", False, "other bases", ("p.patch:9",))
    drift = msgspec.structs.replace(DRIFT, names=Symbols((gone, look), 10, 2))
    told = lines(drift)
    start = told.index("names that the patches call: 10 looked up, 2 unknown")
    assert told[start + 1 : start + 5] == [
        "! p70: gone: vllm.a.f: it is gone",
        "    was: f(x)",
        "    see: vllm.b.f",
        "    at:  p.patch:3",
    ]
    assert told[start + 5] == "  p70: bases: vllm.a.C: other bases"
    assert told[-1].endswith("work waits: 1 patch, 1 name")


def contracts() -> Comparison:
    changes = [
        Change("tool-parser", "qwen", "remapped", "a.Qwen", "b.Qwen", "another class"),
        Change("tool-parser", "glm, mimo", "rewritten", "a.Base", "a.Base", "written anew"),
        Change("tool-parser", "new", "added", "", "a.New", "new"),
        Change("environment", "VLLM_SPEED", "default", "1", "2", "another default"),
        *(Change("environment", f"VLLM_{n}", "gone", "1", "", "gone") for n in range(30)),
    ]
    return Comparison(
        tuple(changes), {"tool-parser": 3, "environment": 5}, {"proposer-v1": "no file builds it"},
        {"tool-parser": ("new source: vllm/x.py:3",)},
    )  # fmt: skip


def test_contracts_name_what_waits_and_who_uses_it() -> None:
    used = (
        Use("environment", "VLLM_SPEED", "preset default"),
        Use("tool-parser", "mimo", "launch x"),
    )
    drift = msgspec.structs.replace(DRIFT, contracts=contracts(), used=used)
    told = lines(drift)
    start = told.index("contracts")
    assert told[start + 1 : start + 9] == [
        "  tool-parser: 3 as before, 1 remapped, 1 rewritten, 1 added",
        "  tool-parser: not read: new source: vllm/x.py:3",
        "  ! remapped: qwen: another class",
        "      a.Qwen -> b.Qwen",
        "  ! rewritten: glm, mimo (used by launch x): written anew",
        "  proposer-v1: not wholly compared: no file builds it",
        "  environment: 5 as before, 1 default, 30 gone",
        "  ! default: VLLM_SPEED (used by preset default): another default",
    ]
    assert "    and 11 more (--all shows them)" in told
    assert told[-1].endswith("work waits: 1 patch, 3 contracts")
    assert told[-2] == "not judged: proposer-v1 is not compared: no file builds it"


def test_the_data_is_json_with_the_verdict() -> None:
    data = drift_data(msgspec.structs.replace(DRIFT, contracts=contracts()))
    assert data["waits"] is True
    assert data["partial"] == ["proposer-v1 is not compared: no file builds it"]
    again = json.loads(json.dumps(data))
    assert again["patches"][2]["files"][0]["hunks"][0]["line"] == 12


def test_scopes_are_read_off_the_indentation() -> None:
    text = b"""\
import os


class Bold:
    SIZE = 1

    @property
    async def draw(
        self,
    ) -> None:
        if os:
            x = 1

        def inner():
            pass

        y = 2

z = 3
"""
    rows = text.split(b"\n")
    found = {
        row.strip(): scope(rows, number, len(row) - len(row.lstrip()))
        for number, row in enumerate(rows)
    }
    assert found[b"SIZE = 1"] == "Bold"
    assert found[b"x = 1"] == "Bold.draw"
    assert found[b"pass"] == "Bold.draw.inner"
    assert found[b"y = 2"] == "Bold.draw"
    assert found[b"z = 3"] == ""
