"""Rules for compiled files, the script that judges them from inside, and its report."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln.errors import BadInput, CannotHere, Problems
from kiln.gate import extensions_inside as inside
from kiln.gate.extensions import check_extensions, judge_report, parse_rules
from kiln.pins.load import load_project
from kiln.run.client import CallFailed
from tests.helpers.fake_openai import REPORT, FakeServer, expected

ROOT = Path(__file__).parent.parent.parent
MARK = b"KILN-EXTENSIONS "
STATIC: inside.Rule = {"kind": "static", "arg": "", "flags": []}
IMPORT: inside.Rule = {"kind": "import", "arg": "", "flags": []}


def extension() -> Path:
    """A compiled module of this interpreter's standard library."""
    for name in ("_lzma", "_bz2", "_ctypes", "_curses"):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and spec.origin.endswith(".so"):
            return Path(spec.origin)
    raise AssertionError("this Python has none of them as a file")


def code(path: Path, rule: inside.Rule) -> str:
    return inside.in_child(path, rule, 60)[0]


# ---- the table ---------------------------------------------------------------------------------


def test_rules() -> None:
    rules = parse_rules(
        {
            "vllm/_C.abi3.so": "kernels: _C _moe_C if avx512f !avx512_bf16; static",
            "vllm/s.so": "import",
        }
    )
    first, second = rules["vllm/_C.abi3.so"]
    assert first == {"kind": "kernels", "arg": "_C _moe_C", "flags": ["avx512f", "!avx512_bf16"]}
    assert second == STATIC
    assert rules["vllm/s.so"] == [IMPORT]


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("vllm/a.so", ""),
        ("vllm/a.so", "ignore"),
        ("vllm/a.so", "kernels"),
        ("vllm/a.so", "static: because"),
        ("vllm/a.so", "import if avx2"),
        ("vllm/a.so", "import; static"),
        ("vllm/a.so", "static if"),
        ("vllm/a.so", "import;"),
        ("a.so", "import"),
        ("/vllm/a.so", "import"),
        ("*/a.so", "import"),
    ],
)
def test_bad_rules_are_refused(pattern: str, rule: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_rules({pattern: rule})
    assert caught.value.code == "gate.bad-rule"


def test_the_rules_of_this_repository_can_be_read() -> None:
    table = load_project(ROOT).recipe("cpu").extensions
    assert {"vllm/_C.abi3.so", "vllm/_C_AVX2.abi3.so"} <= parse_rules(table).keys()


def test_all_bad_rules_at_once() -> None:
    with pytest.raises(Problems) as caught:
        parse_rules({"vllm/a.so": "x", "vllm/b.so": "y", "vllm/c.so": "static"})
    assert [error.code for error in caught.value.errors] == ["gate.bad-rule"] * 2


# ---- inside ------------------------------------------------------------------------------------


def test_a_good_extension() -> None:
    assert code(extension(), IMPORT) == ""
    assert code(extension(), STATIC) == ""
    assert code(extension(), {"kind": "load", "arg": "", "flags": []}) == ""


def test_an_undefined_symbol_is_named(tmp_path: Path) -> None:
    broken = tmp_path / extension().name
    _, undefined = inside.dynamic_part(extension())
    known = next(name for name in undefined if name.startswith("PyErr_"))
    gone = known[:-1] + "0"
    data = extension().read_bytes()
    broken.write_bytes(data.replace(known.encode() + b"\0", gone.encode() + b"\0"))
    found, detail = inside.in_child(broken, STATIC, 60)
    assert found == "undefined-symbol"
    assert gone in detail


def test_an_import_error_over_a_symbol_is_told_apart() -> None:
    text = "_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
    assert inside.why(ImportError(text)) == "undefined-symbol"
    assert inside.why(ImportError("no PyInit")) == "import-error"


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    broken = tmp_path / extension().name
    data = extension().read_bytes()
    needed, _ = inside.dynamic_part(extension())
    assert needed
    gone = b"x" + needed[0].encode()[1:]
    broken.write_bytes(data.replace(needed[0].encode() + b"\0", gone + b"\0"))
    found, detail = inside.in_child(broken, STATIC, 60)
    assert found == "needed-missing"
    assert gone.decode() in detail


@pytest.mark.parametrize("size", [4, 16, 64, 500])
def test_a_cut_file_is_unreadable(tmp_path: Path, size: int) -> None:
    cut = tmp_path / "x.so"
    cut.write_bytes(extension().read_bytes()[:size])
    assert code(cut, STATIC) == "unreadable"
    assert code(cut, IMPORT) == "import-error"


def test_an_illegal_instruction_is_a_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def die(*_: object) -> None:
        faulthandler.disable()  # pytest's would write a page about it
        os.kill(os.getpid(), signal.SIGILL)

    monkeypatch.setattr(inside, "check", die)
    found, detail = inside.in_child(tmp_path, IMPORT, 60)
    assert (found, "SIGILL" in detail) == ("crash", True)


def test_an_exit_without_a_word_is_a_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inside, "check", lambda *_: os._exit(0))
    assert code(tmp_path, IMPORT) == "crash"


def test_a_hang_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inside, "check", lambda *_: time.sleep(60))
    start = time.monotonic()
    assert inside.in_child(tmp_path, IMPORT, 0.2)[0] == "timeout"
    assert time.monotonic() - start < 10


