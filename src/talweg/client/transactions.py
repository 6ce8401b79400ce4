"""Transactions over several partitions, as a client sees them: one decision, then publishing.

What was staged (see `staging`) is invisible. `finish` takes the decision, one entry of a replicated log, and
publishes what it names. Whoever comes later with the same name finds that decision: it publishes what is left
of it, and what it staged itself is dropped. Everything here may be done again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from talweg.client.cluster import Cluster
from talweg.errors import (
    BadRequest,
    NotFound,
    StageDecided,
    StageExpired,
    StageNotFound,
    TalwegError,
    Unavailable,
    Undecided,
)
from talweg.http import HttpResponse
from talweg.protocol.transactions import (
    ANSWER_MS,
    DECISION_STAGES_MAX,
    TRANSACTIONS,
    Complete,
    Decide,
    Decided,
    DecisionAnswer,
    Published,
    StageRef,
    TransactionsReady,
    decision_partition,
)

_AT_ONCE: Final = 64  # stages that are published, or discarded
_ANSWER_SECONDS: Final = 1.0  # after which a broker should say how far it has published a stage
_PUBLISH_SECONDS_MAX: Final = (
    30.0  # for one answer: an older broker gives it when all of a stage is published
)
_logger: Final = logging.getLogger("talweg.transactions")

A = TypeVar("A")


class _Patience:
    """How long stages are asked for: so many seconds since one of them got on. However much there is of them
    may be published, then, and whatever of them is away takes no longer than one that is."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self.steps = 0
        self.got_on()

    def got_on(self) -> None:
        """Something is done that was not done before."""
        self.steps += 1
        self._deadline = asyncio.get_running_loop().time() + self._seconds_max

    def seconds_left(self) -> float:
        """No more than 0 when time is up."""
        return self._deadline - asyncio.get_running_loop().time()


