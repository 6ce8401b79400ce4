"""Findings: what a report tells, read from the tables with Arrow alone, so that no Spark has to start."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
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


class Findings(msgspec.Struct, frozen=True):
    """Everything that a report shows."""

    minutes: tuple[Minute, ...] = ()
    archived: tuple[ArchivedTopic, ...] = ()
    errors: tuple[tuple[str, int], ...] = ()  # the commonest reasons why lines could not be parsed
    talkers: tuple[tuple[str, int], ...] = ()  # hosts and programs with the most errors
    latest: tuple[tuple[str, str, str], ...] = ()  # the latest grave lines: time, topic, message
    visits: tuple[Visit, ...] = ()
    alerts: tuple[dict[str, Any], ...] = ()

    @property
    def topics(self) -> list[str]:
        """That have counts, in order."""
        return sorted({each.topic for each in self.minutes})

    @property
    def levels(self) -> list[str]:
        """That have counts, from the lightest to the gravest."""
        return [level for level in ORDER if any(each.level == level for each in self.minutes)]

    def messages(self, topic: str | None = None, level: str | None = None) -> int:
        """How many, of a topic or a level if one is named."""
        return sum(
            each.messages
            for each in self.minutes
            if topic in (None, each.topic) and level in (None, each.level)
        )

    def late(self, topic: str) -> int:
        """How many came after the watermark."""
        return sum(each.late for each in self.minutes if each.topic == topic)

    def error_rate(self, topic: str) -> float:
        """Of the topic's messages that could be parsed."""
        parsed = self.messages(topic) - self.messages(topic, UNPARSED)
        return sum(self.messages(topic, level) for level in GRAVE) / parsed if parsed else 0.0


def number_in(alert: Mapping[str, object], name: str) -> float:
    """What an alert says under a name; 0 if that is no number: anybody may write to the topic."""
    value = alert.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


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
        latest=tuple(
            (_utc(row["time"]).strftime("%Y-%m-%d %H:%M:%S"), row["topic"], row["message"]) for row in latest
        ),
        visits=_visits(archive),
        alerts=alerts,
    )


def _batches(table: Table, columns: list[str]) -> Iterator[Any]:
    """Rows of a table, some at a time. Of each file by itself: a merged one may have null where those that it
    was made of could not, so their schemas differ, and names of directories are not to become columns."""
    for path in table.paths(table.manifest()):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(columns=columns)


def _rows(table: Table, columns: list[str]) -> list[dict[str, Any]]:
    return [row for batch in _batches(table, columns) for row in batch.to_pylist()]


def _minutes(archive: Path) -> tuple[Minute, ...]:
    messages: Counter[tuple[str, str, datetime]] = Counter()
    late: Counter[tuple[str, str, datetime]] = Counter()
    for row in _rows(counts_table(archive), ["topic", "level", "minute", "messages", "late"]):
        place = (row["topic"], row["level"], _utc(row["minute"]))
        messages[place] += row["messages"]
        late[place] += row["late"]
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
    reasons = pc.replace_substring_regex(texts, r"'.*'", "…")
    return Counter({each["values"]: each["counts"] for each in pc.value_counts(reasons).to_pylist()})


def _commonest(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:TOP])


def _latest(known: list[dict[str, Any]], grave: Any) -> list[dict[str, Any]]:
    """The latest of these and those before, the very latest first."""
    rows = grave.select(["time", "topic", "message"]).sort_by([("time", "descending")])[:TOP].to_pylist()
    found = [row | {"message": (row["message"] or "")[:_TEXT_MAX]} for row in rows]
    return sorted(known + found, key=lambda row: row["time"], reverse=True)[:TOP]


def _visits(archive: Path) -> tuple[Visit, ...]:
    return tuple(
        Visit((row["ended"] - row["started"]).total_seconds() / 60, row["requests"], row["errors"])
        for row in _rows(sessions_table(archive), ["started", "ended", "requests", "errors"])
    )


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
