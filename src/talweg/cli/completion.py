"""What a shell may complete from the cluster. Nothing, if the cluster does not answer at once."""

import time
from collections.abc import Iterator
from typing import Any, Final

import typer

ANSWER_SECONDS_MAX: Final = 0.3  # somebody waits with a finger on the key


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics."""
    names = _ask(ctx, "/topics").get("topics", ())
    return [name for name in names if str(name).startswith(incomplete)]


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of consumers that are registered."""
    numbers = (str(consumer["id"]) for consumer in _ask(ctx, "/admin/consumers").get("consumers", ()))
    return [number for number in numbers if number.startswith(incomplete)]


def complete_broker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of brokers."""
    numbers = (str(broker["id"]) for broker in _ask(ctx, "/admin/brokers").get("brokers", ()))
    return [number for number in numbers if number.startswith(incomplete)]


def _ask(ctx: typer.Context, path: str) -> dict[str, Any]:
    # A client of the library would take longer to load than there is time.
    from talweg.testing.asking import try_to_get  # noqa: PLC0415 - only shells ask for this

    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    for server in _servers(ctx.params.get("servers")):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        answer = try_to_get(server, path, left)
        if isinstance(answer, dict):  # not what a server of somebody else says
            return answer
    return {}


def _servers(given: str | None) -> Iterator[str]:
    from talweg.client.servers import read_servers  # noqa: PLC0415 - likewise
    from talweg.errors import InvalidSetting  # noqa: PLC0415 - likewise

    try:
        yield from read_servers(given)
    except InvalidSetting:
        return
