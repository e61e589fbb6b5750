"""kiln patch"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kiln.cli.session import Session, pin_argument, with_session
from kiln.errors import CannotHere

if TYPE_CHECKING:
    from kiln.authoring.work import Work
    from kiln.drift.source import Source

dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The work tree's folder; .work/PIN of the project otherwise.",
)


write_pin_option = click.option(
    "--write-pin", is_flag=True, help="Let the pin's `patches` in pins.yaml follow too."
)


@click.group()
def command() -> None:
    """Make, edit and move patches as commits of a git work tree.

    \b
    kiln patch edit v0.24.0              # a work tree: pristine vLLM, then a commit a patch
    cd .work/v0.24.0                     # edit with plain git: amend, fixup, rebase -i
    kiln patch save                      # the hooks do it: patches/*/0.24.0.patch follow
    kiln patch refresh v0.23.0 --to v0.24.0
    kiln patch refresh --continue        # after a conflict was solved
    kiln patch new fast-start v0.24.0
    kiln patch import 12345.patch --id pr-12345 --pin v0.24.0
    kiln patch list
    """


@command.command()
@pin_argument
@dir_option
@click.option(
    "--source", metavar="WHEEL|DIR", help="Where the pin's files are, if Kiln cannot find them."
)
@click.option(
    "--again", is_flag=True, help="Lay the series anew from the patch files; commits stay in the "
    "reflog."
)  # fmt: skip
@with_session
def edit(
    session: Session, pin: str | None, folder: Path | None, source: str | None, again: bool
) -> None:
    """Make PIN's work tree, or show where it is; prints its folder.

    The first commit (tag pristine-VERSION) is vLLM's text files as they came; then each
    patch of the pin is a commit, in order, with a line `Kiln-Patch: ID`. Edit with plain
    git. A hook runs `kiln patch save` after each commit and each rebase.

    \b
    cd "$(kiln patch edit v0.24.0)"
    $EDITOR vllm/config/speculative.py
    git commit -a --fixup ':/p70'        # then: git rebase -i --autosquash pristine-0.24.0
    """
    from kiln.authoring.edit import edit as edit_pin

    project = session.project
    name = pin or project.pins.default
    project.pin(name)

    def find() -> Source:
        return _source(session, source or name, "--source")

    edited = edit_pin(project, name, find, session.reporter, folder, again)
    for patch, why in edited.left_out.items():
        session.reporter.note(f"{patch}: no commit: {why}")
    session.result(edited.text(), edited.as_dict())


@command.command(short_help="Write the commits of a work tree to the patch files.")
@click.argument("target", required=False, metavar="[PIN|DIR]")
@click.option("--overwrite", is_flag=True, help="Write over files that were changed elsewhere.")
@write_pin_option
@click.option("--from-hook", "event", hidden=True)
@with_session
def save(
    session: Session, target: str | None, overwrite: bool, write_pin: bool, event: str | None
) -> int:
    """Write the commits of a work tree to patches/ID/VERSION.patch, and patch.yaml with them.

    The work tree is the one that you are in, PIN's, or that in DIR. What would not change
    is not written; nothing is deleted. A file is made against the pristine sources where
    the commit fits them alone, and only if a build would make of it just what the commit
    has. Exits 1 if pins.yaml should say something else (the line is shown).
    """
    from kiln.authoring.save import save as save_work
    from kiln.authoring.save import save_from_hook
    from kiln.authoring.work import find_work, open_work

    work = find_work(session.directory) if target is None else None
    if work is None:
        work = open_work(session.project.root, target, session.directory)
    if event is not None:
        print(save_from_hook(work, event), end="", file=sys.stderr)
        return 0
    saved = save_work(work, overwrite=overwrite, write_pin=write_pin)
    session.result(saved.text(), saved.as_dict())
    return int(saved.waits)


@command.command(short_help="Move a series to another version.")
@pin_argument
@click.option("--to", metavar="PIN|WHEEL|DIR", help="The version to move the series to.")
@click.option("--to-source", metavar="WHEEL|DIR", help="Where the files of the pin --to are.")
@click.option("--version", help="vLLM's version in --to, if nothing there tells it.")
@click.option("--source", metavar="WHEEL|DIR", help="Where PIN's own files are.")
@dir_option
@click.option("--continue", "go_on", is_flag=True, help="Go on after a conflict or a stop.")
@click.option("--skip", is_flag=True, help="Leave out the patch that waits, and go on.")
@click.option("--abort", is_flag=True, help="Give it up.")
@with_session
def refresh(
    session: Session,
    pin: str | None,
    to: str | None,
    to_source: str | None,
    version: str | None,
    source: str | None,
    folder: Path | None,
    go_on: bool,
    skip: bool,
    abort: bool,
) -> int:
    """Move PIN's series to another version, in a work tree of that version.

    Each patch is picked onto the new files by git, with the old pristine files as the base:

    \b
    OK        the same lines            MERGED    the lines around it changed: read it
    OFFSET    the same lines, moved     CONFLICT  solve it as in any cherry-pick
    MOVED     in a file that moved      KEPT      it had a file for that version
    UPSTREAM  nothing is left of it     RETIRED   its retire_when is in the source

    Once all are moved the files are written. Exits 1 while work waits.

    \b
    kiln patch refresh v0.23.0 --to v0.24.0
    cd .work/v0.24.0; git status; $EDITOR ...; git add -u; kiln patch refresh --continue
    """
    from kiln.authoring import refresh as moving
    from kiln.authoring.edit import Named
    from kiln.authoring.pick import resume
    from kiln.authoring.work import find_work, open_work
    from kiln.report.patches import refresh_text

    if sum((go_on, skip, abort, to is not None)) != 1:
        raise click.UsageError("give one of --to, --continue, --skip and --abort")
    if to is None:
        work = find_work(folder or session.directory) if pin is None else None
        if work is None:
            work = open_work(session.project.root, pin, session.directory)
        if abort:
            done = moving.abort(work)
            session.result(done, {"aborted": done})
            return 0
        refreshed = resume(work, session.reporter, skip)
    else:
        project, name = session.project, pin or session.project.pins.default
        old = _source(session, source or name, "--source")
        new = _source(session, to_source or to, "--to-source")
        refreshed = moving.start(
            project,
            name,
            to,
            old,
            Named(new, version) if version else new,
            session.reporter,
            folder,
        )
    session.result(refresh_text(refreshed), refreshed.as_dict())
    return int(refreshed.waits)


@command.command(short_help="Begin a patch: its commit, and patches/ID/ to fill in.")
@click.argument("patch", metavar="ID")
@pin_argument
@dir_option
@click.option("--title", default="", help="One line: what changes for whoever runs it.")
@click.option("--commit", default="", metavar="REV", help="A commit of yours that is to be it.")
@write_pin_option
@with_session
def new(
    session: Session,
    patch: str,
    pin: str | None,
    folder: Path | None,
    title: str,
    commit: str,
    write_pin: bool,
) -> int:
    """Begin patch ID in PIN's work tree, and patches/ID/ with a guide to fill in.

    What is not committed there becomes its commit; else the commit is empty, for you to
    amend. The pin's `patches` line is shown, or written with --write-pin.

    \b
    kiln patch new fast-start v0.24.0 --title "Start without a warm-up"
    kiln patch new fast-start --commit HEAD      # in the work tree: after a plain git commit
    """
    from kiln.authoring.new import new as new_patch

    made = new_patch(_work(session, pin, folder), patch, title=title, commit=commit,
                     write_pin=write_pin)  # fmt: skip
    session.result(made.text(), made.as_dict())
    return 0


@command.command("import", short_help="Take a mail, an mbox or a .diff in as a patch.")
@click.argument("file", type=click.File("rb"))
@click.option("--id", "ids", multiple=True, required=True, metavar="ID",
              help="The patch's name; given once for each mail of an mbox, or once for all "
              "as one patch.")  # fmt: skip
@click.option("--pin", help="Whose work tree takes it.")
@dir_option
@click.option("--leave-out", multiple=True, metavar="GLOB",
              help="Parts that touch files of no wheel, as 'tests/**'.")  # fmt: skip
@click.option("--origin", default="", help="Where it is from, if it does not say itself.")
@click.option("--title", default="", help="One line, instead of the mail's subject.")
@click.option("--shift", is_flag=True,
              help="Put hunks where their lines stand, if that is at one place only.")  # fmt: skip
@write_pin_option
@with_session
def import_(
    session: Session,
    file: BinaryIO,
    ids: tuple[str, ...],
    pin: str | None,
    folder: Path | None,
    leave_out: tuple[str, ...],
    origin: str,
    title: str,
    shift: bool,
    write_pin: bool,
) -> int:
    """Take FILE (- is stdin) in as a patch: a mail of `git format-patch`, an mbox, a .diff.

    It must fit where it says. Else git merges it, if the work tree knows the files that it
    was made against; else you see what a build would say. Author and pull request go into
    patch.yaml as the mail says them. Exits 1 while work waits.

    \b
    kiln patch import 12345.patch --id pr-12345 --pin v0.24.0 --leave-out 'tests/**'
    kiln patch import pr.diff --id pr-12345 --origin 'vllm-project/vllm pull request 12345'
    """
    from kiln.authoring.incoming import take_all
    from kiln.authoring.mbox import MAX_BYTES, read_mails
    from kiln.authoring.scaffold import About

    mails = read_mails(file.read(MAX_BYTES + 1), getattr(file, "name", "-"))
    about = About(title, origin=origin, leave_out=leave_out)
    work = _work(session, pin, folder)
    done = take_all(work, ids, mails, about, shift=shift, write_pin=write_pin)
    session.result("\n".join(each.text() for each in done), [each.as_dict() for each in done])
    return int(any(each.waits for each in done))


def _work(session: Session, pin: str | None, folder: Path | None) -> Work:
    from kiln.authoring.edit import find_or_make

    def source(name: str) -> Source:
        return _source(session, name, "`kiln patch edit --source`, first")

    return find_or_make(session.project, pin, folder, session.directory, source, session.reporter)


def _source(session: Session, text: str, option: str) -> Source:
    from kiln.drift.origin import find_source

    try:
        return find_source(session.project, text, session.store, session.reporter)
    except CannotHere as error:
        if error.code not in ("drift.base-image", "drift.no-wheel"):
            raise
        fix = f"name a wheel or a folder with its files: {option}"
        raise CannotHere(
            error.code, error.what, where=error.where, why=error.why, fix=fix
        ) from None


@command.command("list")
@pin_argument
@with_session
def list_(session: Session, pin: str | None) -> None:
    """Show every patch, or PIN's: title, files, pins, proofs.

    For each pin that lists it: its file for the pin's version, or that there is none. What
    becomes of a patch on another source is `kiln drift`'s to say.
    """
    from kiln.authoring.listing import list_patches
    from kiln.report.patches import list_text

    found = list_patches(session.project, pin)
    session.result(list_text(found), [patch.as_dict() for patch in found])
