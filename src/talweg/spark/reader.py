"""Batch reading: what is there, or was there between two points, once."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

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

_logger: Final = logging.getLogger("talweg.spark")


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
    reader unless its own setting for that is on.

    Spark 4.3.0 keeps what the last filters left to be read with the frame that was loaded, and every query
    over that frame reads it: also one whose filters are others, or that has none. Nobody is asked here then,
    so all that can be done about it is to say so.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note what they ask for; returns those that Spark is to look at still."""
        self._bounds, left = push(filters)
        if self._bounds != Bounds():
            _logger.warning(
                "filterPushdown: only what these filters want is read, by every query over the same load(): "
                "load() anew for each filter (%s)",
                ", ".join(map(str, filters)),
            )
        return left
