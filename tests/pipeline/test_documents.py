"""The commands of the document on pipelines run as they stand, but for the cluster's address."""

import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cli.shell import Ended, Shell
from spark.scene import SECONDS_MAX
from talweg.client.consumer import Consumer
from talweg.client.producer import Producer
from talweg.pipeline.archive import archive_table
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until
from talweg.testing.quick import QUICK

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
ONE_BROKER = QUICK | {"manager": QUICK["manager"] | {"--replication": "1"}}
DOCUMENT = (ROOT / "docs" / "pipeline.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"^```sh\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster whose only topic is `web`: commands without topics read all there are."""
    with LocalCluster(brokers=1, readers=0, settings=ONE_BROKER) as cluster:
        with Producer(servers=cluster.servers) as producer:
            producer.send_many("web", [b"INFO fine", b"WARN request 7 took 83 ms", b"prose", b"ERROR spilt"])
        monkeypatch.chdir(tmp_path)
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        yield cluster.servers


def interrupt_when_archived(count: int) -> None:
    """Ctrl-C, as soon as so much is in the archive."""
    table = archive_table(Path("logs").absolute())
    wait_until(
        lambda: sum(file.rows for file in table.manifest().files) >= count, "the archive to fill", SECONDS_MAX
    )
    os.kill(os.getpid(), signal.SIGINT)


def follow(shell: Shell, command: list[str], servers: str) -> Ended:
    """Run what goes on until Ctrl-C; meanwhile something more comes."""
    with Producer(servers=servers) as producer:
        producer.send("web", b"INFO more")
    with ThreadPoolExecutor(1) as pool:
        interrupt = pool.submit(interrupt_when_archived, 5)
        ended = shell(*command)
    interrupt.result()
    return ended


def test_the_commands_run(spark: SparkSession, servers: str) -> None:
    assert threading.current_thread() is threading.main_thread()  # signals go there
    shell = Shell(servers)
    ended = {}
    for command in COMMANDS:
        # Workers of a session that runs do not see what is set in this process.
        address = [] if "list" in command else ["--servers", servers]
        run = [*command, *address]
        ended[" ".join(command[1:])] = follow(shell, run, servers) if "--follow" in run else shell(*run)
    listed, everything, followed, own, report, redriven = ended.values()
    assert "sessions" in listed.out
    for name in ("archive", "parse", "count", "alert", "sessions", "dead-letters"):
        assert f"{name}: done" in everything.err
    assert "archive: done" in followed.err
    assert "slow_requests: done" in own.err
    with Consumer("slow", servers=servers) as consumer:
        assert [message.value for message in consumer.read_to_end()] == [b"request 7 took 83 ms"]
    assert "web" in report.out
    assert Path(report.lines[-1]).is_file()
    assert "1 dead letters of web looked at" in redriven.out
    with Consumer("web", servers=servers) as consumer:
        assert [message.value for message in consumer.read_to_end()].count(b"prose") == 2
    assert spark.range(3).count() == 3  # a session that was there is left as it was
