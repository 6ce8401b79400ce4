"""A topic from its very beginning: what is archived from Parquet, the rest from the log, as one DataFrame.

Each partition is cut at one offset. Below it rows come from the archive, from it on from the log, so none
comes twice. The cut is as far up as the archive reaches without a gap: what is left to the log is the newest
of it, so retention does not come near it while a query runs. If it does all the same, the query fails.
"""

import json
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from talweg.client.partition_log import PartitionLogs
from talweg.errors import OffsetOutOfRange, TopicNotFound
from talweg.pipeline.archive import archive_table, check_incarnations, read_archive
from talweg.pipeline.manifest import Spans
from talweg.pipeline.messages import HEADERS, MESSAGES
from talweg.pipeline.places import named

_SECONDS_MAX: Final = 30.0  # for the brokers to say what they hold


class Cut(msgspec.Struct, frozen=True):
    """How one partition is put together."""

    offset: int  # below it from the archive, from it on from the log
    lost: Spans  # in neither


def cut_of(archived: Spans, log_start: int) -> Cut:
    """Where to cut a partition whose log begins at that offset, and what is nowhere any more."""
    lost: list[tuple[int, int]] = []
    reached = min(archived[0][0], log_start) if archived else log_start
    for first, following in archived:
        if first > reached:
            if reached >= log_start:
                break  # the log has what is missing here, and everything behind it
            lost.append((reached, min(first, log_start)))
            if first > log_start:
                reached = log_start
                break
        reached = max(reached, following)
    if reached < log_start:
        lost.append((reached, log_start))
        reached = log_start
    return Cut(reached, tuple(lost))


def whole_topic(
    spark: SparkSession,
    servers: str | None,
    topic: str,
    archive: Path | str,
    *,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Every message of a topic once, in Kafka's columns with headers.

    Raises OffsetOutOfRange if retention dropped what was not archived yet, and TopicNotFound if neither the
    brokers nor the archive know the topic. One that was deleted comes from the archive alone.
    """
    directory = Path(archive)
    table = archive_table(directory)
    logs = PartitionLogs(servers, seconds_max=_SECONDS_MAX)
    try:
        found = logs.topic(topic)
        check_incarnations(table, {topic: found.incarnation})
        ends = logs.ends(topic, range(len(found.partitions)))
    except TopicNotFound:
        if topic not in table.manifest().covered:
            raise
        return read_archive(spark, directory, topic)
    finally:
        logs.close()
    # Not before: what the log had dropped when it was asked is archived by now, if it ever was.
    manifest = table.manifest()
    archived = manifest.covered.get(topic, {})
    cuts = {number: cut_of(archived.get(number, ()), each.start_offset) for number, each in ends.items()}
    if fail_on_data_loss:
        _check(topic, cuts)
    behind = {number: max(each.next_offset, cuts[number].offset) for number, each in ends.items()}
    from_log = spark.read.format("talweg").options(
        **named(servers),
        subscribe=topic,
        includeHeaders="true",
        startingOffsets=json.dumps({topic: {str(number): cut.offset for number, cut in cuts.items()}}),
        endingOffsets=json.dumps({topic: {str(number): offset for number, offset in behind.items()}}),
        failOnDataLoss=str(fail_on_data_loss).lower(),
    )
    # The manifest that the cuts were made from: what is archived by now would come twice.
    rows = table.read_files(spark, table.paths(manifest, topic)).where(fn.col("topic") == topic)
    return put_together(rows, from_log.load(), cuts)


def put_together(archived: DataFrame, live: DataFrame, cuts: dict[int, Cut]) -> DataFrame:
    """Below the cuts the one, from the cuts on the other."""
    cut = fn.create_map(*(fn.lit(each) for number, cut in cuts.items() for each in (number, cut.offset)))
    if "headers" not in live.columns:
        live = live.withColumn("headers", fn.lit(None).cast(HEADERS))
    below = archived.where(fn.col("offset") < cut[fn.col("partition")])
    behind = live.where(fn.col("offset") >= cut[fn.col("partition")])
    return below.select(*MESSAGES.names).unionByName(behind.select(*MESSAGES.names))


def _check(topic: str, cuts: dict[int, Cut]) -> None:
    for number, cut in cuts.items():
        if cut.lost:
            spans = ", ".join(f"{first} to {following}" for first, following in cut.lost)
            raise OffsetOutOfRange(
                f"partition {number} of topic {topic}: offsets {spans} were dropped before they "
                "were archived; fail_on_data_loss=False goes on without them"
            )
