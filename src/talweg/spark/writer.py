"""Writing, exactly once: tasks stage, the driver decides, then everything is published.

A micro-batch that Spark does again has the same name, so it meets the decision that was taken the first time,
if one was: that is rolled forward, and what the tasks staged this time, spread over them in whatever way, is
dropped. See `client.transactions`.
"""

import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from talweg.client.partition_log import PartitionLogs
from talweg.client.staging import CODECS, Staging
from talweg.client.transactions import Transactions
from talweg.errors import InvalidSetting, TalwegError
from talweg.spark.connection import logs_of
from talweg.spark.options import WriteOptions
from talweg.spark.rows import apart, check_rows

_DISCARD_SECONDS_MAX: Final = 5.0  # what is not discarded expires by itself


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: str
    stages: tuple[Any, ...]  # references to stages


class _Writing:
    """What both sorts of writers do. Sent to tasks and to the process that commits."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_rows(schema, options.topic)
        self._options = options

    @property
    def _logs(self) -> PartitionLogs:
        connect = self._options.connect
        return logs_of(connect.servers, connect.seconds_max)

    def transactions(self, seconds_max: float | None = None) -> Transactions:
        """What decides and publishes."""
        return Transactions(self._logs.cluster, seconds_max=seconds_max or self._options.connect.seconds_max)

    def stage(self, batches: Iterator[Any], name: str, *, may_be_decided: bool) -> StagedMessage:
        """In a task: stage its rows. If it was decided without them, they are only read."""
        logs = self._logs
        if may_be_decided and logs.background.run(self.transactions().decision(name)).decided:
            for _ in batches:  # Spark wants them read
                pass
            return StagedMessage(name, ())
        context = TaskContext.get()
        staging = Staging(
            logs.cluster,
            name,
            codec=CODECS[self._options.compression],
            seconds_max=self._options.connect.seconds_max,
            # By the name, too: else small micro-batches, of one task each, would all go to one partition.
            turn=zlib.crc32(name.encode()) + (context.partitionId() if context is not None else 0),
        )
        try:
            for batch in batches:
                for topic, partition, rows in apart(batch, self._options.topic):
                    logs.background.run(staging.add(topic, rows, partition))
            return StagedMessage(name, tuple(logs.background.run(staging.finish())))
        except BaseException:
            self._discard(logs.background.run(staging.give_up()))
            raise

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: decide, and publish."""
        told = [message for message in messages if isinstance(message, StagedMessage)]
        names = {message.transaction for message in told}
        assert len(names) <= 1, names
        stages = [stage for message in told for stage in message.stages]
        for name in names:
            if stages:
                self._logs.background.run(self.transactions().finish(name, stages))
            else:  # no rows, or tasks that found it decided
                self._logs.background.run(self.transactions().roll_forward(name))

    def drop(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: discard what was staged. Spark asks for it, too, when committing failed: what is
        decided on stays, and is published when the batch is done again, or by the brokers after a while."""
        told = [message for message in messages if isinstance(message, StagedMessage)]
        self._discard([stage for message in told for stage in message.stages])

    def _discard(self, stages: Sequence[Any]) -> None:
        with suppress(TalwegError):
            self._logs.background.run(self.transactions(_DISCARD_SECONDS_MAX).discard(stages))


class TalwegWriter(_Writing, DataSourceArrowWriter):
    """Of one batch query."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidSetting('mode("overwrite"): a topic is only ever added to; use mode("append")')
        super().__init__(options, schema)
        # Made once, on the driver: all tasks and all their attempts have the same.
        self._name = options.transaction or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task."""
        return self.stage(iterator, self._name, may_be_decided=self._options.transaction is not None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        self.finish(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when something failed."""
        self.drop(messages)


class TalwegStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Of one streaming query. Names come from Spark: the same for a micro-batch that is done again."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In a task."""
        return self.stage(iterator, _name_of_batch(), may_be_decided=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when all tasks are done."""
        self.finish(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when something failed."""
        self.drop(messages)


def _name_of_batch() -> str:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert query and batch, "Spark tells every task of a streaming query which one it is"
    return f"{query}/{batch}"
