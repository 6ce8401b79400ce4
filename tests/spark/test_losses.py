"""What is gone before it was read, or seems to be: told with its range, once, and nothing is read twice."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from spark.scene import SECONDS_MAX, Scene, ends, read
from talweg.client.partition_log import Ends, PartitionLogs, Stretch
from talweg.errors import OffsetOutOfRange, TopicNotFound
from talweg.protocol.control import TopicMetadata
from talweg.spark.stream_reader import TalwegStreamReader

pytestmark = pytest.mark.xdist_group("spark")


class Meddled(PartitionLogs):
    """Logs of a cluster to which something happens right before it is asked for ends, or for a sample."""

    before_ends: Callable[[], object] | None = None
    before_sample: Callable[[], object] | None = None
    unknown: bool = False  # the metadata store has forgotten all topics

    def topic(self, name: str) -> TopicMetadata:
        if self.unknown:
            raise TopicNotFound(f"there is no topic {name}")
        return super().topic(name)

    def ends(self, topic: str, partitions: Iterable[int], incarnation: int | None = None) -> dict[int, Ends]:
        if self.before_ends is not None:
            self.before_ends()
            self.before_ends = None
        return super().ends(topic, partitions, incarnation)

    def message_bytes(self, stretch: Stretch) -> float:
        if self.before_sample is not None:
            self.before_sample()
        return super().message_bytes(stretch)


@pytest.fixture
def meddled(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Any:
    logs = Meddled(scene.cluster.servers, seconds_max=SECONDS_MAX)
    monkeypatch.setattr("talweg.spark.stream_reader.logs_of", lambda *_: logs)
    yield logs
    logs.close()


def beyond(scene: Scene, offset: int) -> dict[str, Any]:
    """A checkpoint behind the end of the log: that has lost what was there."""
    start = scene.stream_reader().initialOffset()
    start[scene.topic]["partitions"]["0"] = offset
    return start


# Available now


def available_now(scene: Scene, **options: Any) -> TalwegStreamReader:
    reader = scene.stream_reader(**options)
    reader.prepareForTriggerAvailableNow()
    return reader


def test_a_log_that_lost_its_end_is_told_of_with_available_now_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.fill(10, partitions=1)
    start = beyond(scene, 50)
    with pytest.raises(OffsetOutOfRange, match="ends at offset 10, and was read to 50"):
        available_now(scene).latestOffset(start, ReadAllAvailable())
    reader = available_now(scene, failOnDataLoss=False)
    scene.more(10, 20, partitions=1)  # meanwhile: not for this run, but for the next
    middle = reader.latestOffset(start, ReadAllAvailable())
    assert ends(middle) == {f"{scene.topic}-0": 10}
    assert reader.partitions(start, middle) == []
    assert "and was read to 50: its messages between them are lost" in caplog.text
    following = available_now(scene)
    end = following.latestOffset(middle, ReadAllAvailable())
    assert read(following.partitions(middle, end)) == [(scene.topic, 0, 10, 30)]


def test_a_checkpoint_behind_where_available_now_ends_has_lost_nothing(scene: Scene) -> None:
    scene.fill(10, partitions=1)
    reader = available_now(scene)
    scene.more(10, 20, partitions=1)
    start = beyond(scene, 25)  # as of a query that read on, before this one was asked
    assert reader.latestOffset(start, ReadAllAvailable()) == start


def test_a_topic_that_comes_meanwhile_is_for_the_next_run(scene: Scene) -> None:
    one, two = f"{scene.topic}-one", f"{scene.topic}-two"
    scene.fill(10, partitions=1, topic=one)
    pattern = {"subscribePattern": f"{scene.topic}-.*"}
    start = scene.stream_reader(**pattern).initialOffset()
    reader = available_now(scene, maxOffsetsPerTrigger=6, **pattern)
    scene.fill(5, partitions=1, topic=two)
    middle = reader.latestOffset(start, ReadMaxRows(6))
    end = reader.latestOffset(middle, ReadMaxRows(6))
    assert (ends(middle), ends(end)) == ({f"{one}-0": 6}, {f"{one}-0": 10})
    assert reader.latestOffset(end, ReadMaxRows(6)) == end
    following = available_now(scene, **pattern)
    last = following.latestOffset(end, ReadAllAvailable())
    assert read(following.partitions(end, last)) == [(two, 0, 0, 5)]


def test_available_now_ends_when_bytes_are_limited_too(scene: Scene) -> None:
    scene.create(partitions=1)
    scene.send(0, [b"x" * 1000] * 10)
    reader = available_now(scene, maxBytesPerTrigger=4_500)
    scene.send(0, [b"x" * 1000] * 10)
    at, batches = scene.stream_reader().initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxBytes(4_500))) != at:
        batches.append(ends(end)[f"{scene.topic}-0"])
        at = end
    assert batches == [4, 8, 10]


# A batch that is done again


def test_a_batch_is_done_again_whatever_the_options_name_by_now(scene: Scene) -> None:
    other = f"{scene.topic}-other"
    scene.fill(20, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    both = scene.stream_reader(subscribe=f"{scene.topic},{other}")
    start = both.initialOffset()
    end = both.latestOffset(start, ReadAllAvailable())
    for options in ({}, {"failOnDataLoss": False}, {"assign": json.dumps({scene.topic: [0]})}):
        again = scene.stream_reader(**options)
        assert read(again.partitions(start, end)) == [(scene.topic, 0, 0, 20), (other, 0, 0, 10)]


def test_what_retention_took_of_a_batch_that_is_done_again_is_said(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.send(0, [b"first"] * 5)
    reader = scene.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    scene.wait_for_retention(0, beyond=5)
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 5"):
        scene.stream_reader().partitions(start, end)
    assert scene.stream_reader(failOnDataLoss=False).partitions(start, end) == []
    assert "offsets 0 to 5 (not included)" in caplog.text


# A query that may lose messages goes on


def test_a_topic_deleted_before_a_task_read_it_is_told_with_the_range(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.fill(100, partitions=1)
    options = {"timeoutMs": 20_000}
    strict, lenient = scene.stream_reader(**options), scene.stream_reader(failOnDataLoss=False, **options)
    start = strict.initialOffset()
    (task,) = strict.partitions(start, strict.latestOffset(start, ReadAllAvailable()))
    scene.delete()
    with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 100 .* are lost: the topic was deleted"):
        list(strict.read(task))
    assert list(lenient.read(task)) == []
    assert "are lost: the topic was deleted; going on without them" in caplog.text


def test_retention_may_take_what_was_to_tell_the_length_of_messages(scene: Scene, meddled: Meddled) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.send(0, [b"first"] * 5)
    reader = scene.stream_reader(maxBytesPerTrigger=100_000)
    start = reader.initialOffset()
    meddled.before_sample = lambda: scene.wait_for_retention(0, beyond=5)
    assert ends(reader.latestOffset(start, ReadMaxBytes(100_000))) == {f"{scene.topic}-0": 5}


@pytest.mark.parametrize("lenient", [True, False], ids=["may lose", "may not"])
def test_a_topic_of_a_pattern_may_go_while_it_is_looked_at(
    scene: Scene, meddled: Meddled, lenient: bool
) -> None:
    other = f"{scene.topic}-other"
    scene.fill(10, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    reader = scene.stream_reader(subscribePattern=f"{scene.topic}.*", failOnDataLoss=not lenient)
    start = reader.initialOffset()
    meddled.before_ends = lambda: scene.delete(other)
    if not lenient:
        with pytest.raises(OffsetOutOfRange, match=f"topic {other} is gone"):
            reader.latestOffset(start, ReadAllAvailable())
        return
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader.partitions(start, end)) == [(scene.topic, 0, 0, 10)]


def test_a_topic_that_nobody_knows_for_a_moment_goes_on_where_it_was_left(
    scene: Scene, meddled: Meddled, caplog: pytest.LogCaptureFixture
) -> None:
    scene.fill(10, partitions=1)
    reader = scene.stream_reader(failOnDataLoss=False)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    meddled.unknown = True
    middle = reader.latestOffset(start, ReadAllAvailable())
    assert reader.partitions(start, middle) == []
    assert reader.latestOffset(middle, ReadAllAvailable()) == middle
    assert caplog.text.count("is gone") == 1
    meddled.unknown = False
    scene.more(10, 5, partitions=1)
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert read(reader.partitions(middle, end)) == [(scene.topic, 0, 10, 15)]


def test_a_topic_that_was_given_up_does_not_fail_a_query_for_ever(scene: Scene) -> None:
    other = f"{scene.topic}-other"
    scene.fill(10, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    pattern = {"subscribePattern": f"{scene.topic}.*"}
    strict, lenient = scene.stream_reader(**pattern), scene.stream_reader(failOnDataLoss=False, **pattern)
    start = strict.initialOffset()
    scene.delete(other)
    with pytest.raises(OffsetOutOfRange, match=f"topic {other} is gone"):
        strict.latestOffset(start, ReadAllAvailable())
    middle = lenient.latestOffset(start, ReadAllAvailable())
    assert strict.latestOffset(middle, ReadAllAvailable()) == middle
    scene.fill(3, partitions=1, topic=other)  # another one: that the old one is lost is news again
    with pytest.raises(OffsetOutOfRange, match="was deleted and made again"):
        strict.latestOffset(middle, ReadAllAvailable())


def test_what_is_lost_is_said_once_when_the_batch_goes(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.send(0, [b"first"] * 5)
    reader = scene.stream_reader(
        minOffsetsPerTrigger=10_000, maxTriggerDelay="1h", failOnDataLoss=False, timeoutMs=20_000
    )
    start = reader.initialOffset()
    reader.latestOffset(start, ReadMinRows(10_000))  # the first goes at once
    scene.wait_for_retention(0, beyond=5)
    caplog.clear()
    for _ in range(3):
        assert reader.latestOffset(start, ReadMinRows(10_000)) == start
    assert "are lost" not in caplog.text
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    assert caplog.text.count("are lost") == 1
