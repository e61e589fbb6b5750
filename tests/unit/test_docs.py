"""What the pages say exists: files, links, commands, error codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "kiln").rglob("*.py")))
MAX_LINES = 120

# A file of the repository; "PIN" in it stands for a pin's name.
FILE = re.compile(r"`((?:kiln|tests|docs|images|build|patches|scripts)/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)#]+)\)")
COMMAND = re.compile(r"(?:`|^ +(?:\$ )?|\$\()kiln ([a-z]+)", re.MULTILINE)
STAGES = (
    "authoring|compile|drift|fetch|gate|image|layer|lock|outputs|patch|pins|registry|run|source"
)
CODE = re.compile(rf"[`\[]((?:{STAGES})\.(?!(?:py|yaml)`)[a-z-]+)[`\]]")
HOST = re.compile(r"https?://(?!wheels\.example)")


def matches(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text())]


def test_files_are_there() -> None:
    found = matches(FILE)
    assert len(found) > 20
    real = [(page, file.replace("PIN", "v0.32.0-cpu")) for page, file in found]
    assert [(page, file) for page, file in real if not (ROOT / file).exists()] == []


def test_links_lead_somewhere() -> None:
    missing = [
        (page.name, link)
        for page in PAGES
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_commands_exist() -> None:
    found = matches(COMMAND)
    assert {command for _, command in found} >= {"plan", "build", "gate", "lock", "load"}
    assert [(page, command) for page, command in found if command not in COMMANDS] == []


def test_error_codes_are_the_codes_of_errors() -> None:
    found = matches(CODE)
    assert len(found) > 15
    assert [(page, code) for page, code in found if f'"{code}"' not in SOURCE] == []


def test_the_index_of_decisions_is_whole() -> None:
    index = set(LINK.findall((ROOT / "docs/design.md").read_text()))
    assert {page.name for page in PAGES[1:]} - {"design.md"} <= index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_short_and_name_no_hosts(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n") <= MAX_LINES
    assert HOST.findall(text) == []
