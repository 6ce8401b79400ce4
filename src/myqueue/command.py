"""What the commands of myqueue share: flags, exit codes, one line for an error, a bar for progress.

0   done
1   it failed, or was stopped before it was done
2   what was given is wrong: a flag, an address, a log file; nothing was sent
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from myqueue.log_file import IncompatibleLogFile
from talweg.errors import InvalidSetting, TalwegError

EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2


def parser_for(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the flags that every command takes."""
    parser = argparse.ArgumentParser(f"python -m myqueue.{name}", description=description)
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        help="a manager or a gateway, or several, with commas (default: $TALWEG_URL, or 127.0.0.1:8000)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def add_client_flags(parser: argparse.ArgumentParser, file: str) -> None:
    """The flags of a single producer or consumer."""
    parser.add_argument("--id", type=natural, required=True, help=f"whose log it is: the number in {file}")
    parser.add_argument("--topics", nargs="+", required=True, metavar="TOPIC", help="what it registers for")
    parser.add_argument(
        "--log_loc",
        "--log-loc",
        type=Path,
        default=Path(),
        metavar="DIR",
        help=f"where {file} is (default: .)",
    )


def natural(text: str) -> int:
    """A whole number from 0 up."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def positive_seconds(text: str) -> float:
    """Some seconds, more than none and less than a year."""
    seconds = float(text)
    if not 0 < seconds < 366 * 86400:
        raise ValueError(text)
    return seconds


def run(main: Callable[[], int]) -> None:
    """Run a command and end the process with its exit code. What is wrong is said in one line."""
    try:
        code = main()
    except (InvalidSetting, IncompatibleLogFile) as error:
        code = complain(error, EXIT_WRONG)
    except TalwegError as error:
        code = complain(error)
    except OSError as error:
        code = complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    except KeyboardInterrupt:
        code = complain("stopped before it was done")
    sys.exit(code)


def complain(reason: object, code: int = EXIT_FAILED) -> int:
    """Say what is wrong; the exit code for it."""
    sys.stdout.flush()
    sys.stderr.write(f"myqueue: {' '.join(str(reason).split())}\n")
    return code


def say(text: str) -> None:
    """Tell people how it went, where they see it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(summary: dict[str, object]) -> None:
    """The same, for programs."""
    say(json.dumps(summary))


@contextlib.contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; what is given to it is how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # Only here: scripts see no bar, and need not wait for the import.
    import rich.console  # noqa: PLC0415
    import rich.progress as parts  # noqa: PLC0415

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeElapsedColumn(),
    )
    with parts.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
