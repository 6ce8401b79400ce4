"""Findings: what a report tells, read from the tables with Arrow alone, so that no Spark has to start."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from talweg.pipeline.archive import archive_table
from talweg.pipeline.counts import counts_table
from talweg.pipeline.levels import GRAVE, LEVELS, NONE, UNPARSED
from talweg.pipeline.sessions import sessions_table
from talweg.pipeline.standard import lines_table
from talweg.pipeline.table import Table
from talweg.pipeline.times import FIRST_US, LAST_US

ORDER: Final = (*LEVELS, NONE, UNPARSED)
TOP: Final = 10
_TEXT_MAX: Final = 160  # characters of a message that are shown


class Minute(msgspec.Struct, frozen=True):
    """Messages of one topic and level in a minute."""

    topic: str
    level: str
    minute: datetime
    messages: int
    late: int


class ArchivedTopic(msgspec.Struct, frozen=True):
    """What the archive holds of a topic."""

    topic: str
    files: int
    bytes: int
    messages: int
    missing: int  # offsets between the first and the last that it does not hold


class Visit(msgspec.Struct, frozen=True):
    """A session, as far as charts need it."""

    minutes: float
    requests: int
    errors: int


class Findings(msgspec.Struct, frozen=True, dict=True):
    """Everything that a report shows. Sums are made once: there are as many minutes as a year has."""

    minutes: tuple[Minute, ...] = ()
    archived: tuple[ArchivedTopic, ...] = ()
    errors: tuple[tuple[str, int], ...] = ()  # the commonest reasons why lines could not be parsed
    talkers: tuple[tuple[str, int], ...] = ()  # hosts and programs with the most errors
    latest: tuple[tuple[str, str, str], ...] = ()  # the latest grave lines: time, topic, message
    visits: tuple[Visit, ...] = ()
    alerts: tuple[dict[str, Any], ...] = ()

    @cached_property
    def _messages(self) -> Counter[tuple[str | None, str | None]]:
        """By topic and level; None stands for all of them."""
        counted: Counter[tuple[str | None, str | None]] = Counter()
        for each in self.minutes:
            for topic in (each.topic, None):
                for level in (each.level, None):
                    counted[topic, level] += each.messages
        return counted

    @cached_property
    def _late(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for each in self.minutes:
            counted[each.topic] += each.late
        return counted

    @property
    def topics(self) -> list[str]:
        """That have counts, in order."""
        return sorted(topic for topic, level in self._messages if topic is not None and level is None)

    @property
    def levels(self) -> list[str]:
        """That have counts, from the lightest to the gravest."""
        return [level for level in ORDER if (None, level) in self._messages]

    def messages(self, topic: str | None = None, level: str | None = None) -> int:
        """How many, of a topic or a level if one is named."""
        return self._messages[topic, level]

    def late(self, topic: str) -> int:
        """How many came after the watermark."""
        return self._late[topic]

    def error_rate(self, topic: str) -> float:
        """Of the topic's messages that could be parsed."""
        parsed = self.messages(topic) - self.messages(topic, UNPARSED)
        return sum(self.messages(topic, level) for level in GRAVE) / parsed if parsed else 0.0


def number_in(alert: Mapping[str, object], name: str) -> float:
    """What an alert says under a name; 0 if that is no number: anybody may write to the topic."""
    value = alert.get(name)
    try:
        return float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:  # an integer of hundreds of digits
        return 0.0


def find(archive: Path, alerts: tuple[dict[str, Any], ...] = ()) -> Findings:
    """What the tables below an archive directory tell."""
    errors: Counter[str] = Counter()
    talkers: Counter[str] = Counter()
    latest: list[dict[str, Any]] = []
    # There may be more lines than fit into memory; what is kept of them is little.
    for lines in _batches(
        lines_table(archive), ["topic", "time", "level", "host", "program", "message", "error"]
    ):
        errors += _counted(lines["error"].drop_null())
        grave = lines.filter(pc.is_in(lines["level"], value_set=pa.array(GRAVE)))
        talkers += _counted(pc.coalesce(grave["program"], grave["host"], grave["topic"]))
        latest = _latest(latest, grave)
    return Findings(
        minutes=_minutes(archive),
        archived=_archived(archive),
        errors=_commonest(errors),
        talkers=_commonest(talkers),
        latest=tuple((f"{row['time']:%Y-%m-%d %H:%M:%S}", row["topic"], row["message"]) for row in latest),
        visits=_visits(archive),
        alerts=alerts,
    )


