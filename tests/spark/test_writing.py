"""Batch writing over a real Spark and a real cluster."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark.scene import Scene, values_of
from talweg.errors import InvalidSetting
from talweg.records import Codec
from talweg.spark import TalwegSource
from talweg.spark.options import Given, write_options
from talweg.spark.writer import TalwegStreamWriter, TalwegWriter

pytestmark = pytest.mark.xdist_group("spark")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write(scene: Scene, frame: Any, **options: Any) -> None:
    given = {"servers": scene.cluster.servers, "topic": scene.topic} | options
    frame.write.format("talweg").mode("append").options(**{k: v for k, v in given.items() if v}).save()


def test_columns_arrive_as_they_were(scene: Scene) -> None:
    scene.create(partitions=3)
    when = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
    frame = scene.spark.createDataFrame(
        [
            (b"k1", "text", 2, when, [("a", b"1"), ("a", None)]),
            (None, "other", 2, None, None),
            (b"k2", None, None, when, []),
        ],
        "key binary, value string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>",
    ).coalesce(1)
    write(scene, frame)
    rows = {row.value: row for row in scene.read(includeHeaders=True).collect()}
    assert rows[b"text"].partition == rows[b"other"].partition == 2
    assert rows[None].partition == crc32c(b"k2") % 3
    assert [rows[value].key for value in (b"text", b"other", None)] == [b"k1", None, b"k2"]
    assert rows[b"text"].timestamp.astimezone(UTC) == rows[None].timestamp.astimezone(UTC) == when
    assert abs(rows[b"other"].timestamp.astimezone(UTC) - datetime.now(UTC)).total_seconds() < 300
    assert [tuple(pair) for pair in rows[b"text"].headers] == [("a", b"1"), ("a", None)]
    assert rows[b"other"].headers == rows[None].headers == []


def test_keys_choose_partitions_and_the_rest_is_spread(scene: Scene) -> None:
    scene.create(partitions=4)
    frame = scene.spark.range(0, 40_000, numPartitions=4).selectExpr(
        "CASE WHEN id % 2 = 0 THEN concat('key-', id % 50) END AS key",
        "concat('value ', id, repeat('x', 50)) AS value",
    )
    write(scene, frame)
    rows = scene.read().collect()
    assert len(rows) == 40_000
    assert all(row.partition == crc32c(bytes(row.key)) % 4 for row in rows if row.key is not None)
    keyless = Counter(row.partition for row in rows if row.key is None)
    assert len(keyless) == 4
    assert len({bytes(row.value) for row in rows}) == 40_000


def test_small_writes_without_keys_are_spread_too(scene: Scene) -> None:
    scene.create(4)
    source = TalwegSource({"servers": scene.cluster.servers, "topic": scene.topic})
    for number in range(12):  # of one task each
        writer = source.writer(StructType([StructField("value", StringType())]), overwrite=False)
        told = writer.write(iter([pa.record_batch({"value": [str(number)]})]))
        writer.commit([told])
    ends = scene.logs.ends(scene.topic, range(4)).values()
    assert sum(end.next_offset for end in ends) == 12
    assert max(end.next_offset for end in ends) < 12


def test_compression_is_what_was_asked_for(scene: Scene) -> None:
    scene.create(partitions=1)
    rows = pa.record_batch({"value": [b"compresses well" * 100] * 10})
    for compression in ("none", "lz4", "zstd"):
        given = {"servers": scene.cluster.servers, "topic": scene.topic, "compression": compression}
        writer = TalwegSource(given).writer(StructType([StructField("value", BinaryType())]), overwrite=False)
        writer.commit([writer.write(iter([rows]))])
    batches = scene.batches(0)
    assert [batch.header.codec for batch in batches] == [Codec.NONE, Codec.LZ4, Codec.ZSTD]
    assert all(batch.to_arrow(["value"]).column(0).equals(rows.column(0)) for batch in batches)


@pytest.fixture
def zone(request: pytest.FixtureRequest, scene: Scene) -> Iterator[ZoneInfo]:
    """Of the session, for as long as the test runs."""
    scene.spark.conf.set("spark.sql.session.timeZone", request.param)
    yield ZoneInfo(request.param)
    scene.spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"], indirect=True)
def test_a_moment_stays_what_it_is_in_any_time_zone(scene: Scene, zone: ZoneInfo) -> None:
    scene.create(partitions=1)
    noon = "TIMESTAMP '2026-01-31 12:00:00.000005'"  # of that zone
    write(scene, scene.spark.sql(f"SELECT 'a' AS value, {noon} AS timestamp"))
    (batch,) = scene.batches(0)
    moment = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=zone)
    assert batch.header.first_timestamp == (moment - EPOCH) // timedelta(microseconds=1)

    def shown(frame: Any) -> list[str]:
        return [row.shown for row in frame.selectExpr("CAST(timestamp AS STRING) AS shown").collect()]

    assert shown(scene.read()) == ["2026-01-31 12:00:00.000005"]
    assert shown(scene.read(startingTimestamp=moment.isoformat())) == ["2026-01-31 12:00:00.000005"]
    for comparison, rows in ((">=", 1), (">", 0), ("<=", 1), ("<", 0)):
        condition = f"timestamp {comparison} {noon}"
        assert len(scene.read(filterPushdown=True).where(condition).collect()) == rows, condition
    scene.run(scene.stream())
    assert shown(scene.spark.read.parquet(str(scene.directory / "out"))) == ["2026-01-31 12:00:00.000005"]


def test_a_column_chooses_topics_and_those_that_are_not_there_are_made(scene: Scene) -> None:
    one, two = f"{scene.topic}-one", f"{scene.topic}-two"
    scene.create(partitions=1, topic=one)
    frame = scene.spark.createDataFrame([(one, "a"), (two, "b"), (one, "c")], "topic string, value string")
    write(scene, frame, topic=None)
    assert values_of(scene.read(subscribe=one)) == [b"a", b"c"]
    assert values_of(scene.read(subscribe=two)) == [b"b"]
    write(
        scene, frame
    )  # an option topic overrules the column, as with Kafka: else a copy would go in a circle
    assert values_of(scene.read()) == [b"a", b"b", b"c"]


def test_a_frame_that_was_read_can_be_written_as_it_is(scene: Scene) -> None:
    sent = scene.fill(500)
    copy = f"{scene.topic}-copy"
    scene.create(partitions=2, topic=copy)
    write(scene, scene.read(includeHeaders=True), topic=copy)
    assert values_of(scene.read(subscribe=copy)) == sorted(sent)


def test_the_same_transaction_is_written_once(scene: Scene) -> None:
    scene.create()
    for _ in range(2):
        write(scene, scene.spark.range(100).selectExpr("CAST(id AS STRING) AS value"), transaction="load/17")
    assert scene.read().count() == 100


def test_a_write_that_fails_leaves_nothing_to_read(scene: Scene) -> None:
    scene.create()
    frame = scene.spark.range(0, 20_000, numPartitions=2).selectExpr(
        "CAST(IF(id = 19999, raise_error('spilt'), id) AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match="spilt"):
        write(scene, frame)
    assert scene.read().collect() == []


def test_a_topic_is_not_overwritten(scene: Scene) -> None:
    scene.create()
    frame = scene.spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    options = {"servers": scene.cluster.servers, "topic": scene.topic}
    with pytest.raises(PySparkException, match="a topic is only ever added to"):
        frame.write.format("talweg").mode("overwrite").options(**options).save()


def test_a_partition_that_is_not_there_is_named(scene: Scene) -> None:
    scene.create(partitions=2)
    frame = scene.spark.createDataFrame([("a", 7)], "value string, partition int")
    with pytest.raises(PySparkException, match=f"partition 7: topic {scene.topic} has partitions 0 to 1"):
        write(scene, frame)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": "binary"}, "column value is needed"),
        ({"value": "binary", "price": "integer"}, "column price cannot be written: expected value"),
        ({"value": "integer"}, "column value is int, expected binary or string"),
        ({"value": "binary", "partition": "long"}, "column partition is bigint, expected int"),
        ({"value": "binary", "timestamp": "timestamp_ntz"}, "timestamp_ntz, expected timestamp; cast it"),
    ],
)
def test_columns_that_cannot_be_written_are_named(columns: dict[str, str], said: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    with pytest.raises(InvalidSetting, match=said):
        TalwegWriter(write_options(Given({"topic": "t"}), streaming=False), schema, overwrite=False)


def test_a_sink_needs_to_know_where_to_write() -> None:
    schema = StructType().add("value", "binary")
    with pytest.raises(InvalidSetting, match="option topic, or a column topic, is needed"):
        TalwegStreamWriter(write_options(Given({}), streaming=True), schema)
