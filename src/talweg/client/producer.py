"""The producer for programs that block: `send` returns at once, a thread of its own delivers.

    with Producer("http://127.0.0.1:8000") as producer:
        producer.send("logs", b"GET / 200")

`send` is on the way of every message, so it takes a short way when it can: a value of bytes and nothing else,
and a batch that is open and has room. Everything else goes the long way, in `producer_core`.
"""

import threading
import warnings
from collections.abc import Iterable
from datetime import datetime
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from talweg.client.columns import checked_columns, columns_of
from talweg.client.delivery import Deliveries, Delivery
from talweg.client.draft import Content, Headers, draft, drafts_of
from talweg.client.gathered import Gathered
from talweg.client.portions import Portions, Run, halfway
from talweg.client.producer_core import ProducerCore
from talweg.client.producer_settings import BATCH_BYTES, MESSAGE_BYTES, ONE_BY_ONE_MAX, Acks, read_settings
from talweg.client.servers import Servers
from talweg.client.transaction import Transaction
from talweg.errors import TalwegError


class Producer:
    """Sends messages to topics, from any number of threads. Close it, or use it in a `with` statement."""

    _closed = True  # until there is something to close: also when Python refuses an argument

    def __init__(
        self,
        servers: Servers = None,  # managers; None: TALWEG_URL, or this machine
        *,
        acks: Acks = "all",
        linger_ms: float = 5,
        batch_bytes: int = BATCH_BYTES,
        compression: str = "lz4",
        buffer_bytes: int = 64 << 20,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 5_000,
        message_bytes_max: int = 8 << 20,
    ) -> None:
        settings = read_settings(
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            compression=compression,
            buffer_bytes=buffer_bytes,
            max_block_ms=max_block_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            message_bytes_max=message_bytes_max,
        )
        self._core = ProducerCore(servers, settings)
        self._settings = settings
        self._gathering = self._core.sending.gathering
        self._hot = self._gathering.hot
        self._shared = self._gathering.shared
        self._lock = self._core.lock
        self._closed = False

    def send(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Accept a message, and deliver it soon. Waits only for room in the buffer, and for a new topic."""
        if (
            type(value) is bytes
            and key is None
            and partition is None
            and timestamp is None
            and headers is None
        ):
            if get_ident() == self._gathering.owner:
                batch = self._hot.get(topic)
                if batch is not None:
                    room = batch.room - len(value) - MESSAGE_BYTES
                    if room >= 0:
                        batch.room = room
                        values = batch.values
                        values.append(value)
                        # Without the lock: `gathering` says why that is right, in this order.
                        if not batch.sealed or self._counted(batch, values):
                            return Delivery(batch, len(values) - 1)
            else:
                with self._lock:
                    batch = self._shared.get(topic)
                    if batch is not None:
                        room = batch.room - len(value) - MESSAGE_BYTES
                        if room >= 0:
                            batch.room = room
                            batch.values.append(value)
                            return Delivery(batch, len(batch.values) - 1)
        made = draft(
            value, key, partition, timestamp, headers, message_bytes_max=self._settings.message_bytes_max
        )
        return Delivery(*self._core.accept(topic, made))

    def _counted(self, batch: Gathered, values: list[bytes | None]) -> bool:
        with self._lock:
            return batch.counted(values, len(values) - 1)

    def send_many(
        self,
        topic: str,
        values: Iterable[Content],
        *,
        keys: Iterable[Content] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Accept many messages at once. Without keys, whole batches go to one partition after another.

        An error that ends it halfway says how many were `accepted`, as that of `send_arrow` does.
        """
        columns = columns_of(values, keys, timestamps)
        if columns.num_rows > ONE_BY_ONE_MAX:
            return self.send_arrow(topic, columns, partition=partition)
        drafts = drafts_of(columns, partition, self._settings.message_bytes_max)
        runs: list[Run] = []
        try:
            for each in drafts:
                runs.append((*self._core.accept(topic, each), 1))  # noqa: PERF401 - what it was is told if it fails
        except TalwegError as error:
            raise halfway(error, len(runs), [columns.slice(len(runs))]) from error
        return Deliveries(runs)

    def send_arrow(self, topic: str, columns: Any, *, partition: int | None = None) -> Deliveries:
        """Accept a RecordBatch or Table: `value`, and `key`, `timestamp`, `headers` where present.

        Rows with a key go where it belongs; the others in whole batches to one partition after another. An
        error that ends it halfway says how many were `accepted`, and holds the others, its `rest`.
        """
        batches = checked_columns(columns, self._settings.message_bytes_max)
        portions = Portions(batches, partition, self._settings.batch_bytes)
        try:
            while portions.left:
                portion = portions.next(self._core.partitions(topic) if portions.keyed else 0)
                portions.accepted(self._core.accept_columns(topic, *portion))
        except TalwegError as error:
            raise portions.halfway(error) from error
        return Deliveries(portions.runs)

    def transaction(self) -> Transaction:
        """Messages to any topics that are published together, or not at all: send them through what this
        returns, in a `with` statement."""
        return self._core.transaction()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was accepted so far is delivered.

        Raises DeliveryFailed if some of it, or of what was sent before, could not be and nobody looked at
        its delivery; and TimeoutError after so many seconds.
        """
        self._core.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver everything that was accepted, then stop. Raises DeliveryFailed, as `flush` does.

        After so many seconds, what is left is given up, and counts as failed.
        """
        self._core.close(timeout)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and not self._core.closed:
            warnings.warn("a producer was not closed", ResourceWarning, source=self, stacklevel=2)
            threading.Thread(target=self._core.finish, name="talweg-producer-end").start()
