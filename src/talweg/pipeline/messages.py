"""Messages as Spark sees them: Kafka's columns, where they come from, and which offsets some of them are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from talweg.pipeline.manifest import Coverage, Spans

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
)
MESSAGES: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", HEADERS),
    ]
)

_DAY_US: Final = 86_400_000_000


def day(moment: Column) -> Column:
    """The date of a moment in UTC, whatever the session's time zone."""
    return fn.date_from_unix_date(fn.floor(fn.unix_micros(moment) / fn.lit(_DAY_US)).cast("int"))


def offsets_in(paths: Sequence[Path]) -> Coverage:
    """Which offsets the rows of Parquet files are, read back from what was written."""
    columns = [
        pq.read_table(path, columns=["topic", "partition", "offset"], partitioning=None) for path in paths
    ]
    table = pa.concat_tables(columns)
    covered: Coverage = {}
    for topic in pc.unique(table["topic"]).to_pylist():
        rows = table.filter(pc.equal(table["topic"], topic))
        partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        covered[topic] = {int(p): _spans(offsets[partitions == p]) for p in np.unique(partitions)}
    return covered


def offsets_in_columns(table: Any) -> Coverage:
    """Which offsets rows stand for that each have a `first_offset` and a `next_offset`.

    Rows of one partition lie in between each other, so only the whole from the least to the greatest is told.
    """
    found = table.group_by(["topic", "partition"]).aggregate(
        [("first_offset", "min"), ("next_offset", "max")]
    )
    covered: Coverage = {}
    for row in found.to_pylist():
        span = (row["first_offset_min"], row["next_offset_max"])
        covered.setdefault(row["topic"], {})[row["partition"]] = (span,)
    return covered


def _spans(offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Spans:
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate(([0], breaks + 1))]
    lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
    return tuple((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True))
