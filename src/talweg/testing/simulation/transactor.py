"""Clients of transactions: they stage, decide and publish, while somebody else may let all that expire.

In the simulation stages and decisions are in one and the same log, which makes the promise easy to check:
whatever is published was decided on before (see `history`).
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from talweg.errors import (
    OffsetOutOfRange,
    StageDecided,
    StageExpired,
    StageNotFound,
    StorageError,
    StorageFull,
    TalwegError,
)
from talweg.records import STAGE_ID_MIN, Codec, encode_values
from talweg.replication.decisions import Complete, Decide, Expire, StagePlace, encode_ruling
from talweg.replication.proposals import Outcome
from talweg.replication.replica import Replica
from talweg.replication.staging import encode_discard, encode_item
from talweg.testing.simulation.clients import Answer, Client
from talweg.testing.simulation.history import Violation

if TYPE_CHECKING:
    from talweg.testing.simulation.broker import Broker
    from talweg.testing.simulation.cluster import Cluster

_ITEMS_MAX = 4  # of a stage
_PUBLISH_BYTES = (1, 600, 1 << 20)  # at most in one turn
_STAGES_OF_ONE = 1_000_000  # more than a transactor makes

Then = Callable[[Outcome | None], None]


class Transactor(Client):
    """One transaction after another, each with one stage. Everything is asked for until it is answered."""

    def __init__(self, number: int, cluster: "Cluster", random: Random) -> None:
        super().__init__(f"transactor {number}", cluster, random)
        self._first_stage = STAGE_ID_MIN + number * _STAGES_OF_ONE
        self._made = 0
        self._under_way = 0  # transactions, and sweepers of them
        self._transaction = ""
        self._place = StagePlace("", 0, 0)

    @property
    def busy(self) -> bool:
        """Whether a transaction is not at its end yet."""
        return self._under_way > 0

    def act(self) -> None:
        """Begin a transaction, unless one is under way."""
        self.later(self.random.expovariate(1.0) * 30, self.act)
        if self.finishing or self.busy:
            return
        self._made += 1
        self._under_way = 1
        self._transaction = f"{self.name}/{self._made}"
        self._place = StagePlace("topic", 0, self._first_stage + self._made)
        self._stage(0, self.random.randint(1, _ITEMS_MAX))

    def _stage(self, number: int, items: int) -> None:
        if number == items:
            self._staged()
            return
        frame = encode_values(
            [b"%s:%d:%d" % (self._transaction.encode(), number, place) for place in range(number + 1)],
            timestamp=self.cluster.schedule.now_us,
            codec=Codec.NONE,
            producer_id=self._place.stage,
            sequence=number,
        )
        item = encode_item(self._transaction, frame, self.cluster.schedule.now_us)
        self._until_answered(f"stages {number}", item, lambda _: self._stage(number + 1, items))

    def _staged(self) -> None:
        self.counts["stages"] += 1
        if self.random.random() < 0.25:
            self._sweep()  # nobody decides
            return
        if self.random.random() < 0.25:
            self._under_way += 1
            self._sweep()
        decide = encode_ruling(Decide(self._transaction, (self._place,), self.cluster.schedule.now_us))
        self._until_answered("decides", decide, self._decided)

    def _decided(self, outcome: Outcome | None) -> None:
        if isinstance(outcome, StageExpired):
            self.counts["decisions that came too late"] += 1
            self._under_way -= 1
            return
        self.counts["decisions"] += 1
        if self._transaction not in self.cluster.history.decisions:
            raise Violation(f"{self._transaction} was decided on, and the decision is not committed")
        self._publish(self._complete)

    def _complete(self) -> None:
        self.counts["stages published"] += 1
        ruling = encode_ruling(Complete((self._transaction,)))
        self._until_answered("completes", ruling, lambda _: self._end())

    def _end(self) -> None:
        self._under_way -= 1

    # As a broker does with what has waited for too long

    def _sweep(self) -> None:
        expire = encode_ruling(Expire(self._transaction, (self._place,)))
        self._until_answered("lets expire", expire, self._expired)

    def _expired(self, _: Outcome | None) -> None:
        decision = self.cluster.history.decisions.get(self._transaction)
        if decision is not None:
            self._publish(self._end)  # also if it is completed: publishing twice does no harm
            return
        discard = encode_discard([self._place.stage])

        def discarded(outcome: Outcome | None) -> None:
            if isinstance(outcome, StageDecided):
                raise Violation(f"{self._transaction} expired, and was published")
            self.counts["stages discarded"] += 1
            self._end()

        self._until_answered("discards", discard, discarded)

    # Asking

    def _publish(self, then: Callable[[], None]) -> None:
        place, bytes_max = self._place, self.random.choice(_PUBLISH_BYTES)

        def ask(_: "Broker", replica: Replica, answer: Answer) -> None:
            def confirmed(error: TalwegError | None) -> None:
                if error is not None:
                    answer(error)
                else:
                    self._publish_turn(replica, place.stage, bytes_max, answer)

            replica.confirm_leadership(confirmed)

        def answered(outcome: Outcome | None) -> None:
            if isinstance(outcome, StageNotFound | StageExpired):
                raise Violation(f"{self._transaction} was decided on, and: {outcome}")
            if outcome is None:
                then()
            elif isinstance(outcome, TalwegError):
                self.later(self.random.uniform(1, 15), lambda: self._publish(then))
            else:
                self._publish(then)

        self.ask("publishes", ask, answered)

    def _publish_turn(self, replica: Replica, stage: int, bytes_max: int, answer: Answer) -> None:
        """Answers None when there is nothing left."""
        try:
            items = replica.state.staging.waiting_items(stage, bytes_max)
            frames = replica.read_staged(items)
        except OffsetOutOfRange as error:
            raise Violation(f"stage {stage} waits to be published, and its log was cut: {error}") from error
        except (StageNotFound, StageExpired, StorageError, StorageFull) as error:
            answer(error)
            return
        if items:
            self.counts["turns of publishing"] += 1
            replica.append(frames, answer)
        else:
            answer(None)

    def _until_answered(self, text: str, frame: bytes, then: Then) -> None:
        """`then` is told of success, and of refusals that are final."""

        def ask(_: "Broker", replica: Replica, answer: Answer) -> None:
            replica.append([frame], answer)

        def answered(outcome: Outcome | None) -> None:
            if isinstance(outcome, TalwegError) and not isinstance(outcome, StageExpired | StageDecided):
                if not outcome.retriable and not isinstance(outcome, StorageError):
                    raise Violation(f"{self.name} was told: {outcome!r}")
                self.later(self.random.uniform(1, 15), lambda: self._until_answered(text, frame, then))
            else:
                then(outcome)

        self.ask(text, ask, answered)
