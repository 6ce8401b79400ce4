"""`talweg consumer`: who reads, how far, moving and forgetting them, and having retention wait for them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.completion import complete_topic
from talweg.cli.confirming import confirm
from talweg.cli.consumer_meant import change_each, find, meant
from talweg.cli.offsets import moment_text, read_place
from talweg.cli.options import NEGATIVE_ARGUMENTS, TIMEOUT
from talweg.cli.output import bytes_text, print_json, print_table
from talweg.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from talweg.cli.offsets import Place
    from talweg.client.admin import Admin
    from talweg.client.description import ConsumerDescription, ConsumerListing, Progress

app = typer.Typer(
    help="Consumers and groups: how far they have read, moving them, and holding back retention for them.",
    no_args_is_help=True,
)

OfTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        help="Only of this topic.",
        metavar="TOPIC",
        autocompletion=complete_topic,
        show_default=False,
    ),
]
CreateGroup = Annotated[bool, typer.Option("--create", help="A group that nobody knows yet is fine.")]


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
        found = admin.consumers(topic, partial=True)
    if as_json:
        _print_json(found)
    else:
        print_table(
            ("consumer", "topic", "kind", "status", "last seen", "unread", "hold"),
            [
                (
                    each.name,
                    each.topic,
                    "group" if each.group is not None else "registered",
                    each.status,
                    None if each.last_heartbeat is None else moment_text(each.last_heartbeat),
                    _lag(each, found),
                    _hold(each),
                )
                for each in found
            ],
        )
    found.check_whole()  # behind what is known, so that an outage is not taken for a list that is empty


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
        found = find(admin, consumer, topic)
    if as_json:
        _print_json(found)
    else:
        print_table(
            ("topic", "partition", "position", "start", "end", "unread", "hold"),
            [
                (each.topic, number, *_cells(part))
                for each in found
                for number, part in sorted(each.partitions.items())
            ],
        )
    found.check_whole()


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
    create: CreateGroup = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Send a group, or a registered consumer, elsewhere. Nobody should be reading for it meanwhile."""
    place = read_place(where)
    with open_admin(servers, timeout) as admin:
        whose, numbers = meant(admin, consumer, topic, partition, create=create)
        positions = _offsets(admin, topic, place, numbers)
        change_each(numbers, lambda number: admin.seek(whose, topic, positions[number], number))
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "positions": positions})
        return
    print_table(("partition", "position"), sorted(positions.items()))


@app.command("hold")
def hold_for_consumer(
    consumer: options.Consumer,
    topic: options.Topic,
    size: Annotated[
        str,
        typer.Argument(
            help="How long a partition's log may get for it: 65536, 500MB, 10GiB.",
            metavar="SIZE",
            show_default=False,
        ),
    ],
    *,
    partition: options.Partition = None,
    create: CreateGroup = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Have retention keep what a group, or a registered consumer, has not read, up to a size."""
    # Only here: it loads the client, which a command that explains itself does without.
    from talweg.client.sizes import read_size  # noqa: PLC0415

    keep_bytes = read_size(size)
    with open_admin(servers, timeout) as admin:
        whose, numbers = meant(admin, consumer, topic, partition, create=create)
        change_each(numbers, lambda number: admin.hold(whose, topic, keep_bytes, number))
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "keep_bytes": keep_bytes, "partitions": numbers})
        return
    print_table(("partition", "hold"), [(number, bytes_text(keep_bytes)) for number in numbers])


@app.command("release")
def release_consumer(
    consumer: options.Consumer,
    topic: options.Topic,
    *,
    partition: options.Partition = None,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """End a hold: retention waits no longer for a group, or a registered consumer."""
    with open_admin(servers, timeout) as admin:
        whose, numbers = meant(admin, consumer, topic, partition)
        change_each(numbers, lambda number: admin.release(whose, topic, number))
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "partitions": numbers})
        return
    print_table(("partition", "hold"), [(number, None) for number in numbers])


@app.command("delete")
def delete_consumer(
    consumer: options.Consumer,
    topic: options.Topic,
    *,
    partition: options.Partition = None,
    yes: options.Yes = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Forget how far a group, or a registered consumer, has read: it begins anew if it comes again."""
    with open_admin(servers, timeout) as admin:
        whose, numbers = meant(admin, consumer, topic, partition)
        confirm(f"Delete the positions of {consumer} in topic {topic}?", yes=yes)
        change_each(numbers, lambda number: admin.delete_positions(whose, topic, number))
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "partitions": numbers, "deleted": True})
        return
    print_table(("partition", "position"), [(number, None) for number in numbers])


def _offsets(admin: "Admin", topic: str, place: "Place", numbers: list[int]) -> dict[int, int]:
    """What a place means in each of these partitions; raises OffsetOutOfRange if one of them has no such."""
    # Only here: Arrow, which other commands do without.
    from talweg.cli.reading import moments  # noqa: PLC0415

    starts, ends = admin.offsets(topic, "earliest"), admin.offsets(topic, "latest")
    at_moment = moments(admin, topic, place)
    offsets = {n: place.offset_in(starts[n], ends[n], at_moment.get(n)) for n in numbers}
    for number, offset in offsets.items():
        if not starts[number] <= offset <= ends[number]:
            held = f"holds {starts[number]} to {ends[number]} (not included); nothing was changed"
            raise OffsetOutOfRange(f"offset {offset}: partition {number} of topic {topic} {held}")
    return offsets


def _lag(each: "ConsumerDescription", listing: "ConsumerListing") -> int | None:
    """How many messages it has not read; None if a partition of its topic could not be asked."""
    return None if each.topic in listing.unasked else each.lag


def _cells(part: "Progress") -> tuple[object, ...]:
    return part.position, part.start_offset, part.next_offset, part.lag, _hold(part)


def _hold(each: "ConsumerDescription | Progress") -> str | None:
    if each.keep_bytes is None:
        return None
    return bytes_text(each.keep_bytes) + (", overtaken" if each.overtaken else "")


def _print_json(listing: "ConsumerListing") -> None:
    print_json({"consumers": [_as_json(each, listing) for each in listing], "unasked": listing.unasked})


def _as_json(each: "ConsumerDescription", listing: "ConsumerListing") -> dict[str, Any]:
    return {
        "group": each.group,
        "consumer_id": each.consumer_id,
        "topic": each.topic,
        "status": each.status,
        "last_heartbeat": each.last_heartbeat,
        "lag": _lag(each, listing),
        "overtaken": each.overtaken,
        "partitions": [
            {
                "partition": number,
                "position": part.position,
                "start_offset": part.start_offset,
                "next_offset": part.next_offset,
                "lag": part.lag,
                "keep_bytes": part.keep_bytes,
                "overtaken": part.overtaken,
            }
            for number, part in sorted(each.partitions.items())
        ],
    }
