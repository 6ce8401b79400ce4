"""Pipelines over real brokers: dead letters and back, crashes, the command, and what brokers see of it."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.shell import Shell
from pipeline.made import values as values_of_table
from spark.scene import BEGIN, SECONDS_MAX, Scene
from talweg.client.consumer import Consumer
from talweg.client.offsets import position_of
from talweg.client.producer import Producer
from talweg.errors import PipelineFailed, TopicNotFound
from talweg.pipeline import read_archive, read_counts
from talweg.pipeline.archive import archive_table
from talweg.pipeline.catalogue import choose
from talweg.pipeline.places import TopicsSink, TopicsSource
from talweg.pipeline.redrive import Redriven, redrive
from talweg.pipeline.runner import Progress, Run, RunSettings, run_to_end
from talweg.pipeline.standard import STANDARD

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def run(scene: Scene, *names: str, topics: tuple[str, ...] = (), skip_lost: bool = False) -> list[Progress]:
    settings = RunSettings(scene.directory / "archive", scene.directory / "checkpoints")
    servers = scene.cluster.servers
    shown: list[list[Progress]] = []
    running = Run(
        scene.spark,
        choose(names, STANDARD),
        TopicsSource(servers, topics or (scene.topic,), skip_lost=skip_lost),
        TopicsSink(servers),
        settings,
    )
    run_to_end(running, shown.append, threading.Event())
    return shown[-1]


def values(scene: Scene, topic: str) -> list[bytes]:
    with Consumer(topic, servers=scene.cluster.servers) as consumer:
        return sorted(message.value or b"" for message in consumer.read_to_end())


def test_dead_letters_are_set_aside_and_sent_back_once(scene: Scene) -> None:
    scene.create(2)
    scene.send(0, [b"INFO fine", b"prose one", b"\xff\xfe"], keys=[b"a", b"b", b"c"])
    scene.send(1, [b"prose two"])
    checkpoints = scene.directory / "checkpoints"
    servers = scene.cluster.servers
    with pytest.raises(TopicNotFound, match=r"there is no topic .*\.dlq"):
        redrive(scene.spark, servers, scene.topic, checkpoints)
    run(scene, "dead-letters")
    bad = [b"prose one", b"prose two", b"\xff\xfe"]
    assert values(scene, f"{scene.topic}.dlq") == bad
    with Consumer(f"{scene.topic}.dlq", servers=servers) as consumer:
        told = {message.value: dict(message.headers) for message in consumer.read_to_end()}
    assert told[b"\xff\xfe"] == {
        "talweg.dlq.topic": scene.topic.encode(),
        "talweg.dlq.partition": b"0",
        "talweg.dlq.offset": b"2",
        "talweg.dlq.timestamp": b"%d" % BEGIN,
        "talweg.dlq.error": b"line: not UTF-8",
        "talweg.dlq.attempt": b"1",
    }
    assert redrive(scene.spark, servers, scene.topic, checkpoints) == Redriven(3, 3)
    assert redrive(scene.spark, servers, scene.topic, checkpoints) == Redriven(0, 0)
    assert Counter(values(scene, scene.topic)) == Counter([b"INFO fine", *bad, *bad])
    with Consumer(scene.topic, servers=servers) as consumer:  # also those that were sent back
        assert {message.timestamp for message in consumer.read_to_end()} == {BEGIN}
    run(scene, "dead-letters")  # they are no better than before
    with Consumer(f"{scene.topic}.dlq", servers=servers) as consumer:
        attempts = Counter(dict(each.headers)["talweg.dlq.attempt"] for each in consumer.read_to_end())
    assert attempts == {b"1": 3, b"2": 3}
    with Producer(servers) as producer:  # and some that somebody put there by hand
        producer.send(f"{scene.topic}.dlq", b"from nowhere")
        for origin in (b"", b"__ours", b"no/topic", b"..", b"\xff", b"t" * 250):
            producer.send(f"{scene.topic}.dlq", b"from nowhere", headers=[("talweg.dlq.topic", origin)])
        producer.send(
            f"{scene.topic}.dlq",
            b"from when",
            headers=[("talweg.dlq.topic", scene.topic.encode()), ("talweg.dlq.timestamp", b"yesterday")],
        )
    assert redrive(scene.spark, servers, scene.topic, checkpoints, attempts_max=1) == Redriven(11, 1)
    assert len(values(scene, scene.topic)) == 8


def test_a_redrive_that_cannot_start_says_why_in_a_line(scene: Scene) -> None:
    scene.create(1, f"{scene.topic}.dlq")
    checkpoints = scene.directory / "checkpoints"
    broken = checkpoints / f"redrive-{scene.topic}" / "metadata"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    with pytest.raises(PipelineFailed, match=f"redrive of {scene.topic}: ") as caught:
        redrive(scene.spark, scene.cluster.servers, scene.topic, checkpoints)
    assert "\n" not in str(caught.value)


def test_brokers_see_how_far_a_pipeline_has_come(scene: Scene) -> None:
    scene.fill(300)
    (progress,) = run(scene, "count")
    assert (progress.rows, progress.lag) == (300, 0)
    cluster, ends = scene.logs.cluster, scene.logs.ends(scene.topic, [0, 1])
    for number, end in ends.items():
        read = scene.logs.background.run(
            position_of(cluster, "pipeline.count", scene.topic, number, seconds_max=SECONDS_MAX)
        )
        assert read == end.next_offset


def test_pipelines_with_another_prefix_have_groups_of_their_own(scene: Scene) -> None:
    scene.spark.range(1).count()  # Spark's processes are there before the command hears of the cluster
    scene.fill(20)
    shell = Shell(scene.cluster.url)
    run = ["pipeline", "run", "count", "--topics", scene.topic]
    shell(*run, "--archive", scene.directory / "one")
    shell(*run, "--archive", scene.directory / "other", "--group", "nightly")
    listed = shell("consumer", "list", "--topic", scene.topic, "--json").json["consumers"]
    assert {each["group"]: each["lag"] for each in listed} == {"pipeline.count": 0, "nightly.count": 0}


def test_who_follows_reads_topics_that_are_made_later_but_none_that_pipelines_write(scene: Scene) -> None:
    scene.create(1)
    scene.send(0, [b"prose"])
    later, servers = f"{scene.topic}-later", scene.cluster.servers
    pipelines = choose(("archive", "dead-letters"), STANDARD)
    source = TopicsSource(servers).beside(pipelines, follow=True)
    settings = RunSettings(
        scene.directory / "archive", scene.directory / "checkpoints", follow=True, every_seconds=0.1
    )
    running = Run(scene.spark, pipelines, source, TopicsSink(servers), settings)
    told_to_stop = threading.Event()
    made = False

    def go_on(_: list[Progress]) -> None:
        nonlocal made
        known = {each.topic for each in scene.logs.topics()}
        if not made and f"{scene.topic}.dlq" in known:
            made = True
            scene.create(1, later)
            scene.send(0, [b"INFO later"], topic=later)
        elif b"INFO later" in archived_values(settings.archive):
            told_to_stop.set()

    run_to_end(running, go_on, told_to_stop)
    topics = {row.topic for row in read_archive(scene.spark, settings.archive).collect()}
    assert {scene.topic, later} <= topics
    assert not [topic for topic in topics if topic.endswith(".dlq")]


def test_a_topic_that_is_gone_fails_pipelines_until_they_are_told_to_skip_it(scene: Scene) -> None:
    other = f"{scene.topic}-other"
    sent = scene.fill(20) + scene.fill(10, topic=other)
    run(scene, "archive", topics=(scene.topic, other))
    scene.delete(other)
    sent += scene.more(20, 5)
    with pytest.raises(PipelineFailed, match=rf"topic {other} is gone.*--skip-lost"):
        run(scene, "archive")
    (progress,) = run(scene, "archive", skip_lost=True)
    assert (progress.state, progress.rows) == ("done", 5)
    assert archived(scene.directory / "archive") == len(sent)


def test_a_topic_that_is_made_again_while_it_is_archived_is_not_taken_for_the_old_one(scene: Scene) -> None:
    scene.fill(50)
    settings = RunSettings(
        scene.directory / "archive", scene.directory / "checkpoints", follow=True, every_seconds=0.1
    )
    source = TopicsSource(scene.cluster.servers, (scene.topic,), skip_lost=True)
    sink = TopicsSink(scene.cluster.servers)
    running = Run(scene.spark, choose(("archive",), STANDARD), source, sink, settings)
    deleted = False

    def go_on(_: list[Progress]) -> None:
        nonlocal deleted
        if not deleted and archived(settings.archive) == 50:
            deleted = True
            scene.delete()
            scene.fill(30)  # at offsets that the archive has

    with pytest.raises(PipelineFailed, match=rf"holds topic {scene.topic} as it was before it was deleted"):
        run_to_end(running, go_on, threading.Event())
    assert deleted
    assert archived(settings.archive) == 50


def archived(archive: Path) -> int:
    """Rows, by the manifest: Spark is not asked."""
    return sum(file.rows for file in archive_table(archive).manifest().files)


def archived_values(archive: Path) -> list[bytes]:
    return values_of_table(archive_table(archive), "value")


def messages_counted(scene: Scene) -> dict[str, int]:
    counts = read_counts(scene.spark, scene.directory / "archive").groupBy("topic").sum("messages")
    return {row[0]: row[1] for row in counts.collect()}


def test_while_five_producers_feed_three_topics_everything_is_archived_and_counted_once(scene: Scene) -> None:
    topics = [f"{scene.topic}-T{number}" for number in (1, 2, 3)]
    for topic in topics:
        scene.create(2, topic)
    source = TopicsSource(scene.cluster.servers, tuple(topics), rows_max=10_000)
    settings = RunSettings(
        scene.directory / "archive", scene.directory / "checkpoints", follow=True, every_seconds=1
    )
    running = Run(
        scene.spark,
        choose(("archive", "count"), STANDARD),
        source,
        TopicsSink(scene.cluster.servers),
        settings,
    )
    enough, told_to_stop = threading.Event(), threading.Event()

    def send(number: int) -> list[tuple[str, bytes]]:
        """Some messages to each topic again and again, until it is enough."""
        sent: list[tuple[str, bytes]] = []
        with Producer(servers=scene.cluster.servers) as producer:
            while not enough.wait(0.2):
                for topic in 5 * topics:
                    value = b"INFO P%d says %d" % (number, len(sent))
                    producer.send(topic, value, key=b"%d" % number)
                    sent.append((topic, value))
        return sent

    running.start()
    with ThreadPoolExecutor(5) as pool:
        producers = [pool.submit(send, number) for number in range(5)]
        try:
            for progress in running.watch(told_to_stop):
                if min(each.batch for each in progress) < 1:
                    continue  # they are to be read while they come
                enough.set()
                wanted = sum(len(each.result()) for each in producers)
                if [each.rows for each in progress] == [wanted, wanted]:
                    told_to_stop.set()
        finally:
            enough.set()
            running.close()
    sent = Counter(pair for each in producers for pair in each.result())
    found = read_archive(scene.spark, settings.archive).collect()
    assert Counter((row.topic, bytes(row.value)) for row in found) == sent
    assert set(sent.values()) == {1}
    by_topic = Counter(topic for topic, _ in sent)
    assert len(by_topic) == 3
    assert messages_counted(scene) == by_topic


def test_what_pipelines_write_they_do_not_read_unless_they_are_told_to(scene: Scene) -> None:
    scene.create(1)
    written = f"{scene.topic}-written"
    for topic in (written, f"{scene.topic}.dlq"):
        scene.create(1, topic)
    chosen = TopicsSource(scene.cluster.servers, written=(written,)).incarnations()
    assert scene.topic in chosen
    assert not {written, f"{scene.topic}.dlq"} & chosen.keys()
    assert TopicsSource(scene.cluster.servers, (written,), written=(written,)).chosen() == (written,)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nothing"], 2, "nothing: no such pipeline; expected archive, parse"),
        (["run", "count", "--topics", "gone"], 3, "--topics: there is no topic gone"),
        (["run", "count", "--group", "#x"], 2, "--group '#x': expected 1 to 150 characters"),
        (["run", "count", "--keep", "a lot"], 2, "'a lot' is no size: expected one such as 65536"),
        (["report", "--archive", "nowhere"], 1, "nowhere: nothing to report; run pipelines first"),
        (["redrive", "gone"], 3, "topic gone has no dead letters: there is no topic gone.dlq"),
    ],
)
def test_mistakes_are_told_in_a_line(scene: Scene, arguments: list[str], code: int, said: str) -> None:
    assert said in Shell(scene.cluster.servers).refuses("pipeline", *arguments, code=code)
