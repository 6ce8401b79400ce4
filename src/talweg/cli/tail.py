"""`talweg tail`: the last messages of a topic, and those that come."""

from typing import Annotated

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.offsets import Place, Range
from talweg.cli.options import TIMEOUT


def tail(
    topic: options.Topic,
    *,
    count: Annotated[int, typer.Option("--lines", "-n", help="How many of the last messages.", min=0)] = 10,
    follow: options.Follow = False,
    partition: options.Partition = None,
    form: options.MessageFormat = "text",
    verbose: options.Verbose = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """The last messages of a topic, in the order of their time; with -f, those that come, too."""
    # Only here: Arrow, which other commands do without.
    from talweg.cli.consuming import Wish, print_range  # noqa: PLC0415

    wish = Wish(
        topic=topic,
        wanted=Range(Place("before_end", count)),
        partitions=partition,
        follow=follow,
        form="json" if as_json else form,
        verbose=verbose,
        servers=servers,
        timeout=timeout,
    )
    with open_admin(servers, timeout) as admin:
        print_range(wish, admin)
