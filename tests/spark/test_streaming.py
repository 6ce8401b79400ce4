"""Streaming reading over a real Spark and a real cluster: checkpoints, limits, losses, visible progress."""

import json
import threading

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.query import StreamingQuery

from spark.scene import BEGIN, SECONDS_MAX, Scene, batches_of, ends, read
from spark.shown import positions
from talweg.errors import OffsetOutOfRange, TalwegError
from talweg.testing.processes import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

IDLE = "spark.sql.streaming.noDataProgressEventInterval"


def test_a_query_goes_on_where_its_checkpoint_says(scene: Scene) -> None:
    sent = scene.fill(500)
    query = scene.run(scene.stream())
    assert scene.written() == sorted(sent)
    assert batches_of(query) == [500]
    sent += scene.more(500, 300)
    assert batches_of(scene.run(scene.stream())) == [300]
    assert scene.written() == sorted(sent)
    progress = query.lastProgress
    assert progress is not None
    end = json.loads(progress.sources[0].endOffset)
    assert end[scene.topic]["partitions"] == {"0": 300, "1": 200}


def test_rows_of_a_batch_are_limited_even_when_a_leader_dies(scene: Scene) -> None:
    sent = scene.fill(1000, partitions=3, batch=50)
    query = scene.start(scene.stream(maxOffsetsPerTrigger=90), availableNow=True)
    wait_until(lambda: len(batches_of(query)) >= 2, "two batches", SECONDS_MAX)
    scene.cluster.kill_leader(scene.topic, 1)
    assert query.awaitTermination(SECONDS_MAX)
    assert sum(batches_of(query)) == 1000
    assert max(batches_of(query)) == 90
    assert scene.written() == sorted(sent)


def test_bytes_of_a_batch_are_limited_about(scene: Scene) -> None:
    scene.create(partitions=2)
    for partition in range(2):
        scene.send(partition, [b"x" * 1000] * 400)
    reader = scene.stream_reader(maxBytesPerTrigger=100_000)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    start, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batches.append(sum(ends(end).values()) - sum(ends(start).values()))
        start = end
    assert sum(batches) == 800
    assert all(90 <= count <= 100 for count in batches[:-1])


def test_a_message_longer_than_the_limit_does_not_stop_a_query(scene: Scene) -> None:
    scene.create(partitions=1)
    scene.send(0, [b"x" * 10_000] * 3)
    reader = scene.stream_reader(maxBytesPerTrigger=100)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(end) == {f"{scene.topic}-0": 1}


def test_spark_goes_by_a_limit_of_bytes_from_the_moment_where_a_query_starts(scene: Scene) -> None:
    scene.create(partitions=2)
    values = {partition: [b"%d %0999d" % (partition, n) for n in range(100)] for partition in range(2)}
    for partition, sent in values.items():
        scene.send(partition, sent, timestamps=[BEGIN + n * 1_000_000 for n in range(100)])
    options = {"startingTimestamp": BEGIN // 1000 + 40_000, "maxBytesPerTrigger": 50_000}
    batches = batches_of(scene.run(scene.stream(**options)))
    assert (len(batches), sum(batches)) == (3, 120)
    assert all(45 <= count <= 50 for count in batches[:-1])
    assert scene.written() == sorted(values[0][40:] + values[1][40:])
    scene.send(0, [b"older"], timestamp=BEGIN)  # from here on its checkpoint counts, and nothing else
    assert batches_of(scene.run(scene.stream(**options))) == [1]


def test_a_limit_of_bytes_is_used_however_many_partitions_share_it(scene: Scene) -> None:
    scene.create(partitions=4)
    for partition in range(4):
        scene.send(partition, [b"x" * 10_000] * 2)
    reader = scene.stream_reader(maxBytesPerTrigger=25_000)  # less than a message for each
    start, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batches.append(sum(ends(end).values()) - sum(ends(start).values()))
        start = end
    assert batches == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("limit", "kept"), [({"maxBytesPerTrigger": 10_000}, 27), ({"maxOffsetsPerTrigger": 1}, 3)]
)
def test_no_partition_is_left_behind_for_another(scene: Scene, limit: dict[str, int], kept: int) -> None:
    scene.create(partitions=2)
    scene.send(1, [b"long" * 5_000] * 3)
    reader = scene.stream_reader(**limit)
    at = reader.initialOffset()
    for _ in range(6):
        scene.send(0, [b"x" * 1_000] * 20)  # more than the limit allows
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert ends(at) == {f"{scene.topic}-0": kept, f"{scene.topic}-1": 3}


