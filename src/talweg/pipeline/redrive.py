"""Redrive: dead letters of a topic go back to it, each once for each time that it was set aside."""

from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from talweg.errors import PipelineFailed, TalwegError, TopicNotFound
from talweg.pipeline.dead_letters import ATTEMPTS_MAX, may_go_back, redriven
from talweg.pipeline.names import SUFFIX, dead_letter_topic, stem_of
from talweg.pipeline.places import TopicsSink, TopicsSource
from talweg.pipeline.runner import reason

_SEEN: Final = "redrive"  # what Spark calls the counts


class Redriven(msgspec.Struct, frozen=True):
    """What became of the dead letters that were set aside since the last time."""

    letters: int
    sent: int  # of these, back; the others were too often, or do not say where they came from


def letters_of(servers: str | None, topic: str, *, skip_lost: bool = False) -> TopicsSource:
    """The dead letters of a topic; raises TopicNotFound if it has none."""
    letters = dead_letter_topic(topic)
    source = TopicsSource(servers, (letters,), skip_lost=skip_lost)
    try:
        source.chosen()
    except TopicNotFound:
        name = topic.removesuffix(SUFFIX)
        raise TopicNotFound(f"topic {name} has no dead letters: there is no topic {letters}") from None
    return source


def redrive(
    spark: SparkSession,
    servers: str | None,
    topic: str,
    checkpoints: Path,
    attempts_max: int = ATTEMPTS_MAX,
    *,
    skip_lost: bool = False,
) -> Redriven:
    """Send back what was set aside since the last time.

    A streaming query with a checkpoint and the exactly-once writer: broken off at any moment, it goes on.
    """
    name = stem_of(topic)  # also of the directory, which may be no longer than a topic's
    source = letters_of(servers, topic, skip_lost=skip_lost)
    counts = (fn.count("*").alias("letters"), fn.count_if(may_go_back(attempts_max)).alias("sent"))
    query: StreamingQuery | None = None
    try:
        letters = source.open(spark, f"redrive.{name}").observe(_SEEN, *counts)
        writer = TopicsSink(servers).writer(redriven(letters, attempts_max), "")
        writer = writer.option("checkpointLocation", str(checkpoints / f"redrive-{name}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except TalwegError:
        raise
    except Exception as error:  # Spark's own, or Java's
        raise PipelineFailed(f"redrive of {name}: {reason(str(error))}") from error
    finally:
        if query is not None and query.isActive:
            query.stop()
    seen = [told.observedMetrics[_SEEN] for told in query.recentProgress if _SEEN in told.observedMetrics]
    return Redriven(sum(each.letters for each in seen), sum(each.sent for each in seen))