def _batches(table: Table, columns: list[str]) -> Iterator[Any]:
    """Rows of a table, some at a time. Of each file by itself: a merged one may have null where those that it
    was made of could not, so their schemas differ, and names of directories are not to become columns."""
    for path in table.paths(table.manifest()):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(columns=columns)


def _minutes(archive: Path) -> tuple[Minute, ...]:
    messages: Counter[tuple[str, str, datetime]] = Counter()
    late: Counter[tuple[str, str, datetime]] = Counter()
    for batch in _batches(counts_table(archive), ["topic", "level", "minute", "messages", "late"]):
        rows = batch.set_column(2, "minute", _readable(batch["minute"]))
        # As many rows as there were batches of a minute become one before Python sees them.
        sums = pa.Table.from_batches([rows]).group_by(["topic", "level", "minute"])
        for row in sums.aggregate([("messages", "sum"), ("late", "sum")]).to_pylist():
            place = (row["topic"], row["level"], row["minute"])
            messages[place] += row["messages_sum"]
            late[place] += row["late_sum"]
    made = (Minute(*place, count, late[place]) for place, count in messages.items())
    return tuple(sorted(made, key=lambda each: (each.minute, each.topic, ORDER.index(each.level))))


def _archived(archive: Path) -> tuple[ArchivedTopic, ...]:
    manifest = archive_table(archive).manifest()
    made = []
    for topic, partitions in sorted(manifest.covered.items()):
        files = [file for file in manifest.files if file.path.startswith(f"topic={topic}/")]
        messages = sum(file.rows for file in files)
        whole = sum(spans[-1][1] - spans[0][0] for spans in partitions.values() if spans)
        size = sum(file.bytes for file in files)
        made.append(ArchivedTopic(topic, len(files), size, messages, whole - messages))
    return tuple(made)


def _counted(texts: Any) -> Counter[str]:
    # What differs from line to line is quoted; the reason is what stands before it.
    reasons = pc.replace_substring_regex(texts, r"(?s)'.*'", "…")
    return Counter({each["values"]: each["counts"] for each in pc.value_counts(reasons).to_pylist()})


def _commonest(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:TOP])


def _latest(known: list[dict[str, Any]], grave: Any) -> list[dict[str, Any]]:
    """The latest of these and those before, the very latest first."""
    rows = pa.table({name: grave[name] for name in ("topic", "message")} | {"time": _readable(grave["time"])})
    newest = rows.sort_by([("time", "descending")])[:TOP].to_pylist()
    found = [row | {"message": (row["message"] or "")[:_TEXT_MAX]} for row in newest]
    return sorted(known + found, key=lambda row: row["time"], reverse=True)[:TOP]


def _visits(archive: Path) -> tuple[Visit, ...]:
    made: list[Visit] = []
    for batch in _batches(sessions_table(archive), ["started", "ended", "requests", "errors"]):
        seconds = pc.seconds_between(_readable(batch["started"]), _readable(batch["ended"]))
        columns = (seconds, batch["requests"], batch["errors"])
        for lasted, requests, errors in zip(*(each.to_pylist() for each in columns), strict=True):
            made.append(Visit(lasted / 60, requests, errors))
    return tuple(made)


def _readable(moments: Any) -> Any:
    """The same, but those outside the years 1 to 9999 at their ends: Python has no other years, and anybody
    may give a message any timestamp."""
    micros = pc.cast(pc.cast(moments, pa.timestamp("us", "UTC")), pa.int64())
    bounded = pc.max_element_wise(pc.min_element_wise(micros, LAST_US), FIRST_US)
    return pc.cast(bounded, pa.timestamp("us", "UTC"))
