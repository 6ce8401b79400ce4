"""`talweg bench`: how fast this cluster is from here, in a few seconds, on a topic that is removed again."""

from typing import Annotated

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.options import TIMEOUT
from talweg.cli.output import print_json, print_lines, print_table


def bench(
    *,
    messages: Annotated[
        int, typer.Option("--messages", "-n", help="How many are sent and read.", min=1_000, max=100_000_000)
    ] = 500_000,
    size: Annotated[int, typer.Option("--size", help="Bytes of a message.", min=1, max=1_000_000)] = 100,
    partitions: Annotated[int, typer.Option("--partitions", help="Of the topic.", min=1)] = 3,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Measure producing and consuming: messages a second, and how long a single one takes."""
    # Only here: Arrow, which other commands do without.
    from talweg.cli.measuring import Load, measure  # noqa: PLC0415

    with open_admin(servers, timeout) as admin:
        figures = measure(admin, Load(messages, size, partitions), servers, timeout)
    if as_json:
        print_json(figures)
        return
    print_table(
        ("measured", "messages/s", "MB/s"),
        [
            ("produced, lists of messages", *_rates(figures.produced_per_second, size)),
            ("consumed, batches", *_rates(figures.batches_per_second, size)),
            ("consumed, one message after another", *_rates(figures.messages_per_second, size)),
        ],
    )
    safe = f"{figures.median_ms:.1f} ms (median), {figures.slowest_ms:.1f} ms (99 of 100)"
    print_lines(
        [
            "",
            f"a message by itself is on disk on a majority after {safe}",
            f"{messages} messages of {size} bytes, {partitions} partitions; the topic is removed again",
        ]
    )


def _rates(per_second: float, size: int) -> tuple[str, str]:
    return f"{per_second:,.0f}", f"{per_second * size / 1e6:,.1f}"
