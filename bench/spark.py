"""Topics as DataFrames: reading against Parquet, streaming against batch, topic to topic, and all of it
against Kafka."""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench import machine, usage
from bench.kafka import Connector, KafkaCluster, fetch_connector, kafka_cluster
from bench.maven import NotFetched
from bench.processes import ProcessFailed
from bench.results import Bound, Missing, Row, Scene, Yielded
from bench.talweg_cluster import create_topic, ends, leaders
from talweg import Producer
from talweg.testing.cluster import LocalCluster

ABOUT = """\
Three brokers and a primary; a topic of 4 partitions, replication 3, filled with log lines of 100 bytes,
lz4; Spark in this process, `local[2]`. All of it shares the machine's cores. The same rows are in
uncompressed Parquet files, written from the topic. A count is that of every column, so that whole rows are
read. Besides it there is a count of the values that are not empty: for it Spark reads nothing but the values
of Parquet; of Talweg, as of every source in Python, it takes all columns unless `schema` names fewer. All
columns go into Spark's `noop` sink, too. A stream reads everything that is there (`availableNow`) in one
micro-batch, and its time is that of its triggers, without the start of the query. From topic to topic:
exactly once, staged, decided on and published, acknowledged on disk on two brokers. Batches of rows that go
to Python are bounded by their number (65,536) and not by their bytes, and Java has the options that
docs/spark.md names under "Settings of Spark that matter".

Kafka, the same jobs in the same session, once Talweg's brokers have ended (Kafka's own take up to a third of
a core while they have nothing to do, which would be missing from the others' figures): three brokers, each a
controller too, with a heap of 512 MB and otherwise as Kafka comes; as many messages, partitions and replicas,
lz4, `acks=all`, at least two replicas in sync; its clients with large batches (`max.poll.records` of 10,000,
`batch.size` of 1 MB, `linger.ms` of 20), since with those that they come with it was one and a half to four
times slower in a trial of a million messages. It promises less: what it has acknowledged is in the memory of
two or three brokers, not on disk, and Spark's connector writes at least once.

Each figure is the median of the rounds, in which all jobs take turns, each when the brokers have come to rest
after the one before, and what it wrote is on disk; a ratio of Talweg to Parquet, or to itself, is the median
of the rounds' ratios. Two rounds before them warm up. Less would flatter: Java compiles the reading of
Parquet late, and until then it takes two or three times as long."""

_TOPIC = "spark-source"
_SINK = "spark-sink"
_PARTITIONS = 4
_LINES = 10_000
_QUIET_CORES = 0.25  # that all brokers use together when they have nothing to do, at most
_QUIET_SECONDS_MAX = 15.0
_LOOK_SECONDS = 0.5
_JAVA_MAJOR_MIN = 17  # of Spark 4
_JAVA_OPTIONS = (
    "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")  # Kafka's connector has one more


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    messages: int
    warm_rounds: int
    rounds: int


FULL = Sizes(10_000_000, warm_rounds=2, rounds=5)
QUICK = Sizes(1_000_000, warm_rounds=1, rounds=1)


class Side(msgspec.Struct, frozen=True):
    """One that has topics, and how Spark comes to them."""

    name: str  # of its format, too
    reading: dict[str, str]  # Spark's options
    writing: dict[str, str]
    pids: list[int]
    create_topic: Callable[[str], None]
    delete_topic: Callable[[str], None]
    fill: Callable[[str, Iterator[list[bytes]]], None]
    messages: Callable[[str], int]  # that a topic holds


Job = tuple[str, Callable[[], float]]
"""What is measured, by name, and how: it says how many seconds it took."""


def _missing() -> Missing | None:
    """What Spark itself needs and does not find here."""
    if importlib.util.find_spec("pyspark") is None:
        return Missing("Spark", "pyspark is not installed")
    major = machine.java_major()
    if major is None or major < _JAVA_MAJOR_MIN:
        there = "there is none" if major is None else f"this is {major}"
        return Missing("Spark", f"it runs on Java {_JAVA_MAJOR_MIN} or newer, and {there}")
    return None


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Talweg and Parquet, then Kafka, each alone on the machine with Spark; then the figures."""
    if missing := _missing():
        yield missing
        return
    scene.tell("spark: looking for Kafka's connector")
    connector = find_connector()
    with ExitStack() as stack:
        known = connector if isinstance(connector, Connector) else None
        session = _session(scene.directory / "spark", known)
        stack.callback(session.stop)
        with LocalCluster(scene.directory / "talweg", readers=0) as cluster:
            talweg = _Jobs(session, _talweg(cluster), scene, sizes)
            measured = talweg.measure(talweg.and_parquet())
        yield from rows(measured, sizes)
        if isinstance(connector, Missing):
            yield connector
            return
        try:
            with kafka_cluster(scene.directory / "kafka") as brokers:
                kafka = _Jobs(session, _kafka_side(brokers), scene, sizes)
                measured |= kafka.measure(kafka.all())
        except Exception as error:  # noqa: BLE001 - nothing rests on Kafka: what goes wrong there is said
            yield Missing("Kafka", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        else:
            yield from kafka_rows(measured, sizes, connector)


# The sides


def _talweg(cluster: LocalCluster) -> Side:
    def fill(topic: str, lists: Iterable[list[bytes]]) -> None:
        with Producer(cluster.servers) as producer:
            for lines in lists:
                producer.send_many(topic, lines)

    def delete(topic: str) -> None:
        with cluster.ask(seconds_max=60.0) as manager:
            manager.delete(f"/topics/{topic}")

    return Side(
        "talweg",
        reading={"servers": cluster.servers},
        writing={"servers": cluster.servers},
        pids=[process.pid for process in cluster.processes.values() if process.pid],
        create_topic=lambda topic: create_topic(cluster, topic, _PARTITIONS),
        delete_topic=delete,
        fill=fill,
        messages=lambda topic: sum(ends(leaders(cluster, topic), topic)),
    )


def find_connector() -> Connector | Missing:
    """Spark's connector for Kafka, or why it is not there."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return Missing("Kafka", "confluent-kafka is not installed; make bench does")
    try:
        return fetch_connector()
    except NotFetched as error:
        return Missing("Kafka", " ".join(str(error).split()))


