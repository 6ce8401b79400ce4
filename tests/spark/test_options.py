"""Options are read once, and what is wrong with them is said by name. No Spark session is needed for that."""

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from talweg.errors import InvalidSetting
from talweg.spark import TalwegSource
from talweg.spark.columns import check_schema, whole_schema
from talweg.spark.options import Given, ReadOptions, read_options, write_options


def batch(**options: str) -> ReadOptions:
    return read_options(Given({"subscribe": "logs"} | options), streaming=False)


def stream(**options: str) -> ReadOptions:
    return read_options(Given({"subscribe": "logs"} | options), streaming=True)


def test_names_are_read_in_any_capitals() -> None:
    assert batch(FAILONDATALOSS="false", minpartitions="7").min_partitions == 7
    assert not batch(FAILONDATALOSS="false").fail_on_data_loss


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName"])
def test_what_is_for_spark_itself_may_come_along(name: str) -> None:
    assert stream(**{name: "mine"}).min_partitions == stream().min_partitions
    assert write_options(Given({"topic": "logs", name: "mine"}), streaming=True).topic == "logs"


@pytest.mark.parametrize("name", ["servers", "kafka.bootstrap.servers", "bootstrap.servers"])
def test_servers_may_be_spelt_as_with_kafka(name: str) -> None:
    connect = batch(**{name: "one:8000, two:8000"}).connect
    assert connect.servers == ("http://one:8000", "http://two:8000")


def test_servers_come_from_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALWEG_URL", "http://there:1234")
    assert batch().connect.servers == ("http://there:1234",)


def test_offsets_are_words_or_json() -> None:
    assert batch(startingOffsets="earliest").starting == "earliest"
    assert stream(startingOffsets="Latest").starting == "latest"
    given = batch(startingOffsets='{"logs": {"0": 5, "1": -2}}', endingOffsets='{"logs": {"0": 9, "1": -1}}')
    assert given.starting == {"logs": {0: 5, 1: -2}}
    assert given.ending == {"logs": {0: 9, 1: -1}}


