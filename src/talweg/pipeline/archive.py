"""The archive: every message as Parquet, by topic and date, exactly once.

    DIR/messages/topic=T1/date=2026-01-31/….parquet

The manifest says which files count and which offsets they hold, so a batch that Spark repeats, or a query
that lost its checkpoint, adds nothing twice.
"""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DateType, StructField, StructType

from talweg.errors import StorageError
from talweg.pipeline.manifest import Manifest
from talweg.pipeline.messages import HEADERS, MESSAGES, day, offsets_in
from talweg.pipeline.table import Table

_DATED = StructType([*MESSAGES.fields, StructField("date", DateType())])


def archive_table(directory: Path) -> Table:
    """The table of an archive directory."""
    return Table(directory / "messages", _DATED, by=("topic", "date"))


def dated(messages: DataFrame) -> DataFrame:
    """Messages with their date in UTC; without headers they get empty ones."""
    if "headers" not in messages.columns:
        messages = messages.withColumn("headers", fn.lit(None).cast(HEADERS))
    return messages.withColumn("date", day(fn.col("timestamp")))


def add_to_archive(directory: Path, batch: DataFrame, incarnations: Mapping[str, int]) -> int:
    """Archive those messages of a batch that are not there yet; returns their number."""

    def make(messages: DataFrame, _: Manifest) -> DataFrame:
        return dated(messages)

    return archive_table(directory).add_messages(batch, make, offsets_in, incarnations=incarnations)


def read_archive(spark: SparkSession, directory: Path | str, topic: str | None = None) -> DataFrame:
    """Every message that is archived, or those of a topic, in Kafka's columns."""
    rows = archive_table(Path(directory)).read(spark, topic).drop("date")
    return rows if topic is None else rows.where(fn.col("topic") == topic)


def check_incarnations(table: Table, now: Mapping[str, int], since: Mapping[str, int] | None = None) -> None:
    """Raises StorageError if a topic was deleted and made anew, since the table was written or `since` then:
    its offsets began again from 0."""
    then = {**(since or {}), **table.manifest().incarnations}
    for topic, incarnation in now.items():
        if then.get(topic, incarnation) != incarnation:
            raise StorageError(
                f"{table.directory} holds topic {topic} as it was before it was deleted and created again; "
                "archive the new one to another directory"
            )
