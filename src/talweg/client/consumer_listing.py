"""Who has read how far: positions from the brokers, put together with the consumers that managers know."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from talweg.client.cluster import Cluster
from talweg.client.description import ConsumerDescription, Progress
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
) -> list[ConsumerDescription]:
    """Groups, then registered consumers, of each topic in turn. Partitions without a leader are left out."""
    few = asyncio.Semaphore(_AT_ONCE_MAX)

    async def of_topic(topic: TopicMetadata) -> list[ConsumerDescription]:
        async with few:
            positions = await _positions(cluster, topic, seconds_max)
        return _described(topic.topic, positions, [each for each in registered if each.topic == topic.topic])

    found = await asyncio.gather(*(of_topic(topic) for topic in topics))
    return [consumer for consumers in found for consumer in consumers]


async def _positions(cluster: Cluster, topic: TopicMetadata, seconds_max: float) -> Positions:
    try:
        return await ask_leaders(
            cluster,
            topic.topic,
            [part.partition for part in topic.partitions],
            "/consumers",
            PositionsAnswer,
            read=lambda answer: answer.partitions,
            seconds_max=seconds_max,
            partial=True,
        )
    except TopicNotFound:
        return {}  # deleted meanwhile


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
