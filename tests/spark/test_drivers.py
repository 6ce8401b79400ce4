"""A driver of its own is killed, and the next one makes good what it left behind; or its executors are.

In a group of its own: it needs no session but those that it starts, and waits for JVMs most of the time.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pipeline.command import started
from spark.copies import Copy
from spark.scene import SECONDS_MAX, Scene
from spark.troubled import STEPS
from spark_session import JAVA_OPTIONS
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark-drivers"), pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]

# A query for each of the given options; what Spark fails for no reason of ours is started again.
DRIVER = """
import json, sys, time
from pyspark.sql import SparkSession
from spark.troubled import TroubledSource
from spark_session import SPARK_SETTINGS
from talweg.pipeline.runner import is_sparks_fault
source, sinks, settings = map(json.loads, sys.argv[1:])
builder = SparkSession.builder
for name, value in (SPARK_SETTINGS | settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.dataSource.register(TroubledSource)
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
LOCAL = {"spark.master": "local[8,4]"}
# Two workers inside the driver, with an executor each, a process of its own: a killed one is replaced.
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}


def test_a_driver_killed_at_any_step_is_made_good_by_the_next(
    scene: Scene, spark_environment: dict[str, str]
) -> None:
    sent, lost = scene.fill(200), scene.fill(10, partitions=1, topic=f"{scene.topic}-lost")
    copies = {step: Copy(scene, step.replace(" ", "-")) for step in STEPS}
    for step, copy in copies.items():
        copy.plan(f"wait 0 {step}")
    source = {"servers": scene.cluster.servers, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    source["subscribe"] = f"{scene.topic},{scene.topic}-lost"
    sinks = [copy.options() for copy in copies.values()]
    environment = spark_environment | {"PYTHONPATH": str(TESTS)}
    with started(_driver(source, sinks, LOCAL), scene.directory / "killed.log", environment) as killed:

        def waiting() -> bool:
            assert killed.process.poll() is None, killed.says()[-4000:]
            return all(copy.reached(f"wait 0 {step}") for step, copy in copies.items())

        wait_until(waiting, "a query to be at each step", 2 * SECONDS_MAX)
        killed.kill()
    for step, copy in copies.items():
        for each in copy.reached(f"wait 0 {step}"):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)  # the process that was staging or committing
        copy.plan()
    # The next has other options: rows are spread over tasks as they were not before, and of what the batch is
    # to read, a topic is named no longer, and is gone.
    source |= {"minPartitions": "3", "subscribe": scene.topic}
    scene.delete(f"{scene.topic}-lost")
    with started(_driver(source, sinks, LOCAL), scene.directory / "next.log", environment) as following:
        assert following.process.wait(2 * SECONDS_MAX) == 0, following.says()[-4000:]
    for step, copy in copies.items():
        decided = STEPS.index(step) >= STEPS.index("decided")
        assert copy.written() == sorted(sent + lost if decided else sent), step
    # What Python says in processes of Spark's is on the driver's standard error: of a reader, and of a task.
    assert f"topic {scene.topic}-lost was deleted" in following.says()
    assert "a task has staged" in following.says()


def test_an_executor_killed_at_any_step_costs_a_delay(
    scene: Scene, spark_environment: dict[str, str]
) -> None:
    sent, copy = scene.fill(600), Copy(scene)
    plans = [f"wait {batch} {step}" for batch, step in enumerate(STEPS)]
    copy.plan(plans[0])
    source = {"servers": scene.cluster.servers, "startingOffsets": "earliest", "subscribe": scene.topic}
    source["maxOffsetsPerTrigger"] = "100"
    environment = spark_environment | {"PYTHONPATH": str(TESTS)}
    command = _driver(source, [copy.options()], CLUSTER)
    with started(command, scene.directory / "driver.log", environment) as driver:
        killed: set[int] = set()
        for plan, following in zip(plans, [*plans[1:], ""], strict=True):

            def waiting(plan: str = plan) -> bool:
                assert driver.process.poll() is None, driver.says()[-4000:]
                return bool(copy.reached(plan))

            wait_until(waiting, f"the query to come to: {plan}", SECONDS_MAX)
            # At the first step its task is about to tell that it has; it is done again. Later it is done.
            executor = _executor_that_staged(copy, copy.reached(plan)[0].transaction)
            assert executor not in killed
            killed.add(executor)
            _kill_with_all_below(executor)
            copy.plan(following)
        assert driver.process.wait(SECONDS_MAX) == 0, driver.says()[-4000:]
    assert copy.written() == sorted(sent)


def _executor_that_staged(copy: Copy, transaction: str) -> int:
    """The JVM above a worker of Python."""
    lines = (copy.trouble / "staged").read_text().splitlines()
    *_, pid = (int(pid) for pid, name in (line.split("|") for line in lines) if name == transaction)
    parents = _parents()
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        pid = parents[pid]
    return pid


def _kill_with_all_below(executor: int) -> None:
    """SIGKILL, as if its machine were gone."""
    parents = _parents()
    below = {executor}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in (executor, *below):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Of all processes of this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _driver(source: dict[str, str], sinks: list[dict[str, str]], settings: dict[str, str]) -> list[str]:
    arguments = [msgspec.json.encode(each).decode() for each in (source, sinks, settings)]
    return [sys.executable, "-c", DRIVER, *arguments]
