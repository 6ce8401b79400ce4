"""The consumer for programs that block: `for message in consumer`."""

import os
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self, TypeVar

from talweg.client.background import Background
from talweg.client.consumer_settings import ConsumerSettings, Partitions, Reset, read_partitions, read_topics
from talweg.client.consuming import Consuming
from talweg.client.dropped import end_in_thread
from talweg.client.message import Message, Place
from talweg.client.offsets import Where, read_where
from talweg.client.prefetched import Ends
from talweg.client.received import ReceivedBatch
from talweg.client.servers import Servers, read_servers
from talweg.errors import Closed

A = TypeVar("A")


class Consumer:
    """Reads topics, every message once and in order within its partition.

    One thread uses it; any other may close it, which wakes the one that waits.

    topics                    whose messages are read
    servers                   managers' addresses; without any, what TALWEG_URL says
    group                     a name under which positions are kept; without one, none are
    partitions                {topic: [numbers]}, or a list if there is one topic; without any, all of them
    auto_offset_reset         where to begin without a position, or with one that is gone: "earliest" or
                              "latest"; or "none", which raises OffsetOutOfRange
    enable_auto_commit        commit positions now and then, and at the end (only with a group)
    auto_commit_interval_ms   how often that is
    max_poll_records          messages in a batch at most; without it, as they came
    fetch_bytes               asked for at once
    fetch_wait_ms             how long a leader waits for messages before it says that there are none
    prefetch_bytes            read ahead at most, about
    request_timeout_ms        for one answer, beyond that wait; then another broker is asked
    api_timeout_ms            for anything, repetitions included; then the last error is raised
    """

    _begun = False  # until there is something to close

    def __init__(
        self,
        *topics: str,
        servers: Servers = None,
        group: str | None = None,
        partitions: Partitions = None,
        auto_offset_reset: Reset = "earliest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        max_poll_records: int | None = None,
        fetch_bytes: int = 4 << 20,
        fetch_wait_ms: int = 1_000,
        prefetch_bytes: int = 64 << 20,
        request_timeout_ms: int = 10_000,
        api_timeout_ms: int = 60_000,
    ) -> None:
        settings = ConsumerSettings(
            topics=read_topics(topics),
            partitions=read_partitions(topics, partitions),
            group=group,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            max_poll_records=max_poll_records,
            fetch_bytes=fetch_bytes,
            fetch_wait_ms=fetch_wait_ms,
            prefetch_bytes=prefetch_bytes,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
        )
        known = read_servers(servers)
        self._process = os.getpid()
        self._background = Background("talweg consumer")
        try:
            self._consuming = self._background.run(_begin(settings, known))
        except BaseException:
            self._background.close()
            raise
        self._hand = self._consuming.hand
        self._prefetched = self._consuming.prefetched
        self._begun = True

    # The end

    def close(self) -> None:
        """End, and commit what was handed out if that is automatic. Whoever waits for messages is woken."""
        self._close(clean=True)

    def _close(self, *, clean: bool) -> None:
        if self._prefetched.closed or os.getpid() != self._process:
            return
        self._prefetched.close()
        try:
            self._background.run(self._consuming.close(clean=clean))
        finally:
            self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(clean=kind is None)

    def __del__(self) -> None:
        if not self._begun or self._prefetched.closed or os.getpid() != self._process:
            return
        self._prefetched.close()
        end_in_thread(self, "a consumer", self._background, partial(self._consuming.close, clean=False))

    # Messages

    def poll_batch(self, timeout: float | None = None) -> ReceivedBatch | None:
        """The next batch of some partition; None after `timeout` seconds, or when it is closed meanwhile."""
        self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            news = self._prefetched.news
            batch = self._hand.take_batch()
            if batch is not None:
                return batch
            if not self._wait(news, deadline):
                return None

    def __iter__(self) -> Iterator[Message]:
        """Every message, for ever: until it is closed."""
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Every message; ends when none came for `timeout` seconds, or when it is closed."""
        self._check()
        # Lists of messages one behind the other: between two lists, Python has nothing to do here.
        return chain.from_iterable(self._lists(timeout))

    def read_to_end(self) -> Iterator[Message]:
        """Every message that is there now; ends behind the last of them."""
        ends = self._run(self._consuming.ends())
        return chain.from_iterable(self._lists(None, ends))

    def _lists(self, timeout: float | None, ends: Ends | None = None) -> Iterator[Iterator[Message]]:
        while ends is None or self._consuming.is_before(ends):
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                news = self._prefetched.news
                made = self._hand.take_messages(ends)
                if made is not None:
                    yield made
                    break
                if not self._wait(news, deadline):
                    return
                if ends is not None and not self._consuming.is_before(ends):
                    return

    def _wait(self, news: int, deadline: float | None) -> bool:
        """For more news than that; false when time is up, or it is closed."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        return self._prefetched.wait(news, left) and not self._prefetched.closed

    # Where it is

    @property
    def assignment(self) -> tuple[Place, ...]:
        """The partitions that are read, as (topic, number)."""
        return self._consuming.assignment

    def seek(self, topic: str, partition: int, where: Where) -> None:
        """Go on from an offset, `earliest`, `latest`, or the first message not older than a moment."""
        self._run(self._consuming.seek([self._consuming.check(topic, partition)], read_where(where)))

    def seek_all(self, where: Where) -> None:
        """The same, in every partition."""
        self._run(self._consuming.seek(self._consuming.assignment, read_where(where)))

    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next message that will be handed out."""
        return self._consuming.position(self._consuming.check(topic, partition))

    def lag(self) -> dict[Place, int]:
        """How many messages there are that were not handed out yet, by partition."""
        return self._run(self._consuming.lag())

    def buffered(self) -> dict[Place, int]:
        """How many of them were read ahead: they can be handed out without waiting. By partition."""
        return self._consuming.buffered()

    def pause(self, topic: str, partition: int) -> None:
        """Hand out nothing of a partition until it is resumed."""
        self._consuming.pause(self._consuming.check(topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        """Hand out messages of a paused partition again."""
        self._prefetched.pause(self._consuming.check(topic, partition), paused=False)

    # Positions of the group

    def commit(self) -> None:
        """Commit everything that was handed out; returns when a majority has it on disk."""
        self._run(self._consuming.commit(all_handed_out=True))

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's position: the first offset that it has not finished with; None if it has none."""
        return self._run(self._consuming.committed(self._consuming.check(topic, partition)))

    def _run(self, work: Coroutine[Any, Any, A]) -> A:
        return self._background.run(work)

    def _check(self) -> None:
        if self._prefetched.closed:
            raise Closed("the consumer is closed")
        if os.getpid() != self._process:
            raise Closed("the consumer was made before a fork; make one in each process")


async def _begin(settings: ConsumerSettings, servers: tuple[str, ...]) -> Consuming:
    # Decoded in the loop: it has nothing else to do, and one thread more would only want the interpreter.
    consuming = Consuming(settings, servers, decode_in_thread=False)
    try:
        await consuming.start()
    except BaseException:
        await consuming.close(clean=False)
        raise
    return consuming
