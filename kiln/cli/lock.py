"""kiln lock"""

from __future__ import annotations

import click

from kiln.cli.session import Session, pin_argument, with_session


@click.command()
@pin_argument
@click.option("--upgrade", "-U", multiple=True, metavar="NAME", help="Let this package move.")
@click.option("--upgrade-all", is_flag=True, help="Let every package move.")
@with_session
def command(session: Session, pin: str | None, upgrade: tuple[str, ...], upgrade_all: bool) -> None:
    """Resolve PIN's inputs, with a network, and write images/locks/PIN.lock.

    Wheels by uv (which runs no foreign code here), Debian packages by apt with its
    signatures checked, sdists and the gates' models by name and hash. What is locked
    stays as it is unless the pin asks for something else or --upgrade names it. Prints
    what changed.
    """
    from kiln.resolve.lock import lock_pin

    changed = lock_pin(
        session.project,
        pin,
        session.store,
        session.reporter,
        upgrade=upgrade,
        upgrade_all=upgrade_all,
    )
    session.result(changed.text(), changed.as_dict())
