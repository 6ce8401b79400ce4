"""Messages to any topics and partitions that are published together, or not at all, for programs that block.

    with producer.transaction() as transaction:
        transaction.send("orders", order)
        transaction.send("invoices", invoice)

Nobody reads any of them until the block ends; when it ends with an exception, nobody ever does.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from talweg.client.async_transaction import AsyncTransaction
from talweg.client.background import Background
from talweg.client.columns import checked_columns, columns_of
from talweg.client.draft import Content, Headers, draft
from talweg.errors import Unavailable


class Transaction:
    """Made by `Producer.transaction`. For one thread; used once."""

    def __init__(self, background: Background, core: AsyncTransaction) -> None:
        self._background = background
        self._core = core

    @property
    def name(self) -> str:
        """What the cluster knows it by."""
        return self._core.name

    @property
    def decided(self) -> bool | None:
        """Whether it is published, now or in the end; None when that is not known, and `commit` finds out."""
        return self._core.decided

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
        bytes_max = self._core.settings.message_bytes_max
        made = draft(value, key, partition, timestamp, headers, message_bytes_max=bytes_max)
        while not self._core.takes(topic, made):
            self._background.run(self._core.stage())

    def send_many(
        self,
        topic: str,
        values: Iterable[Content],
        *,
        keys: Iterable[Content] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many messages at once."""
        self.send_arrow(topic, columns_of(values, keys, timestamps), partition=partition)

    def send_arrow(self, topic: str, columns: Any, *, partition: int | None = None) -> None:
        """Add a RecordBatch or Table: `value`, and `key`, `timestamp`, `headers` where present."""
        batches = checked_columns(columns, self._core.settings.message_bytes_max)
        self._background.run(self._core.add(topic, batches, partition))

    def commit(self) -> None:
        """Publish everything; returns when all of it can be read. The end of a `with` block does it.

        When this raises what is retriable, it may be called again: what is done is not done twice. `decided`
        says what is known: True, and brokers publish it in the end; False, and nothing of it was; None, and
        the error is Undecided.
        """
        self._background.run(self._core.commit())

    def abort(self) -> None:
        """Drop everything. An exception inside a `with` block does it. What is decided on stays."""
        with suppress(Unavailable):  # the producer is closed: what was staged expires
            self._background.run(self._core.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._core.ended:
            self._background.run(self._core.leave(failed=False))
