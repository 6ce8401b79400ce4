"""What a blocking producer consists of behind its face: a thread with an event loop, and waiting for it."""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from talweg.client import exits
from talweg.client.async_transaction import AsyncTransaction
from talweg.client.background import Background
from talweg.client.cluster import Cluster
from talweg.client.delivery import moment, wait_for
from talweg.client.draft import Draft
from talweg.client.dropped import EXIT_SECONDS_MAX
from talweg.client.failures import Failures
from talweg.client.gate import Gate
from talweg.client.gathered import Gathered
from talweg.client.producer_settings import ProducerSettings, buffer_is_full
from talweg.client.sending import Sending, Wanted
from talweg.client.servers import Servers
from talweg.client.transaction import Transaction
from talweg.errors import Closed, DeliveryFailed, Overloaded, Unavailable

A = TypeVar("A")


class ProducerCore:
    """Known to `exits` until it is closed: what it accepted is delivered even if nobody closes it."""

    def __init__(self, servers: Servers, settings: ProducerSettings) -> None:
        self.settings = settings
        self.failures = Failures()
        self._cluster = Cluster(servers)
        self._background = Background("talweg-producer")
        self.closed = self._forked = False
        self._closing = threading.Lock()

        async def make() -> Sending:
            return Sending(self._cluster, settings, self.failures.add)

        self.sending = self._background.run(make())
        self.lock = self.sending.gathering.lock
        exits.enlist(self)

    # Messages

    def accept(self, topic: str, draft: Draft) -> tuple[Gathered, int]:
        """Take a message, as soon as there is room; raises Overloaded when it waited for too long."""
        batch, index, full = self._accepted(topic, lambda tell: self.sending.accept(topic, draft, tell))
        if full is not None:
            # Here and not in a thread: while this one compresses, the one that sends can run.
            self.sending.encode(full)
        return batch, index

    def accept_columns(self, topic: str, partition: int | None, columns: Any, columns_bytes: int) -> Gathered:
        """Take a batch of Arrow columns, as soon as there is room; raises Overloaded."""
        return self._accepted(
            topic,
            lambda tell: self.sending.accept_columns(topic, partition, columns, columns_bytes, tell),
        )

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has, which is created if there is none."""
        seconds_max = self.settings.block_seconds_max
        self.check_usable()
        return len(self._background.run(self.sending.register(topic), seconds_max + 1).lanes)

    def transaction(self) -> Transaction:
        """Messages that are published together, or not at all."""
        self.check_usable()
        return Transaction(self._background, AsyncTransaction(self._cluster, self.settings))

    def check_usable(self) -> None:
        """Raise why nothing can be sent, if nothing can."""
        if self.sending.gathering.refusal is not None:
            raise self.sending.gathering.refusal

    def _accepted(self, topic: str, accept: Callable[[Callable[[], None] | None], A | Wanted]) -> A:
        deadline: float | None = None
        room: Gate | None = None
        while True:
            got = accept(None if room is None else room.open)
            if not isinstance(got, Wanted):
                return got
            if asyncio._get_running_loop() is self.sending.loop:
                raise Overloaded("there is no room now, and a callback cannot wait for it")
            if got is Wanted.REGISTRATION:
                self.partitions(topic)
                continue
            if deadline is None:
                deadline = moment() + self.settings.block_seconds_max
            elif room is not None:
                self._wait_for_room(room, deadline)
            room = Gate()

    def _wait_for_room(self, room: Gate, deadline: float) -> None:
        try:
            if room.wait(max(deadline - moment(), 0)):
                return
        finally:
            with self.lock:
                self.sending.gathering.wait_no_more(room.open)
        raise buffer_is_full(self.settings)

    # The end

    def flush(self, timeout: float | None) -> None:
        """Wait until everything accepted so far is over; raises DeliveryFailed and TimeoutError."""
        if self._forked:
            self.check_usable()
        wait_for(self.sending.seal_all(), timeout)
        self._tell_failures()

    def close(self, timeout: float | None) -> None:
        """Deliver what was accepted, then stop; raises DeliveryFailed for what was not."""
        if self.closed:
            return
        with self.lock:
            self.sending.gathering.refusal = Closed("the producer cannot be used: it is closed")
        with suppress(TimeoutError):  # what is left is given up, and told below
            wait_for(self.sending.seal_all(), timeout)
        self._stop()
        self._tell_failures()

    def _stop(self) -> None:
        with self._closing:
            if self.closed:
                return
            self._background.run(self.sending.close())
            self._background.run(self._cluster.close())
            self._background.close()
            self.closed = True
        exits.discharge(self)

    def _tell_failures(self) -> None:
        failed = self.failures.take()
        if failed is not None:
            raise failed

    # What `exits` calls

    def finish(self) -> None:
        """Nobody closed it: deliver what is left in bounded time, and say so if that fails."""
        try:
            self.close(EXIT_SECONDS_MAX)
        except DeliveryFailed as failed:
            sys.stderr.write(f"talweg: a producer was not closed, and {failed}\n")
        except Unavailable:
            pass  # closed at the same moment

    def abandon(self) -> None:
        """This is a fork: the thread is the parent's, and so is what was accepted."""
        refusal = Closed("the producer cannot be used: it was made before a fork; make one in each process")
        gathering = self.sending.gathering
        gathering.refusal = refusal
        gathering.hot.clear()
        gathering.shared.clear()
        for lane in gathering.lanes():
            for batch in lane.queue:
                batch.end(None, refusal)
            lane.queue.clear()
        self.closed = self._forked = True
