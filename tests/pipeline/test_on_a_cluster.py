"""Pipelines over real brokers: dead letters and back, crashes, the command, and what brokers see of it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline.made import offsets
from spark.scene import Scene
from talweg.client.consumer import Consumer
from talweg.client.offsets import position_of
from talweg.errors import TopicNotFound
from talweg.pipeline import read_archive, read_counts
from talweg.pipeline.catalogue import choose
from talweg.pipeline.places import TopicsSink, TopicsSource
from talweg.pipeline.redrive import redrive
from talweg.pipeline.runner import Progress, Run, RunSettings, run_to_end
from talweg.pipeline.standard import STANDARD
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("spark")
COMMAND = [sys.executable, str(Path(__file__).with_name("command.py")), "pipeline"]


def run(scene: Scene, *names: str, topics: tuple[str, ...] = ()) -> list[Progress]:
    settings = RunSettings(scene.directory / "archive", scene.directory / "checkpoints")
    servers = scene.cluster.servers
    shown: list[list[Progress]] = []
    running = Run(
        scene.spark,
        choose(names, STANDARD),
        TopicsSource(servers, topics or (scene.topic,)),
        TopicsSink(servers),
        settings,
    )
    run_to_end(running, shown.append, threading.Event())
    return shown[-1]


def values(scene: Scene, topic: str) -> list[bytes]:
    with Consumer(topic, servers=scene.cluster.servers) as consumer:
        return sorted(message.value or b"" for message in consumer.read_to_end())


@contextmanager
def command(scene: Scene, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """The command as a process, in a group of its own with its JVM: none of them outlives the test."""
    environment = os.environ | {
        "TALWEG_URL": scene.cluster.servers,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",  # what runs for seconds is not worth compiling well
    }
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment,
        cwd=scene.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()


def test_dead_letters_are_set_aside_and_sent_back_once(scene: Scene) -> None:
    scene.create(2)
    scene.send(0, [b"INFO fine", b"prose one", b"\xff\xfe"], keys=[b"a", b"b", b"c"])
    scene.send(1, [b"prose two"])
    checkpoints = scene.directory / "checkpoints"
    servers = scene.cluster.servers
    with pytest.raises(TopicNotFound, match=r"there is no topic .*\.dlq"):
        redrive(scene.spark, servers, scene.topic, checkpoints)
    run(scene, "parse")
    bad = [b"prose one", b"prose two", b"\xff\xfe"]
    assert values(scene, f"{scene.topic}.dlq") == bad
    with Consumer(f"{scene.topic}.dlq", servers=servers) as consumer:
        told = {message.value: dict(message.headers) for message in consumer.read_to_end()}
    assert told[b"\xff\xfe"] == {
        "talweg.dlq.topic": scene.topic.encode(),
        "talweg.dlq.partition": b"0",
        "talweg.dlq.offset": b"2",
        "talweg.dlq.error": b"line: not UTF-8",
        "talweg.dlq.attempt": b"1",
    }
    assert redrive(scene.spark, servers, scene.topic, checkpoints) == 3
    assert redrive(scene.spark, servers, scene.topic, checkpoints) == 0
    assert Counter(values(scene, scene.topic)) == Counter([b"INFO fine", *bad, *bad])
    run(scene, "parse")  # they are no better than before
    with Consumer(f"{scene.topic}.dlq", servers=servers) as consumer:
        attempts = Counter(dict(each.headers)["talweg.dlq.attempt"] for each in consumer.read_to_end())
    assert attempts == {b"1": 3, b"2": 3}


def test_brokers_see_how_far_a_pipeline_has_come(scene: Scene) -> None:
    scene.fill(300)
    (progress,) = run(scene, "count")
    assert (progress.rows, progress.lag) == (300, 0)
    cluster, ends = scene.logs.cluster, scene.logs.ends(scene.topic, [0, 1])
    for number, end in ends.items():
        read = scene.logs.background.run(
            position_of(cluster, "pipeline.count", scene.topic, number, seconds_max=10)
        )
        assert read == end.next_offset


def test_a_driver_that_is_killed_leaves_no_message_twice_and_none_out(scene: Scene) -> None:
    sent = scene.fill(1500, batch=50)
    arguments = ["run", "archive", "count", "--topics", scene.topic, "--json"]
    arguments += ["--archive", str(scene.directory / "archive"), "--master", "local[2]"]
    with command(scene, *arguments, "--rows-max", "100") as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if json.loads(line)["batch"] >= 2:
                break
        kill(driver)
    kept = read_archive(scene.spark, scene.directory / "archive").count()
    assert 0 < kept < len(sent)
    with command(scene, *arguments) as driver:
        _, errors = driver.communicate(timeout=200)
    assert driver.returncode == 0, errors
    found = read_archive(scene.spark, scene.directory / "archive")
    assert sorted(bytes(row.value) for row in found.collect()) == sorted(sent)
    assert len(set(offsets(found))) == len(sent)
    counted = read_counts(scene.spark, scene.directory / "archive").groupBy().sum("messages").collect()
    assert counted[0][0] == len(sent)


def test_ctrl_c_ends_a_run_that_follows_in_good_order(scene: Scene) -> None:
    scene.fill(100)
    archive = scene.directory / "archive"
    follow = ["run", "archive", "--follow", "--topics", scene.topic, "--archive", str(archive)]
    with command(scene, *follow) as driver:
        wait_until(lambda: read_archive(scene.spark, archive).count() == 100, "the archive to fill", 100)
        scene.more(100, 50)
        wait_until(lambda: read_archive(scene.spark, archive).count() == 150, "more to come", 60)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 0, errors
    assert "Traceback" not in errors
    assert "Exception" not in errors
    assert "archive: done, batch" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nothing"], 2, "nothing: no such pipeline; expected archive, parse"),
        (["run", "count", "--topics", "gone"], 3, "--topics: there is no topic gone"),
        (["report", "--archive", "nowhere"], 1, "nowhere: nothing to report; run pipelines first"),
        (["redrive", "gone"], 3, "there is no topic gone.dlq"),
    ],
)
def test_mistakes_are_told_in_a_line(scene: Scene, arguments: list[str], code: int, said: str) -> None:
    with command(scene, *arguments) as process:
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, len(errors.splitlines())) == (code, 1), errors
    assert said in errors
