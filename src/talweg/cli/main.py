"""The command line itself: which subcommands there are, and how mistakes of the world are told."""

import sys
from typing import Annotated

import typer

from talweg.cli.broker import broker
from talweg.cli.complaints import complain
from talweg.cli.manager import manager
from talweg.cli.up import up
from talweg.errors import TalwegError
from talweg.version import __version__

app = typer.Typer(
    name="talweg",
    help="A replicated, partitioned log queue.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"talweg {__version__}")
        raise typer.Exit


@app.callback()
def _talweg(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A replicated, partitioned log queue."""


# What stands behind `--` is a command of its own, with options of its own.
app.command("up", context_settings={"allow_interspersed_args": False})(up)
app.command("broker")(broker)
app.command("manager")(manager)


def main() -> None:
    """Run the command line of this process."""
    try:
        app()
    except TalwegError as error:
        sys.exit(complain(error))
