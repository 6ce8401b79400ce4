"""Counts: how many messages by topic, level and minute, late ones told apart, each message exactly once.

Spark's own aggregation would drop what comes after its watermark without a word, and show a minute only once
it is over. Here a batch adds up what it has, and readers add up batches, so a late message is counted like
any other, and as late besides. The watermark of a topic follows the latest time seen in earlier batches; it
is kept with the counts, so a batch that Spark repeats finds the same messages late.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from talweg.pipeline.levels import NONE, UNPARSED
from talweg.pipeline.lines import lines_of
from talweg.pipeline.manifest import Coverage, Manifest
from talweg.pipeline.messages import offsets_in_columns
from talweg.pipeline.table import Table
from talweg.pipeline.times import FIRST_US

DELAY_SECONDS: Final = 120  # behind the latest time seen, a message is late

COUNTS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("minute", TimestampType()),
        StructField("level", StringType()),
        StructField("messages", LongType()),
        StructField("late", LongType()),  # of these, behind the watermark
        StructField("first_offset", LongType()),
        StructField("next_offset", LongType()),  # behind the last one
        StructField("latest", TimestampType()),
    ]
)


def counts_table(directory: Path) -> Table:
    """The table of counts below an archive directory."""
    return Table(directory / "counts", COUNTS, summed=summed)


def summed(counts: DataFrame) -> DataFrame:
    """One row for what many batches counted in the same minute. Which offsets went into the table is known to
    its manifest; those of a row are for the one who has just written it."""
    return (
        counts.groupBy("topic", "partition", "minute", "level")
        .agg(
            fn.sum("messages").alias("messages"),
            fn.sum("late").alias("late"),
            fn.min("first_offset").alias("first_offset"),
            fn.max("next_offset").alias("next_offset"),
            fn.max("latest").alias("latest"),
        )
        .select(*COUNTS.names)
    )


def event_time() -> Column:
    """When it happened, but neither after it was produced nor after now: a clock that is ahead, a line's or a
    producer's, would make all others late. In a stream, now is one moment for each batch, and the same when
    Spark repeats the batch."""
    happened = fn.least(fn.col("time"), fn.col("timestamp"), fn.current_timestamp())
    return fn.greatest(happened, fn.timestamp_micros(fn.lit(FIRST_US)))


def counts_of(lines: DataFrame, latest_us: dict[str, int], delay_seconds: int = DELAY_SECONDS) -> DataFrame:
    """The counts of some lines, given the latest time that each topic had before."""
    seen = fn.lit(None).cast("bigint")
    if latest_us:
        seen = fn.create_map(*(fn.lit(each) for pair in latest_us.items() for each in pair))[fn.col("topic")]
    # No watermark yet, nothing is late.
    late = fn.coalesce(fn.unix_micros(event_time()) < seen - delay_seconds * 1_000_000, fn.lit(False))
    level = fn.when(fn.col("error").isNotNull(), UNPARSED).otherwise(
        fn.coalesce(fn.col("level"), fn.lit(NONE))
    )
    return (
        lines.withColumns({"minute": fn.date_trunc("minute", event_time()), "level": level, "_late": late})
        .groupBy("topic", "partition", "minute", "level")
        .agg(
            fn.count("*").alias("messages"),
            fn.count_if("_late").alias("late"),
            fn.min("offset").alias("first_offset"),
            (fn.max("offset") + 1).alias("next_offset"),
            fn.max(event_time()).alias("latest"),
        )
    )


def add_to_counts(
    directory: Path, batch: DataFrame, incarnations: Mapping[str, int], delay_seconds: int = DELAY_SECONDS
) -> int:
    """Count those messages of a batch that were not counted yet; returns the number of rows that made."""

    def make(messages: DataFrame, before: Manifest) -> DataFrame:
        return counts_of(lines_of(messages), before.latest_us, delay_seconds).coalesce(1)

    return counts_table(directory).add_messages(
        batch, make, _offsets_counted, latest_us=_latest, incarnations=incarnations
    )


def read_counts(spark: SparkSession, directory: Path | str) -> DataFrame:
    """Messages and late ones by topic, level and minute; `closed` behind the watermark."""
    table = counts_table(Path(directory))
    manifest = table.manifest()
    rows = table.read_files(spark, table.paths(manifest))
    summed = rows.groupBy("topic", "level", "minute").agg(
        fn.sum("messages").alias("messages"), fn.sum("late").alias("late")
    )
    if not manifest.latest_us:
        return summed.withColumn("closed", fn.lit(False))
    seen = fn.create_map(*(fn.lit(each) for pair in manifest.latest_us.items() for each in pair))
    over = fn.unix_micros(fn.col("minute")) + (60 + DELAY_SECONDS) * 1_000_000
    return summed.withColumn("closed", over <= seen[fn.col("topic")])


def _offsets_counted(paths: Sequence[Path]) -> Coverage:
    return offsets_in_columns(_read(paths, ["topic", "partition", "first_offset", "next_offset"]))


def _latest(paths: Sequence[Path]) -> dict[str, int]:
    found = _read(paths, ["topic", "latest"]).group_by("topic").aggregate([("latest", "max")])
    micros = pc.cast(found["latest_max"], pa.int64())
    return dict(zip(found["topic"].to_pylist(), micros.to_pylist(), strict=True))


def _read(paths: Sequence[Path], columns: list[str]) -> Any:
    return pa.concat_tables(pq.read_table(path, columns=columns, partitioning=None) for path in paths)
