"""kiln schema"""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Print the JSON schema of pins.yaml, for editors; made from the tool's own model."""
    from kiln.pins.schema import schema_bytes

    click.echo(schema_bytes(), nl=False)