@pytest.mark.parametrize("text", ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"])
def test_moments_are_milliseconds_or_iso_8601(text: str) -> None:
    assert batch(startingTimestamp=text).starting_timestamp == 1_700_000_000_000_000


def test_limits_are_for_streams() -> None:
    given = stream(
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="30s",
        maxBytesPerTrigger="5000",
    )
    assert (given.rows_max, given.rows_min, given.bytes_max) == (100, 10, 5000)
    assert given.trigger_delay_seconds_max == 30


# What is wrong, and what the message must say.
WRONG: list[tuple[dict[str, str], str]] = [
    ({"startingOfsets": "earliest"}, "option startingOfsets: unknown, expected one of .*startingOffsets"),
    ({"subscribePattern": "l.*"}, "options subscribe and subscribePattern: only one"),
    ({"assign": '{"logs": [0]}'}, "options subscribe and assign: only one"),
    ({"subscribe": " , "}, "option subscribe: expected topics"),
    ({"subscribe": ""}, "option subscribe: it is empty"),
    ({"startingOffsets": "middle"}, "option startingOffsets: expected earliest, latest or JSON.*'middle'"),
    ({"startingOffsets": "[1]"}, "option startingOffsets: expected earliest, latest or JSON"),
    ({"startingOffsets": '{"logs": 5}'}, "option startingOffsets: .*got 5 for topic 'logs'"),
    ({"startingOffsets": '{"logs": {"x": 5}}'}, "option startingOffsets: .*partition 'x' of topic 'logs'"),
    ({"startingOffsets": '{"logs": {"0": -3}}'}, "option startingOffsets: .*got -3"),
    ({"startingOffsets": '{"logs": {"0": true}}'}, "option startingOffsets: .*got true"),
    ({"startingOffsets": '{"logs": {"0": -1.0}}'}, r"option startingOffsets: .*got -1\.0"),
    ({"startingOffsets": '{"logs": {"0": 3, "00": 7}}'}, "option startingOffsets: .*partition '00'"),
    ({"startingOffsets": '{"logs": {"0": 3, "0": 7}}'}, "option startingOffsets: '0' is there 2 times"),
    ({"startingOffsets": '{"a": {"0": 3}, "a": {"0": 7}}'}, "option startingOffsets: 'a' is there 2 times"),
    ({"startingTimestamp": "yesterday"}, "option startingTimestamp: expected milliseconds.*'yesterday'"),
    ({"startingTimestamp": "2026-01-01T00:00:00"}, "option startingTimestamp: .*no time zone"),
    (
        {"startingTimestamp": "1", "startingOffsets": "latest"},
        "startingOffsets and startingTimestamp: only one",
    ),
    ({"minPartitions": "0"}, "option minPartitions: expected a whole number from 1 up, got '0'"),
    ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: expected true or false, got 'maybe'"),
    ({"servers": "ftp://x"}, "servers: 'ftp://x' is not an address"),
    ({"servers": "a", "bootstrap.servers": "b"}, "options servers and bootstrap.servers: only one"),
    ({"topic": "logs"}, "option topic: it is for writing, this query reads"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
@pytest.mark.parametrize("read", [batch, stream])
def test_what_is_wrong_is_named(read: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        read(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger: it is for streaming queries"),
        ({"group": "g"}, "option group: it is for streaming queries"),
        ({"startingOffsets": "latest"}, "option startingOffsets: it cannot be latest"),
        ({"startingOffsets": '{"logs": {"0": -1}}'}, "option startingOffsets: it cannot be latest"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: it cannot be earliest"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingOffsets and endingTimestamp: only one"),
        ({"startingTimestamp": "5", "endingTimestamp": "0"}, "option startingTimestamp: it is later"),
        (
            {"startingOffsets": '{"logs": {"0": 9}}', "endingOffsets": '{"logs": {"0": 8}}'},
            "option startingOffsets: offset 9 of partition 0 of topic logs is behind its endingOffsets, 8",
        ),
    ],
)
def test_a_batch_query_is_told_what_it_cannot_have(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets: a streaming query has no end"),
        ({"filterPushdown": "true"}, "option filterPushdown: a streaming query"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "option minOffsetsPerTrigger: it is more",
        ),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay: it means nothing without"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: expected a time"),
        ({"group": "#5"}, "option group: .*not #"),
    ],
)
def test_a_streaming_query_is_told_what_it_cannot_have(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        stream(**options)


def test_a_query_needs_to_know_what_to_read() -> None:
    with pytest.raises(
        InvalidSetting, match="one of the options subscribe, subscribePattern, assign is needed"
    ):
        read_options(Given({}), streaming=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("logs", "option assign: expected JSON"),
        ('{"logs": []}', r"option assign: .*got \[\] for 'logs'"),
        ('{"logs": ["0"]}', "option assign: expected JSON"),
    ],
)
def test_an_assignment_is_json(text: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        read_options(Given({"assign": text}), streaming=False)


def test_a_pattern_is_a_regular_expression() -> None:
    with pytest.raises(InvalidSetting, match=r"option subscribePattern: .* is no pattern"):
        read_options(Given({"subscribePattern": "("}), streaming=False)


def test_options_of_the_other_sort_are_refused_when_writing() -> None:
    with pytest.raises(InvalidSetting, match="option subscribe: it is for reading, this query writes"):
        write_options(Given({"subscribe": "logs"}), streaming=False)
    with pytest.raises(InvalidSetting, match="option compression: expected none, lz4 or zstd, got 'gzip'"):
        write_options(Given({"compression": "gzip"}), streaming=False)


def test_an_unknown_option_is_refused_when_the_source_is_made() -> None:
    with pytest.raises(InvalidSetting, match="option nonsense: unknown"):
        TalwegSource({"nonsense": "1"})


def test_headers_are_a_column_on_request() -> None:
    assert TalwegSource({}).schema().fieldNames() == "key value topic partition offset timestamp".split()
    assert TalwegSource({"includeHeaders": "true"}).schema() == whole_schema(headers=True)


def test_spark_is_told_which_columns_are_never_null() -> None:
    fields = TalwegSource({"includeHeaders": "true"}).schema().fields
    assert [field.name for field in fields if field.nullable] == ["key", "value"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("struct<price:integer>", "column price is unknown, expected key, value, topic"),
        ("struct<value:string>", "column value is binary, not string"),
        ("struct<offset:integer>", "column offset is bigint, not int"),
        ("struct<>", "it has no columns"),
    ],
)
def test_a_schema_that_cannot_be_had_is_refused(text: str, said: str) -> None:
    fields = [pair.split(":") for pair in text[7:-1].split(",") if pair]
    schema = StructType()
    for name, kind in fields:
        schema = schema.add(name, kind)
    with pytest.raises(InvalidSetting, match=said):
        check_schema(schema)


def schema_of(name: str, kind: DataType, *, nullable: bool) -> StructType:
    return StructType([StructField(name, kind, nullable)])


def test_a_schema_promises_only_what_holds() -> None:
    for name in ("key", "value"):
        with pytest.raises(InvalidSetting, match=f"column {name} may be null; leave out NOT NULL"):
            check_schema(schema_of(name, BinaryType(), nullable=False))
    check_schema(schema_of("offset", LongType(), nullable=False))

    def headers(*, values_nullable: bool) -> StructType:
        key, value = (
            StructField("key", StringType(), False),
            StructField("value", BinaryType(), values_nullable),
        )
        return schema_of("headers", ArrayType(StructType([key, value]), False), nullable=False)

    check_schema(headers(values_nullable=True))  # a header always has a key
    with pytest.raises(InvalidSetting, match=r"column headers\.value may be null; leave out NOT NULL"):
        check_schema(headers(values_nullable=False))
