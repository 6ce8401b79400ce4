"""Batch reading over a real Spark and a real cluster."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark.scene import BEGIN, Scene, values_of
from talweg.errors import TalwegError

pytestmark = pytest.mark.xdist_group("spark")

WHOLE = "key value topic partition offset timestamp".split()


def moment(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=BEGIN + round(seconds * 1e6))


def places(frame: Any) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_every_column_arrives_as_it_was_sent(scene: Scene) -> None:
    scene.create(partitions=2)
    scene.send(
        1,
        [b"first", None, b"third"],
        keys=[b"k", None, b""],
        timestamps=[BEGIN, BEGIN + 1, BEGIN + 2_000_000],
        headers=[[("a", b"1"), ("a", None)], [], [("b", b"")]],
    )
    frame = scene.read(includeHeaders=True)
    assert frame.columns == [*WHOLE, "headers"]
    rows = frame.orderBy("offset").collect()
    assert [row.key for row in rows] == [b"k", None, b""]
    assert [row.value for row in rows] == [b"first", None, b"third"]
    assert {row.topic for row in rows} == {scene.topic}
    assert [(row.partition, row.offset) for row in rows] == [(1, 0), (1, 1), (1, 2)]
    # Spark hands timestamps out in local time, without a zone.
    expected = [moment(0), moment(0.000001), moment(2)]
    assert [row.timestamp.astimezone(UTC) for row in rows] == expected
    assert [[tuple(pair) for pair in row.headers] for row in rows] == [
        [("a", b"1"), ("a", None)],
        [],
        [("b", b"")],
    ]


def test_headers_are_left_out_unless_asked_for(scene: Scene) -> None:
    scene.fill(10)
    assert scene.read().columns == WHOLE
    assert scene.read().count() == 10


def test_many_small_and_large_batches_are_read_once_each(scene: Scene) -> None:
    scene.create(partitions=1)
    sizes = [1, 70_000, 3, 3, 40_000, 30_000, 1]  # around the size that record batches are put together to
    sent = 0
    for size in sizes:
        scene.send(0, [b"%d" % number for number in range(sent, sent + size)])
        sent += size
    row = (
        scene.read("value binary, offset bigint")
        .selectExpr(
            "count(*) AS rows",
            "count(DISTINCT offset) AS offsets",
            "max(offset) AS last",
            "sum(CAST(CAST(value AS STRING) AS BIGINT) - offset) AS wrong",
        )
        .first()
    )
    assert row is not None
    assert (row.rows, row.offsets, row.last, row.wrong) == (sent, sent, sent - 1, 0)


@pytest.mark.parametrize(
    "schema", ["value binary", "partition int, topic string", "timestamp timestamp, key binary"]
)
def test_a_schema_chooses_columns(scene: Scene, schema: str) -> None:
    scene.fill(30)
    frame = scene.read(schema)
    assert frame.columns == [part.split()[0] for part in schema.split(", ")]
    assert len(frame.collect()) == 30


def test_an_empty_topic_is_an_empty_frame(scene: Scene) -> None:
    scene.create()
    assert scene.read().collect() == []


def test_offsets_bound_what_is_read(scene: Scene) -> None:
    scene.fill(400)
    starting = json.dumps({scene.topic: {"0": 150, "1": -2}})
    ending = json.dumps({scene.topic: {"0": -1, "1": 20}})
    frame = scene.read(startingOffsets=starting, endingOffsets=ending)
    assert places(frame) == [(0, offset) for offset in range(150, 200)] + [
        (1, offset) for offset in range(20)
    ]


def test_moments_bound_what_is_read_to_the_message(scene: Scene) -> None:
    scene.create(partitions=1)
    for begin in (0, 10):
        scene.send(0, [b"x"] * 10, timestamps=[BEGIN + (begin + n) * 1_000_000 for n in range(10)])
    frame = scene.read(startingTimestamp=BEGIN // 1000 + 4_000, endingTimestamp=moment(13).isoformat())
    assert places(frame) == [(0, offset) for offset in range(4, 13)]
    assert places(scene.read(startingTimestamp=BEGIN // 1000 + 60_000)) == []


def test_what_ends_before_it_begins_is_empty(scene: Scene) -> None:
    scene.create(partitions=1)
    scene.send(0, [b"x"] * 10, timestamps=[BEGIN + n * 1_000_000 for n in range(10)])
    ending = json.dumps({scene.topic: {"0": 3}})
    assert scene.reader(startingTimestamp=BEGIN // 1000 + 4_000, endingOffsets=ending).partitions() == []


def test_several_topics_a_pattern_or_partitions_are_read(scene: Scene) -> None:
    one, two = f"{scene.topic}-one", f"{scene.topic}-two"
    first, second = scene.fill(20, batch=10, topic=one), scene.fill(30, batch=10, topic=two)
    assert values_of(scene.read(subscribe=f"{one}, {two}")) == sorted(first + second)
    assert values_of(scene.read(subscribePattern=f"{scene.topic}-t.*")) == sorted(second)
    assigned = scene.read(assign=json.dumps({one: [1], two: [0]}))
    found = {(row.topic, row.partition) for row in assigned.collect()}
    assert found == {(one, 1), (two, 0)}


def test_more_tasks_read_the_same(scene: Scene) -> None:
    sent = scene.fill(1000)
    assert scene.read().rdd.getNumPartitions() == 2
    frame = scene.read(minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert values_of(frame) == sorted(sent)


def test_filters_are_handed_down_on_request(scene: Scene) -> None:
    scene.create(partitions=3)
    for partition in range(3):
        for begin in range(0, 100, 10):
            times = [BEGIN + (begin + number) * 1_000_000 for number in range(10)]
            scene.send(partition, [b"x"] * 10, timestamps=times)
    frame = scene.read(filterPushdown=True)
    for condition in (
        "partition = 1",
        "partition IN (0, 2) AND offset >= 95",
        "partition > 0 AND offset < 3",
        "offset = 7",
        "offset IN (3, 30)",
        f"topic = '{scene.topic}' AND offset > 97",
        "topic = 'another'",
        f"timestamp >= TIMESTAMP '{moment(97):%Y-%m-%d %H:%M:%S}'",
        f"timestamp < TIMESTAMP '{moment(3):%Y-%m-%d %H:%M:%S}' AND partition = 2",
        "value IS NOT NULL AND partition <> 1",
    ):
        assert places(frame.where(condition)) == places(scene.read().where(condition)), condition
    # What is not wanted is not even asked for.
    assert frame.where("partition = 1").rdd.getNumPartitions() == 1
    assert frame.where("partition < 2 AND offset >= 50").rdd.getNumPartitions() == 2
    assert "partition" not in _filters_of(frame.where("partition = 1"))


def counts(*frames: Any) -> list[int]:
    """How many rows each has, asked for one after the other."""
    return [len(frame.select("offset").collect()) for frame in frames]


def test_frames_that_were_loaded_apart_have_their_own_filters(scene: Scene) -> None:
    scene.create(partitions=2)
    for partition in range(2):
        scene.send(partition, [b"x"] * (4 + partition))

    def load(condition: str = "true") -> Any:
        return scene.read(filterPushdown=True).where(condition)

    first, second, whole = load("partition = 0"), load("partition = 1"), load()
    assert counts(first, second, whole, first) == [4, 5, 9, 4]
    assert places(load("partition = 0").union(load("partition = 1"))) == places(scene.read())


def test_spark_still_mixes_up_the_filters_of_one_frame(scene: Scene) -> None:
    """What docs/spark.md warns of. When this fails, Spark has mended it: take the warnings away, there and in
    `PushingReader`."""
    scene.create(partitions=2)
    for partition in range(2):
        scene.send(partition, [b"x"] * (4 + partition))
    frame = scene.read(filterPushdown=True)
    assert counts(frame.where("partition = 1"), frame) == [5, 5], "instead of 5 and 9"
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert {partition for partition, _ in places(both)} == {1}, "instead of both"


def test_spark_still_plans_a_frame_once(scene: Scene) -> None:
    """What docs/spark.md warns of, too."""
    scene.create(partitions=1)
    scene.send(0, [b"x"] * 4)
    frame = scene.read()
    assert counts(frame) == [4]
    scene.send(0, [b"x"] * 3)
    assert counts(frame, scene.read()) == [4, 7]


def _filters_of(frame: Any) -> str:
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "\n".join(line for line in plan.splitlines() if "Filter" in line and "BatchScan" not in line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "no-such-topic"}, "option subscribe: there is no topic no-such-topic"),
        ({"subscribePattern": "no-such.*"}, "option subscribePattern: no topic matches no-such"),
        ({"assign": '{"TOPIC": [0, 9]}'}, "option assign: topic TOPIC has no partition 9, only 0 to 1"),
        ({"startingOffsets": '{"TOPIC": {"0": 5}}'}, "option startingOffsets: .*TOPIC-1 missing"),
        ({"startingOffsets": '{"TOPIC": {"0": 5, "1": 0, "2": 0}}'}, "TOPIC-2 not read"),
        ({"startingOffsets": '{"TOPIC": {"0": 99, "1": 0}}'}, "offset 99 is behind the end of partition 0"),
        ({"nonsense": "1"}, "option nonsense: unknown"),
        ({"maxOffsetsPerTrigger": "1"}, "option maxOffsetsPerTrigger: it is for streaming queries"),
    ],
)
def test_what_is_wrong_is_said_when_the_query_is_planned(
    scene: Scene, options: dict[str, str], said: str
) -> None:
    scene.fill(10)
    given = {name: value.replace("TOPIC", scene.topic) for name, value in options.items()}
    with pytest.raises(TalwegError, match=said.replace("TOPIC", scene.topic)):
        scene.reader(**given).partitions()


def test_what_is_wrong_reaches_the_user(scene: Scene) -> None:
    with pytest.raises(PySparkException, match="option nonsense: unknown, expected one of"):
        scene.read(nonsense=1)
    with pytest.raises(PySparkException, match="option subscribe: there is no topic no-such-topic"):
        scene.read(subscribe="no-such-topic").collect()


def test_what_retention_took_fails_a_query_that_names_it(scene: Scene) -> None:
    scene.create(partitions=1, retention_bytes=1 << 20)
    first = scene.wait_for_retention(0)
    options = {"startingOffsets": json.dumps({scene.topic: {"0": 0}})}
    with pytest.raises(
        PySparkException, match=r"offsets 0 to \d+ \(not included\) of partition 0 .* are lost"
    ):
        scene.read(**options).collect()
    kept = places(scene.read(**options, failOnDataLoss=False))
    assert kept[0][1] >= first
    assert kept == [(0, offset) for offset in range(kept[0][1], kept[-1][1] + 1)]


def test_a_leader_that_is_dead_costs_a_delay(scene: Scene) -> None:
    sent = scene.fill(2000, partitions=3)
    frame = scene.read()
    scene.cluster.kill_leader(scene.topic, 0)
    assert values_of(frame) == sorted(sent)