def _kafka_side(cluster: KafkaCluster) -> Side:
    servers = {"kafka.bootstrap.servers": cluster.servers}
    return Side(
        "kafka",
        # Without these its clients take half of the time, or two thirds, for many small requests.
        reading=servers | {"kafka.max.poll.records": "10000"},
        writing=servers
        | {"kafka.compression.type": "lz4", "kafka.batch.size": "1000000", "kafka.linger.ms": "20"},
        pids=cluster.pids,
        create_topic=lambda topic: cluster.create_topic(topic, _PARTITIONS),
        delete_topic=cluster.delete_topic,
        fill=lambda topic, lists: cluster.fill(topic, _PARTITIONS, lists),
        messages=cluster.messages,
    )


def lists_of_lines(messages: int) -> Iterator[list[bytes]]:
    """So many lines, in lists of which each is a few batches."""
    lines = [
        (
            b"2026-11-16 06:%02d:00 INFO worker-%05d handled request %06d in 12 ms path=/api/v1/items/%06d"
            % (number % 60, number % 997, number, number * 7 % 100_003)
        ).ljust(100, b".")
        for number in range(_LINES)
    ]
    yield from islice(repeat(lines), messages // _LINES)
    if rest := messages % _LINES:
        yield lines[:rest]


def _session(directory: Path, connector: Connector | None) -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and slow to import

    from talweg.pipeline.session import standard_error_into  # noqa: PLC0415 - likewise

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(directory))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        # No bound by bytes: Spark would add up the batch anew with every row that goes to Python.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.jars", ",".join(map(str, connector.jars if connector else ())))
    )
    with standard_error_into(directory / "spark.log"):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


# What is measured


class _Jobs:
    """The jobs of one side, and the seconds that each took."""

    def __init__(self, session: Any, side: Side, scene: Scene, sizes: Sizes) -> None:
        self._session = session
        self._side = side
        self._scene = scene
        self._sizes = sizes
        self._number = 0  # of streams so far

    def measure(self, jobs: Iterable[Job]) -> dict[str, list[float]]:
        """Fill the topic; then every job in turn, round after round, after those that warm up."""
        self._scene.tell(f"spark: {self._sizes.messages:,} messages into {self._side.name}")
        self._side.create_topic(_TOPIC)
        self._side.fill(_TOPIC, lists_of_lines(self._sizes.messages))
        measured: dict[str, list[float]] = {}
        in_turn = list(jobs)
        for number in range(1 - self._sizes.warm_rounds, self._sizes.rounds + 1):
            for name, job in in_turn:
                self._scene.tell(f"spark, round {number} of {self._sizes.rounds}: {name}")
                self._wait_until_quiet()
                seconds = job()
                if number > 0:
                    measured.setdefault(name, []).append(seconds)
        return measured

    def _wait_until_quiet(self) -> None:
        """What one job leaves to do, such as deleting files, is not to be in another's time; nor what it has
        written and not synced, which the kernel would write later."""
        os.sync()
        pids = self._side.pids
        deadline = time.monotonic() + _QUIET_SECONDS_MAX
        while time.monotonic() < deadline:
            before = sum(map(usage.cpu_seconds, pids))
            time.sleep(_LOOK_SECONDS)
            if sum(map(usage.cpu_seconds, pids)) - before < _QUIET_CORES * _LOOK_SECONDS:
                return

    def and_parquet(self) -> Iterator[Job]:
        """Those of every side, and others that compare it with Parquet, which is written for them first."""
        path = str(self._scene.directory / "parquet")
        whole, values = self._read(), self._read("value binary")
        whole.write.option("compression", "uncompressed").parquet(path)
        parquet = self._session.read.parquet(path)
        # What is compared stands side by side: the machine is not as quick at all times.
        yield "parquet count", partial(_timed, _count, parquet)
        yield from self.all()
        yield "talweg all", partial(_timed, _into_nothing, whole)
        yield "talweg values", partial(_timed, _count_values, whole)
        yield "talweg values alone", partial(_timed, _count_values, values)
        yield "parquet values", partial(_timed, _count_values, parquet)

    def all(self) -> Iterator[Job]:
        """Those of every side."""
        yield f"{self._side.name} count", lambda: _timed(_count, self._read())
        yield f"{self._side.name} copy", self._copy
        yield f"{self._side.name} stream", self._stream

    def _read(self, schema: str | None = None) -> Any:
        reader = self._session.read.format(self._side.name).options(**self._side.reading, subscribe=_TOPIC)
        return (reader if schema is None else reader.schema(schema)).load()

    def _stream(self) -> float:
        return self._run(self._stream_of_all().writeStream.format("noop"), self._sizes.messages)

    def _copy(self) -> float:
        # A topic of its own for each round: what is read stays the same.
        side, sink, messages = self._side, f"{_SINK}-{self._number}", self._sizes.messages
        side.create_topic(sink)
        writer = self._stream_of_all().select("key", "value").writeStream.format(side.name)
        seconds = self._run(writer.options(**side.writing, topic=sink), messages)
        if (copied := side.messages(sink)) != messages:
            raise ProcessFailed(f"{side.name}: {copied:,} messages came of {messages:,}")
        side.delete_topic(sink)
        return seconds

    def _stream_of_all(self) -> Any:
        options = self._side.reading | {"subscribe": _TOPIC, "startingOffsets": "earliest"}
        return self._session.readStream.format(self._side.name).options(**options).load()

    def _run(self, writer: Any, messages: int) -> float:
        """The seconds of its triggers."""
        self._number += 1
        checkpoint = self._scene.directory / f"checkpoint-{self._side.name}-{self._number}"
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each.numInputRows]
        assert sum(each.numInputRows for each in progress) == messages
        return float(sum(each.durationMs["triggerExecution"] for each in progress)) / 1000


