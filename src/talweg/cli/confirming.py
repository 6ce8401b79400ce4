"""Asking before what cannot be undone."""

import sys

import typer

from talweg.cli.complaints import EXIT_SETTING, Failed


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless it was answered beforehand; raises Failed if the answer is no, or nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failed(f"{question} Nobody can be asked here: say --yes", EXIT_SETTING)
    if not typer.confirm(question, err=True):
        raise Failed("nothing was done")
