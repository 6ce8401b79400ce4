"""A message as a consumer is given it."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[str, int]  # a topic, and a partition's number
Headers = tuple[tuple[str, bytes | None], ...]


def check_topic(name: object) -> None:
    """Raise TypeError for what is no name. Bytes would be one on the wire, in base64, and create a topic."""
    if not isinstance(name, str):
        raise TypeError(f"topic: expected a str, not {type(name).__name__}")


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, and where it stands."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # microseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def text(self) -> str:
        """The value as UTF-8; an empty text if there is none. Raises UnicodeDecodeError if it is none."""
        return "" if self.value is None else self.value.decode()

    @property
    def time(self) -> datetime:
        """The timestamp, in UTC. Raises ValueError if that is before the year 1 or after 9999."""
        try:
            return _EPOCH + timedelta(microseconds=self.timestamp)
        except OverflowError:
            raise ValueError(
                f"timestamp {self.timestamp}: these are more microseconds than years can be written for; "
                "whoever sent it may have meant another unit"
            ) from None
