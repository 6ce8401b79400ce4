"""The manager's copy of the metadata, kept up by looking for changes.

Every so often, after each change of our own, and at once when something is looked for and not there.
While the store cannot be reached the copy stays as it is, and says so.
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from talweg.errors import (
    ConsumerNotFound,
    MetadataUnavailable,
    PartitionNotFound,
    ProducerNotFound,
    TalwegError,
    TopicNotFound,
)
from talweg.manager.store import StoreCalls
from talweg.metadata import Assignment, Changes, Consumer, MetadataCopy, Producer, Topic, fetch_changes

_REFRESH_SECONDS_MAX: Final = 1.0  # that a listing waits for the newest: then it shows what there is

_NAME_LENGTH_MAX: Final = 300  # of a topic's name that is repeated to whoever sent it

_log = logging.getLogger("talweg.manager")


class Follower:
    """Lives in one event loop. Readers use `copy` as it is; none of it changes while they do not wait."""

    def __init__(self, store: StoreCalls, follow_seconds: float) -> None:
        self.copy = MetadataCopy()
        self.groups: dict[int, Assignment] = {}  # every assignment of the copy, by its group
        self.placement_version = 0  # of the last change of topics, assignments or brokers
        self.loaded = False  # whether the store was ever read
        self.available = False  # whether the last look succeeded
        self.looked_at = 0.0  # by the monotonic clock: when the last look that has ended, well or not, began
        self._store = store
        self._follow_seconds = follow_seconds
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._removed: list[int] = []  # incarnations of removed topics, in order

    def listen(self, listener: Callable[[], None]) -> None:
        """Have something called after each change of topics, assignments or brokers."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Look for changes, for ever."""
        while True:
            try:
                await self.follow()
            except MetadataUnavailable:
                pass  # it was logged when it began
            except TalwegError as error:
                _log.error("the metadata cannot be read: %s", error)
            await asyncio.sleep(self._follow_seconds)

    async def follow(self) -> None:
        """Catch up with the store at least as far as it is at this moment; raises MetadataUnavailable."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._look_after(self._running))
            self._next.add_done_callback(_looked_at)
        await asyncio.shield(self._next)

    async def refresh(self) -> None:
        """Catch up if that is possible, and soon."""
        try:
            async with asyncio.timeout(_REFRESH_SECONDS_MAX):
                await self.follow()
        except (MetadataUnavailable, TimeoutError):
            pass

    def check_loaded(self) -> None:
        """Raise MetadataUnavailable while the store was never read: that nothing is known says nothing."""
        if not self.loaded:
            raise MetadataUnavailable("the metadata store could not be reached yet, so nothing is known")

    async def topic(self, name: str) -> Topic:
        """A topic; raises TopicNotFound, or MetadataUnavailable when that cannot be known."""
        topic = self.copy.topics.get(name)
        if topic is None:
            await self.follow()
            topic = self.copy.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {shown_name(name)}")
        return topic

    async def producer(self, number: int) -> Producer:
        """A producer; raises ProducerNotFound, or MetadataUnavailable when that cannot be known."""
        producer = self.copy.producers.get(number)
        if producer is None:
            await self.follow()
            producer = self.copy.producers.get(number)
        if producer is None:
            raise ProducerNotFound(f"there is no producer {number}")
        return producer

    async def consumer(self, number: int) -> Consumer:
        """A consumer; raises ConsumerNotFound, or MetadataUnavailable when that cannot be known."""
        consumer = self.copy.consumers.get(number)
        if consumer is None:
            await self.follow()
            consumer = self.copy.consumers.get(number)
        if consumer is None:
            raise ConsumerNotFound(f"there is no consumer {number}")
        return consumer

    def endpoint(self, broker: int) -> str | None:
        """Where a broker is reached."""
        known = self.copy.brokers.get(broker)
        return known.endpoint if known is not None else None

    def is_removed(self, group: int) -> bool:
        """Whether a group belongs to a topic that was deleted. Absence alone does not say so."""
        place = bisect_right(self._removed, group)
        if not place:
            return False
        removed = self.copy.removed.get(self._removed[place - 1])
        return removed is not None and group in removed.groups

    async def _look_after(self, running: asyncio.Task[None] | None) -> None:
        # A look that is under way may have read already: whoever asks now needs one that begins later.
        if running is not None:
            await asyncio.wait({running})
        self._running, self._next = self._next, None
        began_at = time.monotonic()
        try:
            pages = await self._store.call(lambda store: fetch_changes(store, self.copy.version))
        except MetadataUnavailable as error:
            if self.available or not self.looked_at:
                _log.warning("the metadata store cannot be reached: %s", error)
            self.available = False
            raise
        finally:
            self.looked_at = began_at
            self._running = None
        if not self.available:
            _log.info("the metadata store is read")
        self.available = self.loaded = True
        self._apply(pages)

    def _apply(self, pages: list[Changes]) -> None:
        for page in pages:
            self.copy.apply(page)
        if not any(p.restart or p.topics or p.assignments or p.brokers or p.removed for p in pages):
            return
        self.placement_version = self.copy.version
        self.groups = {
            assignment.incarnation: assignment
            for partitions in self.copy.assignments.values()
            for assignment in partitions.values()
        }
        self._removed = sorted(self.copy.removed)
        for listener in self._listeners:
            listener()


def _looked_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited has it; the last one may have gone away


def check_partition(topic: Topic, partition: int) -> None:
    """Raise PartitionNotFound unless the topic has it."""
    if partition >= topic.partitions:
        raise PartitionNotFound(f"topic {topic.name} has partitions 0 to {topic.partitions - 1}")


def shown_name(topic: str) -> str:
    """A topic's name that somebody gave, in a message: it may be anything, of any length."""
    return repr(topic[:_NAME_LENGTH_MAX])
