"""Streaming reading: micro-batch after micro-batch, from where the checkpoint says.

Spark keeps how far a query has come; nothing here is needed to know it. This object lives in a process on the
driver for as long as the query runs, and a copy of it in every task.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from talweg.client.partition_log import Ends, PartitionLogs, Stretch
from talweg.errors import TopicNotFound
from talweg.spark.connection import logs_of
from talweg.spark.consumer_group import ConsumerGroup
from talweg.spark.options import ReadOptions
from talweg.spark.planning import Chosen, NotedLosses, choose, ends_of, positions_at, stretches
from talweg.spark.positions import Positions, TopicPositions, from_json, moved, to_json
from talweg.spark.reading import StretchPartition, read_stretch
from talweg.spark.shares import Turns, share, split

_logger: Final = logging.getLogger("talweg.spark")

Place = tuple[str, int]


class TalwegStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of one query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Positions | None = None  # with availableNow: where it ends
        self._latest: dict[str, Any] | None = None  # all there was when we looked last
        self._known: tuple[dict[str, Any], dict[str, dict[int, Ends]]] | None = (
            None  # an end given out, and the ends then
        )
        self._triggered_at: float | None = None  # when a batch last had anything, or we first looked
        self._turns = Turns[Place]()  # of partitions, where a limit leaves nothing for some
        self._group = ConsumerGroup(options.group, options.keep_bytes)
        self._missing: set[str] = set()  # topics that were not there when we looked

    @property
    def _logs(self) -> PartitionLogs:
        connect = self._options.connect
        return logs_of(connect.servers, connect.seconds_max)

    # Where it begins and ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        topics = choose(self._logs, self._options.selection)
        ends = ends_of(self._logs, topics)
        options = self._options
        begin = positions_at(
            self._logs,
            topics,
            ends,
            options.starting or "latest",
            timestamp=options.starting_timestamp,
            option="startingOffsets",
        )
        self._group.begin(begin)
        return to_json(begin)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is what will be read."""
        self._target = _behind(*self._look())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """One that stands for all that are set: Spark knows one at a time."""
        options = self._options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable() if options.rows_min is None else ReadMinRows(options.rows_min)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next micro-batch ends; where it starts if there is nothing to read, or not enough."""
        self._group.commit(self._logs, start)  # everything before it is done
        before, losses = from_json(start), self._losses()
        topics, ends = self._look()
        behind = _behind(topics, ends)
        self._latest = to_json(behind)
        if self._target is not None:
            behind = _until(behind, self._target)
        aside = self._left_aside(before, behind, losses)
        begin = self._begin(before, behind, ends, losses)
        found = stretches(begin, behind, ends, losses)
        end = self._limited(begin, behind, found, limit)
        answer = start
        if end is not None:
            losses.say()
            answer = to_json(_both(end, aside))
        self._known = (answer, ends)
        return answer

    def _losses(self) -> NotedLosses:
        return NotedLosses(fail=self._options.fail_on_data_loss)

    def _look(self) -> tuple[dict[str, Chosen], dict[str, dict[int, Ends]]]:
        """What is there, and where it begins and ends. A query that may lose messages outlives a topic, and
        finds it when it is made again. Where it begins, all of them have to be."""
        on_missing = None if self._options.fail_on_data_loss else self._note_missing
        topics = choose(self._logs, self._options.selection, on_missing)
        # What was deleted just now is missed like what was deleted before: see `_left_aside`.
        ends = ends_of(self._logs, topics, without_gone=True)
        return {name: topics[name] for name in ends}, ends

    def _note_missing(self, topic: str) -> None:
        if topic not in self._missing:
            self._missing.add(topic)
            _logger.warning("topic %s is not there; going on without it (failOnDataLoss is false)", topic)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What a query's progress shows as the newest."""
        return self._latest

    def _begin(
        self,
        before: Positions,
        behind: Positions,
        ends: Mapping[str, Mapping[int, Ends]],
        losses: NotedLosses,
    ) -> dict[str, TopicPositions]:
        """Where each partition of `behind` is read from: where it was left, or its start if it is new."""
        made = {}
        for name, topic in behind.items():
            known = before.get(name)
            if known is not None and known.incarnation != topic.incarnation:
                losses.tell(f"topic {name} was deleted and made again: what was not read of it is lost")
                known = None
            offsets = {}
            for number, end in topic.partitions.items():
                start, next_offset = ends[name][number].start_offset, ends[name][number].next_offset
                offset = start if known is None else known.partitions.get(number, start)
                if offset > next_offset:
                    losses.tell(
                        f"partition {number} of topic {name} ends at offset {next_offset}, and was read to "
                        f"{offset}: its messages between them are lost"
                    )
                    offset = end
                offsets[number] = offset
            new = [] if known is None else sorted(set(topic.partitions) - set(known.partitions))
            if known is None or new:
                what = f"topic {name}" if known is None else f"partitions {new} of topic {name}"
                _logger.info("%s is read from its start: it is new to this query", what)
                self._group.begin([name])
            made[name] = TopicPositions(topic.incarnation, offsets)
        return made

    def _left_aside(
        self, before: Positions, behind: Positions, losses: NotedLosses
    ) -> dict[str, TopicPositions]:
        """What the checkpoint knows and the options no longer name, or nobody knows just now: it stays where
        it was left, or it would be read from its start when it is there again."""
        kept = {}
        for name, topic in before.items():
            named = behind.get(name)
            if named is not None and named.incarnation == topic.incarnation:
                left = {n: offset for n, offset in topic.partitions.items() if n not in named.partitions}
                kept[name] = TopicPositions(topic.incarnation, left)
            elif named is None:
                gone = not self._is_there(name, topic.incarnation)
                if gone and not topic.gone:
                    losses.tell(f"topic {name} is gone, and what was not read of it")
                kept[name] = msgspec.structs.replace(topic, gone=gone)
        return kept

    def _is_there(self, name: str, incarnation: int) -> bool:
        try:
            return self._logs.topic(name).incarnation == incarnation
        except TopicNotFound:
            return False

    # Limits

    def _limited(
        self, begin: Positions, behind: Positions, found: list[Stretch], limit: ReadLimit
    ) -> dict[str, TopicPositions] | None:
        """How far to go this time; None: not at all, there is not enough yet."""
        rows = self._turns.in_turn(
            {(each.topic, each.partition): len(each) for each in found if len(each) > 0}
        )
        starts: dict[Place, int] = {(each.topic, each.partition): each.begin for each in found}
        options = self._options
        if not isinstance(limit, ReadAllAvailable):  # that one overrules the options
            if self._is_too_early(sum(rows.values())):
                return None
            if options.rows_max is not None:
                rows = share(options.rows_max, rows)
            if options.bytes_max is not None:
                rows = self._share_bytes(options.bytes_max, rows, found)
        if sum(rows.values()):
            self._triggered_at = time.monotonic()
            self._turns.note(rows)
        return {
            name: TopicPositions(
                topic.incarnation,
                {
                    number: max(
                        starts[name, number] + rows.get((name, number), 0), begin[name].partitions[number]
                    )
                    for number in topic.partitions
                },
            )
            for name, topic in behind.items()
        }

    def _is_too_early(self, rows: int) -> bool:
        options = self._options
        if options.rows_min is None or rows >= options.rows_min or self._target is not None:
            return False
        if self._triggered_at is None:  # the first one goes at once: what is there has waited long enough
            self._triggered_at = time.monotonic()
            return False
        return time.monotonic() - self._triggered_at < options.trigger_delay_seconds_max

    def _share_bytes(self, limit: int, rows: Mapping[Place, int], found: list[Stretch]) -> dict[Place, int]:
        """Rows whose bytes are about the limit, by the length of the messages that come next."""
        by_place = {(each.topic, each.partition): each for each in found}
        lengths = {
            place: max(self._logs.message_bytes(by_place[place]), 1.0)
            for place, count in rows.items()
            if count
        }
        return share(limit, rows, lengths)

    # Tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A task for each partition that has anything to read, or more (`minPartitions`)."""
        before, losses = from_json(start), self._losses()
        behind = moved(before, from_json(end))
        known = self._known[1] if self._known is not None and self._known[0] == end else None
        if known is not None:
            ends = known
        else:  # a batch of the checkpoint, which is done again
            behind, ends = self._still_there(behind, losses)
        begin = {
            name: TopicPositions(
                topic.incarnation,
                {
                    number: _start_of(before.get(name), topic, number, ends[name][number])
                    for number in topic.partitions
                },
            )
            for name, topic in behind.items()
        }
        found = stretches(begin, behind, ends, losses)
        if known is None:  # else it was said when this end was given out
            losses.say()
        return [StretchPartition(stretch) for stretch in split(found, self._options.min_partitions)]

    def _still_there(
        self, behind: Positions, losses: NotedLosses
    ) -> tuple[dict[str, TopicPositions], dict[str, dict[int, Ends]]]:
        """What of it can be read still, and where that begins and ends; whatever the options name by now."""
        topics = {name: Chosen(each.incarnation, tuple(each.partitions)) for name, each in behind.items()}
        ends = ends_of(self._logs, topics, without_gone=True)
        for name in sorted(behind.keys() - ends.keys()):
            losses.tell(f"topic {name} was deleted, and what the checkpoint says is still to be read")
        return {name: behind[name] for name in ends}, ends

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task."""
        options = self._options
        return read_stretch(
            partition, self._schema, options.connect, fail_on_data_loss=options.fail_on_data_loss
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says so one batch late, and of the last one never; `latestOffset` knows better."""
        self._group.commit(self._logs, end)


