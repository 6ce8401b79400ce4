"""The `talweg` command: a file for each subcommand. The only place where processes are put together.

It begins in `talweg.cli.main`. Nothing is loaded here, so that a server that a local cluster starts
(`talweg.cli.attached`) does not wait for a command line that it has no use for.
"""

__all__ = []
