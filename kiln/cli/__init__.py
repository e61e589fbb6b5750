"""The command line: one file a command, no logic in any.

stdout carries the result alone (a digest, a table, or `--json`); stderr carries
progress and errors. Exit codes: 0 good; 1 what was judged is bad; 2 the input is
wrong; 3 an input cannot be had; 4 this machine cannot do it; 5 the store is damaged;
70 a fault in Kiln, with its traceback; 128 + n when signal n ended it (130 Ctrl-C, 143
SIGTERM, 129 a terminal that went away).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

import click

from kiln import __version__

# Name -> one line of help; listed here so that help and start-up import no command.
COMMANDS = {
    "image": "Build a pin and gate it: what `make image` runs.",
    "plan": "Show every action of a build, cached or to do, and why.",
    "lock": "Resolve a pin's inputs and write images/locks/PIN.lock.",
    "build": "Build a pin; prints the image digest.",
    "gate": "Start the very image and judge it.",
    "show": "Show a pin, or what a digest is.",
    "drift": "Say what becomes of a pin's patches on another source.",
    "patch": "Make, edit and move patches as commits of a git work tree.",
    "push": "Push an image to a registry, or into an OCI layout folder.",
    "load": "Load an image into a Docker engine, or write it to a file.",
    "fsck": "Check every blob and result of the store.",
    "doctor": "Say what this machine can do, and what it lacks.",
    "schema": "Print the JSON schema of pins.yaml.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"kiln.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kiln")
def cli() -> None:
    """Reproducible builds, pins and promotion for patched vLLM images."""


class _Stopped(KeyboardInterrupt):
    """A signal that ends a program. Whatever cleans up after Ctrl-C does so after it too:
    a server that was started for a gate must not outlive it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _Stopped(number)


def main(argv: list[str] | None = None) -> None:
    """Entry point. Exits with the code of the worst error."""
    if argv is None:
        _in_utf8()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
                signal.signal(number, _stop)
    from kiln.cli.session import failed, machine_error
    from kiln.errors import KilnError

    as_json = "--json" in (argv or sys.argv)
    try:
        sys.exit(cli.main(args=argv, prog_name="kiln", standalone_mode=False) or 0)
    except KilnError as error:
        sys.exit(failed(error, as_json))
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort) as stop:
        print("interrupted; finished work is kept, and the next run goes on there", file=sys.stderr)
        cause = stop.__cause__ or stop  # click makes an Abort of it
        sys.exit(cause.status if isinstance(cause, _Stopped) else 130)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and (known := machine_error(error)):
            sys.exit(failed(known, as_json))
        import traceback

        traceback.print_exc()
        print("this is a fault in Kiln, and no verdict on anything", file=sys.stderr)
        sys.exit(70)


def _in_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding.

    Names of files in images are UTF-8; in an old locale they would be unpacked under
    other names, or not at all, and the same lock would give another digest.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606
