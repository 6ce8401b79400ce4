"""Transactions: stages in the partitions that this broker leads, and decisions in those that keep them."""

import asyncio
import math
from typing import TYPE_CHECKING, Final

from talweg.broker import decisions, stages
from talweg.broker.calls_records import LEADER_ERRORS, WRITE_ERRORS, is_small, records_in
from talweg.broker.partition import Partition
from talweg.broker.waiting import within
from talweg.errors import (
    BadRequest,
    BatchTooLarge,
    CorruptBatch,
    Forbidden,
    Incomplete,
    OutOfSequence,
    StageDecided,
    StageExpired,
    StageNotFound,
    TransactionForgotten,
)
from talweg.http import Call, RawBody, Request
from talweg.protocol.batches import FRAMES
from talweg.protocol.transactions import (
    TRANSACTIONS,
    AskDecision,
    Complete,
    Decide,
    Decided,
    DecisionAnswer,
    DecisionPath,
    Expire,
    Expired,
    Published,
    PublishStage,
    Staged,
    StageItems,
    StagePath,
    StageRef,
    decision_partition,
)

if TYPE_CHECKING:
    from talweg.broker.broker import Broker

_TAG: Final = "Transactions"


class TransactionCalls:
    """Answers them for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._seconds_max = broker.settings.request_seconds_max

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [*self._stage_calls(), *self._decision_calls()]

    def _stage_calls(self) -> list[Call]:
        stage = "/v1/topics/{topic}/partitions/{partition}/stages/{stage}"
        return [
            Call(
                "POST",
                stage,
                self._stage,
                "Stage messages: they are kept, and nobody reads them until they are published",
                parameters=StageItems,
                body=RawBody(
                    (FRAMES,),
                    self._broker.settings.body_bytes_max,
                    "Frames that name the stage as their producer, and their number in it as their sequence.",
                ),
                answer=Staged,
                errors=(
                    *WRITE_ERRORS,
                    CorruptBatch,
                    Incomplete,
                    BatchTooLarge,
                    OutOfSequence,
                    StageExpired,
                    Forbidden,
                ),
                tag=_TAG,
            ),
            Call(
                "POST",
                f"{stage}/publish",
                self._publish,
                "Publish a stage that was decided on",
                parameters=PublishStage,
                answer=Published,
                errors=(*WRITE_ERRORS, StageNotFound, StageExpired),
                tag=_TAG,
            ),
            Call(
                "POST",
                f"{stage}/discard",
                self._discard,
                "Discard a stage, unless it was decided on",
                parameters=StagePath,
                errors=(*WRITE_ERRORS, StageDecided),
                tag=_TAG,
            ),
        ]

    def _decision_calls(self) -> list[Call]:
        path = f"/v1/topics/{TRANSACTIONS}/partitions/{{partition}}/decisions"
        bytes_max = self._broker.settings.body_bytes_max
        return [
            Call(
                "POST",
                path,
                self._decide,
                "Decide which stages of a transaction are published; the first decision holds",
                parameters=DecisionPath,
                body=Decide,
                answer=Decided,
                errors=(*WRITE_ERRORS, StageExpired, TransactionForgotten),
                bytes_max=bytes_max,
                tag=_TAG,
            ),
            Call(
                "GET",
                path,
                self._decision,
                "The decision on a transaction",
                parameters=AskDecision,
                answer=DecisionAnswer,
                errors=(*LEADER_ERRORS, TransactionForgotten),
                tag=_TAG,
            ),
            Call(
                "POST",
                f"{path}/expire",
                self._expire,
                "Let nobody decide on these stages any more",
                parameters=DecisionPath,
                body=Expire,
                answer=Expired,
                errors=WRITE_ERRORS,
                bytes_max=bytes_max,
                tag=_TAG,
            ),
            Call(
                "POST",
                f"{path}/complete",
                self._complete,
                "All that was decided on these transactions is published",
                parameters=DecisionPath,
                body=Complete,
                errors=WRITE_ERRORS,
                tag=_TAG,
            ),
        ]

    # Stages

    async def _stage(self, request: Request[StageItems, bytes]) -> Staged:
        asked, body = request.parameters, request.body
        if asked.topic == TRANSACTIONS:
            raise Forbidden(f"topic {TRANSACTIONS} belongs to Talweg itself: stage in one of your own")
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        if is_small(FRAMES, body):
            made = records_in(body)
        else:
            made = await asyncio.to_thread(records_in, body)
        stages.check_items(made, asked.stage)
        staged = stages.stage_items(partition, asked.transaction, made)
        return Staged(items=await within(self._seconds_max, staged))

    async def _publish(self, request: Request[PublishStage, None]) -> Published:
        asked = request.parameters
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        answer_seconds = math.inf if asked.answer_ms is None else asked.answer_ms / 1000
        made = await within(self._seconds_max, stages.publish(partition, asked.stage, answer_seconds))
        return Published(count=made.count, offset=made.first_offset, complete=made.complete)

    async def _discard(self, request: Request[StagePath, None]) -> None:
        asked = request.parameters
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        await within(self._seconds_max, self._discard_safely(partition, asked.stage))

    async def _discard_safely(self, partition: Partition, stage: int) -> None:
        """Whoever is not sure whether its decision was taken may ask for this all the same."""
        await partition.confirm()
        opened = partition.serving().state.staging.stages.get(stage)
        if opened is not None:
            place = StageRef(topic=partition.topic, partition=partition.number, stage=stage)
            if await self._broker.leaders.expire(opened.transaction, [place]):
                raise StageDecided(
                    f"stage {stage} belongs to the decision on transaction {opened.transaction}: publish it"
                )
        await stages.discard(partition, stage)

    # Decisions

    async def _decide(self, request: Request[DecisionPath, Decide]) -> Decided:
        body = request.body
        taken = decisions.decide(
            self._keeper(request.parameters, body.transaction), body.transaction, body.stages
        )
        decision, ours = await within(self._seconds_max, taken)
        return Decided(ours=ours, completed=decision.completed, stages=decisions.references(decision.stages))

    async def _decision(self, request: Request[AskDecision, None]) -> DecisionAnswer:
        asked = request.parameters
        found = decisions.find(self._keeper(asked, asked.transaction), asked.transaction)
        decision = await within(self._seconds_max, found)
        if decision is None:
            return DecisionAnswer(decided=False)
        return DecisionAnswer(
            decided=True, completed=decision.completed, stages=decisions.references(decision.stages)
        )

    async def _expire(self, request: Request[DecisionPath, Expire]) -> Expired:
        body = request.body
        expired = decisions.expire(
            self._keeper(request.parameters, body.transaction), body.transaction, body.stages
        )
        return Expired(decided=await within(self._seconds_max, expired))

    async def _complete(self, request: Request[DecisionPath, Complete]) -> None:
        names = request.body.transactions
        completed = decisions.complete(self._keeper(request.parameters, *names), names)
        await within(self._seconds_max, completed)

    def _keeper(self, path: DecisionPath, *transactions: str) -> Partition:
        """The partition, if it is the one for these: in two of them, one could be decided on twice."""
        hosting = self._broker.hosting
        partition = hosting.partition(TRANSACTIONS, path.partition)
        partitions = hosting.assignments[partition.group.incarnation].partitions
        for transaction in transactions:
            right = decision_partition(transaction, partitions)
            if right != path.partition:
                raise BadRequest(f"transaction {transaction} is decided on in partition {right}")
        return partition
