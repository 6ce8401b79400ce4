"""Producers, consumers and readers: they send to whoever they believe leads, and try again.

A request may be lost on its way, and so may its answer. What counts as acknowledged is what the leader
said, heard or not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import msgspec

from talweg.errors import (
    DamagedLog,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    StorageError,
    StorageFull,
    TalwegError,
)
from talweg.records import Codec, encode_values
from talweg.replication.proposals import Appended, Outcome
from talweg.replication.replica import Replica
from talweg.replication.state import RECENT_BATCHES, Position
from talweg.testing.disk import PowerCut
from talweg.testing.simulation.history import Violation
from talweg.testing.simulation.schedule import TICK_US

if TYPE_CHECKING:
    from talweg.testing.simulation.broker import Broker
    from talweg.testing.simulation.cluster import Cluster

_LOST_REQUESTS = 0.03
_LOST_ANSWERS = 0.03

Answer = Callable[[Outcome | None], None]
Ask = Callable[["Broker", Replica, Answer], None]  # the answer is None where there is nothing to say


class Client(ABC):
    """Somebody outside the cluster who believes that some broker leads."""

    def __init__(self, name: str, cluster: "Cluster", random: Random) -> None:
        self.name = name
        self.cluster = cluster
        self.random = random
        self.counts = cluster.counts
        self.believed = 1  # to lead
        self.finishing = False  # no new work: bring what was begun to its end

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether anything is still to be brought to its end."""

    @abstractmethod
    def act(self) -> None:
        """Do the next thing, and plan the one after it."""

    def later(self, ticks: float, action: Callable[[], None]) -> None:
        """Do it after some time."""
        self.cluster.schedule.after(int(ticks * TICK_US), action)

    def ask(self, text: str, ask: Ask, answered: Answer) -> None:
        """Send a request to the believed leader. `answered` is told once: what came, or an error."""
        broker = self.cluster.brokers[self.believed]
        settled = False

        def settle(outcome: Outcome | None) -> None:
            nonlocal settled
            if not settled:
                settled = True
                self._learn(broker.number, outcome)
                answered(outcome)

        def answer(outcome: Outcome | None) -> None:
            if self.random.random() >= _LOST_ANSWERS:
                self.later(self._way_ticks(), lambda: settle(outcome))

        def arrive() -> None:
            replica = broker.replica
            if replica is None:
                answer(NotLeader("connection refused"))
            else:
                broker.do(f"{self.name} {text}", lambda: ask(broker, replica, answer))

        self.later(self.cluster.profile.client_timeout_ticks, lambda: settle(NotLeader("no answer in time")))
        if self.random.random() >= _LOST_REQUESTS:
            self.later(self._way_ticks(), arrive)

    def _way_ticks(self) -> float:
        return self.random.random() * 0.2 if self.random.random() < 0.95 else self.random.random() * 100

    def _learn(self, asked: int, outcome: Outcome | None) -> None:
        if not isinstance(outcome, TalwegError) or isinstance(outcome, OutOfSequence):
            return
        self.counts[f"answers: {outcome.code}"] += 1
        if isinstance(outcome, NotLeader) and outcome.leader is not None:
            self.believed = outcome.leader
        elif self.believed == asked:
            self.believed = self.random.choice(list(self.cluster.brokers))


class Batch(msgspec.Struct, eq=False):
    """One batch of a producer. It is sent until it is acknowledged."""

    frame: bytes
    number: int  # of its producer's batches
    attempts: int = 0
    under_way: bool = False


