"""Messages to any topics and partitions that are published together, or not at all, in an event loop.

    async with producer.transaction() as transaction:
        await transaction.send("orders", order)
        await transaction.send("invoices", invoice)

Nobody reads any of them until the block ends; when an exception or a cancellation ends it, nobody ever does.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from talweg.client.cluster import Cluster
from talweg.client.columns import checked_columns, columns_of
from talweg.client.draft import Content, Draft, Headers, check_partition, draft
from talweg.client.producer_settings import ProducerSettings
from talweg.client.staging import Place, Staging
from talweg.client.transactions import Transactions
from talweg.errors import BadRequest, Closed, StageExpired, TalwegError, Unavailable, Undecided
from talweg.protocol.transactions import Decided, StageRef
from talweg.records import SCHEMA

_DRAFTS_MAX: Final = 10_000  # that wait to become columns
_DRAFTS_BYTES_MAX: Final = 1 << 20
_DISCARD_SECONDS_MAX: Final = 5.0  # what is not discarded expires by itself


class AsyncTransaction:
    """Made by `AsyncProducer.transaction`, and lives in its event loop. Tasks may share it; used once.

    `Transaction`, for programs that block, is a face of it.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self.name = str(uuid.uuid4())
        self.settings = settings
        self._transactions = Transactions(cluster, seconds_max=settings.delivery_seconds_max)
        self._discarding = Transactions(cluster, seconds_max=_DISCARD_SECONDS_MAX)
        self._staging = Staging(
            cluster,
            self.name,
            codec=settings.codec,
            seconds_max=settings.delivery_seconds_max,
            turn=secrets.randbelow(1 << 16),  # so that small transactions do not all begin with partition 0
        )
        self._drafts: dict[Place, list[Draft]] = {}
        self._drafts_bytes = self._drafts_count = 0
        self._adding = asyncio.Lock()
        self._decided: bool | None = False
        self._refusal: Closed | None = None  # why nothing can be added any more
        self.ended = False  # committed or dropped

    @property
    def decided(self) -> bool | None:
        """Whether it is published, now or in the end; None when that is not known, and `commit` finds out."""
        return self._decided

    async def send(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Add a message. It goes where `AsyncProducer.send` would send it; its offset is not known yet."""
        made = draft(
            value, key, partition, timestamp, headers, message_bytes_max=self.settings.message_bytes_max
        )
        while not self.takes(topic, made):
            await self.stage()

    async def send_many(
        self,
        topic: str,
        values: Iterable[Content],
        *,
        keys: Iterable[Content] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many messages at once."""
        await self.send_arrow(topic, columns_of(values, keys, timestamps), partition=partition)

    async def send_arrow(self, topic: str, columns: Any, *, partition: int | None = None) -> None:
        """Add a RecordBatch or Table: `value`, and `key`, `timestamp`, `headers` where present."""
        await self.add(topic, checked_columns(columns, self.settings.message_bytes_max), partition)

    async def commit(self) -> None:
        """Publish everything; returns when all of it can be read. The end of an `async with` block does it.

        When this raises what is retriable, it may be called again: what is done is not done twice. `decided`
        says what is known: True, and brokers publish it in the end; False, and nothing of it was; None, and
        the error is Undecided.
        """
        if self._refusal is None:
            self._refusal = self._over()  # the decision is on what is here now
        if self.ended:
            raise self._refusal
        async with self._adding:
            await self._stage_drafts()
            stages = await self._staging.finish()
            if stages:
                await self._publish(await self._decide(stages))
            self.ended = True

    async def abort(self) -> None:
        """Drop everything. An exception inside an `async with` block does it. What is decided on stays."""
        if self.ended:
            return
        stages = await self.end(self._over())
        with suppress(TalwegError, TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS_MAX):
                await self._discarding.discard(stages)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(failed=kind is not None)

    # What `Transaction` and producers call

    def takes(self, topic: str, made: Draft) -> bool:
        """Add a message, if there is room; there is after `stage`. Raises why nothing can be added."""
        if self._refusal is not None:
            raise self._refusal
        if self._drafts_count >= _DRAFTS_MAX or self._drafts_bytes >= _DRAFTS_BYTES_MAX:
            return False
        self._drafts.setdefault((topic, made.partition), []).append(made)
        self._drafts_count += 1
        self._drafts_bytes += made.message_bytes
        return True

    async def stage(self) -> None:
        """Stage the messages that wait for more."""
        async with self._adding:
            await self._stage_drafts()

    async def add(self, topic: str, batches: list[Any], partition: int | None) -> None:
        """Add record batches that were checked. When it fails halfway, nothing can be committed."""
        check_partition(partition)
        if self._refusal is not None:
            raise self._refusal
        async with self._adding:
            await self._stage_drafts()  # they were first
            for batch in batches:
                await self._staging.add(topic, batch, partition)

    async def leave(self, *, failed: bool) -> None:
        """The block is left: abort if it failed, else commit unless that was done."""
        if failed:
            await self.abort()
        elif not self.ended:
            try:
                await self.commit()
            except asyncio.CancelledError:
                if self._decided is False:
                    await self.abort()
                raise

    async def end(self, refusal: Closed) -> list[StageRef]:
        """Send no more; the stages that are left, which are discarded or expire."""
        self.ended, self._refusal = True, refusal
        self._drafts.clear()
        return await self._staging.give_up()

    async def _decide(self, stages: list[StageRef]) -> Decided:
        await self._transactions.prepare()
        self._decided = None
        try:
            held = await self._transactions.decide(self.name, stages)
        except (StageExpired, BadRequest):
            self._decided = False
            raise
        except Unavailable as error:
            raise Undecided(
                f"transaction {self.name} may have been decided on or not ({error}): commit it again to find "
                "out"
            ) from error
        self._decided = True
        return held

    async def _publish(self, held: Decided) -> None:
        try:
            await self._transactions.carry_out(self.name, held)
        except Unavailable as error:
            raise Unavailable(
                f"transaction {self.name} is decided on, and not all of it is published yet ({error}): "
                "commit it again, or leave that to the brokers"
            ) from error

    async def _stage_drafts(self) -> None:
        for place in list(self._drafts):
            await self._staging.check(*place)  # what fails here may be tried again: nothing was taken yet
            some = self._drafts.pop(place)
            self._drafts_count -= len(some)
            self._drafts_bytes -= sum(each.message_bytes for each in some)
            await self._staging.add(place[0], _columns(some), place[1])

    def _over(self) -> Closed:
        return Closed("the transaction is over: begin another one")


def _columns(drafts: list[Draft]) -> Any:
    """A record batch of them; columns that none of them has are left out."""
    now = time.time_ns() // 1000
    timestamps = [now if each.timestamp is None else each.timestamp for each in drafts]
    arrays = {
        "value": pa.array([each.value for each in drafts], pa.binary()),
        "timestamp": pa.array(timestamps, pa.int64()),
    }
    if any(each.key is not None for each in drafts):
        arrays["key"] = pa.array([each.key for each in drafts], pa.binary())
    if any(each.headers for each in drafts):
        pairs = [[{"key": key, "value": value} for key, value in each.headers or ()] for each in drafts]
        arrays["headers"] = pa.array(pairs, SCHEMA.field("headers").type)
    return pa.record_batch(list(arrays.values()), names=list(arrays))