def test_flags_choose() -> None:
    rules = parse_rules({"a/b": "import if avx2 !sse9; static"})["a/b"]
    alternatives = [inside.Rule(kind=r["kind"], arg=r["arg"], flags=r["flags"]) for r in rules]
    assert inside.choose(alternatives, {"avx2"})["kind"] == "import"
    assert inside.choose(alternatives, {"avx2", "sse9"})["kind"] == "static"
    assert inside.choose(alternatives, set())["kind"] == "static"
    with pytest.raises(inside.BadError):
        inside.choose(alternatives[:1], set())


def test_every_compiled_file_needs_a_rule_and_every_rule_a_file(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "deep").mkdir(parents=True)
    for name in ("_C.so", "deep/unlisted"):
        (tmp_path / "vllm" / name).write_bytes(extension().read_bytes())
    (tmp_path / "vllm" / "x.py").write_text("")
    (tmp_path / "other.so").write_bytes(extension().read_bytes())
    report = inside.judge({"vllm/_C.so": [STATIC], "vllm/gone.*": [STATIC]}, 60, tmp_path, set())
    assert {file["path"]: file["code"] for file in report} == {
        "vllm/_C.so": "",
        "vllm/deep/unlisted": "unlisted",
        "vllm/gone.*": "missing",
    }


def test_the_script_runs_as_a_text_of_its_own(tmp_path: Path) -> None:
    """As in an image: -P -c, with a torch and a vllm that are there."""
    for name, text in (("torch", "__version__ = '2.13.0+cpu'"), ("vllm", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    name = extension().name
    (tmp_path / "vllm" / name).write_bytes(extension().read_bytes())
    source = Path(inside.__file__).read_text()
    request = json.dumps({"rules": {"vllm/*.so": [IMPORT]}, "seconds": 60})
    done = subprocess.run(
        [sys.executable, "-P", "-c", source, request],
        capture_output=True,
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    case = judge_report(done.returncode, done.stdout, done.stderr, "2.13.0+cpu")
    assert case.verdict == "pass", case


# ---- its report --------------------------------------------------------------------------------


def report(**file: str) -> bytes:
    known = {"path": "vllm/_C.abi3.so", "rule": "kernels", "code": "", "detail": ""}
    return MARK + json.dumps({"torch": "2.13.0+cpu", "files": [known | file]}).encode()


def test_a_good_report() -> None:
    case = judge_report(0, b"some log\n" + report(), b"warning", "2.13.0+cpu")
    assert case.verdict == "pass"
    assert "1 by kernels" in case.detail


def test_an_undefined_symbol_names_both_torches() -> None:
    out = report(code="undefined-symbol", detail="undefined symbol: _ZN3c10foo")
    case = judge_report(0, out, b"", "2.11.0")
    assert case.problems == ("torch", "undefined-symbol")
    for word in ("_ZN3c10foo", "2.11.0", "2.13.0+cpu", "vllm/_C.abi3.so"):
        assert word in case.reason


@pytest.mark.parametrize(
    ("status", "out"),
    [
        (0, b""),
        (0, MARK + b"{"),
        (0, MARK + b"[]"),
        (0, MARK + b'{"torch": "2.13.0+cpu", "files": []}'),
        (132, b""),
        (1, report()),
    ],
)
def test_no_report_is_a_failure(status: int, out: bytes) -> None:
    case = judge_report(status, out, b"Traceback: no torch", "2.13.0+cpu")
    assert case.verdict == "fail"
    assert case.problems == ("no-report",)
    assert "no torch" in case.reason


def test_a_damaged_report_is_a_failure() -> None:
    out = MARK + json.dumps({"torch": "2.13.0+cpu", "files": [1]}).encode()
    assert judge_report(0, out, b"", "2.13.0+cpu").verdict == "fail"


def test_a_runner_without_a_way_in_is_not_run() -> None:
    assert check_extensions(FakeServer(executed=None), expected()).verdict == "not-run"


def test_a_recipe_without_rules_fails() -> None:
    case = check_extensions(FakeServer(), expected(extensions={}))
    assert case.problems == ("no-rules",)


@pytest.mark.parametrize(
    "error", [CallFailed("run.timeout", "too late"), CannotHere("run.exec", "no way")]
)
def test_a_broken_look_inside_fails(error: Exception) -> None:
    class Broken(FakeServer):
        def execute(self, argv: object, seconds: float) -> None:
            raise error

    assert check_extensions(Broken(), expected()).problems == ("no-report",)


def test_the_gate_hands_over_script_and_rules() -> None:
    seen: list[str] = []

    class Watched(FakeServer):
        def execute(self, argv: object, seconds: float) -> tuple[int, bytes, bytes]:
            assert isinstance(argv, list)
            seen.extend(argv)
            assert math.isfinite(seconds)
            return 0, MARK + json.dumps(REPORT).encode(), b""

    assert check_extensions(Watched(), expected()).verdict == "pass"
    assert seen[:3] == ["/usr/bin/python3.11", "-P", "-c"]
    assert json.loads(seen[4])["rules"]["vllm/_C.abi3.so"][0]["kind"] == "kernels"
