"""The command line itself: which subcommands there are, and how mistakes of the world are told."""

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from talweg.cli import broker, consumer, pipeline, topic
from talweg.cli.bench import bench
from talweg.cli.complaints import EXIT_SETTING, Failed, complain
from talweg.cli.doctor import doctor
from talweg.cli.exporting import export
from talweg.cli.importing import import_
from talweg.cli.manager import manager
from talweg.cli.options import NEGATIVE_ARGUMENTS
from talweg.cli.overview import status
from talweg.cli.tail import tail
from talweg.cli.up import up
from talweg.errors import TalwegError
from talweg.version import __version__


class QuietGroup(TyperGroup):
    """The root of all subcommands: what goes wrong in any of them is told in a line, and has an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run what was asked for, to the last byte of its output."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read us has seen enough (`| head`), and what is still in a buffer is for nobody.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (TalwegError, Failed, OSError) as error:
            raise typer.Exit(complain(error)) from None
        except UnicodeEncodeError as error:  # of an argument: Python keeps its bytes as half a character each
            told = os.fsencode(str(error.object)).decode(errors="backslashreplace")
            raise typer.Exit(complain(Failed(f"{told}: names are UTF-8", EXIT_SETTING))) from None
        return answer


app = typer.Typer(
    name="talweg",
    cls=QuietGroup,
    help="A replicated, partitioned log queue.",
    no_args_is_help=True,
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


def _open_standard_streams() -> None:
    """Those that were closed (`<&-`) lead nowhere from now on. Else the next socket would have their number,
    and the event loop, which must not close one below 3, would end the process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


# What stands behind `--` is a command of its own, with options of its own.
app.command("up", context_settings={"allow_interspersed_args": False})(up)
app.command("status")(status)
app.add_typer(topic.app, name="topic")
app.command("tail")(tail)
app.add_typer(consumer.app, name="consumer")
app.command("import")(import_)
app.command("export", context_settings=NEGATIVE_ARGUMENTS)(export)
app.command("bench")(bench)
app.command("doctor")(doctor)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(broker.app, name="broker")
app.command("manager")(manager)


def main() -> None:
    """Run the command line of this process."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on standard error: a character that a terminal's encoding lacks is no reason to print nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="talweg")  # also for `python -m talweg.cli`: completion goes by the name
