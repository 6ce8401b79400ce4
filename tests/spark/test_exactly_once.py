"""Each message is in the sink exactly once, whatever is killed at whichever step, however rows are spread.

An executor is killed in tests/pipeline/test_standalone.py: it takes a cluster of Spark's own.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from spark.scene import SECONDS_MAX, Scene, end_of
from spark.troubled import STEPS, TroubledSource
from talweg.client.partition_log import Stretch
from talweg.pipeline.runner import is_sparks_fault
from talweg.protocol.transactions import TRANSACTIONS, decision_partition
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]


class Reached(msgspec.Struct, frozen=True):
    """Somebody came to where trouble was planned."""

    plan: str
    pid: int
    transaction: str


class Copy:
    """A query from the scene's topic to another one, through a sink with trouble."""

    def __init__(self, scene: Scene, name: str = "sink") -> None:
        scene.spark.dataSource.register(TroubledSource)
        self.scene = scene
        self.sink = f"{scene.topic}-{name}"
        scene.create(partitions=3, topic=self.sink)
        self.trouble = scene.directory / f"trouble-{name}"
        self.trouble.mkdir()
        self.checkpoint = scene.directory / f"checkpoint-{name}"

    def start(self, **options: Any) -> StreamingQuery:
        frame = self.scene.stream("key binary, value binary", **options)
        writer = frame.writeStream.format("talweg-troubled").options(**self.options())
        return writer.trigger(availableNow=True).start()

    def options(self) -> dict[str, str]:
        return {
            "servers": self.scene.cluster.servers,
            "topic": self.sink,
            "trouble": str(self.trouble),
            "checkpointLocation": str(self.checkpoint),
        }

    def plan(self, what: str = "") -> None:
        draft = self.trouble / "draft"
        draft.write_text(what)
        draft.replace(self.trouble / "plan")

    def reached(self, plan: str) -> list[Reached]:
        """Who came there; a line that is being written is not read yet."""
        with suppress(FileNotFoundError):
            lines = (self.trouble / "reached").read_text().split("\n")[:-1]
            found = [Reached(plan, int(pid), name) for plan, pid, name in (line.split("|") for line in lines)]
            return [each for each in found if each.plan == plan]
        return []

    def wait_until_reached(self, plan: str, query: StreamingQuery | None = None) -> Reached:
        def there() -> bool:
            if query is not None and (error := query.exception()) is not None:
                raise error
            return bool(self.reached(plan))

        wait_until(there, f"the query to come to: {plan}", SECONDS_MAX)
        return self.reached(plan)[0]

    def written(self) -> list[bytes]:
        """What the sink has, by its log: plain reading, without Spark."""
        found: list[bytes] = []
        for partition, ends in self.scene.logs.ends(self.sink, range(3)).items():
            stretch = Stretch(self.sink, partition, ends.start_offset, ends.next_offset)
            for batch in self.scene.logs.batches(stretch, ["value"], _no_loss):
                found += batch.column("value").to_pylist()
        return sorted(found)


def _no_loss(lost: object, why: str) -> None:
    raise AssertionError(f"{lost}: {why}")


@pytest.fixture
def copy(scene: Scene) -> Iterator[Copy]:
    made = Copy(scene)
    yield made
    made.plan()  # whoever waits goes on


