"""Where in a partition: offsets, its ends and moments as people name them, and the positions of groups."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from talweg.client.cluster import Cluster
from talweg.client.leaders import ask_leaders
from talweg.client.message import Place
from talweg.errors import BadRequest, OffsetOutOfRange, TopicReplaced
from talweg.protocol.batches import FRAMES, Commit, OffsetsAnswer, PositionAnswer

Where = int | str | datetime
"""An offset; `earliest`, `latest`; or a moment: a datetime with its time zone, or ISO 8601 text."""

_WAIT_SECONDS_MAX: Final = 5.0  # for one answer
_decode_position: Final = msgspec.json.Decoder(PositionAnswer).decode


class Moment(msgspec.Struct, frozen=True):
    """The first message that is not older."""

    timestamp: int  # microseconds since 1970


At = int | Literal["earliest", "latest"] | Moment


class End(msgspec.Struct, frozen=True):
    """The first offset that is not there yet, in one incarnation of a partition."""

    offset: int
    incarnation: int


def read_where(where: Where) -> At:
    """What was meant; raises BadRequest."""
    expected = "expected an offset, 'earliest', 'latest', or a moment: a datetime or ISO 8601, with its zone"
    if isinstance(where, bool) or not isinstance(where, int | str | datetime):
        raise BadRequest(f"{where!r}: {expected}")
    if isinstance(where, int):
        if where < 0:
            raise BadRequest(f"{where}: offsets begin with 0; {expected}")
        return where
    if where == "earliest":
        return "earliest"
    if where == "latest":
        return "latest"
    if isinstance(where, str):
        try:
            where = datetime.fromisoformat(where)
        except ValueError:
            raise BadRequest(f"{where!r}: {expected}") from None
    if where.tzinfo is None:
        raise BadRequest(f"{where.isoformat()} has no time zone: add +00:00, Z or another; {expected}")
    return Moment(max(round(where.timestamp() * 1e6), 0))


async def offsets_at(
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int],
    at: At,
    *,
    incarnation: int | None = None,  # of the topic; None: whichever is there
    seconds_max: float,
) -> dict[int, int]:
    """An offset for each partition. One that is given as such must be there: raises OffsetOutOfRange; and
    TopicReplaced if the topic is another one by now."""
    numbers = list(partitions)
    if isinstance(at, int):
        first, behind = await ends_of(
            cluster, topic, numbers, incarnation=incarnation, seconds_max=seconds_max
        )
        for number in numbers:
            if not first[number] <= at <= behind[number]:
                raise OffsetOutOfRange(
                    f"offset {at}: partition {number} of topic {topic} holds {first[number]} to "
                    f"{behind[number]} (not included)"
                )
        return dict.fromkeys(numbers, at)
    name = str(at.timestamp) if isinstance(at, Moment) else at
    found = await ask_leaders(
        cluster,
        topic,
        numbers,
        f"/offsets?at={name}",
        OffsetsAnswer,
        read=_reading(topic, incarnation),
        seconds_max=seconds_max,
    )
    if isinstance(at, Moment):
        exact = await asyncio.gather(
            *(_within_batch(cluster, (topic, n), found[n], at.timestamp, seconds_max) for n in numbers)
        )
        return dict(zip(numbers, exact, strict=True))
    return found


def _reading(topic: str, incarnation: int | None) -> Callable[[OffsetsAnswer], Mapping[int, int]]:
    """What an answer says of the topic that is meant. Of an older one, nothing: that broker has yet to hear
    of ours, and is asked again. Raises TopicReplaced for a newer one."""

    def read(answer: OffsetsAnswer) -> Mapping[int, int]:
        if incarnation is None:
            return answer.offsets
        found = {}
        for number, offset in answer.offsets.items():
            here = answer.incarnations.get(number, incarnation + number) - number
            if here > incarnation:
                raise replaced(topic)
            if here == incarnation:
                found[number] = offset
        return found

    return read


def replaced(topic: str) -> TopicReplaced:
    """For whoever means a topic that is no more."""
    return TopicReplaced(f"topic {topic} was deleted, and another one has taken its name")


async def ends_of(
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int],
    *,
    incarnation: int | None = None,  # of the topic; None: whichever is there
    seconds_max: float,
) -> tuple[dict[int, int], dict[int, int]]:
    """The first offset that is kept, and the first that is not there yet, as majorities confirm them."""
    numbers = list(partitions)
    first, behind = await asyncio.gather(
        offsets_at(cluster, topic, numbers, "earliest", incarnation=incarnation, seconds_max=seconds_max),
        offsets_at(cluster, topic, numbers, "latest", incarnation=incarnation, seconds_max=seconds_max),
    )
    return first, behind


async def _within_batch(
    cluster: Cluster, place: Place, offset: int, timestamp: int, seconds_max: float
) -> int:
    """Leaders know the batch in which a moment lies; the message is for us to find."""
    # Loaded here: administration seldom needs columns, which take a while to load.
    from talweg.client.received import received  # noqa: PLC0415

    path = f"/records?offset={offset}&max_bytes=1"
    try:
        answer = await cluster.ask_leader(
            *place, "GET", path, headers={"accept": FRAMES}, seconds_max=seconds_max
        )
    except OffsetOutOfRange:
        return offset  # dropped meanwhile: whoever reads there will be put right
    for batch in received(answer.body, place, offset)[:1]:
        times = batch.to_arrow(["timestamp"]).column(0).cast("int64").to_pylist()
        return next((offset + index for index, time in enumerate(times) if time >= timestamp), offset)
    return offset


# Positions of groups


def check_name(group: object) -> str:
    """A group's name, if it can be one; raises BadRequest."""
    if not isinstance(group, str) or not 1 <= len(group) <= 255 or group.startswith("#"):
        raise BadRequest(
            f"group {group!r}: expected a name of 1 to 255 characters that does not begin with #"
        )
    return group


