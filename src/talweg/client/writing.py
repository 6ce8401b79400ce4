"""A few batches to the leader of their partition: until it says where they stand, or time is up.

First all in one request, once. If nobody knows what became of that, each alone, again and again: one that
was written is answered with the place where it is, and those behind it may stand elsewhere.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from talweg.client.cluster import SURELY_NOT_DONE, Cluster
from talweg.client.delivery import moment
from talweg.client.gathered import Gathered, Lane
from talweg.client.gathering import Gathering
from talweg.client.producer_settings import ProducerSettings
from talweg.errors import (
    BadRequest,
    BatchTooLarge,
    BodyTooLarge,
    Closed,
    NotFound,
    OutOfSequence,
    TalwegError,
    TopicNotFound,
    Unavailable,
    Undecided,
)
from talweg.protocol.batches import FRAMES, Produced
from talweg.records import HEADER_BYTES, identified

FRAMES_MAX: Final = 8  # in a request: a partition remembers so many batches of a producer

_ANSWERS: Final = msgspec.json.Decoder(Produced)
_SURELY_NOT_WRITTEN: Final = (*SURELY_NOT_DONE, BadRequest, NotFound)


class Identity(NamedTuple):
    """Who a producer is to a topic."""

    producer_id: int
    incarnation: int  # of the topic
    partitions: int


Register = Callable[[str, float], Awaitable[Identity]]  # for a topic, in so many seconds


class Writing:
    """Writes batches and tells the gathering what became of them. Lives in one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        gathering: Gathering,
        register: Register,
        failed: Callable[[Gathered], None],  # told of every batch that is given up
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._gathering = gathering
        self._register = register
        self._failed = failed

    async def write(self, lane: Lane, group: Sequence[Gathered]) -> None:
        """Deliver the first batches of a lane. All of them are over afterwards, whatever happens."""
        head = group[0]
        if not head.count:
            self._gathering.end(lane, None)  # an interrupt came between opening it and the first message
            return
        if isinstance(head.frame, TalwegError):
            self.give_up(lane, 1, head.frame, in_doubt=False)
            return
        if moment() >= head.deadline:
            late = Unavailable("its turn did not come in time, behind others that could not be delivered")
            self.give_up(lane, 1, late, in_doubt=False)
            return
        error = await self._write_together(lane, group)
        if error is None:
            return
        if _may_help_alone(error, group):
            await self._write_one_by_one(lane, group)
        else:
            self.give_up(lane, len(group), error, in_doubt=not isinstance(error, _SURELY_NOT_WRITTEN))

    async def _write_together(self, lane: Lane, group: Sequence[Gathered]) -> TalwegError | None:
        """All in one request that is not repeated once it may have been carried out; why it failed."""
        renewed = False
        while True:
            try:
                await self._ask(lane, group, repeatable=False)
            except OutOfSequence as error:
                # This was its first and only attempt, so it was not written: the partition has forgotten
                # us, or is another by now.
                if renewed:
                    return error
                renewed, lane.producer_id = True, None
            except TalwegError as error:
                return error
            else:
                return None

    async def _write_one_by_one(self, lane: Lane, group: Sequence[Gathered]) -> None:
        for place, batch in enumerate(group):
            while True:
                try:
                    await self._ask(lane, [batch], repeatable=True)
                    break
                except OutOfSequence as error:
                    # In another incarnation of the topic there is nothing of what was sent before.
                    if not await self._made_anew(lane, batch):
                        self.give_up(lane, len(group) - place, error, in_doubt=True)
                        return
                except TalwegError as error:
                    self.give_up(lane, len(group) - place, error, in_doubt=True)
                    return

    async def _made_anew(self, lane: Lane, batch: Gathered) -> bool:
        """Whether the topic is another than the one that was sent to; then we are known to it."""
        before = lane.incarnation
        try:
            await self._renew(lane, batch.deadline)
        except TalwegError:
            return False
        return lane.incarnation != before

    async def _renew(self, lane: Lane, deadline: float) -> None:
        """Go on under a new producer id, from sequence 0."""
        identity = await self._register(lane.topic, max(deadline - moment(), 0.001))
        if identity.incarnation != lane.incarnation and identity.partitions != lane.partitions:
            # Keys would belong elsewhere.
            raise TopicNotFound(f"topic {lane.topic} was deleted, and another one has taken its name")
        lane.producer_id, lane.incarnation, lane.sequence = identity.producer_id, identity.incarnation, 0

    async def _ask(self, lane: Lane, group: Sequence[Gathered], *, repeatable: bool) -> None:
        """One request for these batches, acknowledged if it succeeds."""
        deadline = group[0].deadline
        if lane.producer_id is None:
            await self._renew(lane, deadline)
        answer = await self._cluster.ask_leader(
            lane.topic,
            lane.partition,
            "POST",
            "/records",
            _body(lane, group),
            media_type=FRAMES,
            seconds_max=deadline - moment(),
            attempt_seconds_max=self._settings.request_seconds_max,
            repeatable=repeatable,
        )
        produced = _ANSWERS.decode(answer.body)
        count = sum(batch.count for batch in group)
        assert produced.count == count, f"{count} messages were sent, {produced.count} taken"
        lane.sequence += count
        offset = produced.offset
        for batch in group:
            batch_count = batch.count
            self._gathering.end(lane, offset)
            offset += batch_count

    def give_up(self, lane: Lane, count: int, error: TalwegError, *, in_doubt: bool) -> None:
        """The first so many batches of a lane will not be delivered. In doubt: they may have been."""
        if in_doubt:
            lane.producer_id = None  # nobody knows which sequence comes next
        if isinstance(error, TopicNotFound):
            self._forget(lane.topic)
        place = f"partition {lane.partition} of topic {lane.topic}"
        seconds = self._settings.delivery_seconds_max
        why = error
        if isinstance(error, Closed):
            why = Undecided(f"it may have been written to {place} or not: {error}")
        elif error.retriable and in_doubt:
            why = Undecided(
                f"it may have been written to {place} or not: no answer within delivery_timeout_ms "
                f"({1000 * seconds:g}); the last error was: {error}"
            )
        elif error.retriable:
            why = Unavailable(
                f"it was not written to {place} within delivery_timeout_ms ({1000 * seconds:g}); "
                f"the last error was: {error}"
            )
        for _ in range(count):
            self._failed(self._gathering.end(lane, None, why))

    def _forget(self, topic: str) -> None:
        """Whoever sends to it next creates it anew; what still waits in its lanes is tried, and fails."""
        with self._gathering.lock:
            lanes = self._gathering.topics.get(topic)
            if lanes is not None:
                self._gathering.forget(lanes)
        self._cluster.forget_topic(topic)


def _may_help_alone(error: TalwegError, group: Sequence[Gathered]) -> bool:
    """Whether batches that failed together may be delivered yet, one after the other."""
    if isinstance(error, BodyTooLarge | BatchTooLarge):
        return len(group) > 1
    return error.retriable and not isinstance(error, SURELY_NOT_DONE) and moment() < group[0].deadline


def _body(lane: Lane, group: Sequence[Gathered]) -> bytes:
    assert lane.producer_id is not None
    parts: list[bytes | memoryview] = []
    sequence = lane.sequence
    for batch in group:
        frame = batch.frame
        assert isinstance(frame, bytes)
        parts.append(identified(frame, producer_id=lane.producer_id, producer_epoch=0, sequence=sequence))
        parts.append(memoryview(frame)[HEADER_BYTES:])
        sequence += batch.count
    return b"".join(parts)
