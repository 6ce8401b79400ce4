"""How long publishing and discarding may take, and what a partition that is away costs: on virtual time."""

import asyncio
from typing import Any

import pytest

from talweg.client.cluster import Cluster
from talweg.client.transactions import Transactions
from talweg.errors import NoQuorum, Unavailable
from talweg.http import HttpResponse
from talweg.http.answering import encode
from talweg.protocol.transactions import ANSWER_MS, STAGE_MIN, Published, StageRef
from virtual_time import now, run

SECONDS_MAX = 30.0


class Leaders(Cluster):
    """Leaders that take a second for each piece of a stage, and tell when one is done."""

    def __init__(self, pieces: int = 1) -> None:
        super().__init__("http://127.0.0.1:1")
        self.pieces = pieces  # of each stage
        self.done: dict[tuple[int, int], int] = {}  # by partition and stage
        self.away: dict[int, float] = {}  # until when, by partition
        self.at_once = self.at_once_max = 0

    async def topic(self, name: str, *, seconds_max: float) -> Any:
        return None

    async def ask_leader(
        self, topic: str, partition: int, method: str, path: str, body: bytes | None = None, **more: Any
    ) -> HttpResponse:
        stage = int(path.split("/")[2])
        assert int(more["headers"][ANSWER_MS]) <= 1000
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            back, deadline = self.away.get(partition, 0.0), now() + more["seconds_max"]
            if deadline < back:
                await asyncio.sleep(more["seconds_max"])
                raise NoQuorum(f"no majority of partition {partition} can be reached")
            await asyncio.sleep(max(back - now(), 0.0) + 1.0)
        finally:
            self.at_once -= 1
        done = self.done[partition, stage] = self.done.get((partition, stage), 0) + 1
        answer = Published(count=done, offset=0, complete=done == self.pieces)
        return HttpResponse(200, {}, encode(answer))

    def published(self, partition: int) -> int:
        return sum(place[0] == partition and done == self.pieces for place, done in self.done.items())


def stages(partition: int, count: int = 1) -> list[StageRef]:
    return [StageRef(topic="t", partition=partition, stage=STAGE_MIN + number) for number in range(count)]


def test_what_gets_on_may_take_longer_than_any_answer() -> None:
    async def test() -> None:
        leaders = Leaders(pieces=100)
        assert await Transactions(leaders, seconds_max=SECONDS_MAX).publish(stages(0, 3))
        assert leaders.published(0) == 3
        assert now() == pytest.approx(100)

    run(test)


def test_what_gets_on_no_longer_is_given_up_when_time_is_up() -> None:
    async def test() -> None:
        leaders = Leaders(pieces=100)
        asyncio.get_running_loop().call_at(49.5, leaders.away.update, {0: 1e9})
        with pytest.raises(NoQuorum):
            await Transactions(leaders, seconds_max=SECONDS_MAX).publish(stages(0, 3))
        assert now() == pytest.approx(50 + SECONDS_MAX)

    run(test)


@pytest.mark.parametrize("what", ["publish", "discard"])
def test_a_partition_that_is_away_costs_one_time_limit_however_many_stages_it_has(what: str) -> None:
    async def test() -> None:
        leaders = Leaders()
        leaders.away[0] = 1e9
        transactions = Transactions(leaders, seconds_max=SECONDS_MAX)
        with pytest.raises(Unavailable):
            await getattr(transactions, what)(stages(0, 1000) + stages(1, 320))
        assert leaders.published(1) == 320, "the others are done all the same"
        assert now() == pytest.approx(10 + SECONDS_MAX)
        assert leaders.at_once_max <= 64

    run(test)


def test_a_partition_that_comes_back_while_others_get_on_is_published() -> None:
    async def test() -> None:
        leaders = Leaders()
        leaders.away[0] = 100.0
        transactions = Transactions(leaders, seconds_max=SECONDS_MAX)
        assert await transactions.publish(stages(0, 10) + stages(1, 3200))
        assert leaders.published(0) == 10

    run(test)


def test_a_transaction_of_very_many_partitions_asks_them_in_turn() -> None:
    async def test() -> None:
        leaders = Leaders()
        transactions = Transactions(leaders, seconds_max=SECONDS_MAX)
        assert await transactions.publish([stage for number in range(640) for stage in stages(number)])
        assert leaders.at_once_max == 64
        assert now() == pytest.approx(10)

    run(test)


def test_an_older_broker_answers_when_all_is_published() -> None:
    class Older(Leaders):
        async def ask_leader(self, *where: Any, **more: Any) -> HttpResponse:
            return HttpResponse(200, {}, b'{"status":"success","count":7,"offset":0}')

    async def test() -> None:
        assert await Transactions(Older(), seconds_max=SECONDS_MAX).publish(stages(0))

    run(test)
