"""Single messages into partitions: which one, as which frame, and what the answer means."""

import asyncio
import time
from typing import Final

import crc32c

from talweg.errors import BodyTooLarge, PartitionNotFound, ProducerNotFound, TalwegError
from talweg.manager.follower import Follower, check_partition, shown_name
from talweg.manager.routing import APPEND, ENDS, Question, Router
from talweg.manager.turns import least_written
from talweg.metadata import Topic
from talweg.protocol.bundles import Append, AskEnd, Ends, Written
from talweg.records import Codec, encode_values

_FIRST_TURN_SECONDS_MAX: Final = 2.0  # to learn how full partitions are, before the first message


class Producing:
    """Puts messages into topics. Lives in one event loop."""

    def __init__(
        self, follower: Follower, router: Router, *, message_bytes_max: int, request_seconds_max: float
    ) -> None:
        self._follower = follower
        self._router = router
        self._message_bytes_max = message_bytes_max
        self._request_seconds_max = request_seconds_max
        self._turns: dict[int, int] = {}  # by a topic's incarnation: the partition whose turn it is
        self._beginning: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        follower.listen(self._forget_removed)

    def forget_turns(self) -> None:
        """Begin again where partitions are least written: another may have produced meanwhile."""
        self._turns.clear()

    async def produce(
        self,
        topic_name: str,
        producer_id: int,
        message: bytes,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        sequence: int | None = None,
    ) -> tuple[int, int]:
        """The message's partition and offset, once a majority has it on disk.

        Raises ProducerNotFound, PartitionNotFound, BodyTooLarge, Undecided, and what the leader says.
        """
        if len(message) > self._message_bytes_max:
            raise BodyTooLarge(f"message: {len(message)} bytes; {self._message_bytes_max} are allowed")
        copy = self._follower.copy
        producer = copy.producers.get(producer_id)
        if producer is None:
            producer = await self._follower.producer(producer_id)
        topic = copy.topics.get(topic_name)
        if topic is None or producer.topic_incarnation != topic.incarnation:
            raise ProducerNotFound(
                f"producer {producer_id} is not registered for topic {shown_name(topic_name)}"
            )
        in_turn = False
        if partition is not None:
            check_partition(topic, partition)
        elif key is not None:
            partition = crc32c.crc32c(key) % topic.partitions
        elif sequence is not None:
            partition = sequence % topic.partitions
        else:
            in_turn = True
            turn = self._turns.get(topic.incarnation)
            if turn is None:
                turn = await self._first_turn(topic)
            partition = turn
            self._turns[topic.incarnation] = (turn + 1) % topic.partitions
        frame = encode_values(
            (message,),
            timestamp=time.time_ns() // 1000,
            keys=None if key is None else (key,),
            codec=Codec.NONE,
            producer_id=producer_id,
            sequence=-1 if sequence is None else sequence,
        )
        group = topic.incarnation + partition
        try:
            deadline = self._loop.time() + self._request_seconds_max
            append = Append(group, frame)
            written = await self._router.ask(
                Question(APPEND, group, append, deadline, sequence is not None, len(frame))
            )
        except TalwegError:
            if in_turn:
                # The partition has one message less than its turn says. Begin again from what is there,
                # so that consumers, who go by what is there, still see messages in their order.
                self._turns.pop(topic.incarnation, None)
            raise
        assert type(written) is Written, written
        return partition, written.offset

    def _forget_removed(self) -> None:
        groups = self._follower.groups
        self._turns = {topic: turn for topic, turn in self._turns.items() if topic in groups}

    async def _first_turn(self, topic: Topic) -> int:
        """Where to begin; everybody who comes meanwhile waits for the same look."""
        beginning = self._beginning.get(topic.incarnation)
        if beginning is None:
            beginning = self._beginning[topic.incarnation] = self._loop.create_task(self._begin(topic))
        await asyncio.shield(beginning)
        turn = self._turns.get(topic.incarnation)
        return 0 if turn is None else turn

    async def _begin(self, topic: Topic) -> None:
        deadline = self._loop.time() + min(_FIRST_TURN_SECONDS_MAX, self._request_seconds_max)
        looks = (self._router.ask(Question(ENDS, group, AskEnd(group), deadline)) for group in topic.groups)
        try:
            found = await asyncio.gather(*looks, return_exceptions=True)
            if any(isinstance(each, PartitionNotFound) for each in found):
                raise ProducerNotFound("the topic is no more")
            ends = [each.next_offset if isinstance(each, Ends) else None for each in found]
            self._turns[topic.incarnation] = least_written(ends)
        finally:
            del self._beginning[topic.incarnation]