def _timed(job: Callable[[Any], object], frame: Any) -> float:
    begin = time.perf_counter()
    job(frame)
    return time.perf_counter() - begin


def _count(frame: Any) -> None:
    frame.selectExpr(*(f"count({name})" for name in _COLUMNS)).collect()


def _count_values(frame: Any) -> None:
    frame.where("length(value) > 0").count()


def _into_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


# What comes of it


def rows(measured: dict[str, list[float]], sizes: Sizes) -> Iterator[Row]:
    """The figures of Talweg and of Parquet."""
    for name, title in (
        ("talweg count", "Spark batch read into a count: Talweg"),
        ("parquet count", "Spark batch read into a count: Parquet"),
        ("talweg values", "Spark count of values: Talweg, all columns"),
        ("talweg values alone", "Spark count of values: Talweg, values alone"),
        ("parquet values", "Spark count of values: Parquet, values alone"),
        ("talweg all", "Spark batch read, all columns, into nothing"),
        ("talweg stream", "Spark stream, all columns, into nothing"),
        ("talweg copy", "Spark stream, topic to topic, exactly once"),
    ):
        yield _speed(title, measured[name], sizes)
    for title, over, under, least in (
        ("Spark batch read into a count: Talweg against Parquet", "talweg count", "parquet count", 0.5),
        ("Spark count of values: Talweg against Parquet", "talweg values", "parquet values", None),
        (
            "Spark count of values alone: Talweg against Parquet",
            "talweg values alone",
            "parquet values",
            None,
        ),
        ("Spark stream against batch read", "talweg stream", "talweg all", 0.7),
        ("Spark topic to topic against batch read", "talweg copy", "talweg all", 0.25),
    ):
        bound = None if least is None else Bound(at_least=least)
        yield Row(title, _ratio_of_rounds(measured[over], measured[under]), "times", bound)


def kafka_rows(measured: dict[str, list[float]], sizes: Sizes, connector: Connector) -> Iterator[Row]:
    """Those of Kafka. Nothing is required of them."""
    for name, title, more in (
        ("count", "batch read into a count", connector.versions),
        ("stream", "stream, all columns, into nothing", ""),
        ("copy", "stream, topic to topic", "at least once"),
    ):
        yield _speed(f"Spark {title}: Kafka", measured[f"kafka {name}"], sizes, more)
        yield Row(
            f"Spark {title}: Talweg against Kafka",
            _ratio(measured[f"talweg {name}"], measured[f"kafka {name}"]),
            "times",
            note="exactly once against at least once" if name == "copy" else "",
        )


def _speed(title: str, seconds: list[float], sizes: Sizes, more: str = "") -> Row:
    note = f"seconds: {', '.join(f'{each:.1f}' for each in seconds)}" + (f"; {more}" if more else "")
    return Row(title, sizes.messages / median(seconds) / 1e6, "million/s", note=note)


def _ratio_of_rounds(over: list[float], under: list[float]) -> float:
    """How many times as quick as another that was measured in the same rounds."""
    return median(theirs / ours for ours, theirs in zip(over, under, strict=True))


def _ratio(over: list[float], under: list[float]) -> float:
    """How many times as quick as another that was measured at another time."""
    return median(under) / median(over)
