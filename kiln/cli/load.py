"""kiln load"""

from __future__ import annotations

from pathlib import Path

import click

from kiln.cli.session import Session, pin_argument, with_session


@click.command()
@pin_argument
@click.option("--name", help="Repository and tag to give it; default: kiln/PIN:latest.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write an archive instead ('-': stdout)."
)
@with_session
def command(session: Session, pin: str | None, name: str | None, output: Path | None) -> None:
    """Load PIN's image into the Docker engine and check that it is the very image.

    The name is a label only. The engine's own id of the image must be one of the two
    digests that the lock knows: of the config (old engines) or of the manifest (new
    ones). --output writes the same archive to a file for `docker load` elsewhere; it
    also is an OCI layout.
    """
    from kiln.run.image import load_pin

    loaded = load_pin(session.project, pin, session.store, session.reporter, name, output)
    session.result(loaded.text(), loaded.as_dict())
