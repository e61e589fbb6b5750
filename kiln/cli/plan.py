"""kiln plan"""

from __future__ import annotations

import click

from kiln.cli.session import Session, pin_argument, with_session


@click.command()
@pin_argument
@with_session
def command(session: Session, pin: str | None) -> None:
    """Show what `kiln build PIN` would do: every action, cached or to do, and why.

    Nothing is fetched, run or written.
    """
    from kiln.image.plan import plan_pin
    from kiln.report.plan import plan_data, plan_text

    planned = plan_pin(session.project, pin, session.store, session.reporter)
    session.result(plan_text(planned), plan_data(planned))