def test_a_batch_waits_for_enough_rows_but_not_for_ever(scene: Scene) -> None:
    scene.fill(3, partitions=1)
    reader = scene.stream_reader(minOffsetsPerTrigger=11, maxTriggerDelay="1h")
    begin = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMinRows(11)
    start = reader.latestOffset(begin, ReadMinRows(11))
    assert ends(start) == {f"{scene.topic}-0": 3}  # the first one goes at once, as with Kafka
    scene.more(3, 10, partitions=1)
    assert reader.latestOffset(start, ReadMinRows(11)) == start
    assert reader.partitions(start, start) == []
    scene.more(13, 1, partitions=1)
    assert ends(reader.latestOffset(start, ReadMinRows(11))) == {f"{scene.topic}-0": 14}

    impatient = scene.stream_reader(minOffsetsPerTrigger=1000, maxTriggerDelay="200ms")
    assert impatient.latestOffset(begin, ReadMinRows(1000)) != begin
    wait_until(
        lambda: impatient.latestOffset(start, ReadMinRows(1000)) != start, "the delay to pass", SECONDS_MAX
    )

    now = scene.stream_reader(minOffsetsPerTrigger=1000, maxTriggerDelay="1h")
    now.prepareForTriggerAvailableNow()
    assert now.latestOffset(start, ReadMinRows(1000)) != start  # else it would never end


def test_spark_waits_for_enough_rows(scene: Scene) -> None:
    sent = scene.fill(3, partitions=1)
    scene.spark.conf.set(IDLE, "1ms")  # else a look that finds nothing to do is told of after seconds
    try:
        stream = scene.stream(minOffsetsPerTrigger=11, maxTriggerDelay="1h")
        query = scene.start(stream, processingTime="50 milliseconds")
    finally:
        scene.spark.conf.unset(IDLE)
    wait_until(lambda: batches_of(query) == [3], "the first batch", SECONDS_MAX)
    sent += scene.more(3, 10, partitions=1)
    wait_until(lambda: seen(query) == {f"{scene.topic}-0": 13}, "Spark to see more", SECONDS_MAX)
    sent += scene.more(13, 1, partitions=1)
    wait_until(lambda: sum(batches_of(query)) == 14, "the rest", SECONDS_MAX)
    query.stop()
    assert batches_of(query) == [3, 11]
    assert scene.written() == sorted(sent)


def seen(query: StreamingQuery) -> dict[str, int]:
    """What the query has found when it last looked, whether it read that or not."""
    progress = query.lastProgress
    return {} if progress is None else ends(json.loads(progress.sources[0].latestOffset))


