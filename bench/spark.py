"""Topics as DataFrames: reading against Parquet, streaming against batch, and from topic to topic."""

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.results import Bound, Missing, Row, Scene, Yielded
from bench.talweg_cluster import create_topic
from talweg import Producer
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Three brokers and a primary; a topic of 4 partitions, replication 3, filled with log lines of 100 bytes;
Spark in this process, `local[2]`. All of it shares the machine's cores. The same rows are in uncompressed
Parquet files, written from the topic. Both are read into the same count, of values that are not empty, so
that the values are read; and, with all columns, into Spark's `noop` sink. A stream reads everything that is
there (`availableNow`) in one micro-batch, and its time is that of its triggers, without the start of the
query. From topic to topic: exactly once, staged, decided on and published, acknowledged on disk on two
brokers. Each figure is the median of the rounds, which take turns."""

_TOPIC = "spark-source"
_SINK = "spark-sink"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    messages: int
    rounds: int


FULL = Sizes(10_000_000, rounds=3)
QUICK = Sizes(1_000_000, rounds=1)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Fill a topic, then read and write in turn; then the figures."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        yield Missing("Spark", "pyspark or Java is not installed")
        return
    with LocalCluster(scene.directory / "talweg", readers=0) as cluster:
        create_topic(cluster, _TOPIC, 4)
        scene.tell(f"spark: {sizes.messages:,} messages")
        _fill(cluster.servers, sizes.messages)
        session = _session(scene.directory / "spark")
        try:
            measured = _Jobs(session, cluster, scene, sizes).measure()
        finally:
            session.stop()
    yield from _rows(measured, sizes)


def _fill(servers: str, messages: int) -> None:
    lines = [
        b"2026-11-16 06:%02d:00 INFO worker-%05d handled request %06d in 12 ms path=/api/v1/items/%06d"
        % (number % 60, number % 997, number, number * 7 % 100_003)
        for number in range(10_000)
    ]
    lines = [line.ljust(100, b".") for line in lines]
    with Producer(servers) as producer:
        for begin in range(0, messages, len(lines)):
            producer.send_many(_TOPIC, lines[: messages - begin])


def _session(directory: Path) -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and slow to import

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(directory))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


class _Jobs:
    """Each job, and the seconds that it took."""

    def __init__(self, session: Any, cluster: LocalCluster, scene: Scene, sizes: Sizes) -> None:
        self._session = session
        self._cluster = cluster
        self._scene = scene
        self._sizes = sizes
        self._parquet = str(scene.directory / "parquet")
        self._number = 0

    def measure(self) -> dict[str, list[float]]:
        """Every job in turn, round after round, after a round that warms up."""
        self._read().write.option("compression", "uncompressed").parquet(self._parquet)
        parquet = self._session.read.parquet(self._parquet)
        jobs: dict[str, Callable[[], float]] = {
            "talweg count": lambda: self._timed(lambda: _count(self._read("value binary"))),
            "parquet count": lambda: self._timed(lambda: _count(parquet)),
            "talweg all": lambda: self._timed(lambda: _into_nothing(self._read())),
            "parquet all": lambda: self._timed(lambda: _into_nothing(parquet)),
            "stream": lambda: self._stream("noop"),
            "copy": lambda: self._stream("talweg"),
        }
        measured: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(self._sizes.rounds + 1):
            for name, job in jobs.items():
                self._scene.tell(f"spark, round {number} of {self._sizes.rounds}: {name}")
                seconds = job()
                if number:
                    measured[name].append(seconds)
        return measured

    def _timed(self, job: Callable[[], object]) -> float:
        begin = time.perf_counter()
        job()
        return time.perf_counter() - begin

    def _read(self, schema: str | None = None) -> Any:
        reader = self._session.read.format("talweg").options(servers=self._cluster.servers, subscribe=_TOPIC)
        return (reader if schema is None else reader.schema(schema)).load()

    def _stream(self, sink: str) -> float:
        """The seconds of its triggers."""
        self._number += 1
        options = {"servers": self._cluster.servers, "subscribe": _TOPIC, "startingOffsets": "earliest"}
        frame = self._session.readStream.format("talweg").options(**options).load()
        writer = frame.writeStream.format(sink)
        if sink == "talweg":
            # A topic of its own for each round: what is read stays the same.
            topic = f"{_SINK}-{self._number}"
            create_topic(self._cluster, topic, 4)
            writer = frame.select("key", "value").writeStream.format(sink)
            writer = writer.options(servers=self._cluster.servers, topic=topic)
        checkpoint = self._scene.directory / f"checkpoint-{self._number}"
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each.numInputRows]
        assert sum(each.numInputRows for each in progress) == self._sizes.messages
        return float(sum(each.durationMs["triggerExecution"] for each in progress)) / 1000


def _count(frame: Any) -> None:
    frame.where("length(value) > 0").count()


def _into_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _rows(measured: dict[str, list[float]], sizes: Sizes) -> Iterator[Yielded]:
    seconds = {name: median(some) for name, some in measured.items()}
    titles = {
        "talweg count": "Spark batch read into a count: Talweg",
        "parquet count": "Spark batch read into a count: Parquet",
        "talweg all": "Spark batch read, all columns: Talweg",
        "parquet all": "Spark batch read, all columns: Parquet",
        "stream": "Spark stream, all columns, into nothing",
        "copy": "Spark stream, topic to topic, exactly once",
    }
    for name, title in titles.items():
        spread = ", ".join(f"{each:.1f}" for each in measured[name])
        yield Row(title, sizes.messages / seconds[name] / 1e6, "million/s", note=f"seconds: {spread}")
    for title, over, under, least in (
        ("Spark batch read into a count: Talweg against Parquet", "talweg count", "parquet count", 0.5),
        ("Spark batch read, all columns: Talweg against Parquet", "talweg all", "parquet all", None),
        ("Spark stream against batch read", "stream", "talweg all", 0.7),
        ("Spark topic to topic against batch read", "copy", "talweg all", 0.25),
    ):
        bound = None if least is None else Bound(at_least=least)
        yield Row(title, seconds[under] / seconds[over], "times", bound)
