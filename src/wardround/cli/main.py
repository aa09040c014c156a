"""The command line, composed of the command groups beside this module. Light to import."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
import typer

from wardround import __version__
from wardround.cli import (
    analysis,
    check,
    data,
    experiments,
    export,
    flower,
    hospital,
    keys,
    listing,
    preset,
    privacy,
    profiles,
    redteam,
    schema,
    status,
    watch,
)
from wardround.errors import WardroundError, print_warnings_plainly

__all__ = ["app", "main"]

app = typer.Typer(
    help="Byzantine-robust federated learning for healthcare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (
    experiments,
    export,
    analysis,
    listing,
    preset,
    data,
    schema,
    redteam,
    watch,
    status,
    flower,
    check,
    keys,
    hospital,
    privacy,
    profiles,
):
    group.mount(app)

STOPPED = 130  # what shells expect after Ctrl-C


def _version(wanted: bool) -> None:
    if wanted:
        print(f"wardround {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one model together with other hospitals, some of which may be faulty or malicious."""


def main() -> None:
    """Entry point: one line on stderr and exit code 2 for whatever the user can fix."""
    print_warnings_plainly()
    try:
        code = typer.main.get_command(app).main(prog_name="wardround", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        print(usage.format_message())
        code = 2
    except click.ClickException as usage:
        code = _complain(usage.format_message().replace("\n", " "))
    except WardroundError as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = STOPPED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if code == STOPPED:  # which is also how typer reports Ctrl-C
        print("wardround: stopped; run the same command to resume", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"wardround: {message}", file=sys.stderr)
    return 2
