"""Options of `format("talweg")`: read once, before anything runs, so that what is wrong is said early.

Names and values are those of Spark's connector for Kafka where it has them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from talweg.client.servers import read_servers
from talweg.client.sizes import read_size
from talweg.errors import BadRequest, InvalidSetting

EARLIEST: Final = -2  # in the JSON of offsets
LATEST: Final = -1

_SERVERS: Final = ("servers", "kafka.bootstrap.servers", "bootstrap.servers")
_SELECTION: Final = ("subscribe", "subscribePattern", "assign")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "group",
    "keepBytes",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "filterPushdown")
_READ: Final = (
    *_SELECTION,
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    *_STREAM_ONLY,
    *_BATCH_ONLY,
)
_WRITE: Final = ("topic", "transaction", "compression")
_BOTH: Final = (*_SERVERS, "timeoutMs")
_SPARK: Final = ("checkpointLocation", "queryName")  # Spark's own, which come along with ours
ALL: Final = (*_BOTH, *_READ, *_WRITE, *_SPARK)

TIMEOUT_MS: Final = 60_000
TRIGGER_DELAY_MS: Final = 15 * 60_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]


class Selection(msgspec.Struct, frozen=True):
    """What to read: exactly one of these."""

    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None


class Connect(msgspec.Struct, frozen=True):
    """Where the cluster is, and how long it may take."""

    servers: tuple[str, ...]
    seconds_max: float  # for an answer, all attempts together


class ReadOptions(msgspec.Struct, frozen=True):
    """What a query that reads was told."""

    connect: Connect
    selection: Selection
    starting: Offsets | None  # None: by the timestamp, or as the sort of query has it
    starting_timestamp: int | None  # microseconds
    ending: Offsets | None
    ending_timestamp: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    rows_max: int | None
    rows_min: int | None
    trigger_delay_seconds_max: float
    bytes_max: int | None
    group: str | None
    keep_bytes: int | None  # of each log, for what the group has not read; only with a group
    filter_pushdown: bool


class WriteOptions(msgspec.Struct, frozen=True):
    """What a query that writes was told."""

    connect: Connect
    topic: str | None
    transaction: str | None
    compression: str


class Given:
    """Options as they were given, by whatever capitals."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in ALL}
        self._given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                raise InvalidSetting(f"option {name}: unknown, expected one of {', '.join(sorted(ALL))}")
            self._given[known[name.lower()]] = value

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self._given

    def text(self, name: str) -> str | None:
        """Its text, if it was given."""
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise InvalidSetting(f"option {name}: it is empty")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._given.get(name, str(default)).strip().lower()
        if value not in ("true", "false"):
            raise InvalidSetting(f"option {name}: expected true or false, got {value!r}")
        return value == "true"

    def number(self, name: str) -> int | None:
        """A number from 1 up, if it was given."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < 1:
            raise InvalidSetting(f"option {name}: expected a whole number from 1 up, got {value!r}")
        return int(value)

    def one_of(self, names: Iterable[str], *, needed: bool = False) -> str | None:
        """Which of them was given: one at most, or exactly one."""
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise InvalidSetting(f"options {' and '.join(given)}: only one of them can be given")
        if needed and not given:
            raise InvalidSetting(f"one of the options {', '.join(names)} is needed")
        return given[0] if given else None

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise if one of them was given."""
        for name in names:
            if self.has(name):
                raise InvalidSetting(f"option {name}: {why}")

    def connect(self) -> Connect:
        """Where the cluster is."""
        name = self.one_of(_SERVERS)
        servers = read_servers(None if name is None else self.text(name))
        return Connect(servers, (self.number("timeoutMs") or TIMEOUT_MS) / 1000)


def read_options(given: Given, *, streaming: bool) -> ReadOptions:
    """What a query that reads was told; raises InvalidSetting."""
    given.refuse(_WRITE, "it is for writing, this query reads")
    if streaming:
        given.refuse(_BATCH_ONLY, "a streaming query has no end, nor are filters handed down to it")
    else:
        given.refuse(_STREAM_ONLY, "it is for streaming queries (readStream)")
    given.one_of(("startingOffsets", "startingTimestamp"))
    given.one_of(("endingOffsets", "endingTimestamp"))
    if given.has("maxTriggerDelay") and not given.has("minOffsetsPerTrigger"):
        raise InvalidSetting("option maxTriggerDelay: it means nothing without minOffsetsPerTrigger")
    rows_max, rows_min = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise InvalidSetting("option minOffsetsPerTrigger: it is more than maxOffsetsPerTrigger")
    starting = _offsets(given, "startingOffsets")
    if not streaming:
        _check_side(starting, "startingOffsets", LATEST, "latest", "a batch query would read nothing")
    ending = _offsets(given, "endingOffsets")
    _check_side(ending, "endingOffsets", EARLIEST, "earliest", "there is nothing before it")
    _check_order(starting, ending)
    since, until = _timestamp(given, "startingTimestamp"), _timestamp(given, "endingTimestamp")
    if since is not None and until is not None and since > until:
        raise InvalidSetting("option startingTimestamp: it is later than endingTimestamp")
    return ReadOptions(
        connect=given.connect(),
        selection=_selection(given),
        starting=starting,
        starting_timestamp=since,
        ending=ending,
        ending_timestamp=until,
        min_partitions=given.number("minPartitions"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        rows_max=rows_max,
        rows_min=rows_min,
        trigger_delay_seconds_max=_duration_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MS) / 1000,
        bytes_max=given.number("maxBytesPerTrigger"),
        group=_group(given),
        keep_bytes=_keep_bytes(given),
        filter_pushdown=given.flag("filterPushdown", False),
    )


