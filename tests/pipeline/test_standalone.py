"""The same pipelines on a Spark cluster of a master and two workers, one of which is killed on the way.

In a group of its own: it needs neither the session of the other tests nor their cluster.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from pipeline.command import PIPELINE, Started, started
from pipeline.made import values
from spark_session import CLUSTER_SETTINGS, JAVA_OPTIONS
from talweg.client.consumer import Consumer
from talweg.client.producer import Producer
from talweg.pipeline.archive import archive_table
from talweg.pipeline.counts import counts_table
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark-standalone"), pytest.mark.timeout(1200)]

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
CLASSES = "org.apache.spark.deploy"
DAEMONS = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS, "SPARK_NO_DAEMONIZE": "1"}
SECONDS_MAX = 400
COPYING = Path(__file__).with_name("copying.py")
# For drivers: executors start quickly, and the writer gets rows in small portions, not all at the end.
DEFAULTS = f"""\
spark.executor.extraJavaOptions {JAVA_OPTIONS}
spark.executor.memory 512m
spark.sql.execution.arrow.maxRecordsPerBatch 100
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(readers=0, settings=CLUSTER_SETTINGS) as cluster:
        yield cluster


class Standalone:
    """A master and two workers, a core each."""

    def __init__(self, stack: ExitStack, directory: Path, environment: dict[str, str]) -> None:
        # Port 0: any. Their own pages would want ports as well.
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        arguments = [SPARK_CLASS, f"{CLASSES}.master.Master", *common]
        master = stack.enter_context(started(arguments, directory / "master.log", DAEMONS))
        master.wait_until_it_says("Starting Spark master at spark://", SECONDS_MAX)
        self.url = master.says().split("Starting Spark master at ")[1].split()[0]
        self.workers: list[Started] = []
        for number in (1, 2):
            arguments = [SPARK_CLASS, f"{CLASSES}.worker.Worker", *common, "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(directory / f"work-{number}"), self.url]
            log = directory / f"worker-{number}.log"
            self.workers.append(stack.enter_context(started(arguments, log, DAEMONS | environment)))
        for worker in self.workers:
            worker.wait_until_it_says("Successfully registered with master", SECONDS_MAX)

    def worker_of(self, pid: int) -> Started:
        """The worker whose executor is an ancestor of a process."""
        for worker in self.workers:
            ancestor = pid
            while ancestor > 1:
                if ancestor == worker.process.pid:
                    return worker
                ancestor = int(Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1])
        raise AssertionError(f"{pid} belongs to no worker")


def staged_bytes(cluster: LocalCluster) -> int:
    """What brokers have on their disks for the copy: nothing of it can be read yet."""
    return sum(path.stat().st_size for path in cluster.directory.glob("broker-*/log/copy-*/*.log"))


def copied(servers: str) -> list[bytes]:
    with Consumer("copy", servers=servers) as consumer:
        return [message.value or b"" for message in consumer.read_to_end()]


def test_a_worker_killed_while_its_executor_stages_costs_no_message_and_ctrl_c_ends_the_run(
    cluster: LocalCluster, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    servers = cluster.servers
    archive, trouble = tmp_path / "archive", tmp_path / "trouble"
    trouble.mkdir()
    (trouble / "wait").touch()
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    with cluster.ask() as manager:
        for topic in ("logs", "copy"):
            manager.post("/topics", name=topic, partitions=2)
    # More than the writer gathers before it sends some of it to be staged.
    sent = [b"INFO %d %s" % (number, os.urandom(2000).hex().encode()) for number in range(1000)]
    sent += [b"INFO wait"]
    with Producer(servers=servers) as producer:
        for partition in (0, 1):
            producer.send_many("logs", sent, partition=partition)
    sent *= 2
    with ExitStack() as stack:
        standalone = Standalone(stack, tmp_path, spark_environment)
        run = ["run", "archive", "count", str(COPYING), "--follow", "--topics", "logs", "--json"]
        run += ["--archive", str(archive), "--master", standalone.url, "--servers", servers]
        environment = spark_environment | {
            "TALWEG_TEST_TROUBLE": str(trouble),
            "SPARK_CONF_DIR": str(tmp_path),
        }
        driver = stack.enter_context(started([*PIPELINE, *run], tmp_path / "driver.log", environment))

        def waits() -> list[int]:
            assert driver.process.poll() is None, driver.says()
            return [int(path.name.removeprefix("task-")) for path in trouble.glob("task-*")]

        wait_until(lambda: bool(waits()) and staged_bytes(cluster) > 500_000, "tasks to stage", SECONDS_MAX)
        assert copied(servers) == []
        standalone.worker_of(waits()[0]).kill()  # and its executor with all its Python, which are its group
        (trouble / "wait").unlink()
        more = [b"WARN %d" % number for number in range(500)]
        with Producer(servers=servers) as producer:
            producer.send_many("logs", more)
        sent += more

        def done() -> bool:
            assert driver.process.poll() is None, driver.says()
            counted = values(counts_table(archive), "messages")
            return sum(counted) >= len(sent) and len(copied(servers)) >= len(sent)

        wait_until(done, "all to be counted and copied", SECONDS_MAX, pause_seconds=0.5)
        wait_until(
            lambda: len(values(archive_table(archive), "offset")) >= len(sent), "the archive", SECONDS_MAX
        )
        driver.process.send_signal(signal.SIGINT)
        driver.process.wait(SECONDS_MAX)
        said = driver.says()
    assert driver.process.returncode == 0, said
    assert "Traceback" not in said
    last = {each["pipeline"]: each["state"] for each in map(json.loads, said.splitlines())}
    assert last == {"archive": "done", "count": "done", "copying": "done"}
    assert Counter(values(archive_table(archive), "value")) == Counter(sent)
    assert sum(values(counts_table(archive), "messages")) == len(sent)
    assert Counter(copied(servers)) == Counter(sent)
