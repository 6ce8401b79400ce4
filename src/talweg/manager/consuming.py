"""Single messages out of partitions: whose turn it is, and taking the next one exactly once.

The quick way takes from the partition that was least read, as far as this manager remembers. The broker
refuses if the consumer is elsewhere by now, so a memory that is out of date costs a second look and
nothing else. When that partition has nothing left, all of them are looked at.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final

from talweg.errors import ConsumerNotFound, PartitionNotFound, Unavailable
from talweg.manager.follower import Follower, check_partition, shown_name
from talweg.manager.routing import ENDS, TAKE, Question, Router
from talweg.manager.tails import Tails
from talweg.manager.turns import first_with_messages, order_of_turns
from talweg.metadata import Consumer, Topic
from talweg.protocol.bundles import AskEnd, Empty, Ends, Moved, Outcome, Take, Taken, consumer_name

Gone = Callable[[], Coroutine[Any, Any, None]]  # returns when whoever consumes has hung up

CURSORS_MAX: Final = 100_000  # consumers whose positions are remembered; the longest known go first
_TOKEN_BITS: Final = 63


class _Cursor:
    """What this manager remembers of a consumer."""

    __slots__ = ("lock", "name", "positions", "unanswered")

    def __init__(self, consumer: int) -> None:
        self.name = consumer_name(consumer)
        self.lock = asyncio.Lock()  # one consume at a time
        # By partition: where it was last. It is there, or further. None: not known.
        self.positions: list[int] | None = None
        # By partition: a take of which it is not known whether it was done. If it was, its message is given
        # to the next consume, not to nobody.
        self.unanswered: dict[int, Take] = {}


class Consuming:
    """Takes messages for consumers, and counts what they have not read. Lives in one event loop."""

    def __init__(
        self,
        follower: Follower,
        router: Router,
        tails: Tails,
        *,
        request_seconds_max: float,
        wait_seconds_max: float,
        random: Random | None = None,
    ) -> None:
        self._follower = follower
        self._router = router
        self._tails = tails
        self._request_seconds_max = request_seconds_max
        self._wait_seconds_max = wait_seconds_max
        self._random = random or Random()  # noqa: S311 - tokens are to differ, and are no secret
        self._cursors: dict[int, _Cursor] = {}
        self._loop = asyncio.get_running_loop()

    async def find(self, topic_name: str, consumer_id: int, partition: int | None) -> tuple[Topic, Consumer]:
        """The consumer and its topic; raises ConsumerNotFound and PartitionNotFound."""
        copy = self._follower.copy
        consumer = copy.consumers.get(consumer_id)
        if consumer is None:
            consumer = await self._follower.consumer(consumer_id)
        topic = copy.topics.get(topic_name)
        if topic is None or consumer.topic_incarnation != topic.incarnation:
            raise ConsumerNotFound(
                f"consumer {consumer_id} is not registered for topic {shown_name(topic_name)}"
            )
        if partition is not None:
            check_partition(topic, partition)
            if consumer.partition is not None and consumer.partition != partition:
                raise PartitionNotFound(
                    f"consumer {consumer_id} is registered for partition {consumer.partition}"
                )
        return topic, consumer

    async def consume(
        self, topic_name: str, consumer_id: int, partition: int | None, wait_ms: int, gone: Gone
    ) -> tuple[int, Taken] | None:
        """The next message and its partition; None when everything is read, also after the wait, which ends
        when whoever consumes is gone.

        Raises ConsumerNotFound, PartitionNotFound, Unavailable, and what the leader says.
        """
        topic, consumer = await self.find(topic_name, consumer_id, partition)
        cursor = self._cursors.get(consumer_id) or self._new_cursor(consumer_id)
        if partition is None:
            partition = consumer.partition
        if not wait_ms:
            async with cursor.lock:
                return await self._next(topic, cursor, partition)
        wait_until = self._loop.time() + min(wait_ms / 1000, self._wait_seconds_max)
        leaving: asyncio.Task[None] | None = None
        try:
            while True:
                ends: dict[int, int] = {}
                async with cursor.lock:
                    if leaving is not None and leaving.done():
                        return None  # a message that is taken now would be seen by nobody, ever
                    taken = await self._next(topic, cursor, partition, ends)
                left = wait_until - self._loop.time()
                if taken is not None or left <= 0 or self._tails.closed:
                    return taken
                if leaving is None:
                    leaving = self._loop.create_task(gone())
                await self._tails.wait({topic.incarnation + p: end for p, end in ends.items()}, left, leaving)
        finally:
            if leaving is not None:
                leaving.cancel()

    async def sizes(self, topic_name: str, consumer_id: int, partition: int | None = None) -> dict[int, int]:
        """How many messages the consumer has not read, by partition. Raises as `consume` does."""
        topic, consumer = await self.find(topic_name, consumer_id, partition)
        if partition is None:
            partition = consumer.partition
        return await self._sizes(topic, consumer_name(consumer_id), partition)

    async def sizes_of_group(self, topic_name: str, name: str, partition: int | None) -> dict[int, int]:
        """How many messages lie behind a name's positions. Raises TopicNotFound and PartitionNotFound."""
        topic = await self._follower.topic(topic_name)
        if partition is not None:
            check_partition(topic, partition)
        return await self._sizes(topic, name, partition)

    async def _sizes(self, topic: Topic, name: str, partition: int | None) -> dict[int, int]:
        partitions = range(topic.partitions) if partition is None else (partition,)
        ends = await self._ends(topic, name, partitions)
        return {p: max(0, end.next_offset - end.position) for p, end in zip(partitions, ends, strict=True)}

    def _new_cursor(self, consumer_id: int) -> _Cursor:
        if len(self._cursors) >= CURSORS_MAX:
            for number, cursor in list(self._cursors.items())[: CURSORS_MAX // 10]:
                if not cursor.lock.locked() and not cursor.unanswered:
                    del self._cursors[number]
        cursor = self._cursors[consumer_id] = _Cursor(consumer_id)
        return cursor

    async def _next(
        self, topic: Topic, cursor: _Cursor, only: int | None, ends: dict[int, int] | None = None
    ) -> tuple[int, Taken] | None:
        """Take the next message. Where the partitions end is put into `ends` if there is none."""
        deadline = self._loop.time() + self._request_seconds_max
        for partition, take in list(cursor.unanswered.items()):
            if only is None or only == partition:
                del cursor.unanswered[partition]
                taken = await self._take(cursor, partition, take, deadline)
                if type(taken) is Taken:
                    return partition, taken
        if only is not None:
            return await self._next_of(topic, cursor, only, deadline, ends)
        positions = cursor.positions
        if positions is not None:
            position = min(positions)
            partition = positions.index(position)
            taken = await self._take(
                cursor, partition, self._new_take(topic, cursor, partition, position), deadline
            )
            if type(taken) is Taken:
                return partition, taken
        while True:
            # Nothing there, or we do not know where the consumer is.
            turn = await self._look(topic, cursor, ends)
            if turn is None:
                return None
            taken = await self._take(cursor, turn[0], self._new_take(topic, cursor, *turn), deadline)
            if type(taken) is Taken:
                return turn[0], taken
            if self._loop.time() >= deadline:
                raise Unavailable("another moves this consumer, over and over")

    async def _next_of(
        self, topic: Topic, cursor: _Cursor, partition: int, deadline: float, ends: dict[int, int] | None
    ) -> tuple[int, Taken] | None:
        """Take the next message of one partition: wherever the consumer is in it."""
        taken = await self._take(cursor, partition, self._new_take(topic, cursor, partition, None), deadline)
        if isinstance(taken, Taken):
            return partition, taken
        if ends is not None:
            ends[partition] = taken.position  # it has read everything, so that is where it ends
        return None

    async def _look(
        self, topic: Topic, cursor: _Cursor, seen: dict[int, int] | None
    ) -> tuple[int, int] | None:
        """The partition whose turn it is, and the consumer's position there; None if nothing is left."""
        partitions = range(topic.partitions)
        found = await self._ends(topic, cursor.name, partitions)
        positions = {p: end.position for p, end in zip(partitions, found, strict=True)}
        ends = {p: end.next_offset for p, end in zip(partitions, found, strict=True)}
        order = order_of_turns(positions)
        turn = first_with_messages(order, positions, ends)
        # One that comes sooner may have been empty when it was looked at, and no longer when this one was:
        # its message was sent first, then. So look at them again, now that this one is known not to be.
        while turn is not None and (sooner := order[: order.index(turn)]):
            for p, end in zip(sooner, await self._ends(topic, cursor.name, sooner), strict=True):
                positions[p], ends[p] = end.position, end.next_offset
            better = first_with_messages(sooner, positions, ends)
            if better is None:
                break
            turn = better
        cursor.positions = [positions[p] for p in partitions]
        if seen is not None:
            seen.update(ends)
        return None if turn is None else (turn, positions[turn])

    async def _ends(self, topic: Topic, name: str, partitions: Sequence[int]) -> list[Ends]:
        deadline = self._loop.time() + self._request_seconds_max
        groups = [topic.incarnation + partition for partition in partitions]
        questions = [Question(ENDS, group, AskEnd(group, name), deadline) for group in groups]
        outcomes = await self._router.ask_all(questions)
        return [_as_ends(outcome) for outcome in outcomes]

    def _new_take(self, topic: Topic, cursor: _Cursor, partition: int, position: int | None) -> Take:
        # Its token is its own: the same take asked for again is answered alike, another one is not.
        token = self._random.getrandbits(_TOKEN_BITS) or 1
        return Take(topic.incarnation + partition, cursor.name, position, token)

    async def _take(
        self, cursor: _Cursor, partition: int, take: Take, deadline: float
    ) -> Taken | Moved | Empty:
        """The message that a take gives, or why it gives none."""
        try:
            outcome = await self._router.ask(Question(TAKE, take.group, take, deadline))
        except BaseException:
            cursor.unanswered[partition] = take
            raise
        assert type(outcome) is Taken or type(outcome) is Moved or type(outcome) is Empty, outcome
        if cursor.positions is not None:
            reached = outcome.offset + 1 if isinstance(outcome, Taken) else outcome.position
            cursor.positions[partition] = reached
        return outcome


def _as_ends(outcome: Outcome) -> Ends:
    assert type(outcome) is Ends, outcome
    return outcome
