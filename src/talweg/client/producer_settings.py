"""How a producer gathers and sends: its settings, with the meanings they have in Kafka, checked once."""

from typing import Final

import msgspec

from talweg.errors import InvalidSetting, Overloaded
from talweg.records import Codec

BATCH_BYTES: Final = 2 << 20  # of a batch, unless a producer says otherwise
ONE_BY_ONE_MAX: Final = 64  # so few messages, sent at once, join those that are being gathered
MESSAGE_BYTES: Final = 48  # what Python needs for a message besides its value and key, about

_CODECS: Final = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD, "none": Codec.NONE}
_ACKS: Final[dict[object, bool]] = {
    "all": True,
    -1: True,
    "-1": True,
    1: True,
    "1": True,
    0: False,
    "0": False,
}

Acks = str | int
"""When a message counts as delivered: `all` or 1, when a majority has it on disk; 0, when it is accepted."""


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked. `message_bytes_max` + MESSAGE_BYTES <= `buffer_bytes`, and `batch_bytes` <= `buffer_bytes`."""

    acknowledged: bool  # a delivery is done once a majority has it on disk; if not, once it is accepted
    linger_seconds: float
    batch_bytes: int
    codec: Codec
    buffer_bytes: int
    block_seconds_max: float
    delivery_seconds_max: float
    request_seconds_max: float
    message_bytes_max: int


def read_settings(
    *,
    acks: object,
    linger_ms: float,
    batch_bytes: int,
    compression: str,
    buffer_bytes: int,
    max_block_ms: float,
    delivery_timeout_ms: float,
    request_timeout_ms: float,
    message_bytes_max: int,
) -> ProducerSettings:
    """Settings as people give them; raises InvalidSetting, which names the one that cannot work."""
    if isinstance(acks, bool) or not isinstance(acks, str | int) or acks not in _ACKS:
        raise InvalidSetting(f"acks: {acks!r}; expected 'all', 1 (as safe as all) or 0")
    if compression not in _CODECS:
        raise InvalidSetting(f"compression: {compression!r}; expected one of {', '.join(_CODECS)}")
    buffer = _size("buffer_bytes", buffer_bytes, 1 << 10)
    return ProducerSettings(
        acknowledged=_ACKS[acks],
        linger_seconds=_seconds("linger_ms", linger_ms, at_least=0),
        # A batch that would never fit into the buffer would never be full.
        batch_bytes=min(_size("batch_bytes", batch_bytes, 1), buffer),
        codec=_CODECS[compression],
        buffer_bytes=buffer,
        block_seconds_max=_seconds("max_block_ms", max_block_ms, at_least=0),
        delivery_seconds_max=_seconds("delivery_timeout_ms", delivery_timeout_ms, at_least=1),
        request_seconds_max=_seconds("request_timeout_ms", request_timeout_ms, at_least=1),
        message_bytes_max=min(_size("message_bytes_max", message_bytes_max, 1), buffer - MESSAGE_BYTES),
    )


def buffer_is_full(settings: ProducerSettings) -> Overloaded:
    """For whoever has waited for room in vain."""
    return Overloaded(
        f"the buffer is full: {settings.buffer_bytes} bytes (buffer_bytes) wait to be delivered, and "
        f"none became free within max_block_ms ({1000 * settings.block_seconds_max:g})"
    )


def _seconds(name: str, given: object, *, at_least: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not at_least <= given <= 1e12:
        raise InvalidSetting(f"{name}: {given!r}; expected milliseconds, at least {at_least}")
    return given / 1000


def _size(name: str, given: object, at_least: int) -> int:
    # Offsets within a batch are 32-bit numbers, and no frame is longer than 64 MiB.
    most = 32 << 20 if name != "buffer_bytes" else 1 << 40
    if isinstance(given, bool) or not isinstance(given, int) or not at_least <= given <= most:
        raise InvalidSetting(f"{name}: {given!r}; expected bytes, {at_least} to {most}")
    return given
