"""A message as a JSON object in a line: what `--json` prints, and what files of JSON lines hold.

The fields are those of the batch API's NDJSON (`talweg.records.ndjson`), with the topic and the partition
before them: `value`, `key` and `headers` are text, or stand in base64 under `value_base64` and so on when
they are not UTF-8. A timestamp is microseconds since 1970; ISO 8601 with a zone is read, too.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talweg.client.message import Message

Pair = tuple[str, bytes | None]

_Base64 = bytes | UnsetType | None  # msgspec decodes and encodes base64 for bytes
_Text = str | UnsetType | None
_Instant = Annotated[datetime, Meta(tz=True)]  # without a zone it would be anyone's guess
_Microseconds = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MessageLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The line, in the order in which its fields are written."""

    topic: str | UnsetType = UNSET  # this and the next two are passed over when a line is read to be sent
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: _Microseconds | _Instant | UnsetType | None = UNSET
    key: _Text = UNSET
    key_base64: _Base64 = UNSET
    value: _Text = UNSET
    value_base64: _Base64 = UNSET
    headers: dict[str, str | None] | list[tuple[str, str | None]] | UnsetType | None = UNSET
    headers_base64: dict[str, bytes | None] | list[tuple[str, bytes | None]] | UnsetType | None = UNSET


class ReadMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that is to be sent."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int | None = None  # microseconds since 1970; None: now
    headers: tuple[Pair, ...] = ()


_decode: Final = msgspec.json.Decoder(MessageLine).decode
_encode: Final = msgspec.json.Encoder().encode


def encode_line(message: Message) -> bytes:
    """The line of a message, without its end."""
    text, base64 = _both(message.value)
    key_text, key_base64 = (UNSET, UNSET) if message.key is None else _both(message.key)
    pairs, pairs_base64 = _pairs(message.headers)
    return _encode(
        MessageLine(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            timestamp=message.timestamp,
            key=key_text,
            key_base64=key_base64,
            value=text,
            value_base64=base64,
            headers=pairs,
            headers_base64=pairs_base64,
        )
    )


def _both(data: bytes | None) -> tuple[_Text, _Base64]:
    """As text if it is that, else as bytes."""
    if data is None:
        return None, UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, data


def _pairs(
    headers: tuple[Pair, ...],
) -> tuple[list[tuple[str, str | None]] | UnsetType, list[tuple[str, bytes | None]] | UnsetType]:
    if not headers:
        return UNSET, UNSET
    try:
        return [(name, None if data is None else data.decode()) for name, data in headers], UNSET
    except UnicodeDecodeError:
        return UNSET, list(headers)


def decode_line(line: bytes) -> ReadMessage:
    """A message from its line; raises ValueError, which says what is wrong with it."""
    try:
        given = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if given.value is UNSET and given.value_base64 is UNSET:
        raise ValueError("neither value nor value_base64 is there")
    return ReadMessage(
        _one(given.value, given.value_base64, "value"),
        _one(given.key, given.key_base64, "key"),
        _microseconds(given.timestamp),
        _headers(given),
    )


def _one(text: _Text, base64: _Base64, name: str) -> bytes | None:
    if not isinstance(text, UnsetType) and not isinstance(base64, UnsetType):
        raise ValueError(f"both {name} and {name}_base64 are there, expected one")
    if not isinstance(base64, UnsetType):
        return base64
    return text.encode() if isinstance(text, str) else None


def _microseconds(given: int | datetime | UnsetType | None) -> int | None:
    if isinstance(given, datetime):
        return (given - _EPOCH) // timedelta(microseconds=1)
    return given if isinstance(given, int) else None


def _headers(given: MessageLine) -> tuple[Pair, ...]:
    if given.headers not in (UNSET, None) and given.headers_base64 not in (UNSET, None):
        raise ValueError("both headers and headers_base64 are there, expected one")
    pairs: list[Pair] = []
    if isinstance(given.headers, dict | list):
        texts = given.headers.items() if isinstance(given.headers, dict) else given.headers
        pairs += [(name, None if text is None else text.encode()) for name, text in texts]
    if isinstance(given.headers_base64, dict | list):
        coded = given.headers_base64
        pairs += list(coded.items()) if isinstance(coded, dict) else coded
    return tuple(pairs)
