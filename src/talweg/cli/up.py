"""`talweg up`: a whole local cluster, each server a process of its own, supervised until told to stop."""

from pathlib import Path
from typing import Annotated

import typer

from talweg.cli.flags import FILE_FLAG


def up(
    *,
    data: Annotated[
        Path, typer.Option("--data", help="Directory of everything that the cluster keeps.", metavar="DIR")
    ] = Path("talweg-data"),
    port: Annotated[
        int, typer.Option("--port", help="Port of the primary; the others take free ones.", min=1, max=65535)
    ] = 8000,
    brokers: Annotated[int, typer.Option("--brokers", help="How many brokers.", min=1, max=100)] = 3,
    readers: Annotated[
        int, typer.Option("--readers", help="How many read-only managers.", min=0, max=100)
    ] = 2,
    config: Annotated[
        str | None, typer.Option(FILE_FLAG, help="TOML file with settings for all.", metavar="FILE")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document when everything is ready.")
    ] = False,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="After `--`: run this once the cluster is ready, with its address in TALWEG_URL, then stop "
            "everything and exit with its code.",
            metavar="-- COMMAND ARGS",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a whole cluster on this machine: brokers, a primary and read-only managers. Ctrl-C stops it."""
    # Only here: other commands need none of it, and start the sooner.
    from talweg.cli.supervising import run_cluster  # noqa: PLC0415

    run_cluster(
        data.absolute(),
        port=port,
        brokers=brokers,
        readers=readers,
        flags={FILE_FLAG: config} if config is not None else {},
        as_json=as_json,
        command=command or [],
    )
