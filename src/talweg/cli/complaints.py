"""The world's mistakes as one line on standard error and an exit code, without a stack trace.

Exit codes, which scripts may rely on:

    0    it was done
    1    it was not: standard error says why
    2    the command line or a setting is wrong
    3    there is no such topic, partition, consumer or broker
    4    the cluster cannot be reached, or cannot do it now: trying again later may help
    130  it was interrupted (Ctrl-C)
"""

import sys
from typing import Final

from talweg.errors import (
    BadRequest,
    BadTopicName,
    DeliveryFailed,
    InvalidSetting,
    NotFound,
    OffsetOutOfRange,
    TalwegError,
    Unavailable,
)

EXIT_FAILED: Final = 1
EXIT_SETTING: Final = 2  # as for a flag that does not exist
EXIT_NOT_FOUND: Final = 3
EXIT_UNAVAILABLE: Final = 4
EXIT_INTERRUPTED: Final = 130  # as shells have it


class Failed(Exception):
    """A command could not do what it was asked to. Says why, and what to do about it."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code  # for scripts


Mistake = TalwegError | OSError | Failed


def complain(error: Mistake) -> int:
    """Say what is wrong; returns the exit code for it."""
    sys.stdout.flush()
    sys.stderr.write(f"talweg: {told(error)}\n")
    sys.stderr.flush()
    return exit_code(error)


def exit_code(error: Mistake) -> int:
    """What a script learns of it."""
    match error:
        case Failed():
            return error.code
        case DeliveryFailed() if error.first is not None:
            return exit_code(error.first)
        case InvalidSetting() | BadTopicName() | OffsetOutOfRange():
            return EXIT_SETTING
        case BadRequest() if type(error) is BadRequest:
            return EXIT_SETTING
        case NotFound():
            return EXIT_NOT_FOUND
        case Unavailable():
            return EXIT_UNAVAILABLE
        case _:
            return EXIT_FAILED


def failed(error: Mistake, more: str) -> Failed:
    """The same mistake, with more to say about it."""
    return Failed(f"{told(error)}; {more}", exit_code(error))


def told(error: Mistake) -> str:
    """What went wrong, in a line for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
