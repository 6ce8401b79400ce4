"""Redrive: dead letters of a topic go back to it, each once for each time that it was set aside."""

from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from talweg.errors import PipelineFailed, TopicNotFound
from talweg.pipeline.dead_letters import ATTEMPTS_MAX, SUFFIX, redriven
from talweg.pipeline.places import TopicsSink, TopicsSource
from talweg.pipeline.runner import reason


def redrive(
    spark: SparkSession, servers: str | None, topic: str, checkpoints: Path, attempts_max: int = ATTEMPTS_MAX
) -> int:
    """Send back what was set aside since the last time; returns how many dead letters were looked at.

    A streaming query with a checkpoint and the exactly-once writer: broken off at any moment, it goes on.
    """
    name = topic.removesuffix(SUFFIX)
    source = TopicsSource(servers, (f"{name}{SUFFIX}",))
    try:
        letters = source.open(spark, f"redrive.{name}")
    except TopicNotFound:
        raise TopicNotFound(f"topic {name} has no dead letters: there is no topic {name}{SUFFIX}") from None
    writer = TopicsSink(servers).writer(redriven(letters, attempts_max), "")
    writer = writer.option("checkpointLocation", str(checkpoints / f"redrive-{name}"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineFailed(f"redrive of {name}: {reason(str(error))}") from None
    finally:
        if query.isActive:
            query.stop()
    return sum(told.numInputRows for told in query.recentProgress)
