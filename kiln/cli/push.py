"""kiln push"""

from __future__ import annotations

import click

from kiln.cli.session import Session, with_session


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[PIN|DIGEST] REPOSITORY[:TAG]")
@click.option(
    "--mount-from",
    multiple=True,
    metavar="NAME",
    help="A repository of the same registry that may have blobs of it (may be repeated).",
)
@click.option("--jobs", type=click.IntRange(min=1), default=4, help="Blobs at once; default: 4.")
@with_session
def command(
    session: Session, words: tuple[str, ...], mount_from: tuple[str, ...], jobs: int
) -> None:
    """Push PIN's image (default: the pins file's), or the image of a digest, to a registry.

    REPOSITORY is HOST/NAME, or oci:FOLDER for an OCI layout. https is spoken, and http only
    to this machine or where the name begins with http://. Credentials are docker's. Blobs
    that the registry has are not sent; the tag is written last, and all is read back.
    Prints the digest. Interrupt it at any time; the next run goes on where this one stopped.
    """
    from kiln.registry.names import parse_name
    from kiln.registry.push import find_image, push

    if len(words) > 2:
        raise click.UsageError(f"one pin or digest and one repository, not {len(words)} words")
    name = parse_name(words[-1])
    target = words[0] if len(words) == 2 else None
    image = find_image(lambda: session.project, session.store, target)
    pushed = push(session.store, image, name, session.reporter, mount_from=mount_from, jobs=jobs)
    session.reporter.note(pushed.text())
    session.result(pushed.digest, pushed.as_dict())
