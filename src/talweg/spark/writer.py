"""Writing, exactly once: tasks stage, the driver decides, then everything is published.

A micro-batch that Spark does again has the same name, so it meets the decision that was taken the first time,
if one was: that is rolled forward, and what the tasks staged this time, spread over them in whatever way, is
dropped. See `client.transactions`.
"""

import logging
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
from talweg.errors import InvalidSetting, StageExpired, TalwegError
from talweg.spark.connection import logs_of
from talweg.spark.options import WriteOptions
from talweg.spark.rows import apart, check_rows

_DISCARD_SECONDS_MAX: Final = 5.0  # what is not discarded expires by itself
_LOOK_SECONDS_MAX: Final = 5.0  # for what is only told
_logger: Final = logging.getLogger("talweg.spark")


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: str
    stages: tuple[Any, ...]  # references to stages
    rows: int  # staged, or passed over


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
            return StagedMessage(name, (), sum(batch.num_rows for batch in batches))
        context = TaskContext.get()
        staging = Staging(
            logs.cluster,
            name,
            codec=CODECS[self._options.compression],
            seconds_max=self._options.connect.seconds_max,
            # By the name, too: else small micro-batches, of one task each, would all go to one partition.
            turn=zlib.crc32(name.encode()) + (context.partitionId() if context is not None else 0),
        )
        count = 0
        try:
            for batch in batches:
                count += batch.num_rows
                for topic, partition, rows in apart(batch, self._options.topic):
                    logs.background.run(staging.add(topic, rows, partition))
            return StagedMessage(name, tuple(logs.background.run(staging.finish())), count)
        except BaseException as error:
            self._discard(logs.background.run(staging.give_up()))
            if isinstance(error, StageExpired):
                raise _too_slow(error) from error
            raise

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: decide, and publish."""
        told = [message for message in messages if isinstance(message, StagedMessage)]
        names = {message.transaction for message in told}
        assert len(names) <= 1, names
        stages = [stage for message in told for stage in message.stages]
        rows = sum(message.rows for message in told)
        for name in names:
            if not self._decide(name, stages) and rows:
                self._tell_passed_over(name, rows)

    def _decide(self, name: str, stages: list[Any]) -> bool:
        """Whether it was decided on these; else others of the same name were there before."""
        run, transactions = self._logs.background.run, self.transactions()
        try:
            if stages:
                return run(transactions.finish(name, stages))
            run(transactions.roll_forward(name))  # no rows, or tasks that found it decided
        except StageExpired as error:
            raise _too_slow(error) from error
        return False

    def _tell_passed_over(self, name: str, rows: int) -> None:
        _logger.warning(
            "transaction %s was written before: these %d rows are passed over, as they are when a write is "
            "done again; if they are others, give them a name of their own",
            name,
            rows,
        )

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

    def _tell_passed_over(self, name: str, rows: int) -> None:
        """Of the last micro-batch that is nothing to worry about: Spark failed before it had noted its end.
        But it notes that before it begins with the next."""
        query, _, batch = name.rpartition("/")
        later = False
        with suppress(TalwegError):  # all is written: nothing fails for want of a word about it
            decision = self.transactions(_LOOK_SECONDS_MAX).decision(f"{query}/{int(batch) + 1}")
            later = self._logs.background.run(decision).decided
        if later:
            _logger.warning(
                "micro-batch %s of query %s was written before, and so was the next: these %d rows are "
                "passed over; the checkpoint is older than what the query has written, as a backup is",
                batch,
                query,
                rows,
            )
        else:
            _logger.info("micro-batch %s of query %s is done again: it was written before", batch, query)


def _too_slow(error: StageExpired) -> StageExpired:
    return StageExpired(
        f"{error}. What is staged waits only so long for the other tasks, and for its decision: have brokers "
        "wait longer (--stage-expiry), or write less at a time (in a stream: maxOffsetsPerTrigger)"
    )


def _name_of_batch() -> str:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert query and batch, "Spark tells every task of a streaming query which one it is"
    return f"{query}/{batch}"
