"""`python -m tests.bench [SECTION...]`: measure, and print the table for docs/speed.md."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from kiln.errors import KilnError
from tests.bench.bench import Bench
from tests.bench.machine import describe
from tests.bench.sections import SECTIONS
from tests.bench.stores import Stores
from tests.bench.subject import find_subject
from tests.bench.table import markdown


def main() -> None:
    """Run the sections. stdout: the table; stderr: progress.

    What cannot run here is listed below the table, and is no failure; a pin that does not
    build as its lock says is one.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument(
        "--quick", action="store_true", help="small inputs, to try the bench itself"
    )
    parser.add_argument("--folder", type=Path, help="where to work; default: TMPDIR")
    asked = parser.parse_args()
    if unknown := set(asked.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}; there are: {', '.join(SECTIONS)}")

    with contextlib.ExitStack() as stack:
        # A short name: the engine's sockets lie below it.
        made = tempfile.TemporaryDirectory(prefix="kb-", dir=asked.folder)
        folder = Path(stack.enter_context(made))
        machine = describe(folder)
        stores = Stores(folder / "stores")
        sys.stderr.write("bench: completing the default pin, unmeasured\n")
        bench = Bench(folder, stores, find_subject(stores), asked.quick, stack, machine)
        for name, section in SECTIONS.items():
            if not asked.sections or name in asked.sections:
                bench.say(name)
                try:
                    section(bench)
                except KilnError as error:
                    bench.not_run.append(f"{name}: {error}")
        if asked.quick:
            sys.stdout.write("**--quick: small inputs; these figures mean nothing.**\n\n")
        sys.stdout.write(f"Measured on {', '.join(machine)}.\n\n{markdown(bench.rows)}")
        for line in dict.fromkeys(bench.not_run):
            sys.stdout.write(f"\nNot run: {line}\n")


if __name__ == "__main__":
    try:
        main()
    except KilnError as error:
        sys.exit(f"bench: {error}")