class Producer(Client):
    """Sends batches of one to five messages: with an epoch several at once, without an id at least once."""

    def __init__(self, number: int, cluster: "Cluster", random: Random) -> None:
        super().__init__(f"producer {number}", cluster, random)
        self.producer_id = number if random.random() < 0.85 else -1
        self.epoch = 0 if random.random() < 0.6 else -1
        self.window = random.randrange(1, 4) if self.epoch >= 0 and self.producer_id >= 0 else 1
        self.at_once = cluster.profile.batches_at_once
        if self.window > 1:
            self.window = max(self.window, self.at_once)
        self.pause_ticks = cluster.profile.pause_between_batches_ticks
        self._next_sequence = 0
        self._open: list[Batch] = []  # not yet acknowledged, oldest first
        self._made = 0

    @property
    def busy(self) -> bool:
        """Whether a batch is not acknowledged yet."""
        return bool(self._open)

    def act(self) -> None:
        """Make new batches, as many as may be under way."""
        self.later(self.random.expovariate(1.0) * self.pause_ticks, self.act)
        if self.finishing:
            return
        if self.epoch >= 0 and self.random.random() < 0.02:
            self._begin_epoch()
        fresh: list[Batch] = []
        while self._may_send_ahead() and len(fresh) < self.at_once:
            batch = self._make()
            self._open.append(batch)
            fresh.append(batch)
        if fresh:
            self._send(fresh)

    def _may_send_ahead(self) -> bool:
        # A broker remembers only so many batches: whoever is further ahead of one that has no answer yet
        # could not learn what became of it.
        return not self._open or (
            len(self._open) < self.window and self._made - self._open[0].number < RECENT_BATCHES - 1
        )

    def _begin_epoch(self) -> None:
        # A restarted producer: what it had under way may still arrive, or not.
        self.counts["producer restarts"] += 1
        self.epoch += 1
        self._next_sequence = 0
        self._open.clear()

    def _make(self) -> Batch:
        count = self.random.randrange(1, 6)
        self._made += 1
        values = [b"%s:%d:%d" % (self.name.encode(), self._made, place) for place in range(count)]
        sequence = -1
        if self.producer_id >= 0:
            if self.epoch < 0 and self.random.random() < 0.1:
                self._next_sequence += 1  # without an epoch numbers need only grow
            sequence = self._next_sequence
            self._next_sequence += count
        frame = encode_values(
            values,
            timestamp=self.cluster.schedule.now_us,
            codec=Codec.NONE,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if self.producer_id >= 0 else -1,
            sequence=sequence,
        )
        return Batch(frame, self._made)

    def _send(self, batches: list[Batch]) -> None:
        for batch in batches:
            batch.attempts += 1
            batch.under_way = True
        frames = [batch.frame for batch in batches]
        oldest = batches[0] is self._open[0]  # so everything before it has been acknowledged

        def ask(broker: "Broker", replica: Replica, answer: Answer) -> None:
            def done(outcome: Outcome) -> None:
                if not isinstance(outcome, TalwegError):
                    self._acknowledged(broker, batches, outcome)
                answer(outcome)

            replica.append(frames, done)

        self.ask(
            f"sends {len(batches)}, attempt {batches[0].attempts}",
            ask,
            lambda o: self._answered(batches, oldest, o),
        )

    def _acknowledged(self, broker: "Broker", batches: list[Batch], outcome: Sequence[Appended]) -> None:
        if len(outcome) != len(batches):
            raise Violation(f"{len(batches)} batches were sent and {len(outcome)} acknowledged")
        invariants = self.cluster.invariants
        invariants.stepped(broker)
        for batch, appended in zip(batches, outcome, strict=True):
            index = self.cluster.history.batch_acknowledged(batch.frame, appended)
            invariants.batch_acknowledged(broker, index, appended.first_offset + appended.count)
            self.counts["batches acknowledged"] += 1
            self.counts["retries recognised"] += appended.duplicate
            self.counts["batches acknowledged after a retry"] += batch.attempts > 1

    def _answered(self, batches: list[Batch], oldest: bool, outcome: Outcome | None) -> None:
        for batch in batches:
            batch.under_way = False
        if not isinstance(outcome, TalwegError):
            self._open = [batch for batch in self._open if batch not in batches]
            return
        if isinstance(outcome, OutOfSequence):
            self.counts["answers: out_of_sequence"] += 1
            if oldest and batches[0] in self._open:
                raise Violation(f"{self.name}, who left nothing out, was told: {outcome}")
        elif not outcome.retriable and not isinstance(outcome, StorageError):
            raise Violation(f"{self.name} was told: {outcome!r}")
        self.later(self.random.uniform(1, 15), lambda: self._retry(batches))

    def _retry(self, batches: list[Batch]) -> None:
        waiting = [batch for batch in batches if batch in self._open and not batch.under_way]
        if waiting:
            self._send(waiting)


