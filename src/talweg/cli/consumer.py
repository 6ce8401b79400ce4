"""`talweg consumer`: who reads, how far, and moving them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.offsets import moment_text, read_place
from talweg.cli.options import NEGATIVE_ARGUMENTS, TIMEOUT
from talweg.cli.output import print_json, print_table
from talweg.errors import ConsumerNotFound, PartitionNotFound

if TYPE_CHECKING:
    from talweg.cli.offsets import Place
    from talweg.client.admin import Admin
    from talweg.client.description import ConsumerDescription

app = typer.Typer(help="Consumers and groups: how far they have read, and moving them.", no_args_is_help=True)

OfTopic = Annotated[
    str | None, typer.Option("--topic", help="Only of this topic.", metavar="TOPIC", show_default=False)
]


@app.command("list")
def list_consumers(
    *,
    topic: OfTopic = None,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Groups, by name, and registered consumers, by number, with how much they have not read."""
    with open_admin(servers, timeout) as admin:
        found = admin.consumers(topic)
    if as_json:
        print_json({"consumers": [_as_json(each) for each in found]})
        return
    print_table(
        ("consumer", "topic", "kind", "status", "last seen", "unread"),
        [
            (
                _name(each),
                each.topic,
                "group" if each.group is not None else "registered",
                each.status,
                None if each.last_heartbeat is None else moment_text(each.last_heartbeat),
                each.lag,
            )
            for each in found
        ],
    )


@app.command("describe")
def describe_consumer(
    consumer: options.Consumer,
    *,
    topic: OfTopic = None,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """How far a group, or a registered consumer, has read each partition."""
    with open_admin(servers, timeout) as admin:
        found = _find(admin, consumer, topic)
    if as_json:
        print_json({"consumers": [_as_json(each) for each in found]})
        return
    print_table(
        ("topic", "partition", "position", "start", "end", "unread"),
        [
            (each.topic, number, part.position, part.start_offset, part.next_offset, part.lag)
            for each in found
            for number, part in sorted(each.partitions.items())
        ],
    )


@app.command("seek", context_settings=NEGATIVE_ARGUMENTS)
def seek_consumer(
    consumer: options.Consumer,
    topic: options.Topic,
    where: Annotated[
        str,
        typer.Argument(
            help="start, end, 100, -10 (ten before the end of each partition), or @2026-01-31T12:00.",
            metavar="WHERE",
            show_default=False,
        ),
    ],
    *,
    partition: options.Partition = None,
    create: Annotated[bool, typer.Option("--create", help="A group that nobody knows yet is fine.")] = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Send a group, or a registered consumer, elsewhere. Nobody should be reading for it meanwhile."""
    place = read_place(where)
    with open_admin(servers, timeout) as admin:
        whose = int(consumer) if consumer.isdecimal() else consumer
        if isinstance(whose, str) and not create:
            _find(admin, consumer, topic)
        moved = _seek(admin, whose, topic, place, partition)
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "positions": moved})
        return
    print_table(("partition", "position"), sorted(moved.items()))


def _seek(
    admin: "Admin", whose: str | int, topic: str, place: "Place", partitions: list[int] | None
) -> dict[int, int]:
    # Only here: Arrow, which other commands do without.
    from talweg.cli.reading import moments  # noqa: PLC0415

    starts, ends = admin.offsets(topic, "earliest"), admin.offsets(topic, "latest")
    at_moment = moments(admin, topic, place)
    moved: dict[int, int] = {}
    for number in sorted(set(partitions)) if partitions else sorted(ends):
        if number not in ends:
            raise PartitionNotFound(f"topic {topic} has no partition {number}, only 0 to {len(ends) - 1}")
        offset = place.offset_in(starts[number], ends[number], at_moment.get(number))
        moved |= admin.seek(whose, topic, offset, number)
    return moved


def _find(admin: "Admin", consumer: str, topic: str | None) -> list["ConsumerDescription"]:
    found = [each for each in admin.consumers(topic) if _name(each) == consumer]
    if not found:
        kind = "consumer" if consumer.isdecimal() else "group"
        where = "" if topic is None else f" of topic {topic}"
        raise ConsumerNotFound(f"there is no {kind} {consumer}{where}: talweg consumer list names all")
    return found


def _name(each: "ConsumerDescription") -> str:
    return str(each.consumer_id) if each.group is None else each.group


def _as_json(each: "ConsumerDescription") -> dict[str, Any]:
    return {
        "group": each.group,
        "consumer_id": each.consumer_id,
        "topic": each.topic,
        "status": each.status,
        "last_heartbeat": each.last_heartbeat,
        "lag": each.lag,
        "partitions": [
            {
                "partition": number,
                "position": part.position,
                "start_offset": part.start_offset,
                "next_offset": part.next_offset,
                "lag": part.lag,
            }
            for number, part in sorted(each.partitions.items())
        ],
    }
