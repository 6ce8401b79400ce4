"""Rolls forward decisions that nobody completed: publishes what they name, and completes them.

Each broker does that for the decisions that it keeps. It asks partition by partition, all of them side by
side and the oldest decision first, so that one that is away holds up nobody but those who wait for it. The
first of a partition's stages tells whether it is: the others are asked for when that was answered. Large ones
take turns.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from talweg.broker import decisions
from talweg.broker.leaders import Leaders
from talweg.broker.partition import Partition
from talweg.broker.waiting import within
from talweg.errors import (
    PartitionNotFound,
    StageExpired,
    StageNotFound,
    TalwegError,
    TopicNotFound,
    Unavailable,
)
from talweg.protocol.transactions import StageRef
from talweg.replication.decisions import Decision

# A decision is final, so nobody need wait long for whoever took it: only that little be done twice.
_ROLL_FORWARD_SECONDS: Final = 30.0
_AT_ONCE: Final = 64  # stages that are published
_AT_ONCE_THERE: Final = 16  # of them, in one partition
# A topic that is not there may only have been forgotten by the metadata store: brokers make it known again.
# After so many times the expiry, it is believed to be gone.
_GONE_AFTER: Final = 24

_log = logging.getLogger("talweg.broker")


class _Open:
    """A decision that is not completed."""

    def __init__(self, keeper: Partition, transaction: str, decision: Decision) -> None:
        self.keeper = keeper
        self.transaction = transaction
        self.decision = decision
        self.left = len(decision.stages)  # not known to be published


class _Lane:
    """What waits for one partition, the oldest decision's stages first."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[tuple[_Open, int]] = deque()  # stages


class Rolling:
    """Of all decisions that one broker keeps."""

    def __init__(self, leaders: Leaders, *, expiry_seconds: float, request_seconds_max: float) -> None:
        self._leaders = leaders
        self._waited_us = int(min(expiry_seconds, _ROLL_FORWARD_SECONDS) * 1e6)
        self._gone_us = int(_GONE_AFTER * expiry_seconds * 1e6)
        self._seconds_max = request_seconds_max
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def look(self, keepers: Sequence[Partition]) -> None:
        """Roll forward what has waited for too long in these partitions, which this broker leads. What cannot
        be published now is left to the next look."""
        before_us = time.time_ns() // 1000 - self._waited_us
        opened = [
            _Open(keeper, transaction, decision)
            for keeper in keepers
            for transaction, decision in keeper.group.replica.state.decisions.open_since(before_us).items()
        ]
        opened.sort(key=lambda each: each.decision.decided_us)
        await asyncio.gather(*map(self._publish_all, _lanes(opened)))
        published = [each for each in opened if not each.left]
        await asyncio.gather(
            *(
                self._complete(keeper, [each.transaction for each in published if each.keeper is keeper])
                for keeper in {each.keeper for each in published}
            )
        )

    async def _publish_all(self, lane: _Lane) -> None:
        # Each is asked for once, a large one again until then: the next look sees, too, what came meanwhile.
        turns_until = asyncio.get_running_loop().time() + self._seconds_max
        await self._publish_next(lane, turns_until)

        async def publish_rest() -> None:
            while lane.waiting:
                await self._publish_next(lane, turns_until)

        at_once = min(len(lane.waiting), _AT_ONCE_THERE)
        await asyncio.gather(*(publish_rest() for _ in range(at_once)))

    async def _publish_next(self, lane: _Lane, turns_until: float) -> None:
        async with self._room:
            if not lane.waiting:
                return  # it is away, as was found out meanwhile
            opened, stage = lane.waiting.popleft()
            try:
                place = StageRef(topic=lane.topic, partition=lane.partition, stage=stage)
                complete = await self._publish(opened, place)
            except (Unavailable, TopicNotFound, PartitionNotFound) as error:
                lane.waiting.clear()
                _log.warning(
                    "transaction %s, and whatever else waits for partition %d of topic %s, is not all "
                    "published yet: %s",
                    opened.transaction,
                    lane.partition,
                    lane.topic,
                    error,
                )
            except TalwegError as error:
                _log.warning("transaction %s is not all published yet: %s", opened.transaction, error)
            else:
                if complete:
                    opened.left -= 1
                elif asyncio.get_running_loop().time() < turns_until:
                    lane.waiting.append((opened, stage))

    async def _publish(self, opened: _Open, stage: StageRef) -> bool:
        """Whether nothing of it is left."""
        try:
            return await self._leaders.publish(stage)
        except StageNotFound:
            pass  # published so long ago that it is forgotten
        except (TopicNotFound, PartitionNotFound):
            if time.time_ns() // 1000 - opened.decision.decided_us <= self._gone_us:
                raise
        except StageExpired as error:
            # Somebody discarded what was decided on; nothing can bring it back.
            _log.error("transaction %s: %s", opened.transaction, error)
        return True

    async def _complete(self, keeper: Partition, transactions: Sequence[str]) -> None:
        try:
            await within(self._seconds_max, decisions.complete(keeper, transactions))
        except TalwegError as error:
            _log.warning(
                "%s: %d transactions are published, but not noted as such: %s",
                keeper.name,
                len(transactions),
                error,
            )


def _lanes(opened: Iterable[_Open]) -> Iterable[_Lane]:
    lanes: dict[tuple[str, int], _Lane] = {}
    for each in opened:
        for place in each.decision.stages:
            lane = lanes.get((place.topic, place.partition))
            if lane is None:
                lane = lanes[place.topic, place.partition] = _Lane(place.topic, place.partition)
            lane.waiting.append((each, place.stage))
    return lanes.values()
