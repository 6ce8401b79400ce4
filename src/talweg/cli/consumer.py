"""`talweg consumer`: who reads, how far, moving and forgetting them, and having retention wait for them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.confirming import confirm
from talweg.cli.offsets import moment_text, read_place
from talweg.cli.options import NEGATIVE_ARGUMENTS, TIMEOUT
from talweg.cli.output import bytes_text, print_json, print_table
from talweg.errors import ConsumerNotFound, PartitionNotFound

if TYPE_CHECKING:
    from talweg.cli.offsets import Place
    from talweg.client.admin import Admin
    from talweg.client.description import ConsumerDescription, Progress

app = typer.Typer(
    help="Consumers and groups: how far they have read, moving them, and holding back retention for them.",
    no_args_is_help=True,
)

OfTopic = Annotated[
    str | None, typer.Option("--topic", help="Only of this topic.", metavar="TOPIC", show_default=False)
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
        found = admin.consumers(topic)
    if as_json:
        print_json({"consumers": [_as_json(each) for each in found]})
        return
    print_table(
        ("consumer", "topic", "kind", "status", "last seen", "unread", "hold"),
        [
            (
                each.name,
                each.topic,
                "group" if each.group is not None else "registered",
                each.status,
                None if each.last_heartbeat is None else moment_text(each.last_heartbeat),
                each.lag,
                _hold(each),
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
        ("topic", "partition", "position", "start", "end", "unread", "hold"),
        [
            (each.topic, number, part.position, part.start_offset, part.next_offset, part.lag, _hold(part))
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
    create: CreateGroup = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Send a group, or a registered consumer, elsewhere. Nobody should be reading for it meanwhile."""
    place = read_place(where)
    with open_admin(servers, timeout) as admin:
        whose = _known(admin, consumer, topic, create=create)
        moved = _seek(admin, whose, topic, place, partition)
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "positions": moved})
        return
    print_table(("partition", "position"), sorted(moved.items()))


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
        whose = _known(admin, consumer, topic, create=create)
        held = [number for each in _each(partition) for number in admin.hold(whose, topic, keep_bytes, each)]
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "keep_bytes": keep_bytes, "partitions": held})
        return
    print_table(("partition", "hold"), [(number, bytes_text(keep_bytes)) for number in held])


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
        whose = _known(admin, consumer, topic)
        released = [number for each in _each(partition) for number in admin.release(whose, topic, each)]
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "partitions": released})
        return
    print_table(("partition", "hold"), [(number, None) for number in released])


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
        whose = _known(admin, consumer, topic)
        confirm(f"Delete the positions of {consumer} in topic {topic}?", yes=yes)
        deleted = [
            number for each in _each(partition) for number in admin.delete_positions(whose, topic, each)
        ]
    if as_json:
        print_json({"consumer": consumer, "topic": topic, "partitions": deleted, "deleted": True})
        return
    print_table(("partition", "position"), [(number, None) for number in deleted])


def _each(partitions: list[int] | None) -> list[int] | list[None]:
    """Those that were named, or None for all of them at once."""
    return sorted(set(partitions)) if partitions else [None]


def _known(admin: "Admin", consumer: str, topic: str, *, create: bool = False) -> str | int:
    """A number, or a group's name; raises ConsumerNotFound for one that is new, unless it may be."""
    if consumer.isdecimal():
        return int(consumer)
    if not create:
        _find(admin, consumer, topic)
    return consumer


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
    found = [each for each in admin.consumers(topic) if each.name == consumer]
    if not found:
        kind = "consumer" if consumer.isdecimal() else "group"
        where = "" if topic is None else f" of topic {topic}"
        raise ConsumerNotFound(f"there is no {kind} {consumer}{where}: talweg consumer list names all")
    return found


def _hold(each: "ConsumerDescription | Progress") -> str | None:
    if each.keep_bytes is None:
        return None
    return bytes_text(each.keep_bytes) + (", overtaken" if each.overtaken else "")


def _as_json(each: "ConsumerDescription") -> dict[str, Any]:
    return {
        "group": each.group,
        "consumer_id": each.consumer_id,
        "topic": each.topic,
        "status": each.status,
        "last_heartbeat": each.last_heartbeat,
        "lag": each.lag,
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
