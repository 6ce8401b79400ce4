"""Asking before what cannot be undone."""

import sys

from talweg.cli.complaints import EXIT_SETTING, Failed


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless it was answered beforehand; raises Failed if the answer is no, or nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failed(f"{question} Nobody can be asked here: say --yes", EXIT_SETTING)
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    # Not Typer's own way, which does not tell Ctrl-C from a no.
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failed("nothing was done")
