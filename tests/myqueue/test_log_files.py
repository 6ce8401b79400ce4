"""Log files: what is taken, what is refused and where, what is written; and what of it comes out again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.delivery import check
from myqueue.log_file import (
    IncompatibleLogFile,
    LogLine,
    by_tag,
    consumer_line,
    consumer_path,
    producer_path,
    read_consumer_log,
    read_producer_log,
)
from myqueue.setups import SETUPS, make_logs, topics_by

ROOT = Path(__file__).resolve().parents[2]
GOOD = "21:52:23\tINFO\tP1-1\tT1\n"
EXAMPLE = "21:52:23\tINFO\t\tP1-1\t\tT1\n21:52:23\tINFO\t\tP1-1\t\tT2\n21:52:24\tWARN disk\t\tP1-2\t\tT1\n"


def read(directory: Path, content: str | bytes) -> list[LogLine]:
    path = directory / "producer_1.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_producer_log(path, ["T1", "T2"])


def test_the_documents_own_example_is_taken(tmp_path: Path) -> None:
    lines = read(tmp_path, EXAMPLE)
    assert lines[2] == LogLine(3, "21:52:24", "WARN disk", "P1-2", "T1")
    assert [line.topic for line in lines] == ["T1", "T2", "T1"]


@pytest.mark.parametrize(
    "content",
    [
        GOOD.rstrip("\n"),
        GOOD.replace("\n", "\r\n"),
        GOOD + "\n\n",
        "[ts         msg       parallel    topic]\n---------------------\n" + GOOD,
        GOOD.replace("21:52:23", "00:00:00.250"),
        GOOD.replace("INFO", "C:\\new grüße  "),
    ],
)
def test_what_differs_only_in_looks_is_taken(tmp_path: Path, content: str) -> None:
    (line,) = read(tmp_path, content)
    assert (line.tag, line.topic) == ("P1-1", "T1")
    assert line.message in ("INFO", "C:\\new grüße  "), "a message is taken as it stands"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("21:52:23 INFO P1-1 T1", "1 fields"),
        ("21:52:23\tINFO\tP1-1", "3 fields"),
        ("21:52:23\tINFO\tP1-1\tT1\tmore", "5 fields"),
        ("21:52:23\tINFO\tP1-1\tT1\t", "5 fields"),
        ("21:52:23\t \tP1-1\tT1", "time<TAB>message"),
        ("", "empty"),
        ("25:00:00\tINFO\tP1-1\tT1", "HH:MM:SS"),
        ("INFO\t21:52:23\tP1-1\tT1", "HH:MM:SS"),
        ("21:52:23\tINFO\tP1-1\tT9", "T1, T2"),
        (b"21:52:23\t\xff\tP1-1\tT1", "UTF-8"),
    ],
)
def test_another_shape_is_refused_with_its_line(tmp_path: Path, bad: str | bytes, expected: str) -> None:
    raw = bad.encode() if isinstance(bad, str) else bad
    with pytest.raises(IncompatibleLogFile, match="log file: incompatible") as caught:
        read(tmp_path, GOOD.encode() * 2 + raw + b"\n" + GOOD.encode())
    assert caught.value.line == 3
    assert "line 3" in str(caught.value)
    assert expected in str(caught.value)


def test_a_file_without_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleLogFile, match="no messages"):
        read(tmp_path, "\n")


def test_tags_keep_the_order_in_which_they_first_appear(tmp_path: Path) -> None:
    lines = read(tmp_path, "".join(f"00:00:00\t{n}\t{tag}\tT1\n" for n, tag in enumerate("baabc")))
    assert [[line.message for line in group] for group in by_tag(lines)] == [["0", "3"], ["1", "2"], ["4"]]


@given(st.lists(st.binary()))
def test_whatever_was_consumed_can_be_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("logs") / "consumer_1.txt"
    path.write_text("".join(consumer_line("T1", value) for value in values), encoding="utf-8", newline="\n")
    assert path.read_bytes().count(b"\n") == len(values)
    assert read_consumer_log(path) == [("T1", value) for value in values]


def test_an_ordinary_message_is_written_as_it_is() -> None:
    assert consumer_line("T1", b"INFO a\tb") == "T1\tINFO a\tb\n"
    assert consumer_line("T1", b"a\nb\\n\xff") == "T1\ta\\nb\\\\n\\xff\n"
    assert consumer_line("T1", None) == "T1\t\n"


def test_a_consumers_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = consumer_path(tmp_path, 1)
    path.write_text("T1\tx\nT1 x\n")
    with pytest.raises(IncompatibleLogFile, match="line 2"):
        read_consumer_log(path)


@pytest.mark.parametrize("name", SETUPS)
def test_examples_and_made_logs_have_the_documented_shape(tmp_path: Path, name: str) -> None:
    make_logs(tmp_path, SETUPS[name], 7)
    for directory in (ROOT / "examples" / name, tmp_path):
        for number, topics in topics_by(SETUPS[name], lambda link: link.producers).items():
            lines = read_producer_log(producer_path(directory, number), topics)
            assert {line.topic for line in lines} == set(topics)
            if directory == tmp_path:
                assert len(lines) == 7


# The check of what came: it must be able to fail.

LOGS = {
    1: [
        LogLine(1, "", "INFO", "a", "T1"),
        LogLine(2, "", "one", "a", "T1"),
        LogLine(3, "", "two", "b", "T1"),
        LogLine(4, "", "one", "c", "T1"),
        LogLine(5, "", "elsewhere", "c", "T2"),
    ],
    2: [LogLine(1, "", "INFO", "a", "T1"), LogLine(2, "", "three", "b", "T1")],
}
RIGHT = ["one", "INFO", "three", "INFO", "two", "one"]


def test_what_came_as_it_should_is_right() -> None:
    delivery = check(1, "T1", LOGS, RIGHT)
    assert delivery.is_right
    assert (delivery.expected, delivery.received) == (6, 6)
    assert delivery.complaints() == []


@pytest.mark.parametrize(
    ("received", "complaint"),
    [
        (RIGHT[1:], "1 missing: 'one'"),
        (["one", "INFO", "three", "two", "one"], "1 missing: 'INFO'"),
        ([*RIGHT, "three"], "1 too many: 'three'"),
        ([*RIGHT, "elsewhere"], "1 too many: 'elsewhere'"),
        (["two", "one", "INFO", "three", "INFO", "one"], "tags of producer 1 out of order"),
        (["one", "one", "INFO", "three", "INFO", "two"], "tags of producer 1 out of order"),
        ([], "6 missing: 'INFO', 'one', 'two', 'three'"),
    ],
)
def test_what_came_otherwise_is_complained_of(received: list[str], complaint: str) -> None:
    delivery = check(1, "T1", LOGS, received)
    assert not delivery.is_right
    assert delivery.complaints() == [f"consumer 1, T1: {complaint}"]
