"""kiln gate"""

from __future__ import annotations

import click

from kiln.cli.session import Session, with_session


@click.command()
@click.argument("target", required=False, metavar="[PIN|DIGEST]")
@click.option("--preset", default="default", show_default=True, help="Which preset to start.")
@click.option(
    "--runner",
    default="auto",
    show_default=True,
    metavar="docker|bundle|endpoint=URL",
    help="How to start the image. auto: docker if an engine answers, else bundle.",
)
@click.option("--model", default="", help="Which of an endpoint's models to judge.")
@click.option(
    "--launch",
    "launches",
    multiple=True,
    metavar="NAME",
    help="Only this launch of the pin (may be repeated): partial evidence, never replayed.",
)
@click.option("--again", is_flag=True, help="Run the gates although there is evidence already.")
@with_session
def command(
    session: Session,
    target: str | None,
    preset: str,
    runner: str,
    model: str,
    launches: tuple[str, ...],
    again: bool,
) -> int:
    """Start the very image and judge it: smoke, coherence, tool calls, patches in use.

    First as the preset says, then in each further launch of the pin, where its patches
    have to show that their code is in use. It runs with no network but its own loopback;
    the gate talks to it over a Unix socket, so nothing else can answer. The verdicts are
    kept as evidence for (digest, preset) and replayed until --again. endpoint=URL judges a
    running server instead: partial evidence, never enough for a promotion.

    Exits 0 if all gates passed, 1 if one failed, 4 if they could not run here.
    """
    from kiln.gate.image import gate_target
    from kiln.report.verdicts import print_verdicts, verdicts_data

    judged = gate_target(
        session.project,
        target,
        session.store,
        session.reporter,
        preset=preset,
        runner=runner,
        model=model,
        launches=launches,
        again=again,
    )
    print_verdicts(judged)
    session.result(judged.digest, verdicts_data(judged.evidence))
    return judged.exit_code
