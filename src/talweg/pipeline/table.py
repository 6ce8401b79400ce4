"""A table of Parquet files that grows batch by batch, each exactly once.

Why not Spark's own file sink: it remembers files in a log of its own that nobody else may change, so its
files can never be compacted, and a lost checkpoint writes everything twice. Here a batch's files and what
they cover become visible together, with one new version of the manifest. A batch that comes again (Spark
repeats one whose commit it did not get to note) is recognised: by its messages' offsets where rows have
them, by query and batch number where they do not.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from talweg.errors import StorageError
from talweg.pipeline.manifest import (
    Coverage,
    Manifest,
    RemovedFile,
    TableFile,
    commit,
    joined,
    read_manifest,
    sync_directory,
)

STAGING: Final = "_staging"  # files that are being written; nobody reads there
ROWS_PER_FILE_MAX: Final = 4_000_000
_ATTEMPTS_MAX: Final = 20

Measure = Callable[[Sequence[Path]], Coverage]  # which messages went into these files


class _Overtaken(Exception):
    """Another writer covered some of the same messages meanwhile."""


class Table(msgspec.Struct, frozen=True):
    """A directory that the driver and all workers share, what its rows look like, and how it is laid out."""

    directory: Path
    schema: StructType
    by: tuple[str, ...] = ()  # columns that name directories
    # Fewer rows that say the same, for when files are merged; None: rows stay as they are.
    summed: Callable[[DataFrame], DataFrame] | None = None

    def manifest(self) -> Manifest:
        """How it is now."""
        return read_manifest(self.directory)

    def paths(self, manifest: Manifest, topic: str | None = None) -> list[str]:
        """The files, or those that hold a topic's rows."""
        below = "" if topic is None or "topic" not in self.by else f"topic={topic}/"
        return [str(self.directory / file.path) for file in manifest.files if file.path.startswith(below)]

    def read(self, spark: SparkSession, topic: str | None = None) -> DataFrame:
        """Its rows as they are now; what is written later is not seen."""
        return self.read_files(spark, self.paths(self.manifest(), topic))

    def read_files(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The rows of some of its files."""
        if not paths:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*paths)

    def add_messages(
        self,
        batch: DataFrame,
        make: Callable[[DataFrame, Manifest], DataFrame],
        measure: Measure,
        *,
        latest_us: Callable[[Sequence[Path]], dict[str, int]] | None = None,
        incarnations: Mapping[str, int],
    ) -> int:
        """Add what `make` makes of those messages that are not covered yet; returns the number of rows.

        Rests on offsets alone: even a query without its checkpoint adds nothing twice.
        """
        for _ in range(_ATTEMPTS_MAX):
            before = self.manifest()
            files, paths = self._write(make(uncovered(batch, before), before))
            if not files:
                return 0
            covered = measure(paths)
            seen = latest_us(paths) if latest_us else {}
            seen = {topic: max(us, before.latest_us.get(topic, us)) for topic, us in seen.items()}

            def change(now: Manifest) -> Manifest | None:
                if now.holds(files):  # noqa: B023 - it is called before the loop goes on
                    return None
                if any(now.covered.get(topic) != before.covered.get(topic) for topic in covered):  # noqa: B023
                    raise _Overtaken
                return msgspec.structs.replace(
                    now,
                    files=(*now.files, *files),  # noqa: B023
                    covered=joined(now.covered, covered),  # noqa: B023
                    latest_us=now.latest_us | seen,  # noqa: B023
                    incarnations=now.incarnations | dict(incarnations),
                )

            try:
                commit(self.directory, change)
                return sum(file.rows for file in files)
            except _Overtaken:
                self._unlink(files)
        raise StorageError(f"{self.directory}: others write the same messages to it all the time")

    def add_batch(self, rows: DataFrame, query: str, batch: int) -> int:
        """Add the rows of a query's batch, unless it was added before; returns their number.

        For rows that come of many messages (sessions, say) and have no offset of their own.
        """
        last = self.manifest().batches
        if last and query not in last:
            raise StorageError(
                f"{self.directory} was written by another query, so rows could come twice. "
                "Give the checkpoints it had, or another directory"
            )
        if batch <= last.get(query, -1):
            return 0
        files, _ = self._write(rows)

        def change(now: Manifest) -> Manifest | None:
            if batch <= now.batches.get(query, -1):
                return None
            return msgspec.structs.replace(
                now, files=(*now.files, *files), batches=now.batches | {query: batch}
            )

        commit(self.directory, change)
        return sum(file.rows for file in files)

    def replace(self, old: Sequence[TableFile], rows: DataFrame) -> tuple[TableFile, ...]:
        """Put rows in the place of files that hold the same ones; `removed` keeps those for a while."""
        files, _ = self._write(rows)
        gone = {file.path for file in old}
        now_seconds = time.time()

        def change(now: Manifest) -> Manifest | None:
            if not gone <= {file.path for file in now.files}:
                return None  # somebody else replaced them
            return msgspec.structs.replace(
                now,
                files=(*(file for file in now.files if file.path not in gone), *files),
                removed=(*now.removed, *(RemovedFile(path, now_seconds) for path in sorted(gone))),
            )

        after = commit(self.directory, change)
        if files and not after.holds(files):
            self._unlink(files)
            return ()
        return tuple(files)

    def _write(self, rows: DataFrame) -> tuple[list[TableFile], list[Path]]:
        """Files of their own, durable and where they belong; nobody sees them until they are committed."""
        staging = self.directory / STAGING / uuid.uuid4().hex
        # Copies of the columns that name directories, so that these stay in the files, too. By their numbers:
        # a topic's name may be so long that there is no room for a longer word before it.
        marks = {str(number): fn.col(name) for number, name in enumerate(self.by)}
        assert set(self.schema.names) <= set(rows.columns), f"{rows.columns} are not {self.schema.names}"
        writer = rows.withColumns(marks).select(*self.schema.names, *marks).write
        if marks:
            writer = writer.partitionBy(*marks)
        writer.option("maxRecordsPerFile", ROWS_PER_FILE_MAX).parquet(str(staging))
        try:
            return self._settle(staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _settle(self, staging: Path) -> tuple[list[TableFile], list[Path]]:
        files: list[TableFile] = []
        paths: list[Path] = []
        for source in sorted(staging.rglob("*.parquet")):
            rows = pq.read_metadata(source).num_rows
            if not rows:
                continue
            values = (part.partition("=")[2] for part in source.relative_to(staging).parent.parts)
            place = (f"{name}={value}" for name, value in zip(self.by, values, strict=True))
            target = self.directory.joinpath(*place, f"{uuid.uuid4().hex}.parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            source.rename(target)
            sync_directory(target.parent)
            files.append(TableFile(str(target.relative_to(self.directory)), rows, target.stat().st_size))
            paths.append(target)
        return files, paths

    def _unlink(self, files: Sequence[TableFile]) -> None:
        for file in files:
            (self.directory / file.path).unlink(missing_ok=True)


def read_table(spark: SparkSession, directory: Path | str, name: str) -> DataFrame:
    """The rows of a table of your own: what a pipeline wrote with `to_table`."""
    table = Path(directory) / name
    paths = [str(table / file.path) for file in read_manifest(table).files]
    if not paths:
        raise StorageError(f"{table}: no table, or it has no rows yet")
    return _read_all(spark, paths)


def check_columns(spark: SparkSession, table: Table) -> None:
    """Raises StorageError if a column has another type than in the files that are there: nobody could read
    both. Columns may come and go."""
    paths = table.paths(table.manifest())
    fields = _read_all(spark, paths).schema.fields if paths else ()
    there = {field.name.lower(): field.dataType for field in fields}  # Spark does not look at capitals
    for field in table.schema.fields:
        known = there.get(field.name.lower(), field.dataType)
        then, now = known.simpleString(), field.dataType.simpleString()
        if then != now:
            raise StorageError(
                f"{table.directory}: column {field.name} is {then} there, and would be {now} now; cast it, "
                "give it another name, or write to another table"
            )


def _read_all(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # Files of an earlier version of the pipeline may lack columns, or have more.
    return spark.read.option("mergeSchema", "true").parquet(*paths)


def uncovered(messages: DataFrame, manifest: Manifest) -> DataFrame:
    """Those messages that lie behind everything a table covers already."""
    places = [
        value
        for topic, partitions in manifest.next_offsets().items()
        for partition, offset in partitions.items()
        for value in (fn.lit(f"{topic}/{partition}"), fn.lit(offset))
    ]
    if not places:
        return messages
    following = fn.create_map(*places)[fn.concat_ws("/", "topic", fn.col("partition").cast("string"))]
    return messages.where(fn.col("offset") >= fn.coalesce(following, fn.lit(0)))
