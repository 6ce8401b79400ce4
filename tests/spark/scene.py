"""What tests over Spark do again and again: topics with messages in them, and queries over those."""

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.query import StreamingQuery

from talweg.client.partition_log import PartitionLogs
from talweg.errors import GroupNotFound, TalwegError
from talweg.pipeline.runner import RESTARTS_MAX, is_sparks_fault
from talweg.records import Batch, encode_values, frames
from talweg.spark import TalwegSource
from talweg.spark.reading import StretchPartition
from talweg.spark.stream_reader import TalwegStreamReader
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

FRAMES = "application/vnd.talweg.frames"
SECONDS_MAX = 240  # for whatever a test waits for: a busy machine takes its time
BEGIN = 1_700_000_000_000_000  # the timestamp of the first message, in microseconds


class Scene:
    def __init__(
        self, session: Callable[[], SparkSession], cluster: LocalCluster, topic: str, directory: Path
    ) -> None:
        self._session = session
        self.cluster = cluster
        self.topic = topic
        self.directory = directory
        self.logs = PartitionLogs(cluster.servers, seconds_max=SECONDS_MAX)
        self._queries: list[StreamingQuery] = []

    @cached_property
    def spark(self) -> SparkSession:
        """Started when it is first wanted: many tests ask the source what Spark would ask."""
        return self._session()

    def close(self) -> None:
        for query in self._queries:
            with contextlib.suppress(Exception):
                query.stop()
        with contextlib.suppress(TalwegError), self.cluster.ask() as manager:
            for each in self.logs.topics():  # else every test after it would have their heartbeats to bear
                if each.topic == self.topic or each.topic.startswith((f"{self.topic}-", f"{self.topic}.")):
                    manager.delete(f"/topics/{each.topic}")
        self.logs.close()

    # Topics

    def create(self, partitions: int = 2, topic: str | None = None, **settings: int) -> None:
        with self.cluster.ask() as manager:
            manager.post("/topics", name=topic or self.topic, partitions=partitions, **settings)

    def delete(self, topic: str | None = None) -> None:
        """Returns when no broker has anything of it any more."""
        name = topic or self.topic
        with self.cluster.ask() as manager:
            manager.delete(f"/topics/{name}")
        for broker in self.cluster.brokers:
            wait_until(lambda broker=broker: not self._carries(broker, name), "it to be gone", SECONDS_MAX)

    def _carries(self, broker: str, topic: str) -> bool:
        try:
            with self.cluster.ask(broker) as asked:
                asked.get(f"/v1/topics/{topic}/offsets", at="earliest")
        except GroupNotFound:
            return False
        return True

    def send(
        self, partition: int, values: Sequence[bytes | None], topic: str | None = None, **columns: Any
    ) -> None:
        """One batch, straight to the leader."""
        columns.setdefault("timestamp", BEGIN)
        frame = encode_values(values, **columns)

        async def ask() -> None:
            await self.logs.cluster.fresh_topic(topic or self.topic, seconds_max=SECONDS_MAX)
            await self.logs.cluster.ask_leader(
                topic or self.topic,
                partition,
                "POST",
                "/records",
                frame,
                media_type=FRAMES,
                seconds_max=SECONDS_MAX,
            )

        self.logs.background.run(ask())

    def batches(self, partition: int) -> list[Batch]:
        """The batches of a partition as its leader keeps them."""

        async def ask() -> bytes:
            answer = await self.logs.cluster.ask_leader(
                self.topic,
                partition,
                "GET",
                "/records?offset=0",
                headers={"accept": FRAMES},
                seconds_max=SECONDS_MAX,
            )
            return answer.body

        found = self.logs.background.run(ask())
        return [Batch.from_frame(frame) for _, frame in frames(found, bytes_max=len(found))]

    def fill(
        self, count: int, partitions: int = 2, batch: int = 100, topic: str | None = None
    ) -> list[bytes]:
        """Create the topic, and send so many numbered messages in batches; returns them all."""
        self.create(partitions, topic)
        return self.more(0, count, partitions, batch, topic)

    def more(
        self, first: int, count: int, partitions: int = 2, batch: int = 100, topic: str | None = None
    ) -> list[bytes]:
        values = [b"message %d" % number for number in range(first, first + count)]
        for turn, begin in enumerate(range(0, count, batch)):
            self.send(turn % partitions, values[begin : begin + batch], topic)
        return values

    def wait_for_retention(self, partition: int, *, beyond: int = 0) -> int:
        """Send until retention has dropped something; returns the first offset that is kept."""
        starts: list[int] = []

        def dropped() -> bool:
            self.send(partition, [b"x" * 50_000] * 4, codec=0)
            starts.append(self.logs.ends(self.topic, [partition])[partition].start_offset)
            return starts[-1] > beyond

        wait_until(dropped, "retention to drop something", SECONDS_MAX)
        return starts[-1]

    # Queries

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("talweg").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("talweg").options(**self._options(_from_the_start(options)))
        return (reader if schema is None else reader.schema(schema)).load()

    def reader(self, **options: Any) -> DataSourceReader:
        """What Spark would make of a batch query, without Spark."""
        texts = {name: str(value) for name, value in self._options(options).items()}
        source = TalwegSource(texts)
        return source.reader(source.schema())

    def stream_reader(self, **options: Any) -> TalwegStreamReader:
        """What Spark would make of a streaming query, without Spark."""
        texts = {name: str(value) for name, value in self._options(_from_the_start(options)).items()}
        source = TalwegSource(texts)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, TalwegStreamReader)
        return reader

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {"servers": self.cluster.servers} | options
        if not {"subscribe", "subscribePattern", "assign"} & options.keys():
            given["subscribe"] = self.topic
        return given

    def run(self, stream: DataFrame, name: str = "out") -> StreamingQuery:
        """Run a streaming query to the end of what is there, into files; a second time goes on."""
        return end_of(lambda: self.start(stream, name, availableNow=True))

    def start(self, stream: DataFrame, name: str = "out", **trigger: Any) -> StreamingQuery:
        writer = stream.writeStream.format("parquet").option("path", str(self.directory / name))
        writer = writer.option("checkpointLocation", str(self.directory / f"{name}-checkpoint"))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self._queries.append(query)
        return query

    def written(self, name: str = "out") -> list[bytes]:
        """The values that a streaming query has written, sorted."""
        frame = self.spark.read.parquet(str(self.directory / name))
        return sorted(bytes(row.value) for row in frame.select("value").collect())


def _from_the_start(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a stream, which reads what is there unless they say where it starts."""
    return options if "startingTimestamp" in options else {"startingOffsets": "earliest"} | options


def end_of(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and see it end; again, if Spark failed it by no fault of its own (see the runner)."""
    for restarts in range(RESTARTS_MAX + 1):
        query = start()
        try:
            assert query.awaitTermination(SECONDS_MAX), f"it runs after {SECONDS_MAX} s"
        except StreamingQueryException as error:
            if restarts == RESTARTS_MAX or not is_sparks_fault(error):
                raise
            continue
        break
    return query


def values_of(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def batches_of(query: StreamingQuery) -> list[int]:
    """How many rows each micro-batch had, those without any left out."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def read(partitions: Any) -> list[tuple[str, int, int, int]]:
    """What tasks would read."""
    found = [each.stretch for each in partitions if isinstance(each, StretchPartition)]
    return sorted((each.topic, each.partition, each.begin, each.end) for each in found)


def ends(offset: dict[str, Any]) -> dict[str, int]:
    """Where a micro-batch ends, as its checkpoint has it."""
    return {
        f"{topic}-{partition}": end
        for topic, each in offset.items()
        for partition, end in each["partitions"].items()
    }
