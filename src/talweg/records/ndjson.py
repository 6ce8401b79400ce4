"""NDJSON: a JSON object a line, for people and for programs that have nothing better.

    value, value_base64      one of the two: text, or any bytes; null is a message without a value
    key, key_base64          one of the two, or none
    timestamp                microseconds since 1970, or ISO 8601 with a time zone; optional
    headers, headers_base64  one of the two, or none: an object, or a list of pairs (a key may be there twice)
    offset                   written; passed over when read, so that what was read can be sent again

Bytes that are UTF-8 are written as text and others in base64; headers always as a list of pairs.
"""

import io
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from talweg.errors import BatchTooLarge, CorruptBatch
from talweg.records.batch import Batch, Message
from talweg.records.columns import HEADERS_MAX, HEADERS_TYPE
from talweg.records.compression import RAW_BYTES_MAX
from talweg.records.encoding import HeaderPair, encode_arrow, encode_values
from talweg.records.header import Bytes, Codec, check_count

_Text = str | UnsetType | None
_Base64 = bytes | UnsetType | None  # msgspec decodes and encodes base64 for bytes
_Microseconds = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Instant = Annotated[datetime, Meta(tz=True)]  # without a zone it would be anyone's guess

_PORTION_BYTES: Final = 256 << 10  # of messages that are written out at once, as Arrow would have them
_GATHERED_BYTES: Final = 4 << 20  # of lines whose messages are Python's, which may take nine times as much
_LINE_QUOTES: Final = 64  # in a line beside those of headers: names of fields, key, value, timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One line, in the order in which its fields are written."""

    offset: int | UnsetType = UNSET
    timestamp: _Microseconds | _Instant | UnsetType | None = UNSET
    key: _Text = UNSET
    key_base64: _Base64 = UNSET
    value: _Text = UNSET
    value_base64: _Base64 = UNSET
    headers: dict[str, str | None] | list[tuple[str, str | None]] | UnsetType | None = UNSET
    headers_base64: dict[str, bytes | None] | list[tuple[str, bytes | None]] | UnsetType | None = UNSET


_DECODER: Final = msgspec.json.Decoder(_Line)


