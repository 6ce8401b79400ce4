"""Settles what transactions left behind: nothing staged stays for ever, nothing decided is lost.

Each broker looks after what it leads. A stage to which nothing was added for some time is either part of a
decision, and is published, or is noted as expired where decisions are kept, and then discarded: in that
order, so that nobody can decide on what is gone. Beside that, decisions that nobody completed are rolled
forward (`rolling`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final

from talweg.broker.hosting import Hosting
from talweg.broker.leaders import Leaders
from talweg.broker.partition import Partition
from talweg.broker.rolling import Rolling
from talweg.broker.stages import discard, publish
from talweg.broker.waiting import within
from talweg.errors import TalwegError, Unavailable
from talweg.protocol.transactions import TRANSACTIONS, StageRef

_LOOKS: Final = 4  # while something expires
_PAUSE_SECONDS_MAX: Final = 15.0
_TRANSACTIONS_MAX: Final = 1_000  # of one partition in one look

_log = logging.getLogger("talweg.broker")


class Sweeping:
    """Looks again and again, from `run` on."""

    def __init__(
        self, hosting: Hosting, leaders: Leaders, *, expiry_seconds: float, request_seconds_max: float
    ) -> None:
        self._hosting = hosting
        self._leaders = leaders
        self._expiry_us = int(expiry_seconds * 1e6)
        self._pause_seconds = min(expiry_seconds / _LOOKS, _PAUSE_SECONDS_MAX)
        self._seconds_max = request_seconds_max
        self._rolling = Rolling(
            leaders, expiry_seconds=expiry_seconds, request_seconds_max=request_seconds_max
        )

    async def run(self) -> None:
        """For ever. What cannot be settled now is tried again."""
        await asyncio.gather(
            self._again_and_again(self._roll_forward), self._again_and_again(self._settle_all)
        )

    async def _again_and_again(self, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            await look()

    def _led(self) -> Iterator[Partition]:
        """As it is when the next one is asked for."""
        for partition in list(self._hosting.partitions.values()):
            if partition.group.stopped is None and partition.group.replica.serves:
                yield partition

    async def _roll_forward(self) -> None:
        await self._rolling.look([partition for partition in self._led() if _keeps(partition)])

    async def _settle_all(self) -> None:
        away: set[int] = set()  # partitions of decisions: found so in this look
        try:
            for partition in self._led():
                if not _keeps(partition):
                    await self._settle_idle(partition, away)
        except TalwegError as error:
            _log.warning("nothing that is staged expires: %s", error)

    async def _settle_idle(self, partition: Partition, away: set[int]) -> None:
        """Settle what has waited for too long in a partition. Raises what speaks for all of them."""
        by_transaction: dict[str, list[int]] = {}
        staging = partition.group.replica.state.staging
        for stage, transaction in staging.idle_since(time.time_ns() // 1000 - self._expiry_us).items():
            by_transaction.setdefault(transaction, []).append(stage)
        for transaction, stages in list(by_transaction.items())[:_TRANSACTIONS_MAX]:
            keeper = await self._leaders.keeper(transaction)
            if keeper in away:
                continue
            asked = [
                StageRef(topic=partition.topic, partition=partition.number, stage=each) for each in stages
            ]
            try:
                decided = await self._leaders.expire(transaction, asked)
            except TalwegError as error:
                away.add(keeper)
                _log.warning(
                    "nobody says which stages expire, of transaction %s to begin with: %s", transaction, error
                )
                continue
            if not await self._settle(partition, transaction, stages, {each.stage for each in decided}):
                return

    async def _settle(
        self, partition: Partition, transaction: str, stages: Sequence[int], decided: Collection[int]
    ) -> bool:
        """False if a majority of the partition is away."""
        settled = 0
        try:
            for stage in stages:
                settled += await self._settle_one(partition, transaction, stage, publishing=stage in decided)
        except TalwegError as error:
            _log.warning("%s: transaction %s is not settled yet: %s", partition.name, transaction, error)
            return False
        if settled == len(stages):
            _log.info(
                "%s: transaction %s: %d stages published, %d discarded",
                partition.name,
                transaction,
                len(decided),
                len(stages) - len(decided),
            )
        return True

    async def _settle_one(
        self, partition: Partition, transaction: str, stage: int, *, publishing: bool
    ) -> bool:
        """Whether it is settled. One that cannot be, since the disk does not read it, is in nobody's way."""
        try:
            work = publish(partition, stage) if publishing else discard(partition, stage)
            await within(self._seconds_max, work)
        except Unavailable:
            raise
        except TalwegError as error:
            _log.warning(
                "%s: stage %d of transaction %s is not settled: %s", partition.name, stage, transaction, error
            )
            return False
        return True


def _keeps(partition: Partition) -> bool:
    """Whether it keeps decisions."""
    return partition.topic == TRANSACTIONS
