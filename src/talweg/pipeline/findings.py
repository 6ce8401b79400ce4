"""Findings: what a report tells, read from the tables with Arrow alone, so that no Spark has to start."""

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


def find(archive: Path, alerts: tuple[dict[str, Any], ...] = ()) -> Findings:
    """What the tables below an archive directory tell."""
    lines = _rows(lines_table(archive), ["topic", "time", "level", "host", "program", "message", "error"])
    grave = lines.filter(pc.is_in(lines["level"], value_set=pa.array(GRAVE)))
    return Findings(
        minutes=_minutes(archive),
        archived=_archived(archive),
        errors=_commonest(lines.filter(pc.is_valid(lines["error"])), "error"),
        talkers=_talkers(grave),
        latest=_latest(grave),
        visits=_visits(archive),
        alerts=alerts,
    )


def _rows(table: Table, columns: list[str]) -> Any:
    paths = table.paths(table.manifest())
    if not paths:
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    # One by one: names of directories are not to become columns.
    return pa.concat_tables(pq.read_table(path, columns=columns, partitioning=None) for path in paths)


def _minutes(archive: Path) -> tuple[Minute, ...]:
    rows = _rows(counts_table(archive), ["topic", "level", "minute", "messages", "late"])
    if not rows.num_rows:
        return ()
    summed = rows.group_by(["topic", "level", "minute"]).aggregate([("messages", "sum"), ("late", "sum")])
    made = (
        Minute(row["topic"], row["level"], _utc(row["minute"]), row["messages_sum"], row["late_sum"])
        for row in summed.to_pylist()
    )
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


def _commonest(rows: Any, column: str) -> tuple[tuple[str, int], ...]:
    if not rows.num_rows:
        return ()
    # What differs from line to line is quoted; the reason is what stands before it.
    reasons = pc.replace_substring_regex(rows[column], r"'.*'", "…")
    counted = pc.value_counts(reasons).to_pylist()
    ordered = sorted(counted, key=lambda each: (-each["counts"], each["values"]))
    return tuple((each["values"], each["counts"]) for each in ordered[:TOP])


def _talkers(grave: Any) -> tuple[tuple[str, int], ...]:
    if not grave.num_rows:
        return ()
    names = pc.coalesce(grave["program"], grave["host"], grave["topic"])
    return _commonest(pa.table({"name": names}), "name")


def _latest(grave: Any) -> tuple[tuple[str, str, str], ...]:
    rows = grave.select(["time", "topic", "message"]).sort_by([("time", "descending")])[:TOP].to_pylist()
    return tuple(
        (_utc(row["time"]).strftime("%Y-%m-%d %H:%M:%S"), row["topic"], (row["message"] or "")[:_TEXT_MAX])
        for row in rows
    )


def _visits(archive: Path) -> tuple[Visit, ...]:
    rows = _rows(sessions_table(archive), ["started", "ended", "requests", "errors"]).to_pylist()
    return tuple(
        Visit((row["ended"] - row["started"]).total_seconds() / 60, row["requests"], row["errors"])
        for row in rows
    )


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
