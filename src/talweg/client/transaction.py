"""Messages to any topics and partitions that are published together, or not at all.

    with producer.transaction() as transaction:
        transaction.send("orders", order)
        transaction.send("invoices", invoice)

Nobody reads any of them until the block ends; when it ends with an exception, nobody ever does.
"""

import secrets
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from talweg.client.background import Background
from talweg.client.cluster import Cluster
from talweg.client.columns import checked_columns, columns_of
from talweg.client.draft import Content, Draft, Headers, draft
from talweg.client.producer_settings import ProducerSettings
from talweg.client.staging import Staging
from talweg.client.transactions import Transactions
from talweg.errors import TalwegError, Unavailable
from talweg.records import SCHEMA

_DRAFTS_MAX: Final = 10_000  # that wait to become columns
_DRAFTS_BYTES_MAX: Final = 1 << 20
_DISCARD_SECONDS_MAX: Final = 5.0  # what is not discarded expires by itself


class Transaction:
    """Made by `Producer.transaction`. For one thread; used once."""

    def __init__(self, background: Background, cluster: Cluster, settings: ProducerSettings) -> None:
        self.name = str(uuid.uuid4())
        self._background = background
        self._cluster = cluster
        self._settings = settings
        self._staging = Staging(
            background,
            cluster,
            self.name,
            codec=settings.codec,
            seconds_max=settings.delivery_seconds_max,
            turn=secrets.randbelow(1 << 16),  # so that small transactions do not all begin with partition 0
        )
        self._drafts: dict[tuple[str, int | None], list[Draft]] = {}
        self._drafts_bytes = self._drafts_count = 0
        self._ended = False

    def send(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Add a message. It goes where `Producer.send` would send it; its offset is not known yet."""
        self._check_open()
        made = draft(
            value, key, partition, timestamp, headers, message_bytes_max=self._settings.message_bytes_max
        )
        self._drafts.setdefault((topic, partition), []).append(made)
        self._drafts_count += 1
        self._drafts_bytes += made.message_bytes
        if self._drafts_count >= _DRAFTS_MAX or self._drafts_bytes >= _DRAFTS_BYTES_MAX:
            self._stage_drafts()

    def send_many(
        self,
        topic: str,
        values: Iterable[Content],
        *,
        keys: Iterable[Content] | None = None,
        timestamps: Iterable[int | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many messages at once."""
        self.send_arrow(topic, columns_of(values, keys, timestamps), partition=partition)

    def send_arrow(self, topic: str, columns: Any, *, partition: int | None = None) -> None:
        """Add a RecordBatch or Table: `value`, and `key`, `timestamp`, `headers` where present."""
        self._check_open()
        self._stage_drafts()  # they were first
        for batch in checked_columns(columns, self._settings.message_bytes_max):
            self._staging.add(topic, batch, partition)

    def commit(self) -> None:
        """Publish everything; returns when all of it can be read. The end of a `with` block does it.

        When this raises what is retriable, it may be called again: what is done is not done twice. It has to
        be, to know the outcome: the decision may have been taken, and then brokers publish it in the end.
        """
        self._check_open()
        self._stage_drafts()
        stages = self._staging.finish()
        if stages:
            transactions = Transactions(self._cluster, seconds_max=self._settings.delivery_seconds_max)
            self._background.run(transactions.finish(self.name, stages))
        self._ended = True

    def abort(self) -> None:
        """Drop everything. An exception inside a `with` block does it."""
        if self._ended:
            return
        self._ended = True
        stages = self._staging.give_up()
        transactions = Transactions(self._cluster, seconds_max=_DISCARD_SECONDS_MAX)
        with suppress(TalwegError):
            self._background.run(transactions.discard(stages))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.commit()

    def _check_open(self) -> None:
        if self._ended:
            raise Unavailable("the transaction is over: begin another one")

    def _stage_drafts(self) -> None:
        drafts, self._drafts = self._drafts, {}
        self._drafts_bytes = self._drafts_count = 0
        for (topic, partition), some in drafts.items():
            self._staging.add(topic, _columns(some), partition)


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
