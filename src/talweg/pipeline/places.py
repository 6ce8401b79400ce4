"""Where pipelines read and write: topics of a cluster, through Talweg's data source. Tests have others."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from talweg.client.partition_log import PartitionLogs
from talweg.client.servers import read_servers
from talweg.errors import TopicNotFound
from talweg.pipeline.alerts import TOPIC as ALERTS
from talweg.pipeline.catalogue import Pipeline
from talweg.pipeline.dead_letters import dead_letters_of
from talweg.pipeline.names import GROUPS, SUFFIX, group_of

_SECONDS_MAX: Final = 30.0  # for the brokers to name their topics


class Source(Protocol):
    """Gives messages in Kafka's columns, as a stream."""

    def open(self, spark: SparkSession, name: str) -> DataFrame:
        """A stream for the pipeline of that name."""
        ...

    def incarnations(self) -> Mapping[str, int]:
        """Which life each topic is in; empty where topics have only one."""
        ...


class Sink(Protocol):
    """Takes messages for topics."""

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Not started yet. An empty topic: each row's column says which."""
        ...


class TopicsSource(msgspec.Struct, frozen=True):
    """Some topics of a cluster, or all that are not written by pipelines themselves."""

    servers: str | None
    topics: tuple[str, ...] = ()
    rows_max: int = 1_000_000  # in a batch, so that what is written at once is bounded
    starting: str = "earliest"
    keep_bytes: int | None = None  # up to this size of each log retention keeps what was not read
    written: tuple[str, ...] = ()  # topics that pipelines of this run write: not read, unless they are named
    skip_lost: bool = False  # go on without what is gone before it was read; else that fails a pipeline
    group: str = GROUPS  # with which the names of their groups begin
    later: bool = False  # topics that are made while it is read are read, too; unless some are named

    def beside(self, pipelines: Sequence[Pipeline], *, follow: bool) -> "TopicsSource":
        """For a run of these pipelines, which does not read what they write, unless that is named.

        One that follows reads topics that are made later. But not if rows of a pipeline, other than dead
        letters, say to which topic they go: nobody knows those beforehand, and it would read what it writes.
        """
        written = tuple(each.to_topic for each in pipelines if each.to_topic)
        anywhere = any(each.to_topic == "" and each.transform is not dead_letters_of for each in pipelines)
        return msgspec.structs.replace(self, written=written, later=follow and not anywhere)

    def open(self, spark: SparkSession, name: str) -> DataFrame:
        """Seen by the brokers as the group `PREFIX.NAME`, so its lag is there for all to see."""
        return spark.readStream.format("talweg").options(**self.options(name)).load()

    def options(self, name: str) -> dict[str, str]:
        """What the data source is told for the pipeline of that name; raises TopicNotFound."""
        options = {
            "startingOffsets": self.starting,
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self.rows_max),
            "group": group_of(self.group, name),
            "failOnDataLoss": str(not self.skip_lost).lower(),
        }
        if self.later and not self.topics:
            options["subscribePattern"] = self._pattern()
        else:
            options["subscribe"] = ",".join(self.chosen())
        if self.keep_bytes is not None:
            options["keepBytes"] = str(self.keep_bytes)
        return options | named(self.servers)

    def incarnations(self) -> Mapping[str, int]:
        """As the managers know them now."""
        known = self._known()
        return {topic: known[topic] for topic in self._chosen(known)}

    def chosen(self) -> tuple[str, ...]:
        """Their names; raises TopicNotFound."""
        return self._chosen(self._known())

    def _chosen(self, known: Mapping[str, int]) -> tuple[str, ...]:
        pattern = re.compile(self._pattern())
        chosen = self.topics or tuple(sorted(filter(pattern.fullmatch, known)))
        for topic in chosen:
            if topic not in known:
                raise TopicNotFound(f"--topics: there is no topic {topic}")
        if not chosen:
            raise TopicNotFound("there are no topics to read yet; produce something first")
        return chosen

    def _pattern(self) -> str:
        """Of names that users gave to topics; with a list, one that is made meanwhile would stay unseen."""
        ours = "|".join(re.escape(topic) for topic in (ALERTS, *self.written))
        return rf"(?!__)(?!(?:{ours})\Z)(?!.*{re.escape(SUFFIX)}\Z).+"

    def _known(self) -> dict[str, int]:
        logs = PartitionLogs(self.servers, seconds_max=_SECONDS_MAX)
        try:
            return {each.topic: each.incarnation for each in logs.topics()}
        finally:
            logs.close()


class TopicsSink(msgspec.Struct, frozen=True):
    """Topics of a cluster, exactly once."""

    servers: str | None

    def writer(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Stage, decide, publish: see `talweg.spark`."""
        options = named(self.servers)
        if topic:
            options["topic"] = topic
        return rows.writeStream.format("talweg").options(**options)


def named(servers: str | None) -> dict[str, str]:
    """The option that says where the cluster is, as this process knows it.

    Without it the data source would ask the environment of the process that carries it, which Spark
    started: one that does not know what TALWEG_URL has been set to since.
    """
    return {"servers": ",".join(read_servers(servers))}


def tables_below(archive: Path) -> list[str]:
    """The names of the tables that an archive directory has."""
    return sorted(path.parent.name for path in archive.glob("*/_manifests"))
