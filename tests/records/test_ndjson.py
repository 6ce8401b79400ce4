"""NDJSON: an object a line, there and back, with errors that name the line and the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.samples import FULL, MANY, NOW, ONE, Rows, messages_of, rows
from talweg.errors import BatchTooLarge, CorruptBatch, TalwegError
from talweg.records import HEADERS_MAX, Codec, Message, frames_to_ndjson, ndjson_to_frame, stamp


def sent(*lines: str | dict[str, Any]) -> list[Message]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return messages_of(ndjson_to_frame(text.encode(), timestamp=NOW))


def read(*frames: bytes, **others: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in frames_to_ndjson(frames, **others).splitlines()]


@given(st.lists(rows(count_max=70), min_size=1, max_size=3))
def test_what_is_written_can_be_sent_again(parts: list[Rows]) -> None:
    frames = [part.encode() for part in parts]
    text = frames_to_ndjson(frames)
    assert text.endswith(b"\n")
    expected = [message for frame in frames for message in messages_of(frame)]
    found = messages_of(ndjson_to_frame(text, timestamp=0))
    assert [(m.timestamp, m.key, m.value, m.headers) for m in found] == [
        (m.timestamp, m.key, m.value, m.headers) for m in expected
    ]


def test_a_line_by_hand() -> None:
    assert sent('{"value": "hello"}') == [Message(0, NOW, None, b"hello", ())]


def test_all_fields_by_hand() -> None:
    assert sent(
        {"value": "v", "key": "k", "timestamp": 5, "headers": {"a": "1", "b": None}, "offset": 99},
        {"value_base64": "/w==", "key_base64": "AAE=", "headers": [["a", "1"], ["a", "2"]]},
        {"value": None, "timestamp": "1970-01-01T00:00:01.5+00:00", "headers_base64": {"a": "/w=="}},
        {"value": "", "key": "", "timestamp": None, "headers": []},
    ) == [
        Message(0, 5, b"k", b"v", (("a", b"1"), ("b", None))),
        Message(1, NOW, b"\0\1", b"\xff", (("a", b"1"), ("a", b"2"))),
        Message(2, 1_500_000, None, None, (("a", b"\xff"),)),
        Message(3, NOW, b"", b"", ()),
    ]


def test_lines_are_written_as_text_where_they_are_text() -> None:
    frame = stamp(FULL.encode(), index=1, term=1, first_offset=70)
    assert read(frame) == [
        {
            "offset": 70,
            "timestamp": NOW + 3,
            "key": "k1",
            "value": "first",
            "headers": [["trace", "1"], ["trace", None]],
        },
        {"offset": 71, "timestamp": NOW, "value": None},
        {
            "offset": 72,
            "timestamp": NOW + 7,
            "key": "",
            "value": "",
            "headers_base64": [["gr\u00fc\u00dfe", "/w=="]],
        },
        {"offset": 73, "timestamp": NOW, "key_base64": "gA==", "value_base64": "//4gbm90IHRleHQ="},
    ]


def test_a_reader_says_where_to_begin() -> None:
    frames = [
        stamp(made.encode(), index=1, term=1, first_offset=first)
        for made, first in ((ONE, 100), (FULL, 101), (MANY, 105))
    ]
    for begin, offsets in ((0, range(100, 405)), (103, range(103, 405)), (404, [404]), (405, [])):
        assert [line["offset"] for line in read(*frames, from_offset=begin)] == [*offsets]
    assert frames_to_ndjson([]) == b""


def test_empty_lines_and_any_line_ending_will_do() -> None:
    text = b'\n{"value":"a"}\r\n\r\n  \t\n {"value":"b"} \n{"value":"c"}'
    assert [m.value for m in messages_of(ndjson_to_frame(text, timestamp=0))] == [b"a", b"b", b"c"]


def test_producer_and_codec_are_passed_on() -> None:
    text = b'{"value":"a line of many"}\n' * 100
    frame = ndjson_to_frame(
        text, timestamp=NOW, codec=Codec.ZSTD, producer_id=4, producer_epoch=5, sequence=6
    )
    same = Rows([b"a line of many"] * 100)
    assert frame == same.encode(codec=Codec.ZSTD, producer_id=4, producer_epoch=5, sequence=6)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "neither value nor value_base64"),
        ('{"key": "a"}', "neither value nor value_base64"),
        ('{"value": "a", "value_base64": ""}', "value and value_base64, expected one"),
        ('{"value": "a", "key": "a", "key_base64": null}', "key and key_base64, expected one"),
        ('{"value": "a", "headers": {}, "headers_base64": {}}', "headers and headers_base64, expected one"),
        ('{"value": 5}', "Expected `str.*value`"),
        ('{"value": ["a"]}', "Expected `str.*value`"),
        ('{"value_base64": "?"}', "base64.*value_base64`"),
        ('{"value_base64": "YQ"}', "base64.*value_base64`"),
        ('{"value": "a", "key": true}', "Expected `str.*key`"),
        ('{"value": "a", "timestamp": 1.5}', "timestamp`"),
        ('{"value": "a", "timestamp": 9223372036854775808}', "timestamp`"),
        ('{"value": "a", "timestamp": "yesterday"}', "timestamp`"),
        ('{"value": "a", "timestamp": "2024-01-01T00:00:00"}', "timezone.*timestamp`"),
        ('{"value": "a", "headers": {"a": 1}}', "headers"),
        ('{"value": "a", "headers": [["a"]]}', "headers"),
        ('{"value": "a", "headers": [["a", "b", "c"]]}', "headers"),
        ('{"value": "a", "headers": "a"}', "headers"),
        ('{"value": "a", "offset": "1"}', "offset`"),
        ('{"value": "a", "colour": "red"}', "unknown field `colour`"),
        ('{"value": "a"', "is not a JSON object"),
        ('{"value": "a"} {"value": "b"}', "is not a JSON object"),
        ('{"value": "a"},', "is not a JSON object"),
        ('{"value": "\\ud800"}', "is not a JSON object"),
        ('["a"]', "Expected `object`"),
        ("null", "Expected `object`"),
        ("[" * 100_000, "line 3"),
        ('{"value": "a", "headers": ' + "[" * 100_000, "line 3"),
    ],
)
def test_errors_name_the_line_and_the_field(line: str, said: str) -> None:
    with pytest.raises(CorruptBatch, match=f"(?s)^line 3.*{said}" if said != "line 3" else "^line 3"):
        sent({"value": "good"}, "", line, {"value": "good"})


def test_an_object_over_two_lines_is_two_wrong_lines() -> None:
    with pytest.raises(CorruptBatch, match=r"^line 1 is not a JSON object"):
        sent('{"value":', '"a"}')


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(CorruptBatch, match=r"^line 2 is not"):
        ndjson_to_frame(b'{"value":"a"}\n{"value":"\xff"}', timestamp=0)


def test_no_lines_are_no_batch() -> None:
    for text in (b"", b"\n\n \n"):
        with pytest.raises(CorruptBatch, match="at least one"):
            ndjson_to_frame(text, timestamp=0)


@given(st.lists(rows(count_max=70), min_size=1, max_size=3), st.integers(0, 6000))
def test_lines_that_must_stay_few_end_early_and_the_next_ones_go_on(
    parts: list[Rows], bytes_max: int
) -> None:
    frames, first = [], 0
    for part in parts:
        frames.append(stamp(part.encode(), index=1, term=1, first_offset=first))
        first += len(part.values)
    found: list[bytes] = []
    while len(found) < first:
        text = frames_to_ndjson(frames, from_offset=len(found), bytes_max=bytes_max)
        lines = text.splitlines(keepends=True)
        assert len(lines) == 1 or (lines and len(text) <= bytes_max)
        found += lines
    assert b"".join(found) == frames_to_ndjson(frames)


def test_long_and_many_lines_are_written_in_portions_without_a_gap() -> None:
    rows = Rows([bytes(300_000), *([b""] * 20_000), b"x" * 300_000])
    assert [line["offset"] for line in read(rows.encode())] == [*range(20_002)]


def test_the_limit_is_checked_first() -> None:
    text = b'{"value":"a"}\n'
    assert ndjson_to_frame(text, timestamp=0, bytes_max=len(text))
    with pytest.raises(BatchTooLarge):
        ndjson_to_frame(text, timestamp=0, bytes_max=len(text) - 1)
    with pytest.raises(BatchTooLarge):
        frames_to_ndjson([MANY.encode()], raw_bytes_max=1000)


@given(st.binary(max_size=60))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CorruptBatch):
        ndjson_to_frame(noise, timestamp=0)


# Every way to write a field. What becomes of these lines when any byte of them is cut off or changed:
LINES = (
    b'{"offset":7,"timestamp":5,"key":"k\\n","value":"gr\xc3\xbc\\u00dfe","headers":[["a","1"],["b",null]]}',
    b'{"timestamp":"1970-01-01T00:00:01.5+00:00","key_base64":"AAE=","value_base64":"/w=="}',
    b'{"value":null,"headers_base64":{"a":"/w==","\\ud83d\\ude00":null}}',
)
MESSAGES = [
    Message(0, 5, b"k\n", "gr\u00fc\u00dfe".encode(), (("a", b"1"), ("b", None))),
    Message(1, 1_500_000, b"\0\1", b"\xff", ()),
    Message(2, NOW, None, None, (("a", b"\xff"), ("\U0001f600", None))),
]


def taken(text: bytes) -> list[Message] | str:
    """The messages, or what the error says. An error that is not of our own tree goes through."""
    try:
        return messages_of(ndjson_to_frame(text, timestamp=NOW))
    except TalwegError as error:
        return f"{type(error).__name__}: {error}"


def is_refused(found: list[Message] | str, line: int) -> bool:
    return str(found).startswith(f"CorruptBatch: line {line}")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_line_that_ends_too_early_is_refused(count: int) -> None:
    before, last = b"".join(line + b"\n" for line in LINES[: count - 1]), LINES[count - 1]
    for end in range(1, len(last)):
        assert is_refused(taken(before + last[:end]), count), last[:end]
    for ending in (b"", b"\r", b"\n", b"\r\n"):
        assert taken(before + last + ending) == MESSAGES[:count]


def test_a_byte_too_many_is_refused_unless_it_is_blank() -> None:
    text = b"\n".join(LINES)
    for byte in map(int.to_bytes, range(256)):
        found = taken(text + byte)
        assert found == MESSAGES if byte in b" \t\r\n" else is_refused(found, 3), byte
        found = taken(text + b"\n" + byte)
        assert found == MESSAGES if byte.isspace() else is_refused(found, 4), byte


@pytest.mark.parametrize("mask", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_a_byte_that_has_changed_is_refused_or_changes_its_own_message_only(mask: int) -> None:
    text = b"\n".join(LINES)
    for position in range(len(text)):
        changed = bytearray(text)
        changed[position] ^= mask
        found, line = taken(bytes(changed)), text[:position].count(b"\n")
        if isinstance(found, str):
            assert is_refused(found, line + 1), changed
        else:
            found[line] = MESSAGES[line]
            assert found == MESSAGES, changed


def test_many_lines_become_the_same_messages_as_few() -> None:
    pattern: list[dict[str, Any]] = [
        {"value": "x" * 100},
        {"value": None, "key": "k"},
        {"value": "y" * 1000, "timestamp": 5},
        {"value_base64": "/w==", "headers": [["a", "1"], ["b", None]]},
    ]
    for count in (4, 20_000):  # some megabytes: more than are kept as Python's
        found = sent(*(pattern * (count // 4)))
        assert len(found) == count
        for offset, message in enumerate(found):
            assert (
                message
                == [
                    Message(offset, NOW, None, b"x" * 100, ()),
                    Message(offset, NOW, b"k", None, ()),
                    Message(offset, 5, None, b"y" * 1000, ()),
                    Message(offset, NOW, None, b"\xff", (("a", b"1"), ("b", None))),
                ][offset % 4]
            )


@pytest.mark.parametrize("text", ["", '"', "\\", '\\"' * 3])
def test_as_many_headers_as_a_message_may_have_are_read_and_one_more_is_not(text: str) -> None:
    pairs = [[f"{text}{number}", text] for number in range(HEADERS_MAX + 1)]
    for headers in (pairs[1:], dict(map(tuple, pairs[1:]))):
        (message,) = sent({"value": text, "key": text, "headers": headers})
        assert len(message.headers) == HEADERS_MAX
    for headers in (pairs, dict(map(tuple, pairs))):
        with pytest.raises(BatchTooLarge, match=f"line 2: more than {HEADERS_MAX} headers"):
            sent({"value": ""}, {"value": "", "headers": headers})


def test_a_value_may_have_as_many_quotes_as_it_likes() -> None:
    (message,) = sent({"value": '"' * 1_000_000, "headers": {'"' * 100_000: '"' * 100_000}})
    assert message.value == b'"' * 1_000_000
