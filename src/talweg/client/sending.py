"""Batches from lanes to leaders: one request under way to each partition, repeated until it is known.

Lives in one event loop. A producer numbers its messages in each partition from 0 without gaps, so that what
is sent again is written once. Where a number is lost (nobody knows whether it was written, and time is up),
the partition goes on under a new producer id: the log would refuse what comes behind the gap.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from threading import get_ident
from typing import Any, Final

from talweg.client.cluster import Cluster, Pause
from talweg.client.delivery import moment
from talweg.client.draft import Draft
from talweg.client.gathered import Gathered, Lane, Lanes
from talweg.client.gathering import Gathering
from talweg.client.heartbeats import Heartbeats
from talweg.client.message import check_topic
from talweg.client.producer_settings import ProducerSettings
from talweg.client.writing import FRAMES_MAX, Identity, Writing
from talweg.errors import Closed, Internal, TopicNotFound
from talweg.protocol.plain import ProducerRegistered, RegisterProducer

_REQUEST_BYTES_MAX: Final = 4 << 20
_INLINE_BYTES_MAX: Final = 64 << 10  # what is smaller is encoded quicker than handed to a thread
_ENCODERS: Final = 2  # threads: compressing keeps nobody else from running
_ENCODING_SECONDS_MAX: Final = 0.2  # that a thread which filled a batch is given to encode it
_MARK_SECONDS: Final = 0.01  # between timestamps of a batch that is open for long


class Wanted(Enum):
    """What has to be waited for before a message can be accepted."""

    REGISTRATION = 1  # of its topic
    ROOM = 2  # in the buffer


class Sending:
    """Takes batches from a gathering and delivers them. `failed` is told of each batch that was given up."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        failed: Callable[[Gathered], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.gathering = Gathering(settings, self.loop, self._wake_from_afar)
        self._writing = Writing(cluster, settings, self.gathering, self._identity, failed)
        self._cluster = cluster
        self._settings = settings
        self._heartbeats = Heartbeats(cluster, self._producers)
        self._registering: dict[str, asyncio.Task[Lanes]] = {}
        self._encoders: ThreadPoolExecutor | None = None
        self._marking: asyncio.TimerHandle | None = None
        self._closed = False

    # Topics

    async def register(self, topic: str) -> Lanes:
        """The lanes of a topic, which is created if there is none. Raises what managers say."""
        check_topic(topic)
        known = self.gathering.topics.get(topic)
        if known is not None:
            return known
        task = self._registering.get(topic)
        if task is None:
            task = self._registering[topic] = self.loop.create_task(self._register(topic))
            task.add_done_callback(lambda done: self._registered(topic, done))
        return await asyncio.shield(task)

    async def _register(self, topic: str) -> Lanes:
        identity = await self._identity(topic, self._settings.block_seconds_max)
        lanes = Lanes(topic, identity.incarnation, identity.partitions, identity.producer_id)
        with self.gathering.lock:
            self.gathering.topics[topic] = lanes
        self._heartbeats.start()
        return lanes

    def _producers(self) -> set[int]:
        with self.gathering.lock:
            return {lane.producer_id for lane in self.gathering.lanes() if lane.producer_id is not None}

    def _registered(self, topic: str, task: asyncio.Task[Lanes]) -> None:
        del self._registering[topic]
        if not task.cancelled():
            task.exception()  # looked at: whoever waited may have given up

    async def _identity(self, topic: str, seconds_max: float) -> Identity:
        """A new producer id, and what it is for."""
        pause = Pause(self._cluster, seconds_max)
        registered = await self._cluster.ask_manager(
            "POST",
            "/producer/register",
            ProducerRegistered,
            RegisterProducer(topic=topic),
            seconds_max=seconds_max,
        )
        while True:
            try:
                found = await self._cluster.fresh_topic(topic, seconds_max=max(pause.left(), 0.001))
                break
            except TopicNotFound as error:  # the manager that was asked has not heard of it yet
                await pause.wait(error)
        return Identity(registered.producer_id, found.incarnation, len(found.partitions))

    # Messages, from any thread

    def accept(
        self, topic: str, draft: Draft, tell: Callable[[], None] | None = None
    ) -> tuple[Gathered, int, Gathered | None] | Wanted:
        """Take a message: its batch, its place, and a batch that it filled, for the caller to encode.

        If there is no room, `tell` is called once there may be.
        """
        gathering = self.gathering
        with gathering.lock:
            if gathering.refusal is not None:
                raise gathering.refusal
            lanes = gathering.topics.get(topic)
            if lanes is None:
                return Wanted.REGISTRATION
            gathering.enter(get_ident())
            added = gathering.add(lanes, draft)
            if added is None:
                if tell is not None:
                    gathering.wait_for_room(tell)
                return Wanted.ROOM
            return added

    def accept_columns(
        self,
        topic: str,
        partition: int | None,
        columns: Any,
        columns_bytes: int,
        tell: Callable[[], None] | None = None,
    ) -> Gathered | Wanted:
        """Take a batch of Arrow columns, which is encoded in a thread of its own."""
        gathering = self.gathering
        with gathering.lock:
            if gathering.refusal is not None:
                raise gathering.refusal
            lanes = gathering.topics.get(topic)
            if lanes is None:
                return Wanted.REGISTRATION
            gathering.enter(get_ident())
            lane = lanes.next() if partition is None else lanes.at(None, partition)
            batch = gathering.add_columns(lane, columns, columns_bytes)
            if batch is None:
                if tell is not None:
                    gathering.wait_for_room(tell)
                return Wanted.ROOM
        self.encode_soon(batch)
        return batch

    def seal_all(self) -> list[Gathered]:
        """Nothing lingers any more: every batch that is not over, on its way."""
        with self.gathering.lock:
            live = self.gathering.seal_all()
        for lane in {batch.lane for batch in live}:
            self._wake_from_afar(lane)
        return live

    # Work

    def _wake_from_afar(self, lane: Lane) -> None:
        if not self._closed:
            self.loop.call_soon_threadsafe(self.wake, lane)

    def wake(self, lane: Lane) -> None:
        """There may be something to do in a lane. In this event loop."""
        with self.gathering.lock:
            waiting = bool(lane.queue)  # whoever woke us is done with what it woke us for
        lane.changed.set()
        if lane.task is None and waiting and not self._closed:
            lane.task = self.loop.create_task(self._work(lane))
            if self._marking is None:
                self._marking = self.loop.call_later(_MARK_SECONDS, self._mark)

    def _mark(self) -> None:
        again = self.gathering.mark()
        self._marking = self.loop.call_later(_MARK_SECONDS, self._mark) if again else None

    async def _work(self, lane: Lane) -> None:
        while lane.queue:
            try:
                await self._writing.write(lane, await self._due(lane))
            except Exception as error:  # noqa: BLE001 - a mistake of ours: whoever waits must not wait for ever
                with self.gathering.lock:
                    self.gathering.seal_all()
                self._writing.give_up(lane, 1, Internal(f"{type(error).__name__}: {error}"), in_doubt=True)
        # Whoever adds a batch from here on wakes the lane afterwards, and then there is no task.
        lane.task = None

    async def _due(self, lane: Lane) -> list[Gathered]:
        """The batches that go together next, sealed and encoded; waits until the first one is due."""
        while True:
            lane.changed.clear()
            head = lane.queue[0]
            if not head.sealed:
                seconds = head.opened_at + self._settings.linger_seconds - moment()
                if seconds > 0:
                    await self._wait_for_change(lane, seconds)
                    continue
                with self.gathering.lock:
                    if not head.sealed:
                        self.gathering.seal(head)
            break
        head.fix_count()  # if an interrupt came between the seal and that
        if head.frame is None:
            await self._encode(lane, head)
        group, group_bytes = [head], _frame_bytes(head)
        with self.gathering.lock:
            others = [batch for batch in list(lane.queue)[1:FRAMES_MAX] if batch.sealed]
        for batch in others:
            group_bytes += _frame_bytes(batch)
            if not isinstance(batch.frame, bytes) or group_bytes > _REQUEST_BYTES_MAX:
                break
            group.append(batch)
        return group

    async def _wait_for_change(self, lane: Lane, seconds: float) -> None:
        timer = self.loop.call_later(seconds, lane.changed.set)
        try:
            await lane.changed.wait()
        finally:
            timer.cancel()

    async def _encode(self, lane: Lane, batch: Gathered) -> None:
        """Make sure that a sealed batch has a frame. Whoever claimed it may be at it already."""
        deadline = moment() + _ENCODING_SECONDS_MAX
        while batch.claimed and batch.frame is None and moment() < deadline:
            lane.changed.clear()
            if batch.frame is None:
                await self._wait_for_change(lane, deadline - moment())
        if batch.frame is not None:
            return
        if batch.granted_bytes <= _INLINE_BYTES_MAX:
            batch.encode(self._settings.codec)
            return
        self.encode_soon(batch)
        while batch.frame is None:
            await lane.changed.wait()
            if batch.frame is None:
                lane.changed.clear()

    def encode_soon(self, batch: Gathered) -> None:
        """Have it encoded in a thread of its own, from any thread; the lane is woken when it is."""
        if self._encoders is None:
            self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="talweg-encoder")
        try:
            self._encoders.submit(self.encode, batch)
        except RuntimeError:  # the interpreter ends, and takes no more work for threads
            self.encode(batch)

    def encode(self, batch: Gathered) -> None:
        """Encode it, from any thread, and wake its lane."""
        batch.encode(self._settings.codec)
        self._wake_from_afar(batch.lane)

    # The end

    async def close(self) -> None:
        """Stop; what is not delivered is given up."""
        self._closed = True
        await self._heartbeats.stop()
        lanes = list(self.gathering.lanes())
        tasks = [lane.task for lane in lanes if lane.task is not None] + list(self._registering.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._marking is not None:
            self._marking.cancel()
        with self.gathering.lock:
            self.gathering.seal_all()
        for lane in lanes:
            closed = Closed("the producer was closed before an answer came")
            self._writing.give_up(lane, len(lane.queue), closed, in_doubt=True)
        if self._encoders is not None:
            self._encoders.shutdown(wait=False)


def _frame_bytes(batch: Gathered) -> int:
    return len(batch.frame) if isinstance(batch.frame, bytes) else 0
