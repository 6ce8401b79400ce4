"""Kafka to compare with: three brokers as processes, from Maven's jars, and Spark's connector for it."""

import base64
import importlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.maven import Artifact, Libraries, cache_directory, fetch_first
from bench.processes import ProcessFailed, attempted, free_ports, uninterrupted

BROKER = Libraries(
    (
        Artifact("org.apache.kafka", "kafka_2.13", "4.1.0"),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),  # else it would say nothing about what goes wrong
    ),
    with_dependencies=True,
)
# What Spark's connector needs that Spark does not bring.
_CLIENTS = Artifact("org.apache.kafka", "kafka-clients", "3.9.2")
_POOL = Artifact("org.apache.commons", "commons-pool2", "2.12.1")
# Releases that are known to run together, and with the Sparks that follow them.
_KNOWN = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"), ("4.0.0", "4.0.0"))
_NODES = (1, 2, 3)
_HEAP = "512m"
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.2


class Connector(msgspec.Struct, frozen=True):
    """Spark's connector for Kafka."""

    jars: tuple[Path, ...]
    versions: str


def connectors(spark: str) -> list[Libraries]:
    """Of which version, for a version of Spark: the same, or else those that are known to work."""
    pairs = dict.fromkeys([(spark, spark), *_KNOWN])
    return [
        Libraries(
            (
                Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", connector),
                Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", token_provider),
                _CLIENTS,
                _POOL,
            ),
            with_dependencies=False,
        )
        for connector, token_provider in pairs
    ]


def fetch_connector() -> Connector:
    """Spark's connector for Kafka, for the Spark that is installed; raises NotFetched."""
    libraries, directory = fetch_first(connectors(version("pyspark")), cache_directory())
    of_spark = libraries.artifacts[:2]
    return Connector(tuple(sorted(directory.glob("*.jar"))), ", ".join(map(str, of_spark)))


def properties(number: int, clients: Sequence[int], controllers: Sequence[int], directory: Path) -> str:
    """The settings of a broker that is a controller besides; the ports are by node."""
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(_NODES, controllers, strict=True))
    listening = f"127.0.0.1:{clients[number - 1]}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{listening},CONTROLLER://127.0.0.1:{controllers[number - 1]}",
        "advertised.listeners": f"PLAINTEXT://{listening}",
        "log.dirs": directory,
        "default.replication.factor": len(_NODES),
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": len(_NODES),
        "transaction.state.log.replication.factor": len(_NODES),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "file.delete.delay.ms": 1000,  # what a round wrote is gone before the next one writes
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


class NodeEnded(ProcessFailed):
    """One ended by itself."""


