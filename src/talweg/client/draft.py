"""A message as somebody wants to send it: checked, turned into bytes, and weighed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from talweg.client.producer_settings import MESSAGE_BYTES
from talweg.errors import BatchTooLarge
from talweg.records.columns import check_headers

Content = bytes | bytearray | memoryview | str | None
"""A value or a key: bytes, in whatever holds them, or text that is sent as UTF-8, or nothing."""

Headers = Mapping[str, Content] | Sequence[tuple[str, Content]]
"""Of a message: a mapping, or pairs, among which a key may be there more than once."""

HeaderPairs = tuple[tuple[str, bytes | None], ...]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMESTAMP_MAX: Final = 2**63 - 1


class Draft(NamedTuple):
    """Ready to be put into a batch."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp: int | None  # microseconds since 1970
    headers: HeaderPairs | None
    message_bytes: int  # what it counts for in batches and buffers


def draft(
    value: Content,
    key: Content,
    partition: int | None,
    timestamp: int | datetime | None,
    headers: Headers | None,
    *,
    message_bytes_max: int,
) -> Draft:
    """Check a message; raises TypeError or ValueError, which say what was expected, and BatchTooLarge."""
    value, key = as_bytes("value", value), as_bytes("key", key)
    pairs = None if headers is None else _pairs(headers)
    content_bytes = len(value or b"") + len(key or b"")
    message_bytes = content_bytes + MESSAGE_BYTES
    for name, content in pairs or ():
        content_bytes += len(name) + len(content or b"")
        message_bytes += len(name) + len(content or b"") + MESSAGE_BYTES
    check_size(content_bytes, message_bytes_max)
    check_partition(partition)
    return Draft(value, key, partition, as_microseconds(timestamp), pairs, message_bytes)


def drafts_of(columns: Any, partition: int | None, message_bytes_max: int) -> list[Draft]:
    """A few rows, message by message, to join those that are being gathered."""
    rows = columns.to_pydict()
    nothing = [None] * columns.num_rows
    return [
        draft(value, key, partition, time, None, message_bytes_max=message_bytes_max)
        for value, key, time in zip(
            rows["value"], rows.get("key", nothing), rows.get("timestamp", nothing), strict=True
        )
    ]


def check_partition(partition: object) -> None:
    """Raise TypeError for what is no number."""
    if partition is not None and type(partition) is not int:
        raise TypeError(f"partition: expected a number, not {type(partition).__name__}")


def check_size(message_bytes: int, message_bytes_max: int) -> None:
    """Raise BatchTooLarge for a message over the limit."""
    if message_bytes > message_bytes_max:
        raise BatchTooLarge(
            f"a message of {message_bytes} bytes; message_bytes_max allows {message_bytes_max}. "
            "Brokers take requests up to their --body-max"
        )


def as_bytes(name: str, content: Content) -> bytes | None:
    """Bytes, from whatever may be given for them; raises TypeError."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)  # of what may be changed behind our back, as it is now
    raise TypeError(f"{name}: expected bytes, str or None, not {type(content).__name__}")


def as_microseconds(timestamp: int | datetime | None) -> int | None:
    """A timestamp as it is stored; raises TypeError and ValueError."""
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise ValueError("timestamp: a datetime without a time zone could mean anything")
        return (timestamp - _EPOCH) // _MICROSECOND
    if type(timestamp) is not int:
        raise TypeError(
            "timestamp: expected microseconds since 1970 (int) or a datetime with a time zone, "
            f"not {type(timestamp).__name__}"
        )
    if not -_TIMESTAMP_MAX <= timestamp <= _TIMESTAMP_MAX:
        raise ValueError(f"timestamp: {timestamp} microseconds do not fit into 64 bits")
    return timestamp


def _pairs(headers: Headers) -> HeaderPairs:
    given: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    made = []
    for pair in given:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError("headers: expected a mapping, or pairs of a str and bytes, str or None")
        pair[0].encode()  # raises now what would fail its whole batch later
        made.append((pair[0], as_bytes(f"header {pair[0]!r}", pair[1])))
    check_headers(len(made))  # likewise
    return tuple(made)
