"""kiln drift"""

from __future__ import annotations

import click

from kiln.cli.session import Session, pin_argument, with_session


@click.command()
@pin_argument
@click.option("--to", metavar="PIN|WHEEL|DIR", help="Judge on this source, not on PIN's own.")
@click.option("--all", "whole", is_flag=True, help="Show the hunks for which nothing waits too.")
@with_session
def command(session: Session, pin: str | None, to: str | None, whole: bool) -> int:
    """Say what becomes of PIN's patches on another source, without building.

    For each patch, file and hunk: OK, OFFSET, MOVED, ALREADY_UPSTREAM, SUPERSEDED_BY,
    AMBIGUOUS, CONFLICT or MISSING, with the reason; which names that the patches call are
    gone or have another signature; and which parser, method, variable or operator stands
    for something else. Exit code 1 where work waits, 4 where nothing does but a part
    cannot be judged here.
    """
    from kiln.drift.compare import find_drift
    from kiln.report.drift import drift_data, drift_text

    found = find_drift(session.project, pin, to, session.store, session.reporter)
    session.result(drift_text(found, whole=whole), drift_data(found))
    if found.waits:
        return 1
    return 4 if found.partial else 0
