"""kiln fsck"""

from __future__ import annotations

import click

from kiln.cli.session import Session, with_session


@click.command()
@with_session
def command(session: Session) -> int:
    """Hash every blob and check every result; damaged blobs are set aside.

    Exits 5 when something was damaged; the next build makes or fetches it again.
    """
    from kiln.store.fsck import check

    report = check(session.store, session.reporter)
    session.result(report.text(), report.as_dict())
    return 5 if report.damaged else 0