def _behind(
    topics: Mapping[str, Chosen], ends: Mapping[str, Mapping[int, Ends]]
) -> dict[str, TopicPositions]:
    return {
        name: TopicPositions(
            chosen.incarnation, {number: ends[name][number].next_offset for number in chosen.partitions}
        )
        for name, chosen in topics.items()
    }


def _both(one: Positions, other: Positions) -> dict[str, TopicPositions]:
    """The positions of both; they have no partition in common."""
    made = dict(other)
    for name, topic in one.items():
        more = other[name].partitions if name in other else {}
        made[name] = TopicPositions(topic.incarnation, {**topic.partitions, **more})
    return made


def _until(behind: Positions, target: Positions) -> dict[str, TopicPositions]:
    """No further than the target, and nothing that was not there then."""
    return {
        name: TopicPositions(
            topic.incarnation,
            {
                number: min(offset, target[name].partitions[number])
                for number, offset in topic.partitions.items()
                if number in target[name].partitions
            },
        )
        for name, topic in behind.items()
        if name in target and target[name].incarnation == topic.incarnation
    }


def _start_of(before: TopicPositions | None, topic: TopicPositions, number: int, ends: Ends) -> int:
    """Where a partition is read from; one that is new to the query, or another one, from its start."""
    if before is None or before.incarnation != topic.incarnation:
        return ends.start_offset
    return before.partitions.get(number, ends.start_offset)
