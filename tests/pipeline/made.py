"""Messages in Kafka's columns, made up: as DataFrames, and as a stream that a test feeds file by file."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from talweg.pipeline.messages import MESSAGES
from talweg.pipeline.table import Table

COLUMNS = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def moment(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def message(
    value: str | bytes | None,
    offset: int,
    *,
    partition: int = 0,
    topic: str = "logs",
    seconds: float = 0.0,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] | None = None,
) -> tuple[Any, ...]:
    raw = value.encode() if isinstance(value, str) else value
    return (key, raw, topic, partition, offset, moment(seconds), headers)


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, MESSAGES)


def offsets(rows: DataFrame) -> list[tuple[str, int, int]]:
    found = rows.select("topic", "partition", "offset").collect()
    return sorted((row.topic, row.partition, row.offset) for row in found)


def values(table: Table, column: str) -> list[Any]:
    """A column of a table, read without Spark."""
    found: list[Any] = []
    for path in table.paths(table.manifest()):
        found += pq.read_table(path, columns=[column], partitioning=None)[column].to_pylist()
    return found


class FileSource:
    """A stream of the files that were fed to it, one file a batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def feed(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._count += 1
        draft = self.directory.parent / f"draft-{self._count}"
        columns = (
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), COLUMNS, strict=True)
        )
        pq.write_table(pa.table(list(columns), COLUMNS), draft)
        draft.rename(self.directory / f"{self._count:04}.parquet")

    def open(self, spark: SparkSession, name: str) -> DataFrame:
        reader = spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))

    def incarnations(self) -> Mapping[str, int]:
        return {}


class FileSink:
    """What would go to topics, as Parquet files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        path = str(self.directory / (topic or "by-column"))
        return rows.writeStream.format("parquet").option("path", path)

    def read(self, spark: SparkSession, topic: str) -> list[Any]:
        return spark.read.parquet(str(self.directory / (topic or "by-column"))).collect()
