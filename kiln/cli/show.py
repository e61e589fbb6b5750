"""kiln show"""

from __future__ import annotations

import click

from kiln.cli.session import Session, with_session


@click.command()
@click.argument("target", required=False, metavar="[PIN|DIGEST]")
@with_session
def command(session: Session, target: str | None) -> None:
    """Show PIN (what it is, what is locked, what was built) or what a digest is.

    A digest may be of a manifest, a config, a layer, a blob or evidence; the first
    digits of it are enough.
    """
    from kiln.report.show import show_digest, show_pin

    if target is not None and target not in session.project.pins.pins:
        found = show_digest(session.project, session.store, target)
    else:
        found = show_pin(session.project, session.store, target)
    session.result(found.text(), found.as_dict())
