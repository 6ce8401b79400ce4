"""The same pipelines on a Spark cluster of a master and two workers, one of which is killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from pipeline.test_on_a_cluster import COMMAND
from spark.scene import Scene
from talweg.pipeline import read_archive, read_counts
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("spark")
SPARK = Path(pyspark.__file__).parent
CLASSES = "org.apache.spark.deploy"


@contextmanager
def process(
    arguments: list[str], directory: Path, name: str
) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """In a group of its own, which is gone at the end; and the file with what it says."""
    log = directory / f"{name}.log"
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    with log.open("wb") as output:
        started = subprocess.Popen(
            arguments, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        yield started, log
    finally:
        kill(started)


def kill(started: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def said(log: Path, pattern: str, seconds_max: float = 60) -> str:
    found: list[str] = []

    def there() -> bool:
        found[:] = re.findall(pattern, log.read_text(errors="replace"))
        return bool(found)

    wait_until(there, f"{log.name} to say {pattern}", seconds_max)
    return found[0]


def test_a_worker_that_is_killed_costs_no_message(scene: Scene) -> None:
    sent = scene.fill(2000, batch=50)
    archive = scene.directory / "archive"
    spark_class = str(SPARK / "bin" / "spark-class")
    with ExitStack() as stack:
        # Port 0: any. Its own page would want a port as well.
        arguments = [
            spark_class,
            f"{CLASSES}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        ]
        _, log = stack.enter_context(process(arguments, scene.directory, "master"))
        master = said(log, r"spark://127\.0\.0\.1:\d+")
        workers = []
        for number in (1, 2):
            arguments = [spark_class, f"{CLASSES}.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
            arguments += [
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(scene.directory / f"work-{number}"),
                master,
            ]
            worker, log = stack.enter_context(process(arguments, scene.directory, f"worker-{number}"))
            said(log, "Successfully registered with master")
            workers.append((worker, log))
        run = [*COMMAND, "run", "archive", "count", "--topics", scene.topic, "--archive", str(archive)]
        run += ["--master", master, "--servers", scene.cluster.servers, "--rows-max", "200", "--json"]
        driver, log = stack.enter_context(process(run, scene.directory, "driver"))
        said(log, r'"batch":[1-9]', 150)
        said(workers[0][1], "Launching [Ee]xecutor|Asked to launch executor")
        kill(workers[0][0])
        wait_until(lambda: driver.poll() is not None, "the run to end", 200)
        assert driver.returncode == 0, log.read_text()
    last = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert {each["pipeline"] for each in last if each["state"] == "done"} == {"archive", "count"}
    found = read_archive(scene.spark, archive).collect()
    assert sorted(bytes(row.value) for row in found) == sorted(sent)
    counted = read_counts(scene.spark, archive).groupBy().sum("messages").collect()
    assert counted[0][0] == len(sent)
