"""kiln doctor"""

from __future__ import annotations

import click

from kiln.cli.session import Session, with_session


@click.command()
@with_session
def command(session: Session) -> int:
    """Say what this machine can do: sandbox, engine, runtime, GPU, mirrors, disk.

    Exits 4 when the default pin could not be built or gated here.
    """
    from kiln.report.doctor import examine

    report = examine(session.store)
    session.result(report.text(), report.as_dict())
    return 0 if report.able else 4
