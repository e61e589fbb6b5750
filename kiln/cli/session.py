"""What the commands share: options, the project, the store, where output goes."""

from __future__ import annotations

import errno
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kiln.errors import CannotHere, KilnError
from kiln.pins.load import Project, find_root, load_project
from kiln.progress import Lines, Reporter, Silent
from kiln.store import Store


@dataclass(frozen=True)
class Session:
    """One run of the tool."""

    as_json: bool
    quiet: bool
    directory: Path

    @functools.cached_property
    def project(self) -> Project:
        """The project that holds the current folder (pins.yaml, recipes, patches)."""
        return load_project(find_root(self.directory))

    @functools.cached_property
    def store(self) -> Store:
        """The store, opened."""
        return Store()

    @functools.cached_property
    def reporter(self) -> Reporter:
        """Progress to stderr: live on a terminal, lines in a log."""
        if self.quiet:
            return Silent()
        if sys.stderr.isatty():
            from kiln.report.live import Live

            return Live()
        return Lines()

    def result(self, text: str, data: object) -> None:
        """Print the result: text for people and pipes, or data with --json."""
        if self.as_json:
            print(json.dumps(data, indent=2, sort_keys=True), flush=True)
        elif text:
            print(text, flush=True)  # a digest is there before the gates have begun


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the common options and a Session as its first argument."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
    @click.option(
        "-C",
        "--directory",
        default=".",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Work on the project that holds this folder.",
    )
    @functools.wraps(function)
    def wrapper(as_json: bool, quiet: bool, directory: Path, **arguments: Any) -> Any:
        return function(Session(as_json, quiet, directory), **arguments)

    return wrapper


pin_argument = click.argument("pin", required=False, metavar="[PIN]")
locked_option = click.option(
    "--locked", is_flag=True, help="Write no lock; any difference from it is an error (for CI)."
)


def machine_error(error: OSError) -> KilnError | None:
    """What an OSError says of this machine (no space, not ours to write), else None."""
    from kiln.store import default_root
    from kiln.store.blobs import no_space

    # A write that failed names no file; nearly all that is written goes to the store.
    where = Path(str(error.filename)) if error.filename else default_root()
    if (full := no_space(error, where)) is not None:
        return full
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return None
    return CannotHere(
        "machine.not-allowed",
        "this user may not read or write a file",
        where=str(where),
        why=error.strerror or "",
        fix="make it accessible, or run as the user that it belongs to",
    )


def failed(error: KilnError, as_json: bool) -> int:
    """Print an error (stderr; with --json also as data on stdout); returns its exit code."""
    print(f"kiln: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2, sort_keys=True))
    return error.exit_code
