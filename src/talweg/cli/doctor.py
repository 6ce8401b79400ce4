"""`talweg doctor`: looks at a cluster and at this machine, and says what is wrong and what to do about it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer

from talweg.cli import options
from talweg.cli.checks import Finding
from talweg.cli.complaints import EXIT_FAILED
from talweg.cli.output import is_styled, print_json, print_lines

_SIGNS: Final = {"fine": "ok", "warning": "!", "wrong": "X"}
_NAMED_MAX: Final = 3  # things of which the same is said; of the others, how many. JSON has them all
_COLOURS: Final = {"fine": "32", "warning": "33", "wrong": "31"}


def doctor(
    *,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="A data directory on this machine whose disk is looked at; may be given again. Default: "
            "TALWEG_DATA and talweg-data, if they are there.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    servers: options.Servers = None,
    timeout: options.Timeout = 5.0,
    as_json: options.Json = False,
) -> None:
    """What is wrong with the cluster or this machine, and what to do. The exit code is 1 if something is."""
    # Only here: what it looks with takes a while to load.
    from talweg.cli.examining import examine  # noqa: PLC0415

    findings = examine(servers, data or (), timeout)
    wrong = sum(finding.level == "wrong" for finding in findings)
    if as_json:
        print_json({"wrong": wrong, "findings": findings})
    else:
        for same in together(findings):
            finding = same[0]
            remedy = [f"      {finding.remedy}"] if finding.remedy else []
            print_lines([f"{_sign(finding.level)}  {_subjects(same)}: {finding.what}", *remedy])
        warnings = sum(finding.level == "warning" for finding in findings)
        print_lines(["", f"{wrong} wrong, {warnings} to be watched, {len(findings)} looked at"])
    if wrong:
        raise typer.Exit(EXIT_FAILED)


def together(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Those that say the same of one thing after another: of many partitions, when a broker is gone."""
    alike = groupby(findings, lambda each: (each.level, each.what, each.remedy))
    return [list(same) for _, same in alike]


def _subjects(findings: Sequence[Finding]) -> str:
    named = [finding.subject for finding in findings[:_NAMED_MAX]]
    more = len(findings) - len(named)
    return "; ".join([*named, f"and {more} more"] if more else named)


def _sign(level: str) -> str:
    sign = _SIGNS[level].ljust(2)
    return f"\x1b[{_COLOURS[level]}m{sign}\x1b[0m" if is_styled() else sign
