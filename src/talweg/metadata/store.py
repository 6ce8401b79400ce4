"""The contract of a metadata store. SQL and Redis keep it; one suite of tests runs over all of them.

**Calls block**, and may be made from any thread. A manager is an asyncio program and makes them in a
thread: every driver has a blocking form, transactions read from top to bottom in it, and nothing here is
on the way of a message, so a thread's switch costs nothing that anybody waits for.

**Writes are fenced.** Every write carries the epoch of the writer's lease, and is refused with LeaseLost,
in the same transaction, when another epoch holds, or none. A primary that was paused while another took
over therefore writes nothing when it wakes. A lapsed lease that nobody has taken still holds.

**Changes are followed by their version**, one number for the whole store. It grows with every change and
is never used twice, but has gaps. A change is one record: whoever asks for `changes(since)` gets each
record that changed, as it is now, and gets them in the order of their last change. Heartbeats are no
changes: a cluster at rest has nothing to follow.

**Numbers are never handed out twice**, whatever happens to the store short of losing all its disks.
Producers, consumers and brokers are numbered from 0 up, each kind in its own sequence; groups in another.
SQL leaves no gaps, except where a transaction failed; Redis may.

**A store that cannot be reached** raises MetadataUnavailable and connects again by itself at the next
call. When it is raised by a write, the write may or may not have been carried out: read before you repeat.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from talweg.metadata.model import (
    Assignment,
    Broker,
    Consumer,
    Lease,
    MemberKind,
    Producer,
    RemovedTopic,
    Start,
    Topic,
    TopicSettings,
)

FORMAT: Final = 1  # of what the stores keep; a higher one was written by a newer Talweg
CHANGES_MAX: Final = 10_000  # records in one answer
REMOVED_KEPT: Final = 10_000  # deleted topics that are remembered, the last ones


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What changed after a version, up to another one. A topic comes after its assignments."""

    version: int  # ask for changes since this one next
    more: bool = False  # there is more already: ask again at once
    restart: bool = False  # history was lost: forget everything, ask from 0; nothing else is told here
    lease: Lease | None = None  # as it is now: who is, or was last, the primary
    topics: tuple[Topic, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    brokers: tuple[Broker, ...] = ()
    producers: tuple[Producer, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    removed: tuple[RemovedTopic, ...] = ()  # with their assignments, producers and consumers


class MetadataStore(ABC):
    """Keeps what the cluster knows of itself. See the module's text."""

    # The lease

    @abstractmethod
    def acquire_lease(self, holder: str, endpoint: str, *, now_us: int, duration_us: int) -> Lease | None:
        """Become the primary if nobody is, or the lease has lapsed, or the holder asks again. Always a
        new epoch: a process that was restarted is not its former self. None: another holds it."""

    @abstractmethod
    def renew_lease(self, epoch: int, *, now_us: int, duration_us: int) -> Lease:
        """Stay the primary for longer; raises LeaseLost."""

    @abstractmethod
    def release_lease(self, epoch: int) -> None:
        """Stop being the primary. Harmless when another is already."""

    @abstractmethod
    def lease(self) -> Lease | None:
        """Who is the primary, or was until the lease lapsed; None when it was given back."""

    # Following

    @abstractmethod
    def changes(self, since: int, limit: int = CHANGES_MAX) -> Changes:
        """What changed after that version: from 0, everything there is. One consistent moment."""

    # Topics

    @abstractmethod
    def create_topic(
        self,
        name: str,
        replicas: Sequence[Sequence[int]],
        *,
        settings: TopicSettings | None = None,
        now_us: int,
        epoch: int,
    ) -> Topic:
        """Create a topic with these brokers for each partition, preferred leader first (see
        `placement.place_topic`); raises TopicExists, and BadTopicName."""

    @abstractmethod
    def restore_topic(self, topic: Topic, assignments: Sequence[Assignment], *, epoch: int) -> None:
        """Enter a topic that brokers hold and the store has forgotten, with its incarnation.

        Raises TopicExists when the name is taken (also by the topic itself), and TopicNotFound when the
        topic was deleted: then it is not forgotten."""

    @abstractmethod
    def delete_topic(self, name: str, *, epoch: int) -> RemovedTopic:
        """Remove a topic with its assignments, producers and consumers; raises TopicNotFound."""

    @abstractmethod
    def topics(self) -> list[Topic]:
        """All topics, by name."""

    @abstractmethod
    def topic(self, name: str) -> Topic:
        """One topic; raises TopicNotFound."""

    # Assignments

    @abstractmethod
    def assignments(self, topic: str | None = None) -> list[Assignment]:
        """The assignments of one topic or of all, by topic and partition."""

    @abstractmethod
    def update_assignments(self, assignments: Sequence[Assignment], *, epoch: int) -> list[Assignment]:
        """Compare and set, all or none: raises StaleVersion unless each is still at its `version`, and
        PartitionNotFound when it is gone. Returns them with their new versions."""

    # Brokers

    @abstractmethod
    def register_broker(
        self, endpoint: str, incarnation: str, *, peer_endpoint: str = "", now_us: int, epoch: int
    ) -> Broker:
        """Enter a broker. A data directory that is known keeps its number and status, and moves to the
        new endpoints; one that was removed is active again. It counts as a heartbeat."""

    @abstractmethod
    def update_broker(self, broker: Broker, *, epoch: int) -> Broker:
        """Compare and set: raises StaleVersion unless it is still at its `version`, and BrokerNotFound."""

    @abstractmethod
    def brokers(self) -> list[Broker]:
        """All brokers, removed ones too, by number."""

    # Producers and consumers

    @abstractmethod
    def register_producer(self, topic: str, *, now_us: int, epoch: int) -> Producer:
        """A new producer of the topic; raises TopicNotFound. It counts as a heartbeat."""

    @abstractmethod
    def register_consumer(
        self, topic: str, *, partition: int | None = None, start: Start = "earliest", now_us: int, epoch: int
    ) -> Consumer:
        """A new consumer of the topic; raises TopicNotFound, PartitionNotFound. It counts as a heartbeat."""

    @abstractmethod
    def producer(self, number: int) -> Producer:
        """One producer; raises ProducerNotFound."""

    @abstractmethod
    def consumer(self, number: int) -> Consumer:
        """One consumer; raises ConsumerNotFound."""

    # Heartbeats

    @abstractmethod
    def record_heartbeats(
        self, kind: MemberKind, numbers: Collection[int], *, at_us: int, epoch: int
    ) -> None:
        """All of these were heard of since the last call, the last of them at `at_us`. Times never go
        back; numbers that do not exist are passed over."""

    @abstractmethod
    def heartbeats(self, kind: MemberKind) -> dict[int, int]:
        """When each was last heard of."""

    # Life

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
