"""Decisions that this broker keeps: what the calls mean, over one partition of the internal topic."""

import time
from collections.abc import Iterable, Sequence

from talweg.broker.partition import Partition
from talweg.protocol.transactions import StageRef
from talweg.replication.decisions import (
    Complete,
    Decide,
    Decision,
    Expire,
    Ruling,
    StagePlace,
    digest,
    encode_ruling,
)


def places(stages: Iterable[StageRef]) -> tuple[StagePlace, ...]:
    """Stages as the log has them: none twice."""
    return tuple(dict.fromkeys(StagePlace(each.topic, each.partition, each.stage) for each in stages))


def references(stages: Iterable[StagePlace]) -> tuple[StageRef, ...]:
    """Stages as they are spoken of."""
    return tuple(StageRef(topic=each.topic, partition=each.partition, stage=each.stage) for each in stages)


async def decide(partition: Partition, transaction: str, stages: Sequence[StageRef]) -> tuple[Decision, bool]:
    """The decision that holds once a majority has it on disk, and whether it is this one."""
    wanted = places(stages)
    await _rule(partition, Decide(transaction, wanted, time.time_ns() // 1000))
    held = partition.group.replica.state.decisions.decisions[transaction]
    return held, held.digest == digest(wanted)


async def find(partition: Partition, transaction: str) -> Decision | None:
    """The decision on a transaction, if there is one; raises TransactionForgotten."""
    await partition.confirm()
    decisions = partition.serving().state.decisions
    decisions.check_known(transaction)
    return decisions.decisions.get(transaction)


async def expire(partition: Partition, transaction: str, stages: Sequence[StageRef]) -> tuple[StageRef, ...]:
    """Those that were decided on; all others never will be."""
    wanted = places(stages)
    await _rule(partition, Expire(transaction, wanted))
    return references(partition.group.replica.state.decisions.decided_among(transaction, wanted))


async def complete(partition: Partition, transactions: Sequence[str]) -> None:
    """All that was decided on these is published."""
    await _rule(partition, Complete(tuple(transactions)))


async def _rule(partition: Partition, ruling: Ruling) -> None:
    partition.serving()
    await partition.group.append([encode_ruling(ruling)])
