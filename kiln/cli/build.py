"""kiln build"""

from __future__ import annotations

import click

from kiln.cli.session import Session, locked_option, pin_argument, with_session


@click.command()
@pin_argument
@locked_option
@click.option(
    "--new-encoder",
    is_flag=True,
    help="Let the lock move to this encoder of layers, if all content is as locked.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Actions at once; default: all cores.")
@with_session
def command(
    session: Session, pin: str | None, locked: bool, new_encoder: bool, jobs: int | None
) -> None:
    """Build PIN (default: the pins file's) and print the image digest.

    Fetches what the lock names, runs what is not cached, and compares the outputs
    with the lock's: a difference is an error that names the layer and the file.
    Interrupt it at any time; the next run goes on where this one stopped.
    """
    from kiln.image.build import build_pin

    built = build_pin(
        session.project,
        pin,
        session.store,
        session.reporter,
        locked=locked,
        new_encoder=new_encoder,
        jobs=jobs,
    )
    session.result(str(built.manifest), built.as_dict())
