"""How patches read their switches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

PATCHES = ("kiln-identity",)
Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch


@pytest.mark.parametrize(("text", "on"), [(None, False), ("0", False), ("1", True)])
def test_flag(module: Load, monkeypatch: MP, text: str | None, on: bool) -> None:
    if text is not None:
        monkeypatch.setenv("X", text)
    assert module("_kiln").flag("X") is on


@pytest.mark.parametrize("text", ["", "yes", "true", "2", " 1", "on"])
def test_a_flag_that_is_neither_is_an_error(module: Load, monkeypatch: MP, text: str) -> None:
    monkeypatch.setenv("X", text)
    with pytest.raises(ValueError, match=r"X=.*0 or 1"):
        module("_kiln").flag("X")


def test_number(module: Load, monkeypatch: MP) -> None:
    kiln = module("_kiln")
    assert kiln.number("X", int, 0) is None
    for text, kind, value in [("0", int, 0), ("8", int, 8), ("2.5", float, 2.5), ("2", float, 2.0)]:
        monkeypatch.setenv("X", text)
        assert kiln.number("X", kind, 0) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", int), ("-1", int), ("1.", int), ("1_0", int), (" 1", int), ("11", int), ("9" * 50, int),
     ("", float), ("nan", float), ("inf", float), ("-0.1", float), ("10.1", float), ("1e1", float)],
)  # fmt: skip
def test_an_odd_number_is_an_error(module: Load, monkeypatch: MP, text: str, kind: type) -> None:
    monkeypatch.setenv("X", text)
    with pytest.raises(ValueError, match="X="):
        module("_kiln").number("X", kind, 0, 10)


def test_only(module: Load, monkeypatch: MP) -> None:
    kiln = module("_kiln")
    monkeypatch.setenv("KILN_X_ONE", "1")
    monkeypatch.setenv("KILN_Y", "1")
    kiln.only("KILN_X_", ["KILN_X_ONE", "KILN_X_TWO"])
    monkeypatch.setenv("KILN_X_TOW", "1")
    with pytest.raises(ValueError, match=r"KILN_X_TOW: no such switch.*KILN_X_TWO"):
        kiln.only("KILN_X_", ["KILN_X_ONE", "KILN_X_TWO"])
