"""A query holds back retention for what it has not read: `keepBytes`. No Spark session is needed for that."""

from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark.scene import Scene
from talweg.client.admin import Admin
from talweg.client.description import ConsumerDescription
from talweg.errors import InvalidSetting, Unavailable
from talweg.spark.options import Given, ReadOptions, read_options
from talweg.spark.stream_reader import TalwegStreamReader

pytestmark = pytest.mark.xdist_group("spark")


def options(*, streaming: bool = True, **given: str) -> ReadOptions:
    return read_options(Given({"subscribe": "logs"} | given), streaming=streaming)


@pytest.mark.parametrize(
    ("text", "keep_bytes"), [("65536", 65_536), ("10GB", 10_000_000_000), ("1.5 MiB", 3 << 19)]
)
def test_the_size_is_read_as_people_write_it(text: str, keep_bytes: int) -> None:
    assert options(group="archive", keepBytes=text).keep_bytes == keep_bytes
    assert options(group="archive").keep_bytes is None


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="option keepBytes: it means nothing without group"):
        options(keepBytes="10GB")
    with pytest.raises(InvalidSetting, match="option keepBytes: 'much' is no size"):
        options(group="archive", keepBytes="much")
    with pytest.raises(InvalidSetting, match=r"option (group|keepBytes): it is for streaming queries"):
        options(streaming=False, group="archive", keepBytes="10GB")


def shown(scene: Scene) -> ConsumerDescription:
    with Admin(scene.cluster.servers) as admin:
        (found,) = admin.consumers(scene.topic)
    return found


def test_a_query_is_waited_for_from_its_first_look_on(scene: Scene) -> None:
    scene.create(partitions=2, retention_bytes=1)
    scene.send(0, [b"first"])
    reader = scene.stream_reader(group="archive", keepBytes="300KB")
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    found = shown(scene)
    assert {number: each.keep_bytes for number, each in found.partitions.items()} == {0: 300_000, 1: 300_000}
    # Retention would drop everything; it waits, until the log has more than was asked for.
    start_offset = scene.wait_for_retention(0)
    assert scene.logs.ends(scene.topic, [0])[0].next_offset * 50_000 >= 300_000
    assert start_offset > 0
    assert shown(scene).overtaken
    # What the query has done with may go.
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    reader.commit(end)
    assert not shown(scene).overtaken
    scene.wait_for_retention(0, beyond=start_offset)


def test_without_it_a_hold_stays_as_it_is(scene: Scene) -> None:
    scene.fill(10, partitions=1)
    with Admin(scene.cluster.servers) as admin:
        admin.hold("archive", scene.topic, 1_000_000)
    reader = scene.stream_reader(group="archive")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.commit(end)
    (progress,) = shown(scene).partitions.values()
    assert (progress.position, progress.keep_bytes) == (10, 1_000_000)


class FailingOnce:
    """Logs whose first commit comes to nothing."""

    def __init__(self) -> None:
        self.commits: list[int | None] = []

    def commit(self, group: str, topic: str, offsets: Any, *, keep_bytes: int | None, **_: Any) -> None:
        self.commits.append(keep_bytes)
        if len(self.commits) == 1:
            raise Unavailable("nobody leads just now")


def test_a_hold_that_could_not_be_placed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = FailingOnce()
    monkeypatch.setattr("talweg.spark.stream_reader.logs_of", lambda *_: logs)
    reader = TalwegStreamReader(options(group="archive", keepBytes="1MB"), StructType())
    for _ in range(3):
        reader.commit({"logs": {"incarnation": 1, "partitions": {"0": 5}}})
    assert logs.commits == [1_000_000, 1_000_000]
