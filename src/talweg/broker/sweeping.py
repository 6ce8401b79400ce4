"""Settles what transactions left behind: nothing staged stays for ever, nothing decided is lost.

Each broker looks after what it leads. A stage to which nothing was added for some time is either part of a
decision, and is published, or is noted as expired where decisions are kept, and then discarded: in that
order, so that nobody can decide on what is gone. A decision that nobody completed is rolled forward.
"""

import asyncio
import logging
import time
from typing import Final

from talweg.broker.decisions import complete, references
from talweg.broker.hosting import Hosting
from talweg.broker.leaders import Leaders
from talweg.broker.partition import Partition
from talweg.broker.stages import discard, publish
from talweg.broker.waiting import within
from talweg.errors import (
    PartitionNotFound,
    StageExpired,
    StageNotFound,
    TalwegError,
    TopicNotFound,
    Unavailable,
)
from talweg.protocol.transactions import TRANSACTIONS, StageRef
from talweg.replication.decisions import Decision

_LOOKS: Final = 4  # while something expires
_PAUSE_SECONDS_MAX: Final = 15.0
# A decision is final, so nobody need wait long for whoever took it: only that little be done twice.
_ROLL_FORWARD_SECONDS: Final = 30.0
_TRANSACTIONS_MAX: Final = 1_000  # of one partition in one look
_PUBLISH_AT_ONCE: Final = 16
# A topic that is not there may only have been forgotten by the metadata store: brokers make it known again.
# After so many times the expiry, it is believed to be gone.
_GONE_AFTER: Final = 24

_log = logging.getLogger("talweg.broker")


class Sweeping:
    """Looks again and again, from `run` on."""

    def __init__(
        self, hosting: Hosting, leaders: Leaders, *, expiry_seconds: float, request_seconds_max: float
    ) -> None:
        self._hosting = hosting
        self._leaders = leaders
        self._expiry_us = int(expiry_seconds * 1e6)
        self._roll_forward_us = int(min(expiry_seconds, _ROLL_FORWARD_SECONDS) * 1e6)
        self._pause_seconds = min(expiry_seconds / _LOOKS, _PAUSE_SECONDS_MAX)
        self._seconds_max = request_seconds_max

    async def run(self) -> None:
        """For ever. What cannot be settled now is tried again."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            for partition in list(self._hosting.partitions.values()):
                if partition.group.stopped is None and partition.group.replica.serves:
                    await self.look_at(partition)

    async def look_at(self, partition: Partition) -> None:
        """Settle what has waited for too long in a partition that this broker leads."""
        now_us = time.time_ns() // 1000
        state = partition.group.replica.state
        if partition.topic == TRANSACTIONS:
            opened = list(state.decisions.open_since(now_us - self._roll_forward_us).items())
            for transaction, decision in opened[:_TRANSACTIONS_MAX]:
                await self._roll_forward(partition, transaction, decision)
        elif state.staging.stages:
            by_transaction: dict[str, list[int]] = {}
            for stage, transaction in state.staging.idle_since(now_us - self._expiry_us).items():
                by_transaction.setdefault(transaction, []).append(stage)
            for transaction, stages in list(by_transaction.items())[:_TRANSACTIONS_MAX]:
                if not await self._settle(partition, transaction, stages):
                    return  # whoever keeps decisions, or a majority here, is away: the next look may find it

    async def _settle(self, partition: Partition, transaction: str, stages: list[int]) -> bool:
        """False if somebody is away whom others need, too."""
        asked = [StageRef(topic=partition.topic, partition=partition.number, stage=each) for each in stages]
        settled = 0
        try:
            decided = {each.stage for each in await self._leaders.expire(transaction, asked)}
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

    async def _roll_forward(self, partition: Partition, transaction: str, decision: Decision) -> None:
        age_us = time.time_ns() // 1000 - decision.decided_us
        at_once = asyncio.Semaphore(_PUBLISH_AT_ONCE)

        async def publish_one(stage: StageRef) -> None:
            async with at_once:
                await self._publish(transaction, stage, believe_gone=age_us > _GONE_AFTER * self._expiry_us)

        published = await asyncio.gather(
            *(publish_one(stage) for stage in references(decision.stages)), return_exceptions=True
        )
        for outcome in published:
            if isinstance(outcome, TalwegError):
                _log.warning("transaction %s is not all published yet: %s", transaction, outcome)
                return
            if isinstance(outcome, BaseException):
                raise outcome
        try:
            await within(self._seconds_max, complete(partition, [transaction]))
        except TalwegError as error:
            _log.warning("transaction %s is published, but not noted as such: %s", transaction, error)

    async def _publish(self, transaction: str, stage: StageRef, *, believe_gone: bool) -> None:
        try:
            await self._leaders.publish(stage)
        except StageNotFound:
            pass  # published so long ago that it is forgotten
        except (TopicNotFound, PartitionNotFound):
            if not believe_gone:
                raise
        except StageExpired as error:
            # Somebody discarded what was decided on; nothing can bring it back.
            _log.error("transaction %s: %s", transaction, error)