class Transactions:
    """Decides and publishes. Lives in the event loop of its cluster."""

    def __init__(self, cluster: Cluster, *, seconds_max: float) -> None:
        self._cluster = cluster
        # For each thing that is asked, all its attempts together. For stages: since one of them got on.
        self._seconds_max = seconds_max
        self._headers = {ANSWER_MS: str(int(1000 * min(_ANSWER_SECONDS, seconds_max / 4)))}
        self._partitions: int | None = None  # of the internal topic

    async def prepare(self) -> None:
        """See to it that decisions can be taken: there is a topic that keeps them."""
        await self._decision_partitions()

    async def decision(self, name: str) -> DecisionAnswer:
        """The decision on a transaction, if there is one."""
        return await self._ask(name, "GET", f"?transaction={quote(name, safe='')}", DecisionAnswer)

    async def decide(self, name: str, stages: Iterable[StageRef]) -> Decided:
        """Decide on these stages, unless it was decided already; the decision that holds.

        Raises StageExpired when one of them waited for too long: then nothing was decided.
        """
        return await self._ask(name, "POST", "", Decided, Decide(transaction=name, stages=list(stages)))

    async def complete(self, name: str) -> None:
        """All of it is published: nobody needs to know the stages any more."""
        await self._ask(name, "POST", "/complete", dict[str, object], Complete(transactions=[name]))

    async def publish(self, stages: Iterable[StageRef]) -> bool:
        """Publish stages that were decided on; what is published already is passed over. Whether all are:
        false if a topic is not there."""
        return all(await self._for_each(stages, self._publish))

    async def discard(self, stages: Iterable[StageRef]) -> None:
        """Drop stages, but not those that were decided on."""
        await self._for_each(stages, self._discard)

    async def finish(self, name: str, stages: Iterable[StageRef]) -> bool:
        """Decide and publish; whether these stages are those that were. Others of them are dropped.

        Raises Undecided when nobody knows whether it was decided on, and Unavailable when it was, and not all
        of it is published yet.
        """
        ours = list(stages)
        if len(ours) > DECISION_STAGES_MAX:
            raise BadRequest(
                f"transaction {name} has {len(ours)} stages, one for each task and partition; at most "
                f"{DECISION_STAGES_MAX} can be decided on: write with fewer tasks, as coalesce makes them"
            )
        await self.prepare()  # what fails here has decided nothing
        try:
            held = await self.decide(name, ours)
        except Unavailable as error:
            raise Undecided(
                f"transaction {name} may have been decided on or not ({error}). If it was, brokers publish "
                "it: done again under that name it is there once, under another one perhaps twice"
            ) from error
        await self._carry_out(name, held)
        if not held.ours:
            with suppress(TalwegError):  # what is not discarded expires by itself
                await self.discard(ours)
        return held.ours

    async def roll_forward(self, name: str) -> bool:
        """Publish what is left of a transaction that was decided on; false if it was not."""
        held = await self.decision(name)
        if held.decided:
            await self._carry_out(name, held)
        return held.decided

    async def _carry_out(self, name: str, held: Decided | DecisionAnswer) -> None:
        """Say what holds, when it fails: whoever takes it for not written would write it twice."""
        try:
            await self.carry_out(name, held)
        except StageExpired:
            raise  # what was decided on is gone
        except TalwegError as error:
            raise Unavailable(
                f"transaction {name} is decided on, and not all of it is published yet ({error}). Brokers "
                "publish the rest: do not write it again under another name, or it is there twice"
            ) from error

    async def carry_out(self, name: str, held: Decided | DecisionAnswer) -> None:
        """Publish what was decided on, unless all of it is."""
        # A topic that is not there may only have been forgotten by the metadata store, until brokers make it
        # known again. A completed decision would have them discard what waits there, so it is left to them.
        if not held.completed and await self.publish(held.stages):
            await self.complete(name)

    async def _for_each(
        self, stages: Iterable[StageRef], do: Callable[[StageRef, _Patience], Awaitable[A]]
    ) -> list[A]:
        every = list(stages)
        patience = _Patience(self._seconds_max)
        # Each partition has its share of the room: one that is away leaves the others theirs.
        places = {(stage.topic, stage.partition) for stage in every}
        shares = {place: asyncio.Semaphore(max(_AT_ONCE // len(places), 1)) for place in places}
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(stage: StageRef) -> A:
            async with shares[stage.topic, stage.partition], room:
                outcome = await do(stage, patience)
            patience.got_on()
            return outcome

        # All are tried, whatever becomes of one of them: what is done need not be done again.
        done: list[A] = []
        for outcome in await asyncio.gather(*map(one, every), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            done.append(outcome)
        return done

    async def _publish(self, stage: StageRef, patience: _Patience) -> bool:
        try:
            while not (await self._publish_some(stage, patience)).complete:
                patience.got_on()
        except StageNotFound:
            pass  # long ago: what is decided on is only ever published
        except NotFound as error:
            _logger.warning("what was staged in topic %s waits for it: %s", stage.topic, error)
            return False
        return True

    async def _publish_some(self, stage: StageRef, patience: _Patience) -> Published:
        answer = await self._ask_stage(stage, "publish", patience)
        return msgspec.json.decode(answer.body, type=Published)

    async def _discard(self, stage: StageRef, patience: _Patience) -> None:
        with suppress(StageDecided, NotFound):  # it counts, or is gone already
            await self._ask_stage(stage, "discard", patience)

    async def _ask_stage(self, stage: StageRef, what: str, patience: _Patience) -> HttpResponse:
        error: TalwegError = Unavailable(f"time was up before stage {stage.stage} was asked for")
        while (seconds_left := patience.seconds_left()) > 0:
            steps = patience.steps
            try:
                await self._cluster.topic(stage.topic, seconds_max=seconds_left)
                return await self._cluster.ask_leader(
                    stage.topic,
                    stage.partition,
                    "POST",
                    f"/stages/{stage.stage}/{what}",
                    headers=self._headers,
                    seconds_max=seconds_left,
                    attempt_seconds_max=_PUBLISH_SECONDS_MAX,
                )
            except TalwegError as failure:
                if not failure.retriable or patience.steps == steps:
                    raise
                error = failure
        raise error

    async def _ask(
        self, name: str, method: str, path: str, answer: type[A], body: msgspec.Struct | None = None
    ) -> A:
        partitions = await self._decision_partitions()
        got = await self._cluster.ask_leader(
            TRANSACTIONS,
            decision_partition(name, partitions),
            method,
            f"/decisions{path}",
            None if body is None else msgspec.json.encode(body),
            seconds_max=self._seconds_max,
        )
        return msgspec.json.decode(got.body, type=answer)

    async def _decision_partitions(self) -> int:
        if self._partitions is None:
            ready = await self._cluster.ask_manager(
                "POST", "/v1/transactions", TransactionsReady, seconds_max=self._seconds_max
            )
            self._partitions = ready.partitions
        await self._cluster.topic(TRANSACTIONS, seconds_max=self._seconds_max)
        return self._partitions