async def position_of(
    cluster: Cluster,
    group: str,
    topic: str,
    partition: int,
    *,
    incarnation: int | None = None,  # of the partition; None: whichever is there
    seconds_max: float,
) -> int | None:
    """The first offset that a group has not finished with; None if it never committed one here.

    Raises TopicReplaced if it is another partition by now.
    """
    meant = "" if incarnation is None else f"&incarnation={incarnation}"
    path = f"/positions?consumer={quote(group, safe='')}{meant}"
    answer = await cluster.ask_leader(topic, partition, "GET", path, seconds_max=seconds_max)
    return _decode_position(answer.body).position


async def commit_position(
    cluster: Cluster,
    whose: str | int,  # a group's name, or the number of a registered consumer
    topic: str,
    partition: int,
    offset: int | None,  # None: it stays where it is
    *,
    seek: bool = False,  # may go back
    keep_bytes: int | None = None,  # up to which size of the log retention waits for it; None: as before
    incarnation: int | None = None,  # of the partition that the offset is of; None: whichever is there
    seconds_max: float,
) -> None:
    """Set a position, or a hold, or both; returns once a majority has it on disk.

    Raises TopicReplaced if it is another partition by now.
    """
    name, number = (whose, None) if isinstance(whose, str) else (None, whose)
    commit = Commit(
        consumer=name,
        consumer_id=number,
        offset=offset,
        seek=seek,
        keep_bytes=keep_bytes,
        incarnation=incarnation,
    )
    body = msgspec.json.encode(commit)
    await cluster.ask_leader(topic, partition, "POST", "/positions", body, seconds_max=seconds_max)


async def delete_position(
    cluster: Cluster, whose: str | int, topic: str, partition: int, *, seconds_max: float
) -> None:
    """Delete a position, if there is one, and its hold; returns once a majority has that on disk."""
    asked = f"consumer={quote(whose, safe='')}" if isinstance(whose, str) else f"consumer_id={whose}"
    await cluster.ask_leader(topic, partition, "DELETE", f"/positions?{asked}", seconds_max=seconds_max)


async def commit_position_or_first(
    cluster: Cluster,
    group: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    seek: bool,
    incarnation: int | None = None,
    seconds_max: float,
) -> None:
    """Set a position; if retention has overtaken it, to the first message that is kept instead."""
    while True:
        try:
            await commit_position(
                cluster,
                group,
                topic,
                partition,
                offset,
                seek=seek,
                incarnation=incarnation,
                seconds_max=seconds_max,
            )
            return
        except OffsetOutOfRange:
            starts = await offsets_at(cluster, topic, [partition], "earliest", seconds_max=seconds_max)
            if offset >= starts[partition]:
                raise
            offset = starts[partition]  # which may be overtaken in its turn
