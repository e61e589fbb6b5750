"""Finding and loading a project: its pins file, read and checked as a whole."""

from __future__ import annotations

from pathlib import Path

from kiln.errors import BadInput, raise_problems
from kiln.pins.checks import problems
from kiln.pins.model import Pins
from kiln.pins.project import Project
from kiln.pins.yaml import load_document

__all__ = ["Project", "find_root", "load_project"]

PINS = "pins.yaml"


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upward, that holds a pins.yaml.

    Raises BadInput("pins.no-project").
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / PINS).is_file():
            return folder
    raise BadInput(
        "pins.no-project",
        f"no {PINS} here, nor in any folder above",
        where=str(start),
        fix="go into a Kiln project, or name its folder with -C",
    )


def load_project(root: Path) -> Project:
    """The project in a folder, with pins.yaml and every recipe that it names checked.

    Raises BadInput, or Problems with all that is wrong in pins.yaml.
    """
    project = Project(root, load_document(root / PINS, Pins, shown=PINS))
    raise_problems(problems(project))
    return project
