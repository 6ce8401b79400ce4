"""The archive and the log together are the topic: no row twice, none missing."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.made import frame, message, offsets
from spark.scene import SECONDS_MAX, Scene
from talweg.client.partition_log import Ends, PartitionLogs
from talweg.errors import OffsetOutOfRange, StorageError, TopicNotFound
from talweg.pipeline import whole_topic
from talweg.pipeline.archive import add_to_archive
from talweg.pipeline.manifest import Spans, merged
from talweg.pipeline.whole_topic import Cut, cut_of, put_together
from talweg.testing.processes import wait_until

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(
    ("archived", "log_start", "cut"),
    [
        ((), 0, Cut(0, ())),
        ((), 5, Cut(5, ())),  # before the archive: nobody says that it ever was to be kept
        (((0, 10),), 0, Cut(10, ())),
        (((0, 10),), 10, Cut(10, ())),
        (((0, 10),), 12, Cut(12, ((10, 12),))),
        (((5, 10),), 0, Cut(0, ())),  # the archive began later than the log
        (((5, 10),), 7, Cut(10, ())),
        (((0, 4), (6, 10)), 3, Cut(4, ())),  # the log fills the gap
        (((0, 4), (6, 10)), 5, Cut(5, ((4, 5),))),  # half of it
        (((0, 4), (6, 10)), 6, Cut(10, ((4, 6),))),
        (((0, 4), (6, 10)), 20, Cut(20, ((4, 6), (10, 20)))),
    ],
)
def test_a_partition_is_cut_where_both_sides_are_whole(archived: Spans, log_start: int, cut: Cut) -> None:
    assert cut_of(archived, log_start) == cut


spans = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=4)


@given(spans, st.integers(0, 25))
def test_whatever_is_kept_somewhere_comes_once(found: list[tuple[int, int]], log_start: int) -> None:
    archived, end = merged(tuple(found)), 30
    cut = cut_of(archived, log_start)
    held = {n for a, b in archived for n in range(a, b)}
    below = [n for n in held if n < cut.offset]
    behind = list(range(max(cut.offset, log_start), end))
    assert sorted(below + behind) == sorted(held | set(range(log_start, end)))
    assert cut.offset >= log_start or not set(range(cut.offset, log_start))
    lost = {n for a, b in cut.lost for n in range(a, b)}
    first = min(held | {log_start})
    assert lost == set(range(first, end)) - held - set(range(log_start, end))


def test_each_side_gives_what_lies_on_it(spark: SparkSession) -> None:
    archived = frame(spark, [message("a", n, partition=p) for p in (0, 1) for n in range(6)])
    live = frame(spark, [message("l", n, partition=p) for p in (0, 1) for n in range(2, 9)]).drop("headers")
    found = put_together(archived, live, {0: Cut(6, ()), 1: Cut(3, ())})
    assert offsets(found) == [("logs", p, n) for p in (0, 1) for n in range(9)]
    values = sorted((row.partition, row.offset, bytes(row.value)) for row in found.collect())
    assert [n for p, n, value in values if value == b"a" and p == 0] == [0, 1, 2, 3, 4, 5]
    assert [n for p, n, value in values if value == b"a" and p == 1] == [0, 1, 2]


def test_what_retention_has_dropped_comes_from_the_archive(scene: Scene, archive: Path) -> None:
    scene.create(2, retention_bytes=200_000)
    scene.send(0, [b"zero %d" % n for n in range(50)])
    scene.send(1, [b"one %d" % n for n in range(50)])
    incarnation = scene.logs.topic(scene.topic).incarnation
    add_to_archive(archive, scene.read(includeHeaders=True), {scene.topic: incarnation})
    end = {number: each.next_offset for number, each in scene.logs.ends(scene.topic, [0, 1]).items()}
    scene.wait_for_retention(0, beyond=50)  # beyond what was archived
    with pytest.raises(OffsetOutOfRange, match=rf"partition 0 of topic {scene.topic}: offsets 50 to \d+"):
        whole_topic(scene.spark, scene.cluster.servers, scene.topic, archive)
    rest = whole_topic(
        scene.spark, scene.cluster.servers, scene.topic, archive, fail_on_data_loss=False
    ).cache()
    found = offsets(rest)
    assert len(found) == len(set(found))
    assert [n for _, p, n in found if p == 1] == list(range(end[1]))
    assert [n for _, p, n in found if p == 0][:50] == list(range(50))  # long gone from the brokers


def test_what_is_archived_and_dropped_while_the_brokers_are_asked_is_not_lost(
    scene: Scene, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create(1, retention_bytes=400_000)
    incarnation = scene.logs.topic(scene.topic).incarnation

    class Slow(PartitionLogs):
        """While it is asked, the archive and retention are at work."""

        def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, Ends]:
            def dropped() -> bool:
                scene.send(0, [b"x" * 50_000] * 2, codec=0)
                # What is dropped while this reads has been archived: there is room for several rounds.
                rows = scene.read(includeHeaders=True, failOnDataLoss=False)
                add_to_archive(archive, rows, {topic: incarnation})
                return scene.logs.ends(topic, [0])[0].start_offset > 0

            wait_until(dropped, "retention to drop something that was archived", SECONDS_MAX)
            return super().ends(topic, partitions)

    monkeypatch.setattr(sys.modules["talweg.pipeline.whole_topic"], "PartitionLogs", Slow)
    found = offsets(whole_topic(scene.spark, scene.cluster.servers, scene.topic, archive))
    assert found == [(scene.topic, 0, n) for n in range(scene.logs.ends(scene.topic, [0])[0].next_offset)]


def test_the_rest_comes_from_the_log_and_a_deleted_topic_from_the_archive(
    scene: Scene, archive: Path
) -> None:
    sent = scene.fill(200)
    incarnation = scene.logs.topic(scene.topic).incarnation
    add_to_archive(archive, scene.read(includeHeaders=True), {scene.topic: incarnation})
    more = scene.more(200, 100)
    servers = scene.cluster.servers
    rows = whole_topic(scene.spark, servers, scene.topic, archive).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(sent + more)
    with pytest.raises(TopicNotFound):
        whole_topic(scene.spark, servers, "never-was", archive)
    scene.delete()
    rows = whole_topic(scene.spark, servers, scene.topic, archive).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(sent)
    scene.create(2)
    with pytest.raises(StorageError, match="before it was deleted and created again"):
        whole_topic(scene.spark, servers, scene.topic, archive)
