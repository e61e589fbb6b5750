"""kiln image"""

from __future__ import annotations

import click

from kiln.cli.session import Session, locked_option, pin_argument, with_session


@click.command()
@pin_argument
@locked_option
@click.option("--again", is_flag=True, help="Run the gates although there is evidence already.")
@click.option(
    "--runner", default="auto", show_default=True, metavar="docker|bundle", help="See kiln gate."
)
@with_session
def command(session: Session, pin: str | None, locked: bool, again: bool, runner: str) -> int:
    """Build PIN and gate it; the digest is printed once there is one.

    A second run finds nothing changed and replays the verdict from its evidence.
    Exits 0 if the gates passed, 1 if one failed, 4 if they could not run here.
    """
    from kiln.gate.image import gate_target
    from kiln.image.build import build_pin
    from kiln.report.verdicts import print_verdicts, verdicts_data

    built = build_pin(session.project, pin, session.store, session.reporter, locked=locked)
    if not session.as_json:
        session.result(str(built.manifest), None)
    judged = gate_target(
        session.project,
        built.pin,
        session.store,
        session.reporter,
        runner=runner,
        again=again,
    )
    print_verdicts(judged)
    if session.as_json:
        session.result("", built.as_dict() | {"gate": verdicts_data(judged.evidence)})
    return judged.exit_code
