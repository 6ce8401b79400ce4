"""`talweg pipeline run` as a process of its own: killed, and run again; interrupted while Spark starts.

In one group with the other drivers (tests/spark/test_drivers.py): no session but their own is needed.
"""

import signal
from collections import Counter
from pathlib import Path

import pytest

from pipeline.command import PIPELINE, started
from pipeline.made import values
from spark.scene import SECONDS_MAX, Scene
from talweg.client.admin import Admin
from talweg.pipeline.archive import archive_table
from talweg.pipeline.counts import counts_table
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark-drivers"), pytest.mark.timeout(900)]


def test_a_driver_that_is_killed_leaves_no_message_twice_and_none_out(
    scene: Scene, spark_environment: dict[str, str]
) -> None:
    sent = scene.fill(1500, batch=50)
    archive = scene.directory / "archive"
    command = [*PIPELINE, "run", "archive", "count", "--topics", scene.topic, "--archive", str(archive)]
    command += ["--master", "local[2]", "--servers", scene.cluster.servers]
    slowly = ["--rows-max", "100", "--keep", "2GB"]
    with started([*command, *slowly], scene.directory / "killed.log", spark_environment) as driver:

        def far_enough() -> bool:
            assert driver.process.poll() is None, driver.says()
            return len(values(archive_table(archive), "offset")) >= 300

        wait_until(far_enough, "some batches to be archived", 2 * SECONDS_MAX, pause_seconds=0.2)
        driver.kill()
    assert len(values(archive_table(archive), "offset")) < len(sent)
    with Admin(scene.cluster.servers) as admin:  # what it had not read is kept for whoever goes on
        held = {each.name: each.keep_bytes for each in admin.consumers(scene.topic)}
    assert held["pipeline.archive"] == 2_000_000_000
    with started(command, scene.directory / "next.log", spark_environment) as driver:
        assert driver.process.wait(2 * SECONDS_MAX) == 0, driver.says()
    table = archive_table(archive)
    assert Counter(values(table, "value")) == Counter(sent)
    assert len(set(zip(values(table, "partition"), values(table, "offset"), strict=True))) == len(sent)
    assert sum(values(counts_table(archive), "messages")) == len(sent)


def test_ctrl_c_while_spark_starts_leaves_no_process(scene: Scene, spark_environment: dict[str, str]) -> None:
    scene.fill(1)
    command = [*PIPELINE, "run", "archive", "--topics", scene.topic, "--servers", scene.cluster.servers]
    with started(command, scene.directory / "driver.log", spark_environment) as driver:
        children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children")

        def java() -> bool:
            assert driver.process.poll() is None, driver.says()
            return any(
                "java" in Path(f"/proc/{pid}/comm").read_text() for pid in children.read_text().split()
            )

        wait_until(java, "Spark to start its JVM", SECONDS_MAX)
        driver.process.send_signal(signal.SIGINT)
        assert driver.process.wait(SECONDS_MAX) == 130
        assert driver.says() == ""
        wait_until(lambda: driver.members() == [], "its JVM to be gone", 60)
