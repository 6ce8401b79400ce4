"""Who has read how far: positions from the brokers, put together with the consumers that managers know."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from talweg.client.cluster import Cluster
from talweg.client.description import ConsumerDescription, ConsumerListing, Progress
from talweg.client.leaders import ask_leaders
from talweg.errors import TopicNotFound
from talweg.protocol.batches import PartitionPositions, PositionsAnswer
from talweg.protocol.bundles import consumer_name
from talweg.protocol.control import TopicMetadata
from talweg.protocol.plain import ClientShown

_AT_ONCE_MAX: Final = 16  # topics that are asked about

Positions = Mapping[int, PartitionPositions]  # by partition


async def list_consumers(
    cluster: Cluster,
    topics: Iterable[TopicMetadata],
    registered: Sequence[ClientShown],
    *,
    seconds_max: float,
) -> ConsumerListing:
    """Groups, then registered consumers, of each topic in turn; and which partitions could not be asked."""
    few = asyncio.Semaphore(_AT_ONCE_MAX)

    async def of_topic(topic: TopicMetadata) -> tuple[list[ConsumerDescription], tuple[int, ...]]:
        async with few:
            positions, unasked = await _positions(cluster, topic, seconds_max)
        there = [each for each in registered if each.topic == topic.topic]
        return _described(topic.topic, positions, there), unasked

    topics = list(topics)
    found = await asyncio.gather(*(of_topic(topic) for topic in topics))
    return ConsumerListing(
        (consumer for consumers, _ in found for consumer in consumers),
        {topic.topic: unasked for topic, (_, unasked) in zip(topics, found, strict=True) if unasked},
    )


async def _positions(
    cluster: Cluster, topic: TopicMetadata, seconds_max: float
) -> tuple[Positions, tuple[int, ...]]:
    """By partition; and those that could not be asked: where nobody has read is another thing."""
    numbers = [part.partition for part in topic.partitions]
    try:
        found = await ask_leaders(
            cluster,
            topic.topic,
            numbers,
            "/consumers",
            PositionsAnswer,
            read=lambda answer: answer.partitions,
            seconds_max=seconds_max,
            partial=True,
        )
    except TopicNotFound:
        return {}, ()  # deleted meanwhile
    return found, tuple(number for number in numbers if number not in found)


def _described(
    topic: str, positions: Positions, registered: Sequence[ClientShown]
) -> list[ConsumerDescription]:
    names = {name for part in positions.values() for name in part.positions}
    groups = sorted(name for name in names if not name.startswith("#"))
    made = [
        ConsumerDescription(
            group=name,
            consumer_id=None,
            topic=topic,
            status=None,
            last_heartbeat=None,
            partitions=_progress(positions, name),
        )
        for name in groups
    ]
    made += [
        ConsumerDescription(
            group=None,
            consumer_id=consumer.id,
            topic=topic,
            status=consumer.status,
            last_heartbeat=consumer.last_heartbeat,
            partitions=_progress_of_registered(positions, consumer),
        )
        for consumer in registered
    ]
    return made


def _progress(positions: Positions, name: str) -> dict[int, Progress]:
    return {number: _progress_in(part, name) for number, part in positions.items() if name in part.positions}


def _progress_of_registered(positions: Positions, consumer: ClientShown) -> dict[int, Progress]:
    name = consumer_name(consumer.id)
    return {
        number: _progress_in(part, name)
        for number, part in positions.items()
        if consumer.partition in (None, number)
    }


def _progress_in(part: PartitionPositions, name: str) -> Progress:
    """Where a registered consumer never read, it begins with the first message: a later start was written
    when it registered."""
    return Progress(
        position=part.positions.get(name, part.start_offset),
        start_offset=part.start_offset,
        next_offset=part.next_offset,
        keep_bytes=part.holds.get(name),
    )