def ndjson_to_frame(
    data: Bytes,
    *,
    timestamp: int,
    codec: Codec = Codec.LZ4,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    bytes_max: int = RAW_BYTES_MAX,
) -> bytes:
    """One frame of all the lines. A line without a timestamp gets `timestamp`. Empty lines are skipped."""
    if len(data) > bytes_max:
        raise BatchTooLarge(f"{len(data)} bytes of NDJSON, at most {bytes_max} are accepted")
    gathered = _Gathered(timestamp)
    for number, text in enumerate(io.BytesIO(data), 1):
        if not text.isspace():
            gathered.add(_decoded(text, number), number, len(text))
    if gathered.is_large:
        return encode_arrow(
            gathered.table(),
            timestamp=timestamp,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
        )
    return encode_values(
        gathered.values,
        timestamp=timestamp,
        keys=gathered.keys if any(key is not None for key in gathered.keys) else None,
        timestamps=gathered.timestamps,
        headers=gathered.headers if any(gathered.headers) else None,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


class _Gathered:
    """The messages of the lines so far: the last of them as Python's, all before as Arrow, which is no larger
    than the lines were."""

    def __init__(self, timestamp: int) -> None:
        self._timestamp = timestamp
        self._count = 0  # of messages that are Arrow
        self._batches: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._text_bytes = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[list[HeaderPair]] = []

    @property
    def is_large(self) -> bool:
        return bool(self._batches)

    def add(self, line: _Line, number: int, text_bytes: int) -> None:
        self.values.append(_bytes_of(line.value, line.value_base64, "value", number))
        self.keys.append(_bytes_of(line.key, line.key_base64, "key", number))
        self.timestamps.append(_microseconds_of(line.timestamp, self._timestamp))
        self.headers.append(_headers_of(line, number))
        self._text_bytes += text_bytes
        if self._text_bytes >= _GATHERED_BYTES:
            self._pack()

    def _pack(self) -> None:
        self._count += len(self.values)
        check_count(self._count)  # before more is read
        columns = {
            "value": pa.array(self.values, pa.binary()),
            "key": pa.array(self.keys, pa.binary()),
            "timestamp": pa.array(self.timestamps, pa.int64()),
            "headers": pa.array(self.headers, HEADERS_TYPE),
        }
        self._batches.append(pa.record_batch(columns))
        self._begin()

    def table(self) -> Any:
        """All of them."""
        self._pack()
        return pa.Table.from_batches(self._batches)


def frames_to_ndjson(
    frames: Iterable[Bytes],
    *,
    from_offset: int = 0,
    raw_bytes_max: int = RAW_BYTES_MAX,
    bytes_max: int = sys.maxsize,
) -> bytes:
    """A line for each message of RECORDS frames, without those of earlier offsets.

    `raw_bytes_max` is for each frame, `bytes_max` for all lines: they end with the last one that fits,
    perhaps in the middle of a frame, but there is one at least. Whoever reads goes on behind that.
    """
    parts: list[bytes] = []
    for lines in _portions(frames, from_offset, raw_bytes_max):
        if len(lines) > bytes_max:
            end = lines.rfind(b"\n", 0, bytes_max) + 1
            parts.append(lines[:end] if end or parts else lines[: lines.index(b"\n") + 1])
            break
        parts.append(lines)
        bytes_max -= len(lines)
    return b"".join(parts)


def _portions(frames: Iterable[Bytes], from_offset: int, raw_bytes_max: int) -> Iterator[bytes]:
    """Lines, some at a time: whoever has enough need not have them all."""
    encoder = msgspec.json.Encoder()
    for frame in frames:
        batch = Batch.from_frame(frame, raw_bytes_max=raw_bytes_max)
        begin = max(from_offset - batch.header.first_offset, 0)
        while begin < len(batch):
            end = begin + max(batch.fitting(begin, _PORTION_BYTES), 1)
            yield encoder.encode_lines([_line_of(batch.message(index)) for index in range(begin, end)])
            begin = end


def _decoded(text: bytes, number: int) -> _Line:
    # A string has one quote, or two, that no backslash stands before, and a header two strings at most. So
    # that many are too many headers; what is left to be taken apart takes a few megabytes.
    if len(text) > 4 * HEADERS_MAX:
        quotes = text.count(b'"') - text.count(b'\\"')
        if quotes > 4 * HEADERS_MAX + _LINE_QUOTES:
            raise BatchTooLarge(_too_many_headers(number))
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise CorruptBatch(f"line {number}: {error}") from None  # the text of these names the field
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBatch(f"line {number} is not a JSON object: {error}") from None


def _bytes_of(text: _Text, base64: _Base64, name: str, number: int) -> bytes | None:
    if text is not UNSET and base64 is not UNSET:
        raise CorruptBatch(f"line {number}: {name} and {name}_base64, expected one of them")
    if isinstance(text, str):
        return text.encode()
    if isinstance(base64, bytes):
        return base64
    if name == "value" and text is UNSET and base64 is UNSET:
        raise CorruptBatch(f"line {number}: neither value nor value_base64")
    return None


def _microseconds_of(timestamp: int | datetime | UnsetType | None, otherwise: int) -> int:
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, datetime):
        return (timestamp - _EPOCH) // _MICROSECOND
    return otherwise


def _headers_of(line: _Line, number: int) -> list[HeaderPair]:
    if line.headers is not UNSET and line.headers_base64 is not UNSET:
        raise CorruptBatch(f"line {number}: headers and headers_base64, expected one of them")
    given: Any = line.headers_base64 if line.headers is UNSET else line.headers
    if not given:  # UNSET is false, too
        return []
    if len(given) > HEADERS_MAX:
        raise BatchTooLarge(_too_many_headers(number))
    pairs = given.items() if isinstance(given, dict) else given
    return [(key, value.encode() if isinstance(value, str) else value) for key, value in pairs]


def _too_many_headers(number: int) -> str:
    return f"line {number}: more than {HEADERS_MAX} headers in a message"


def _line_of(message: Message) -> _Line:
    line = _Line(offset=message.offset, timestamp=message.timestamp)
    if message.key is not None:
        try:
            line.key = message.key.decode()
        except UnicodeDecodeError:
            line.key_base64 = message.key
    try:
        line.value = _text_of(message.value)
    except UnicodeDecodeError:
        line.value_base64 = message.value
    if message.headers:
        try:
            line.headers = [(key, _text_of(value)) for key, value in message.headers]
        except UnicodeDecodeError:
            line.headers_base64 = [*message.headers]
    return line


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
