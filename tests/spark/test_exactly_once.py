"""Each message is in the sink exactly once, whatever is killed at whichever step, however rows are spread."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from spark.scene import Scene
from spark.troubled import STEPS, TroubledSource
from talweg.client.partition_log import Stretch
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("spark")

TESTS = Path(__file__).resolve().parents[1]


class Copy:
    """A query from the scene's topic to another one, through a sink with trouble."""

    def __init__(self, scene: Scene) -> None:
        scene.spark.dataSource.register(TroubledSource)
        self.scene = scene
        self.sink = f"{scene.topic}-sink"
        self.trouble = scene.directory / "trouble"
        self.trouble.mkdir()
        self.plan = self.trouble / "plan"
        self.reached = self.trouble / "reached"

    def start(self, **options: Any) -> StreamingQuery:
        frame = self.scene.stream("key binary, value binary", **options)
        writer = frame.writeStream.format("talweg-troubled").options(**self.options())
        return writer.trigger(availableNow=True).start()

    def options(self) -> dict[str, str]:
        return {
            "servers": self.scene.cluster.servers,
            "topic": self.sink,
            "trouble": str(self.trouble),
            "checkpointLocation": str(self.scene.directory / "checkpoint"),
        }

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
    scene.create(partitions=3, topic=made.sink)
    yield made
    made.plan.unlink(missing_ok=True)


def test_a_stream_is_written_once(scene: Scene, copy: Copy) -> None:
    sent = scene.fill(1000)
    for query in (copy.start(maxOffsetsPerTrigger=400), copy.start()):
        query.awaitTermination(60)
    assert copy.written() == sorted(sent)


@pytest.mark.parametrize("step", STEPS)
def test_whoever_dies_at_a_step_is_made_good_by_a_replay(scene: Scene, copy: Copy, step: str) -> None:
    sent = scene.fill(1000)
    copy.plan.write_text(f"die {step}")
    with pytest.raises(PySparkException):
        copy.start().awaitTermination(60)
    assert copy.reached.exists()
    # Rows are spread over tasks, and, having no key, over partitions, as they were not before.
    sent += scene.more(1000, 200)
    copy.start(minPartitions=5).awaitTermination(60)
    assert copy.written() == sorted(sent)


@pytest.mark.parametrize("step", STEPS)
def test_a_leader_killed_at_a_step_costs_a_delay(scene: Scene, copy: Copy, step: str) -> None:
    sent = scene.fill(600)
    copy.plan.write_text(f"wait {step}")
    query = copy.start()
    wait_until(copy.reached.exists, f"the query to come to {step}", 60)
    scene.cluster.kill_leader("__transactions" if step in ("decide", "decided") else copy.sink, 0)
    copy.plan.unlink()
    query.awaitTermination(120)
    assert not query.isActive
    assert copy.written() == sorted(sent)


DRIVER = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from spark.troubled import TroubledSource
servers, topic, sink, trouble, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
)
spark.dataSource.register(TroubledSource)
frame = (
    spark.readStream.format("talweg").option("servers", servers).option("subscribe", topic)
    .option("startingOffsets", "earliest").schema("key binary, value binary").load()
)
options = {"servers": servers, "topic": sink, "trouble": trouble, "checkpointLocation": checkpoint}
query = frame.writeStream.format("talweg-troubled").options(**options).trigger(availableNow=True).start()
query.awaitTermination()
"""


@pytest.mark.parametrize("step", ["decide", "some published"])
def test_a_driver_killed_between_write_and_commit_is_made_good_by_the_next(
    scene: Scene, copy: Copy, step: str
) -> None:
    sent = scene.fill(1000)
    copy.plan.write_text(f"wait {step}")
    options = copy.options()
    arguments = [
        options["servers"],
        scene.topic,
        copy.sink,
        options["trouble"],
        options["checkpointLocation"],
    ]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(copy.reached.exists, f"the driver to come to {step}", 120)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # the script and its JVM
        driver.wait()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(copy.reached.read_text()), signal.SIGKILL)  # and the process that was committing
    copy.plan.unlink()
    copy.start().awaitTermination(60)
    assert copy.written() == sorted(sent)