class _Node:
    """One process."""

    def __init__(self, number: int, directory: Path, jars: Path, settings: str) -> None:
        directory.mkdir(parents=True)
        self._number = number
        self._settings = directory / "server.properties"
        self._settings.write_text(settings)
        self._log_path = directory / "log"
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, cluster: str) -> None:
        """Begin to write what a new node must find in its directory; `formatted` waits for it."""
        self._run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._settings))

    def formatted(self) -> None:
        assert self._process is not None
        if self._process.wait(_START_SECONDS):
            raise NodeEnded(self.told("could not be formatted"))

    def start(self) -> None:
        self._run("kafka.Kafka", str(self._settings))

    def _run(self, *arguments: str) -> None:
        java = ["java", f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        with self._log_path.open("ab") as log, uninterrupted():
            self._process = subprocess.Popen(
                [*java, "-cp", str(self._jars / "*"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end it
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin_to_stop(self) -> None:
        # Nothing of it is needed afterwards: there is nothing to be tidy about.
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.wait()

    def told(self, how: str) -> str:
        last_words = self._log_path.read_text(errors="replace")[-2000:]
        return f"Kafka's node {self._number} {how}\n{last_words}"


class KafkaCluster:
    """Three brokers on loopback, controllers too, in a `with` statement that ends them all."""

    def __init__(self, directory: Path, jars: Path) -> None:
        ports = free_ports(2 * len(_NODES))
        clients, controllers = ports[: len(_NODES)], ports[len(_NODES) :]
        self.servers = ",".join(f"127.0.0.1:{port}" for port in clients)
        self._nodes = [
            _Node(
                number,
                directory / str(number),
                jars,
                properties(number, clients, controllers, directory / str(number) / "data"),
            )
            for number in _NODES
        ]
        self._admin: Any = None

    def __enter__(self) -> Self:
        try:
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            for node in self._nodes:
                node.format(cluster)
            for node in self._nodes:
                node.formatted()
            for node in self._nodes:
                node.start()
            # It writes a line for every attempt to connect, and until they listen there are many.
            self._admin = _confluent(".admin").AdminClient(
                {"bootstrap.servers": self.servers, "log_level": 0}
            )
            self._wait_until_they_serve()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pids(self) -> list[int]:
        """The operating system's numbers for them."""
        return [node.pid for node in self._nodes]

    def _stop(self) -> None:
        for node in self._nodes:
            node.begin_to_stop()
        for node in self._nodes:
            node.stop()

    def _wait_until_they_serve(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(_confluent().KafkaException):
                if len(self._admin.list_topics(timeout=1).brokers) == len(_NODES):
                    return
            for node in self._nodes:
                if not node.runs:
                    raise NodeEnded(node.told("has ended"))
            if time.monotonic() > deadline:
                raise ProcessFailed(self._nodes[0].told(f"does not serve after {_START_SECONDS:.0f} s"))
            time.sleep(_LOOK_SECONDS)

    def create_topic(self, topic: str, partitions: int) -> None:
        """One of replication 3."""
        new = _confluent(".admin").NewTopic(topic, num_partitions=partitions, replication_factor=len(_NODES))
        self._admin.create_topics([new], operation_timeout=60)[topic].result(60)

    def delete_topic(self, topic: str) -> None:
        """And its files, soon."""
        self._admin.delete_topics([topic], operation_timeout=60)[topic].result(60)

    def fill(self, topic: str, partitions: int, lists: Iterator[list[bytes]]) -> None:
        """Write lists of messages, to each partition in turn; returns when all are acknowledged."""
        producer = _confluent().Producer(
            {
                "bootstrap.servers": self.servers,
                "acks": "all",
                "compression.type": "lz4",
                "linger.ms": 50,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 512 << 10,
                "log_level": 0,
            }
        )
        for number, lines in enumerate(lists):
            for line in lines:
                while True:
                    try:
                        producer.produce(topic, line, partition=number % partitions)
                        break
                    except BufferError:
                        producer.poll(0.1)
        if left := producer.flush(_START_SECONDS):
            raise ProcessFailed(f"Kafka did not take {left} messages in {_START_SECONDS:.0f} s")

    def messages(self, topic: str) -> int:
        """How many a topic holds."""
        numbers = self._admin.list_topics(topic, timeout=60).topics[topic].partitions
        latest = _confluent(".admin").OffsetSpec.latest()
        asked = {_confluent().TopicPartition(topic, number): latest for number in numbers}
        return sum(each.result(60).offset for each in self._admin.list_offsets(asked).values())


def _confluent(part: str = "") -> Any:
    """The client library, or a part of it: an extra, which may or may not have types."""
    return importlib.import_module(f"confluent_kafka{part}")


@contextmanager
def kafka_cluster(directory: Path) -> Iterator[KafkaCluster]:
    """Brokers whose files are removed afterwards; raises NotFetched, ProcessFailed."""
    _, jars = fetch_first([BROKER], cache_directory())
    try:
        with ExitStack() as stack:
            # With other ports, when somebody snatched one.
            yield attempted(partial(_start, stack, directory, jars), NodeEnded)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start(stack: ExitStack, directory: Path, jars: Path) -> KafkaCluster:
    return stack.enter_context(KafkaCluster(directory / uuid.uuid4().hex, jars))
