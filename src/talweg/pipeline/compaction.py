"""Compaction: many small files of a table become few large ones, while others read and write.

New files are written beside the old ones, and one new version of the manifest puts them in their place. A
reader keeps the version it began with, so old files stay for a grace period; so do files that no version
names, since a writer may be about to commit them. A crash in the middle leaves such files, and no more.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from talweg.pipeline.manifest import Manifest, TableFile, commit
from talweg.pipeline.table import STAGING, Table

FILE_BYTES: Final = 128 << 20  # what a file should come to
FILES_MIN: Final = 4  # fewer small ones in a directory are not worth the work
GRACE_SECONDS: Final = 3600.0  # longer than any query reads


class Compacted(msgspec.Struct, frozen=True):
    """What was done to a table."""

    files_before: int
    files_after: int
    deleted: int  # from the disk, after their grace


def compact(
    spark: SparkSession,
    table: Table,
    *,
    file_bytes: int = FILE_BYTES,
    files_min: int = FILES_MIN,
    grace_seconds: float = GRACE_SECONDS,
) -> Compacted:
    """Merge small files and delete what nobody reads any more."""
    before = table.manifest()
    for group in mergeable(before, file_bytes, files_min):
        for files in alike(table, group):
            if len(files) >= files_min:
                _merge(spark, table, files)
    deleted = delete_unused(table, grace_seconds)
    return Compacted(len(before.files), len(table.manifest().files), deleted)


def _merge(spark: SparkSession, table: Table, files: list[TableFile]) -> None:
    rows = spark.read.parquet(*(str(table.directory / file.path) for file in files))
    rows = rows if table.summed is None else table.summed(rows)
    order = [name for name in ("topic", "partition", "offset") if name in rows.columns]
    one = rows.coalesce(1)
    # As they are: an earlier version of the pipeline may have written columns that today's does not know.
    as_it_was = msgspec.structs.replace(table, schema=rows.schema)
    as_it_was.replace(files, one.sortWithinPartitions(*order) if order else one)


def alike(table: Table, files: list[TableFile]) -> list[list[TableFile]]:
    """The files apart by the columns that they have. Whether any may be null makes no difference."""
    groups: dict[tuple[tuple[str, str], ...], list[TableFile]] = {}
    for file in files:
        schema = pq.read_schema(table.directory / file.path)
        columns = tuple((field.name, str(field.type).replace(" not null", "")) for field in schema)
        groups.setdefault(columns, []).append(file)
    return list(groups.values())


def mergeable(manifest: Manifest, file_bytes: int, files_min: int) -> Iterator[list[TableFile]]:
    """Groups of small files of one directory, each group no larger than a file should be."""
    directories: dict[str, list[TableFile]] = {}
    for file in manifest.files:
        if file.bytes < file_bytes // 2:
            directories.setdefault(str(Path(file.path).parent), []).append(file)
    for small in directories.values():
        group: list[TableFile] = []
        for file in small:
            if group and sum(each.bytes for each in group) + file.bytes > file_bytes:
                yield group
                group = []
            group.append(file)
        if len(group) >= files_min:
            yield group


def delete_unused(table: Table, grace_seconds: float) -> int:
    """Delete files that have been in no version for so long; returns their number."""
    deadline = time.time() - grace_seconds
    manifest = table.manifest()
    doomed = {file.path for file in manifest.removed if file.removed_at <= deadline}
    known = {file.path for file in manifest.files} | {file.path for file in manifest.removed}
    doomed |= {path for path in _strays(table, deadline) if path not in known}
    for path in doomed:
        (table.directory / path).unlink(missing_ok=True)
    if any(file.path in doomed for file in manifest.removed):
        commit(table.directory, lambda now: _without(now, doomed))
    for staging in (table.directory / STAGING).glob("*"):
        if all(_is_older(path, deadline) for path in (staging, *staging.rglob("*"))):
            shutil.rmtree(staging, ignore_errors=True)
    return len(doomed)


def _without(now: Manifest, gone: set[str]) -> Manifest:
    left = tuple(file for file in now.removed if file.path not in gone)
    return msgspec.structs.replace(now, removed=left)


def _strays(table: Table, deadline: float) -> Iterator[str]:
    """Files in their places that may never have been committed."""
    for path in table.directory.rglob("*.parquet"):
        place = path.relative_to(table.directory)
        if place.parts[0] != STAGING and _is_older(path, deadline):
            yield str(place)


def _is_older(path: Path, deadline: float) -> bool:
    try:
        return path.stat().st_mtime <= deadline
    except FileNotFoundError:
        return False  # its writer was just done with it
