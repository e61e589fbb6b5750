"""kiln load"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

import click

from kiln.cli.session import Session, pin_argument, with_session


@click.command()
@pin_argument
@click.option("--name", help="Repository:tag to give it; default: kiln/PIN:DIGITS of the digest.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Write an archive instead ('-': stdout).",
)
@with_session
def command(session: Session, pin: str | None, name: str | None, output: Path | None) -> None:
    """Load PIN's image into the Docker engine and check that it is the very image.

    The name is a label only. The engine's own id of the image must be one of the two
    digests that the lock knows: of the config (old engines) or of the manifest (new
    ones). --output writes the same archive to a file for `docker load` elsewhere; it
    also is an OCI layout.
    """
    from kiln.image.target import find_target, read_target
    from kiln.run.engine import Engine
    from kiln.run.load import default_name, load, write_archive

    image = read_target(find_target(session.project, pin), session.store)
    name = name or default_name(image)
    if output is None:
        confirmed = load(session.store, image, Engine.connect(), name, session.reporter)
        data = {"name": name, "digest": str(image), "confirmed": confirmed}
        session.result(name, data)
        session.reporter.note(f"{name} is {image}: the engine confirms {confirmed}")
    else:
        with click.open_file(str(output), "wb", atomic=str(output) != "-") as out:
            write_archive(session.store, image, name, cast(BinaryIO, out))
        session.reporter.note(f"{name} is {image}")
