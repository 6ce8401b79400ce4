"""A dead letter is the message as it was, and says where from, whatever the message is; and it goes back."""

import re

import pytest
from pyspark.sql import SparkSession

from pipeline.made import frame, message
from talweg.cli.pipeline import GROUPS as GROUPS_OF_THE_COMMAND
from talweg.client.offsets import check_name
from talweg.errors import InvalidSetting
from talweg.metadata.model import TOPIC_NAME_LENGTH_MAX, check_topic_name
from talweg.pipeline import pipeline
from talweg.pipeline.dead_letters import HEADERS_MAX, dead_letters_of
from talweg.pipeline.lines import parse
from talweg.pipeline.names import GROUPS, SUFFIX, TOPIC_LENGTH_MAX, check_prefix, dead_letter_topic, group_of
from talweg.pipeline.places import TopicsSource
from talweg.pipeline.standard import STANDARD
from talweg.records import HEADERS_MAX as HEADERS_MAX_OF_RECORDS

pytestmark = pytest.mark.xdist_group("spark")


def test_whatever_a_message_is_its_dead_letter_keeps_it_and_says_where_from(spark: SparkSession) -> None:
    own = [("trace", b"7"), ("talweg.dlq.attempt", b"2"), ("talweg.dlq.topic", b"old")]
    many = [("h", b"%d" % number) for number in range(HEADERS_MAX)]
    # The last two begin alike.
    topics = ["t" * 245, "t" * 246, "t" * TOPIC_LENGTH_MAX, "t" * (TOPIC_LENGTH_MAX - 1) + "u"]
    rows = [
        message("prose", 0, key=b"k", headers=own, partition=3),
        message(None, 1, seconds=-43_200),
        message("prose", 2, headers=many[:-6]),  # as many as ours leave room for
        message("prose", 3, headers=many),
        message("prose", 4, headers=[("talweg.dlq.attempt", b"%d" % (2**31 - 1))]),
        *(message("prose", number, topic=topic) for number, topic in enumerate(topics, 5)),
        message("INFO fine", 9),
        message("prose", 10, topic="logs.dlq"),
    ]
    found = dead_letters_of(parse(frame(spark, rows))).collect()
    letters = {int(dict(row.headers)["talweg.dlq.offset"]): row for row in found}
    assert sorted(letters) == list(range(9))
    first = letters[0]
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"prose", "logs.dlq")
    assert [(each.key, bytes(each.value)) for each in first.headers] == [
        ("trace", b"7"),
        ("talweg.dlq.topic", b"logs"),
        ("talweg.dlq.partition", b"3"),
        ("talweg.dlq.offset", b"0"),
        ("talweg.dlq.timestamp", b"1769860800000000"),
        ("talweg.dlq.error", b"line: in no known format: 'prose'"),
        ("talweg.dlq.attempt", b"3"),
    ]
    assert letters[1].value is None
    assert dict(letters[1].headers)["talweg.dlq.timestamp"] == b"1769817600000000"
    assert [len(letters[number].headers) for number in (2, 3)] == [HEADERS_MAX, HEADERS_MAX]
    told = [dict(letters[number].headers)["talweg.dlq.error"] for number in (2, 3)]
    assert told[0] == b"line: in no known format: 'prose'"
    assert told[1] == told[0] + b"; without the last 6 of its own headers"
    assert [bytes(value) for _, value in letters[3].headers[:-6]] == [value for _, value in many[:-6]]
    assert dict(letters[4].headers)["talweg.dlq.attempt"] == b"%d" % (2**31 - 1)
    assert [letters[number].topic for number in range(5, 9)] == [dead_letter_topic(each) for each in topics]


def test_topics_for_dead_letters_are_no_longer_than_topics_may_be_and_each_has_its_own() -> None:
    assert (TOPIC_LENGTH_MAX, HEADERS_MAX) == (TOPIC_NAME_LENGTH_MAX, HEADERS_MAX_OF_RECORDS)
    names = [f"{'t' * length}{end}" for length in range(240, TOPIC_LENGTH_MAX) for end in "uv"]
    for name in names:
        letters = dead_letter_topic(name)
        check_topic_name(letters)
        assert letters.endswith(SUFFIX)
        assert letters.startswith(name[:200])
        assert (letters == f"{name}{SUFFIX}") == (len(name) <= 245)
        assert dead_letter_topic(letters) == letters
    assert len({dead_letter_topic(name) for name in names}) == len(names)


def test_groups_are_no_longer_than_groups_may_be_and_each_has_its_own() -> None:
    assert group_of(GROUPS, "count") == f"{GROUPS_OF_THE_COMMAND}.count"
    names = ["n" * 100, "n" * 99 + "m", f"redrive.{'t' * 245}"]
    groups = {group_of(check_prefix("p" * 150), name) for name in names}
    assert len(groups) == len(names)
    for group in groups:
        assert check_name(group) == group
    for wrong in ("", "#1", "p" * 151):
        with pytest.raises(InvalidSetting, match=re.escape(f"--group {wrong!r}: expected 1 to 150")):
            check_prefix(wrong)


def test_who_names_topics_in_its_rows_is_not_read_by_who_follows() -> None:
    source = TopicsSource(None)
    elsewhere = pipeline(to_topic="", name="elsewhere")(lambda lines: lines)
    there = pipeline(to_topic="there", name="there")(lambda lines: lines)
    assert source.beside([there], follow=True) == TopicsSource(None, written=("there",), later=True)
    assert not source.beside([there], follow=False).later
    assert not source.beside([there, elsewhere], follow=True).later
    assert source.beside([STANDARD["dead-letters"]], follow=True).later
    (options,) = [source.beside([there], follow=True).options("x")]
    wanted = re.compile(options["subscribePattern"])
    names = ["a", "there", "there2", "alerts", "alerts.x", "a.dlq", "a.dlq.b", "__own", "_a"]
    assert [name for name in names if wanted.fullmatch(name)] == ["a", "there2", "alerts.x", "a.dlq.b", "_a"]