def test_spark_may_overrule_limits(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    reader = scene.stream_reader(maxOffsetsPerTrigger=30)
    start = reader.initialOffset()
    assert ends(reader.latestOffset(start, ReadMaxRows(30))) == {f"{scene.topic}-0": 30}
    assert ends(reader.latestOffset(start, ReadAllAvailable())) == {f"{scene.topic}-0": 100}
    assert reader.reportLatestOffset() == reader.latestOffset(start, ReadAllAvailable())


def test_available_now_ends_with_what_was_there_when_it_began(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    reader = scene.stream_reader(maxOffsetsPerTrigger=60)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    scene.more(100, 100, partitions=1)
    first = reader.latestOffset(start, ReadMaxRows(60))
    second = reader.latestOffset(first, ReadMaxRows(60))
    assert ends(second) == {f"{scene.topic}-0": 100}
    assert reader.latestOffset(second, ReadMaxRows(60)) == second


def test_a_stream_starts_with_what_comes_unless_told_otherwise(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    latest = scene.stream_reader(startingOffsets="latest").initialOffset()
    assert ends(latest) == {f"{scene.topic}-0": 100}
    assert latest[scene.topic]["incarnation"] == scene.logs.topic(scene.topic).incarnation
    named = scene.stream_reader(startingOffsets=json.dumps({scene.topic: {"0": 7}})).initialOffset()
    assert ends(named) == {f"{scene.topic}-0": 7}


def test_tasks_are_split_in_streams_too(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    reader = scene.stream_reader(minPartitions=4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader.partitions(start, end)) == [
        (scene.topic, 0, begin, begin + 25) for begin in (0, 25, 50, 75)
    ]


def test_a_topic_that_comes_to_match_is_read_from_its_start(scene: Scene) -> None:
    one, two = f"{scene.topic}-one", f"{scene.topic}-two"
    scene.fill(10, partitions=1, topic=one)
    reader = scene.stream_reader(subscribePattern=f"{scene.topic}-.*", startingOffsets="latest")
    start = reader.initialOffset()
    scene.fill(5, partitions=1, topic=two)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader.partitions(start, end)) == [(two, 0, 0, 5)]
    # The same batch once more, by a query that comes back.
    again = scene.stream_reader(subscribePattern=f"{scene.topic}-.*")
    assert read(again.partitions(start, end)) == [(two, 0, 0, 5)]


def test_what_retention_took_fails_a_query_with_the_range_or_is_said(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.send(0, [b"first"] * 5)
    start = scene.stream_reader().initialOffset()
    first = scene.wait_for_retention(0, beyond=5)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to \d+ \(not included\) of partition 0 of topic"):
        scene.stream_reader().latestOffset(start, ReadAllAvailable())
    reader = scene.stream_reader(failOnDataLoss=False)
    end = reader.latestOffset(start, ReadAllAvailable())
    [(_, _, begin, _)] = read(reader.partitions(start, end))
    assert begin >= first
    assert "are lost" in caplog.text
    assert "failOnDataLoss is false" in caplog.text


def test_a_query_that_retention_overtook_fails_and_goes_on_when_told_to(scene: Scene) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    scene.send(0, [b"first"])
    scene.run(scene.stream())
    scene.wait_for_retention(0, beyond=1)
    with pytest.raises(PySparkException, match="are lost: retention dropped them before they were read"):
        scene.run(scene.stream())
    scene.run(scene.stream(failOnDataLoss=False))
    assert len(scene.written()) > 1


def test_a_topic_made_again_fails_a_query_or_is_read_from_its_start(scene: Scene) -> None:
    scene.fill(100, partitions=1)
    before = scene.stream_reader()
    start = before.initialOffset()
    middle = before.latestOffset(start, ReadAllAvailable())
    scene.delete()
    scene.fill(40, partitions=1)
    with pytest.raises(OffsetOutOfRange, match="was deleted and made again"):
        scene.stream_reader().latestOffset(middle, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange, match="was deleted"):
        scene.stream_reader().partitions(start, middle)
    reader = scene.stream_reader(failOnDataLoss=False)
    assert read(reader.partitions(start, middle)) == []
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert read(reader.partitions(middle, end)) == [(scene.topic, 0, 0, 40)]


def test_a_topic_that_is_gone_is_said(scene: Scene) -> None:
    scene.fill(10, partitions=1)
    reader = scene.stream_reader(subscribePattern=scene.topic)
    start = reader.initialOffset()
    scene.delete()
    with pytest.raises(OffsetOutOfRange, match=f"topic {scene.topic} is gone"):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(TalwegError, match="option subscribe: there is no topic"):
        scene.stream_reader().latestOffset(start, ReadAllAvailable())


def test_what_the_options_name_no_longer_stays_where_it_was_left(scene: Scene) -> None:
    other = f"{scene.topic}-other"
    scene.fill(20, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    both = scene.stream_reader(subscribe=f"{scene.topic},{other}")
    end = both.latestOffset(both.initialOffset(), ReadAllAvailable())
    scene.more(20, 5, partitions=1)
    scene.more(10, 5, partitions=1, topic=other)
    one = scene.stream_reader()
    further = one.latestOffset(end, ReadAllAvailable())
    assert read(one.partitions(end, further)) == [(scene.topic, 0, 20, 25)]
    assert read(scene.stream_reader().partitions(end, further)) == [(scene.topic, 0, 20, 25)]  # done again
    again = both.latestOffset(further, ReadAllAvailable())
    assert read(both.partitions(further, again)) == [(other, 0, 10, 15)]
    scene.delete(other)
    with pytest.raises(OffsetOutOfRange, match=f"topic {other} is gone"):
        one.latestOffset(further, ReadAllAvailable())


def test_a_partition_that_is_assigned_again_goes_on_where_it_was_left(scene: Scene) -> None:
    scene.fill(200)
    end = scene.stream_reader().latestOffset(scene.stream_reader().initialOffset(), ReadAllAvailable())
    scene.more(200, 200)
    first = scene.stream_reader(assign=json.dumps({scene.topic: [0]}))
    further = first.latestOffset(end, ReadAllAvailable())
    assert read(first.partitions(end, further)) == [(scene.topic, 0, 100, 200)]
    whole = scene.stream_reader()
    again = whole.latestOffset(further, ReadAllAvailable())
    assert read(whole.partitions(further, again)) == [(scene.topic, 1, 100, 200)]


def test_a_query_that_may_lose_messages_outlives_a_topic(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{scene.topic}-other"
    scene.fill(10, partitions=1)
    scene.fill(10, partitions=1, topic=other)
    reader = scene.stream_reader(subscribe=f"{scene.topic},{other}", failOnDataLoss=False)
    begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    scene.delete(other)
    scene.more(10, 5, partitions=1)
    middle = reader.latestOffset(begin, ReadAllAvailable())
    assert read(reader.partitions(begin, middle)) == [(scene.topic, 0, 10, 15)]
    assert f"topic {other} is gone" in caplog.text
    assert reader.latestOffset(middle, ReadAllAvailable()) == middle
    scene.fill(3, partitions=1, topic=other)
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert read(reader.partitions(middle, end)) == [(other, 0, 0, 3)]
    with pytest.raises(TalwegError, match="there is no topic mistyped"):
        scene.stream_reader(subscribe="mistyped", failOnDataLoss=False).initialOffset()


def test_a_checkpoint_of_another_source_is_refused(scene: Scene) -> None:
    scene.fill(10, partitions=1)
    with pytest.raises(TalwegError, match="not one of a talweg source"):
        scene.stream_reader().latestOffset({"logs": {"0": 5}}, ReadAllAvailable())


def test_a_query_that_follows_sees_what_comes(scene: Scene) -> None:
    sent = scene.fill(100)
    query = scene.start(scene.stream(group="follower"), processingTime="0 seconds")
    sender = threading.Thread(target=lambda: sent.extend(scene.more(100, 100)))
    sender.start()
    sender.join()
    wait_until(lambda: sum(batches_of(query)) >= 200, "all rows", SECONDS_MAX)
    wait_until(
        lambda: positions(scene, "follower") == {0: 200, 1: 0}, "the group to be at the end", SECONDS_MAX
    )
    query.stop()
    assert scene.written() == sorted(sent)
