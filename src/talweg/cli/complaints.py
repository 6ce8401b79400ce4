"""The world's mistakes as one line on standard error and an exit code, without a stack trace."""

import sys
from typing import Final

from talweg.errors import InvalidSetting, TalwegError

EXIT_FAILED: Final = 1
EXIT_SETTING: Final = 2  # as for a flag that does not exist


def complain(error: TalwegError | OSError) -> int:
    """Say what is wrong; returns the exit code for it."""
    sys.stdout.flush()
    sys.stderr.write(f"talweg: {told(error)}\n")
    sys.stderr.flush()
    return EXIT_SETTING if isinstance(error, InvalidSetting) else EXIT_FAILED


def told(error: TalwegError | OSError) -> str:
    """What went wrong, in a line for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
