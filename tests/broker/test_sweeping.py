"""What brokers settle by themselves, and what a partition that is away costs the others: on virtual time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from talweg.broker.rolling import Rolling
from talweg.broker.sweeping import Sweeping
from talweg.errors import NoQuorum, StageExpired, StageNotFound, StorageError, TopicNotFound
from talweg.protocol.transactions import STAGE_MIN, TRANSACTIONS, StageRef
from talweg.records import encode_values, stamp
from talweg.replication.decisions import Decide, StagePlace, encode_ruling
from talweg.replication.staging import encode_item
from talweg.replication.state import PartitionState
from virtual_time import now, run

AWAY_SECONDS = 10.0
EXPIRY_SECONDS = 3600.0
MINUTE_US = 60_000_000
LONG_AGO_US = int(30 * EXPIRY_SECONDS * 1e6)


class Led:
    """A partition that this broker leads: what is appended to it is committed."""

    def __init__(self, topic: str = TRANSACTIONS, number: int = 0) -> None:
        self.topic, self.number, self.name = topic, number, f"{topic}-{number}"
        self.state = PartitionState()
        self.group: Any = self
        self.replica = SimpleNamespace(serves=True, state=self.state)
        self.stopped = None
        self._index = 0

    def serving(self) -> Any:
        return self.replica

    async def append(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self.state.known(frame) is None:
                self._index += 1
                self.state.fold(stamp(frame, self._index, 1, self.state.next_offset))

    async def decide(
        self, name: str, *stages: tuple[int, int], topic: str = "t", ago_us: int = MINUTE_US
    ) -> None:
        """On stages, each with its partition."""
        places = tuple(StagePlace(topic, partition, STAGE_MIN + stage) for partition, stage in stages)
        await self.append([encode_ruling(Decide(name, places, time.time_ns() // 1000 - ago_us))])

    async def stage(self, transaction: str, stage: int) -> None:
        frame = encode_values(
            [b"x"], timestamp=0, producer_id=STAGE_MIN + stage, producer_epoch=-1, sequence=0
        )
        await self.append([encode_item(transaction, frame, 0)])

    def left(self) -> list[str]:
        return [name for name, decision in self.state.decisions.decisions.items() if not decision.completed]


class Leaders:
    """Leaders that take a second for a stage, or for each piece of a large one."""

    def __init__(self) -> None:
        self.away: set[int] = set()  # partitions: of stages or of decisions
        self.fails: dict[int, Exception] = {}  # by stage
        self.pieces: dict[int, int] = {}  # that are left, of large stages
        self.asked: Counter[int] = Counter()  # by partition
        self.published: set[int] = set()
        self.at_once = self.at_once_max = 0

    async def publish(self, place: StageRef) -> bool:
        stage = place.stage - STAGE_MIN
        self.asked[place.partition] += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await self._answer(place.partition)
        finally:
            self.at_once -= 1
        if stage in self.fails:
            raise self.fails[stage]
        self.pieces[stage] = left = max(self.pieces.get(stage, 1) - 1, 0)
        if not left:
            self.published.add(stage)
        return not left

    async def keeper(self, transaction: str) -> int:
        return int(transaction)

    async def expire(self, transaction: str, stages: Sequence[StageRef]) -> tuple[StageRef, ...]:
        self.asked[int(transaction)] += 1
        await self._answer(int(transaction))
        return ()

    async def _answer(self, partition: int) -> None:
        await asyncio.sleep(AWAY_SECONDS if partition in self.away else 1.0)
        if partition in self.away:
            raise NoQuorum(f"no majority of partition {partition} can be reached")


def rolling(leaders: Leaders) -> Rolling:
    made: Any = leaders
    return Rolling(made, expiry_seconds=EXPIRY_SECONDS, request_seconds_max=AWAY_SECONDS)


# Decisions


def test_a_partition_that_is_away_holds_up_nobody_else_and_is_asked_once() -> None:
    async def test() -> None:
        leaders, keepers = Leaders(), [Led(), Led()]
        leaders.away = {0}
        for number in range(40):
            await keepers[0].decide(f"away {number}", *((0, 12 * number + task) for task in range(12)))
        await keepers[0].decide("half", (0, 1000), (1, 1001))
        await keepers[0].decide("well", (1, 1002), (2, 1003))
        await keepers[1].decide("well", (2, 1004))
        await keepers[1].decide("of nothing")
        look = rolling(leaders).look
        await look(keepers)
        assert leaders.published == {1001, 1002, 1003, 1004}
        assert now() == AWAY_SECONDS
        assert leaders.asked[0] == 1
        assert len(keepers[0].left()) == 41
        assert keepers[1].left() == []
        leaders.away.clear()
        await look(keepers)
        assert keepers[0].left() == []
        assert len(leaders.published) == 485

    run(test)


def test_a_partition_that_goes_away_in_the_midst_of_its_stages_is_left_to_the_next_look() -> None:
    async def test() -> None:
        leaders, keeper = Leaders(), Led()
        await keeper.decide("t", *((0, stage) for stage in range(1000)))
        asyncio.get_running_loop().call_at(3.5, leaders.away.add, 0)
        await rolling(leaders).look([keeper])
        assert len(leaders.published) == 1 + 2 * 16
        assert leaders.asked[0] == 1 + 3 * 16
        assert keeper.left() == ["t"]

    run(test)


def test_what_is_busy_does_not_hold_up_what_is_decided_on_meanwhile() -> None:
    async def test() -> None:
        leaders, keeper = Leaders(), Led()
        leaders.pieces[0] = 1000
        await keeper.decide("large", (0, 0))
        await keeper.decide("small", (0, 1))
        look = rolling(leaders).look
        await look([keeper])
        assert keeper.left() == ["large"]
        assert now() < 2 * AWAY_SECONDS
        assert leaders.pieces[0] < 995, "it got on, too"
        while keeper.left():
            await look([keeper])
        assert leaders.pieces[0] == 0

    run(test)


def test_very_many_partitions_are_asked_in_turn() -> None:
    async def test() -> None:
        leaders, keeper = Leaders(), Led()
        await keeper.decide("t", *((partition, partition) for partition in range(640)))
        await rolling(leaders).look([keeper])
        assert keeper.left() == []
        assert leaders.at_once_max == 64

    run(test)


def test_one_stage_that_fails_leaves_the_others_to_be_published() -> None:
    async def test() -> None:
        leaders, keeper = Leaders(), Led()
        leaders.fails = {
            0: StorageError("sectors that cannot be read"),
            1: StageNotFound("published long ago"),
            2: StageExpired("somebody has discarded it"),
        }
        for number in range(4):
            await keeper.decide(f"q/{number}", (0, number))
        await rolling(leaders).look([keeper])
        assert keeper.left() == ["q/0"]

    run(test)


@pytest.mark.parametrize("oldest_first", [True, False])
def test_a_topic_that_is_not_there_is_waited_for_but_not_for_ever(oldest_first: bool) -> None:
    async def test() -> None:
        leaders, keepers = Leaders(), [Led(), Led()]
        leaders.fails = {0: TopicNotFound("gone"), 1: TopicNotFound("gone")}
        await keepers[0].decide("young", (0, 0))
        await keepers[1].decide("old", (0, 1), ago_us=LONG_AGO_US)
        await rolling(leaders).look(keepers[:: 1 if oldest_first else -1])
        assert keepers[0].left() == ["young"]
        assert keepers[1].left() == []

    run(test)


def test_whoever_decided_is_given_half_a_minute() -> None:
    async def test() -> None:
        leaders, keeper = Leaders(), Led()
        await keeper.decide("t", (0, 0), ago_us=25_000_000)
        await rolling(leaders).look([keeper])
        assert keeper.left() == ["t"]
        assert not leaders.published

    run(test)


# Stages


def sweeping(leaders: Leaders, *partitions: Led) -> Sweeping:
    hosting: Any = SimpleNamespace(partitions=dict(enumerate(partitions)))
    made: Any = leaders
    return Sweeping(hosting, made, expiry_seconds=EXPIRY_SECONDS, request_seconds_max=AWAY_SECONDS)


def test_who_keeps_decisions_and_is_away_is_asked_once_and_holds_up_no_others() -> None:
    async def test() -> None:
        leaders, led = Leaders(), [Led("t", number) for number in range(20)]
        leaders.away = {0}
        for partition in led:
            await partition.stage("0", 1)
            await partition.stage("1", 2)
        task = asyncio.create_task(sweeping(leaders, *led).run())
        while any(STAGE_MIN + 2 in partition.state.staging.stages for partition in led):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert now() < 15 + AWAY_SECONDS + 30
        assert leaders.asked[0] == 1
        assert all(STAGE_MIN + 1 in partition.state.staging.stages for partition in led)
        task.cancel()

    run(test)


def test_decisions_do_not_wait_for_stages_that_expire() -> None:
    async def test() -> None:
        leaders, keeper, led = Leaders(), Led(), [Led("t", number) for number in range(200)]
        for partition in led:
            await partition.stage("1", 2)
        await keeper.decide("q/0", (5, 5))
        task = asyncio.create_task(sweeping(leaders, *led, keeper).run())
        while keeper.left():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(1.0)
        assert now() < 20
        task.cancel()

    run(test)