def test_a_stream_is_written_once(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(1000)
    end_of(lambda: copy.start(maxOffsetsPerTrigger=400))
    end_of(copy.start)
    assert copy.written() == sorted(sent)


def test_a_task_that_died_when_it_had_staged_is_done_again(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(300)
    copy.plan("die 0 staged")
    end_of(copy.start)
    assert len(copy.reached("die 0 staged")) == 1
    assert copy.written() == sorted(sent)


def fails(copy: Copy, plan: str, **options: Any) -> None:
    """Run the query until whoever commits dies as planned. Spark may fail it for reasons of its own, too."""
    copy.plan(plan)
    while not copy.reached(plan):
        with pytest.raises(PySparkException) as caught:
            copy.start(**options).awaitTermination(SECONDS_MAX)
        assert copy.reached(plan) or is_sparks_fault(caught.value), caught.value


def test_whoever_dies_at_a_step_is_made_good_by_a_replay(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(1000)
    for batch, step in enumerate(STEPS[1:]):
        # The batch before, done again: its rows are spread over tasks and, having no key, over partitions, as
        # they were not before. Then the next one, which dies in its turn.
        fails(copy, f"die {batch} {step}", maxOffsetsPerTrigger=100, minPartitions=2 + batch)
    end_of(lambda: copy.start(minPartitions=9))
    assert copy.written() == sorted(sent)


def test_a_leader_killed_at_a_step_costs_a_delay(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(600)
    plans = [f"wait {batch} {step}" for batch, step in enumerate(STEPS)]
    copy.plan(plans[0])
    query = copy.start(maxOffsetsPerTrigger=100)
    for plan, following in zip(plans, [*plans[1:], ""], strict=True):
        reached = copy.wait_until_reached(plan, query)
        scene.cluster.heal(SECONDS_MAX)  # the one that was killed before
        if "decide" in plan:
            partitions = len(scene.logs.topic(TRANSACTIONS).partitions)
            scene.cluster.kill_leader(TRANSACTIONS, decision_partition(reached.transaction, partitions))
        else:
            scene.cluster.kill_leader(copy.sink, 0)
        copy.plan(following)
    assert query.awaitTermination(SECONDS_MAX)
    assert copy.written() == sorted(sent)


# A driver of its own, with a query for each of the given options; what Spark fails for no reason of ours is
# started again.
DRIVER = """
import json, sys, time
from pyspark.sql import SparkSession
from spark.troubled import TroubledSource
from spark_session import SPARK_SETTINGS
from talweg.pipeline.runner import is_sparks_fault
builder = SparkSession.builder.master("local[8,4]")
for name, value in SPARK_SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(TroubledSource)
source, sinks = map(json.loads, sys.argv[1:])
def start(options):
    frame = spark.readStream.format("talweg").schema("key binary, value binary").options(**source).load()
    return frame.writeStream.format("talweg-troubled").options(**options).trigger(availableNow=True).start()
queries = [start(options) for options in sinks]
while any(query.isActive or query.exception() is not None for query in queries):
    for number, query in enumerate(queries):
        if (error := query.exception()) is not None:
            if not is_sparks_fault(error):
                raise error
            queries[number] = start(sinks[number])
    time.sleep(0.1)
"""


@contextmanager
def driver(
    source: dict[str, str], sinks: list[dict[str, str]], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """In a group of its own with its JVM, killed at the end."""
    arguments = [msgspec.json.encode(each).decode() for each in (source, sinks)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            start_new_session=True,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_driver_killed_between_write_and_commit_is_made_good_by_the_next(scene: Scene) -> None:
    sent = scene.fill(200)
    copies = {step: Copy(scene, step.replace(" ", "-")) for step in ("decide", "some published")}
    for step, copy in copies.items():
        copy.plan(f"wait 0 {step}")
    source = {"servers": scene.cluster.servers, "subscribe": scene.topic, "startingOffsets": "earliest"}
    log = scene.directory / "driver.log"
    with driver(source, [copy.options() for copy in copies.values()], log) as killed:

        def waiting() -> bool:
            assert killed.poll() is None, log.read_text()[-4000:]
            return all(copy.reached(f"wait 0 {step}") for step, copy in copies.items())

        wait_until(waiting, "a query to be at each step", 2 * SECONDS_MAX)
    for step, copy in copies.items():
        for each in copy.reached(f"wait 0 {step}"):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)  # the process that was staging or committing
        copy.plan()
    queries = [(copy, copy.start(minPartitions=3)) for copy in copies.values()]
    for copy, query in queries:
        try:
            assert query.awaitTermination(SECONDS_MAX)
        except PySparkException as error:
            assert is_sparks_fault(error), error
            end_of(copy.start)
        assert copy.written() == sorted(sent), copy.sink
