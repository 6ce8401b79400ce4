"""Who has read how far: every position of a topic's partitions that this broker leads."""

import asyncio
from typing import TYPE_CHECKING

from talweg.broker.calls_records import LEADER_ERRORS
from talweg.broker.partition import Partition
from talweg.errors import GroupNotFound, NotLeader
from talweg.http import Call, Request
from talweg.protocol.batches import PartitionPositions, PositionsAnswer, TopicPath

if TYPE_CHECKING:
    from talweg.broker.broker import Broker


class PositionCalls:
    """Answers them for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [
            Call(
                "GET",
                "/v1/topics/{topic}/consumers",
                self._consumers,
                "How far consumers have read, and for whom retention waits",
                parameters=TopicPath,
                answer=PositionsAnswer,
                errors=LEADER_ERRORS,
                tag="Batches",
            ),
        ]

    async def _consumers(self, request: Request[TopicPath, None]) -> PositionsAnswer:
        topic = request.parameters.topic
        partitions = self._broker.hosting.of_topic(topic)
        if not partitions:
            raise GroupNotFound(f"this broker carries no partition of topic {topic}")
        # All at once: each waits for a majority to confirm that this broker still leads.
        found = await asyncio.gather(*(_positions(partition) for partition in partitions))
        shown = zip(partitions, found, strict=True)
        led = {partition.number: positions for partition, positions in shown if positions is not None}
        return PositionsAnswer(
            partitions=led,
            elsewhere=[partition.number for partition in partitions if partition.number not in led],
        )


async def _positions(partition: Partition) -> PartitionPositions | None:
    """None if another broker leads."""
    try:
        ends, positions, holds = await partition.positions()
    except NotLeader:
        return None
    return PartitionPositions(
        start_offset=ends.start_offset, next_offset=ends.next_offset, positions=positions, holds=holds
    )
