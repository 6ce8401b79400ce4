"""What a task reads: one stretch of one partition, as record batches of the columns that were asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from talweg.client.partition_log import Stretch
from talweg.spark.columns import Shape
from talweg.spark.connection import logs_of
from talweg.spark.options import Connect
from talweg.spark.planning import Losses


@dataclass(frozen=True)
class StretchPartition(InputPartition):
    """An input partition. It travels to the worker that reads it."""

    stretch: Stretch


def read_stretch(
    partition: InputPartition, schema: StructType, connect: Connect, *, fail_on_data_loss: bool
) -> Iterator[Any]:
    """Record batches. Of no stretch, nothing: when there is nothing to read, Spark makes up a partition."""
    if isinstance(partition, StretchPartition):
        stretch = partition.stretch
        logs = logs_of(connect.servers, connect.seconds_max)
        shape = Shape(schema, stretch.topic, stretch.partition)
        losses = Losses(fail=fail_on_data_loss)
        for stored in logs.batches(stretch, shape.stored, losses.report):
            yield shape.batch(stored)