class Consumer(Client):
    """Commits positions, the newest one and now and then one that has been overtaken."""

    def __init__(self, number: int, cluster: "Cluster", random: Random) -> None:
        super().__init__(f"consumer {number}", cluster, random)
        self._position = 0
        self._under_way = False

    @property
    def busy(self) -> bool:
        """Whether a commit has no answer yet."""
        return self._under_way

    def act(self) -> None:
        """Read on, and commit."""
        self.later(self.random.expovariate(1.0) * 30, self.act)
        if self.finishing or self._under_way:
            return
        self._position = self.random.randint(self._position, self.cluster.invariants.acknowledged_offset)
        committed = self._position if self.random.random() < 0.8 else self.random.randint(0, self._position)
        self._commit([Position(self.name, committed), Position(f"{self.name} too", committed // 2)])

    def _commit(self, positions: list[Position]) -> None:
        self._under_way = True

        def ask(broker: "Broker", replica: Replica, answer: Answer) -> None:
            def done(outcome: Outcome) -> None:
                if not isinstance(outcome, TalwegError):
                    self.cluster.invariants.stepped(broker)
                    self.counts["positions acknowledged"] += 1
                    for position in positions:
                        self.cluster.invariants.position_acknowledged(position.name, position.next_offset)
                answer(outcome)

            replica.commit_positions(positions, done)

        def answered(outcome: Outcome | None) -> None:
            if isinstance(outcome, TalwegError):
                self.later(self.random.uniform(1, 15), lambda: self._commit(positions))
            else:
                self._under_way = False

        self.ask(f"commits {positions[0].next_offset}", ask, answered)


class Reader(Client):
    """Asks for confirmed reads, often of brokers that lead no more, and reads messages anywhere."""

    def __init__(self, number: int, cluster: "Cluster", random: Random) -> None:
        super().__init__(f"reader {number}", cluster, random)

    @property
    def busy(self) -> bool:
        """Reads are not brought to an end."""
        return False

    def act(self) -> None:
        """Confirm, or just read."""
        self.later(self.random.expovariate(1.0) * 10, self.act)
        if self.random.random() < 0.3:
            broker = self.cluster.brokers[self.random.choice(list(self.cluster.brokers))]
            if broker.up and not broker.paused:
                self._read(broker)
            return
        if self.random.random() < 0.3:
            leading = [broker.number for broker in self.cluster.brokers.values() if broker.leads]
            self.believed = self.random.choice(leading or list(self.cluster.brokers))
        self.ask("asks for a read", self._confirm, lambda _: None)

    def _confirm(self, broker: "Broker", replica: Replica, answer: Answer) -> None:
        check = self.cluster.invariants.expect_of_a_read()

        def done(error: TalwegError | None) -> None:
            if error is None:
                check(broker.number, replica)
                self.counts["reads confirmed"] += 1
            else:
                self.counts["reads refused"] += 1
            answer(error)

        replica.confirm_leadership(done)

    def _read(self, broker: "Broker") -> None:
        assert broker.replica is not None
        offset = self.random.randint(0, broker.replica.high_watermark)
        try:
            frames = broker.replica.read_frames(offset, 2000)
        except OffsetOutOfRange:
            self.counts["reads below the log's start"] += 1
            return
        except DamagedLog:
            broker.reopen()
            return
        except (StorageError, StorageFull):
            self.counts["reads refused by the disk"] += 1
            return
        except PowerCut:
            broker.power_cut()
            return
        for frame in frames:
            self.cluster.history.frame_read(frame)
        self.counts["messages read"] += len(frames)
