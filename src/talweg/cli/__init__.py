"""The `talweg` command: a file for each subcommand. The only place where processes are put together."""

from talweg.cli.main import main

__all__ = ["main"]
