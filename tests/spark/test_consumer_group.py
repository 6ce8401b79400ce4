"""The consumer group of a query: how far it has come, for everybody to see, also when it begins anew."""

import json
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.scene import SECONDS_MAX, Scene
from spark.shown import lags, positions
from talweg.client.admin import Admin
from talweg.client.partition_log import PartitionLogs
from talweg.errors import OffsetOutOfRange, Unavailable
from talweg.spark.consumer_group import ConsumerGroup
from talweg.spark.positions import TopicPositions, to_json
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def test_the_progress_of_a_group_is_seen(scene: Scene) -> None:
    scene.fill(300)
    scene.run(scene.stream(group="archive", maxOffsetsPerTrigger=100))
    assert positions(scene, "archive") == {0: 200, 1: 100}
    scene.more(300, 100)  # the lag of a query that is not running
    assert positions(scene, "archive") == {0: 200, 1: 100}
    assert lags(scene, "archive") == [100, 100, 100]

    # One that goes on from its checkpoint seeks nothing: somebody was further meanwhile.
    scene.logs.commit("archive", scene.topic, {0: 250}, seconds_max=SECONDS_MAX)
    scene.run(scene.stream(group="archive", assign=json.dumps({scene.topic: [1]})))
    assert positions(scene, "archive") == {0: 250, 1: 100}

    # One that begins anew takes the name back with it.
    anew = scene.stream(group="archive", maxOffsetsPerTrigger=100)
    query = scene.start(anew, "anew", processingTime="1 hour")
    wait_until(lambda: positions(scene, "archive") == {0: 0, 1: 0}, "the group to be back", SECONDS_MAX)
    query.stop()
    assert lags(scene, "archive") == [400, 400, 400]


def test_a_query_that_begins_anew_is_shown_and_waited_for(scene: Scene) -> None:
    scene.fill(200)
    options = {"group": "archive", "keepBytes": "1MB"}
    before = scene.stream_reader(**options)
    end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    before.commit(end)
    assert positions(scene, "archive") == {0: 100, 1: 100}
    starting = json.dumps({scene.topic: {"0": 30, "1": -2}})
    anew = scene.stream_reader(startingOffsets=starting, **options)
    middle = anew.latestOffset(anew.initialOffset(), ReadAllAvailable())
    with Admin(scene.cluster.servers) as admin:
        (found,) = admin.consumers(scene.topic)
    shown = {number: (each.position, each.keep_bytes) for number, each in found.partitions.items()}
    assert shown == {0: (30, 1_000_000), 1: (0, 1_000_000)}
    # That was once: from here on it goes forward only, as every position does.
    anew.commit(middle)
    anew.commit(end | {scene.topic: end[scene.topic] | {"partitions": {"0": 50, "1": 50}}})
    assert positions(scene, "archive") == {0: 100, 1: 100}


def test_a_query_that_goes_on_does_not_take_its_group_back(scene: Scene) -> None:
    scene.fill(200)
    first = scene.stream_reader(group="archive")
    start = first.initialOffset()
    first.commit(first.latestOffset(start, ReadAllAvailable()))
    scene.stream_reader(group="archive").latestOffset(start, ReadAllAvailable())  # from its checkpoint
    assert positions(scene, "archive") == {0: 100, 1: 100}


def test_a_topic_that_a_query_begins_with_later_is_shown_too(scene: Scene) -> None:
    other = f"{scene.topic}-other"
    scene.fill(10, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    scene.logs.commit("archive", scene.topic, {0: 10}, seconds_max=SECONDS_MAX)
    one = scene.stream_reader(subscribe=other, group="archive")
    start = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    both = scene.stream_reader(subscribe=f"{scene.topic},{other}", group="archive", maxOffsetsPerTrigger=4)
    middle = both.latestOffset(start, both.getDefaultReadLimit())
    both.latestOffset(middle, both.getDefaultReadLimit())
    assert positions(scene, "archive") == {0: 4}


def test_a_group_that_cannot_be_shown_stops_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.fill(10, partitions=1)
    reader = scene.stream_reader(group="archive")
    start = reader.initialOffset()
    start[scene.topic]["partitions"]["0"] = 5000  # nobody may be there
    with pytest.raises(OffsetOutOfRange, match="was read to 5000"):
        reader.latestOffset(start, ReadAllAvailable())
    assert "the progress of group archive" in caplog.text


class Shown:
    """Logs that note what is committed in them; partitions of topics that are away take nothing."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, dict[int, int], bool]] = []
        self.away: set[str] = set()

    def commit(self, group: str, topic: str, offsets: Any, *, seek: bool, **_: Any) -> None:
        self.commits.append((topic, dict(offsets), seek))
        if topic in self.away:
            raise Unavailable("nobody leads just now")

    def by(self, group: ConsumerGroup, **positions: dict[int, int]) -> list[tuple[str, dict[int, int], bool]]:
        """What it commits when it is told that everything before these positions is done."""
        self.commits.clear()
        done = to_json({topic: TopicPositions(7, offsets) for topic, offsets in positions.items()})
        group.commit(cast(PartitionLogs, self), done)
        return [*self.commits]


@pytest.fixture
def logs() -> Shown:
    return Shown()


def test_only_what_has_moved_is_committed(logs: Shown) -> None:
    group = ConsumerGroup("archive", 1_000_000)
    all_of_it = [("one", {0: 5, 1: 6}, False), ("two", {0: 7}, False)]
    assert logs.by(group, one={0: 5, 1: 6}, two={0: 7}) == all_of_it  # for what was there before us
    assert logs.by(group, one={0: 5, 1: 6}, two={0: 7}) == []
    assert logs.by(group, one={0: 5, 1: 9}, two={0: 7}) == [("one", {1: 9}, False)]
    assert logs.by(group, one={0: 5, 1: 9}, two={0: 8, 1: 0}) == [("two", {0: 8, 1: 0}, False)]
    group.commit(cast(PartitionLogs, logs), to_json({"one": TopicPositions(8, {0: 5, 1: 9})}))
    assert logs.commits[1:] == [("one", {0: 5, 1: 9}, False)]  # made again, it is another one


def test_what_could_not_be_committed_is_tried_again_with_what_moves_next(logs: Shown) -> None:
    group = ConsumerGroup("archive", None)
    logs.away = {"one"}
    assert logs.by(group, one={0: 5}, two={0: 7}) == [("one", {0: 5}, False), ("two", {0: 7}, False)]
    assert logs.by(group, one={0: 5}, two={0: 7}) == []  # each time may take seconds, and nobody waits for it
    logs.away = set()
    assert logs.by(group, one={0: 5}, two={0: 8}) == [("one", {0: 5}, False), ("two", {0: 8}, False)]
    assert logs.by(group, one={0: 5}, two={0: 9}) == [("two", {0: 9}, False)]


def test_what_a_query_begins_with_is_taken_back_in_all_partitions(logs: Shown) -> None:
    group = ConsumerGroup("archive", None)
    group.begin(["one"])
    logs.away = {"one"}
    assert logs.by(group, one={0: 0, 1: 0}) == [("one", {0: 0, 1: 0}, True)]
    logs.away = set()
    assert logs.by(group, one={0: 0, 1: 0}) == [("one", {0: 0, 1: 0}, True)]  # at the next look
    assert logs.by(group, one={0: 0, 1: 3}) == [("one", {1: 3}, False)]
    group.begin(["one"])  # a partition has come to it
    assert logs.by(group, one={0: 0, 1: 3, 2: 1}) == [("one", {0: 0, 1: 3, 2: 1}, True)]
