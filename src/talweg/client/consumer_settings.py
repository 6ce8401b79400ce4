"""What a consumer can be told, and whether it can work."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from talweg.client.offsets import check_name
from talweg.errors import InvalidSetting

Partitions = Mapping[str, Sequence[int]] | Sequence[int] | None
"""Numbers by topic, or of the only topic; None: all."""

Reset = Literal["earliest", "latest", "none"]
"""Where to begin without a position, or with one that is gone; `none`: that is an error."""

_RESETS: Final = ("earliest", "latest", "none")
_BYTES_MIN: Final = 1 << 10


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when it is made: raises InvalidSetting and BadRequest."""

    topics: tuple[str, ...]
    partitions: Mapping[str, Sequence[int]]  # of topics of which not all are read
    group: str | None
    auto_offset_reset: Reset
    enable_auto_commit: bool  # only with a group
    auto_commit_interval_ms: int
    max_poll_records: int | None
    fetch_bytes: int
    fetch_wait_ms: int
    prefetch_bytes: int
    request_timeout_ms: int
    api_timeout_ms: int

    def __post_init__(self) -> None:
        if not self.topics:
            raise InvalidSetting("topics: expected at least one, as in Consumer('logs')")
        if self.group is not None:
            check_name(self.group)
        if self.auto_offset_reset not in _RESETS:
            raise InvalidSetting(
                f"auto_offset_reset: {self.auto_offset_reset!r}, expected one of {', '.join(_RESETS)}"
            )
        for name in ("auto_commit_interval_ms", "fetch_wait_ms", "request_timeout_ms", "api_timeout_ms"):
            _at_least(name, getattr(self, name), 1)
        _at_least("fetch_bytes", self.fetch_bytes, _BYTES_MIN)
        _at_least("prefetch_bytes", self.prefetch_bytes, _BYTES_MIN)
        if self.max_poll_records is not None:
            _at_least("max_poll_records", self.max_poll_records, 1)
        for topic, numbers in self.partitions.items():
            if topic not in self.topics:
                raise InvalidSetting(f"partitions: {topic!r} is none of the topics {', '.join(self.topics)}")
            if not numbers or not all(_is_number(number) and number >= 0 for number in numbers):
                raise InvalidSetting(f"partitions: of {topic!r}, expected numbers from 0 up, got {numbers!r}")

    @property
    def api_seconds_max(self) -> float:
        """For anything that is asked of the cluster, repetitions included."""
        return self.api_timeout_ms / 1000


def read_topics(given: tuple[str, ...]) -> tuple[str, ...]:
    """Each once. Raises InvalidSetting for what are no names, such as a list of them."""
    for topic in given:
        if not isinstance(topic, str):
            raise InvalidSetting(f"topics: expected names, as in Consumer('logs', 'metrics'), got {topic!r}")
    return tuple(dict.fromkeys(given))


def read_partitions(topics: tuple[str, ...], given: Partitions) -> dict[str, list[int]]:
    """Partitions by topic; of a single topic, a list will do. Raises InvalidSetting."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(topics) != 1:
            raise InvalidSetting("partitions: with several topics, expected {topic: [numbers]}")
        given = {topics[0]: given}
    try:
        return {topic: list(dict.fromkeys(numbers)) for topic, numbers in given.items()}
    except TypeError:
        raise InvalidSetting(f"partitions: expected lists of numbers, got {given!r}") from None


def _at_least(name: str, value: int, least: int) -> None:
    if not _is_number(value) or value < least:
        raise InvalidSetting(f"{name}: {value!r}, expected a number from {least} up")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