def write_options(given: Given, *, streaming: bool) -> WriteOptions:
    """What a query that writes was told; raises InvalidSetting."""
    given.refuse(_READ, "it is for reading, this query writes")
    if streaming:
        given.refuse(("transaction",), "a streaming query names its transactions itself")
    compression = (given.text("compression") or "lz4").strip().lower()
    if compression not in ("none", "lz4", "zstd"):
        raise InvalidSetting(f"option compression: expected none, lz4 or zstd, got {compression!r}")
    transaction = given.text("transaction")
    if transaction is not None and len(transaction) > 200:
        raise InvalidSetting("option transaction: expected at most 200 characters")
    return WriteOptions(given.connect(), given.text("topic"), transaction, compression)


def _selection(given: Given) -> Selection:
    name = given.one_of(_SELECTION, needed=True)
    assert name is not None
    text = given.text(name) or ""
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise InvalidSetting(f"option subscribe: expected topics with commas between them, got {text!r}")
        return Selection(subscribe=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidSetting(f"option subscribePattern: {text!r} is no pattern: {error}") from None
        return Selection(pattern=text)
    expected = 'expected JSON like {"logs": [0, 1]}'
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json_object(name, text, expected).items():
        good = isinstance(partitions, list) and partitions and all(map(_is_natural, partitions))
        if not good:
            raise InvalidSetting(f"option assign: {expected}, got {json.dumps(partitions)} for {topic!r}")
        assigned[topic] = tuple(sorted(set(partitions)))
    return Selection(assign=assigned)


def _offsets(given: Given, name: str) -> Offsets | None:
    text = given.text(name)
    if text is None:
        return None
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    expected = 'expected earliest, latest or JSON like {"logs": {"0": 23, "1": -2}}'
    made: dict[str, dict[int, int]] = {}
    for topic, offsets in _json_object(name, text, expected).items():
        if not isinstance(offsets, dict) or not offsets:
            raise InvalidSetting(f"option {name}: {expected}, got {json.dumps(offsets)} for topic {topic!r}")
        made[topic] = {}
        for partition, offset in offsets.items():
            # One way to write a number: "0" and "00" would be two offsets for one partition.
            number = re.fullmatch(r"0|[1-9][0-9]{0,8}", partition)
            if number is None or not (_is_natural(offset) or _is_side(offset)):
                raise InvalidSetting(
                    f"option {name}: {expected}, got {json.dumps(offset)} for partition {partition!r} of "
                    f"topic {topic!r} (-2 is earliest, -1 latest)"
                )
            made[topic][int(partition)] = offset
    return made


def _check_side(offsets: Offsets | None, name: str, number: int, word: str, why: str) -> None:
    found = offsets == word
    if isinstance(offsets, Mapping):
        found = any(number in partitions.values() for partitions in offsets.values())
    if found:
        raise InvalidSetting(f"option {name}: it cannot be {word} ({number}): {why}")


def _check_order(starting: Offsets | None, ending: Offsets | None) -> None:
    if not isinstance(starting, Mapping) or not isinstance(ending, Mapping):
        return
    for topic, offsets in starting.items():
        for partition, offset in offsets.items():
            end = ending.get(topic, {}).get(partition, LATEST)
            if offset > end >= 0:
                raise InvalidSetting(
                    f"option startingOffsets: offset {offset} of partition {partition} of topic {topic} is "
                    f"behind its endingOffsets, {end}"
                )


def _json_object(name: str, text: str, expected: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise InvalidSetting(f"option {name}: {key!r} is there {count} times")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidSetting(f"option {name}: {expected}, got {text!r}")
    return found


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and value in (EARLIEST, LATEST)


def _timestamp(given: Given, name: str) -> int | None:
    """In microseconds. Kafka's users give milliseconds; ISO 8601 is for people."""
    text = given.text(name)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,15}", text.strip()):
        return int(text) * 1000
    expected = "expected milliseconds since 1970, or ISO 8601 with its zone (2026-01-31T12:00:00Z)"
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidSetting(f"option {name}: {expected}, got {text!r}") from None
    if moment.tzinfo is None:
        raise InvalidSetting(f"option {name}: {text!r} has no time zone; {expected}")
    return max(round(moment.timestamp() * 1e6), 0)


def _duration_ms(given: Given, name: str, default: int) -> int:
    text = given.text(name)
    if text is None:
        return default
    match = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h|d)", text.strip())
    if match is None:
        raise InvalidSetting(f"option {name}: expected a time like 30s, 15m or 1h, got {text!r}")
    return int(match[1]) * _UNITS_MS[match[2]]


def _group(given: Given) -> str | None:
    name = given.text("group")
    if name is not None and (len(name) > 255 or name.startswith("#")):
        raise InvalidSetting("option group: expected at most 255 characters, the first of them not #")
    return name


def _keep_bytes(given: Given) -> int | None:
    text = given.text("keepBytes")
    if text is None:
        return None
    if not given.has("group"):
        raise InvalidSetting("option keepBytes: it means nothing without group, for which messages are kept")
    try:
        return read_size(text)
    except BadRequest as error:
        raise InvalidSetting(f"option keepBytes: {error}") from None
