"""Batch reading: what is there, or was there between two points, once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from talweg.client.partition_log import Stretch
from talweg.errors import TopicNotFound
from talweg.spark.connection import logs_of
from talweg.spark.filters import Bounds, push
from talweg.spark.options import ReadOptions
from talweg.spark.planning import Losses, choose, ends_of, positions_at, stretches
from talweg.spark.reading import StretchPartition, read_stretch
from talweg.spark.shares import split


class TalwegReader(DataSourceReader):
    """Of one query. Made on the driver, and sent to every task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds: Bounds | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """A task for each partition that has anything to read, or more (`minPartitions`)."""
        found = self._stretches()
        if self._bounds is not None:
            found = self._bounds.cut(found)
        return [StretchPartition(stretch) for stretch in split(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task."""
        options = self._options
        return read_stretch(
            partition, self._schema, options.connect, fail_on_data_loss=options.fail_on_data_loss
        )

    def _stretches(self) -> list[Stretch]:
        options = self._options
        logs = logs_of(options.connect.servers, options.connect.seconds_max)
        topics = choose(logs, options.selection)
        if not topics:
            raise TopicNotFound(f"option subscribePattern: no topic matches {options.selection.pattern}")
        ends = ends_of(logs, topics)
        begin = positions_at(
            logs,
            topics,
            ends,
            options.starting or "earliest",
            timestamp=options.starting_timestamp,
            option="startingOffsets",
        )
        end = positions_at(
            logs,
            topics,
            ends,
            options.ending or "latest",
            timestamp=options.ending_timestamp,
            option="endingOffsets",
        )
        return stretches(begin, end, ends, Losses(fail=options.fail_on_data_loss))


class PushingReader(TalwegReader):
    """One that takes filters: only on request (`filterPushdown`), since Spark fails every read of such a
    reader unless its own setting for that is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note what they ask for; returns those that Spark is to look at still."""
        self._bounds, left = push(filters)
        return left
