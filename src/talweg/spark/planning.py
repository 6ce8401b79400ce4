"""From options to partitions and offsets: what a query is to read, as the cluster has it now."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from talweg.client.offsets import Moment
from talweg.client.partition_log import Ends, PartitionLogs, Stretch
from talweg.errors import InvalidSetting, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from talweg.spark.options import EARLIEST, LATEST, Offsets, Selection
from talweg.spark.positions import Positions, TopicPositions

_logger: Final = logging.getLogger("talweg.spark")


class Chosen(msgspec.Struct, frozen=True):
    """What of a topic is read."""

    incarnation: int
    partitions: tuple[int, ...]


Topics = Mapping[str, Chosen]


def choose(
    logs: PartitionLogs, selection: Selection, on_missing: Callable[[str], None] | None = None
) -> dict[str, Chosen]:
    """The partitions that the options mean. Raises InvalidSetting, and TopicNotFound unless somebody else is
    told of a topic that is not there: then it is left out."""
    if selection.pattern is not None:
        pattern = re.compile(selection.pattern)
        found = (topic for topic in logs.topics() if pattern.fullmatch(topic.topic))
        # What begins with two underscores is the cluster's own.
        return {
            topic.topic: Chosen(topic.incarnation, tuple(range(len(topic.partitions))))
            for topic in found
            if not topic.topic.startswith("__")
        }
    chosen = {}
    assigned = selection.assign or {}
    for name in selection.subscribe or assigned:
        try:
            topic = logs.topic(name)
        except TopicNotFound:
            if on_missing is not None:
                on_missing(name)
                continue
            option = "subscribe" if selection.subscribe else "assign"
            raise TopicNotFound(f"option {option}: there is no topic {name}") from None
        there = range(len(topic.partitions))
        for number in assigned.get(name, ()):
            if number not in there:
                raise InvalidSetting(
                    f"option assign: topic {name} has no partition {number}, only 0 to {len(there) - 1}"
                )
        chosen[name] = Chosen(topic.incarnation, assigned.get(name, tuple(there)))
    return chosen


def ends_of(logs: PartitionLogs, topics: Topics, *, without_gone: bool = False) -> dict[str, dict[int, Ends]]:
    """Where each of them begins and ends now. Raises TopicNotFound for one that was deleted since it was
    chosen, unless it may be left out."""
    made = {}
    for name, chosen in topics.items():
        try:
            made[name] = logs.ends(name, chosen.partitions, chosen.incarnation)
        except (TopicNotFound, PartitionNotFound):
            if not without_gone:
                raise
    return made


def positions_at(
    logs: PartitionLogs,
    topics: Topics,
    ends: Mapping[str, Mapping[int, Ends]],
    offsets: Offsets,
    *,
    timestamp: int | None,
    option: str,
) -> dict[str, TopicPositions]:
    """Where the options mean, in each partition: by the timestamp if there is one."""
    if isinstance(offsets, Mapping) and timestamp is None:
        _check_cover(offsets, topics, option)
    made = {}
    for name, chosen in topics.items():
        if timestamp is not None:
            found = logs.offsets_at(name, chosen.partitions, Moment(timestamp), chosen.incarnation)
        else:
            wanted = offsets if isinstance(offsets, str) else offsets[name]
            found = {number: _offset(wanted, number, ends[name][number]) for number in chosen.partitions}
            _check_end(name, found, ends[name], option)
        made[name] = TopicPositions(chosen.incarnation, found)
    return made


def _offset(wanted: str | Mapping[int, int], number: int, ends: Ends) -> int:
    named = {"earliest": EARLIEST, "latest": LATEST}[wanted] if isinstance(wanted, str) else wanted[number]
    return {EARLIEST: ends.start_offset, LATEST: ends.next_offset}.get(named, named)


def _check_cover(offsets: Mapping[str, Mapping[int, int]], topics: Topics, option: str) -> None:
    """An offset for each partition read, and for no other: a forgotten one would be a silent guess."""
    wanted = {(name, number) for name, chosen in topics.items() for number in chosen.partitions}
    named = {(name, number) for name, numbers in offsets.items() for number in numbers}
    if wanted != named:
        missing, more = sorted(wanted - named), sorted(named - wanted)
        told = [
            f"{', '.join(f'{name}-{number}' for name, number in some)} {what}"
            for some, what in ((missing, "missing"), (more, "not read"))
            if some
        ]
        raise InvalidSetting(
            f"option {option}: expected an offset for each partition read: {'; '.join(told)}"
        )


def _check_end(topic: str, found: Mapping[int, int], ends: Mapping[int, Ends], option: str) -> None:
    for number, offset in found.items():
        if offset > ends[number].next_offset:
            raise OffsetOutOfRange(
                f"option {option}: offset {offset} is behind the end of partition {number} of topic {topic}, "
                f"which is {ends[number].next_offset}"
            )


class Losses:
    """What to do about messages that are gone: fail, or say so and go on."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, lost: Stretch, why: str) -> None:
        """Raise, or write a line to the log."""
        self.tell(f"{lost} are lost: {why}")

    def tell(self, what: str) -> None:
        """The same, of anything."""
        if self._fail:
            raise OffsetOutOfRange(
                f"{what}. To go on without them, set the option failOnDataLoss to false "
                "(talweg pipeline: --skip-lost)"
            )
        self._say(what)

    def _say(self, what: str) -> None:
        _logger.warning("%s; going on without them (failOnDataLoss is false)", what)


class NotedLosses(Losses):
    """Says nothing before `say`. A batch that waits for more is looked at again and again; what it lost is
    given up only when it goes."""

    def __init__(self, *, fail: bool) -> None:
        super().__init__(fail=fail)
        self._noted: list[str] = []

    def say(self) -> None:
        """Write what was noted to the log."""
        for what in self._noted:
            super()._say(what)
        self._noted.clear()

    def _say(self, what: str) -> None:
        self._noted.append(what)


def stretches(
    begin: Positions, end: Positions, ends: Mapping[str, Mapping[int, Ends]], losses: Losses
) -> list[Stretch]:
    """What lies between two positions of the same topics. What retention has taken of it is told of."""
    made = []
    for name, behind in end.items():
        for number, end_offset in sorted(behind.partitions.items()):
            begin_offset = begin[name].partitions[number]
            stretch = Stretch(name, number, begin_offset, end_offset, behind.group(number))
            known = ends.get(name, {}).get(number)
            if known is not None and begin_offset < min(known.start_offset, end_offset):
                kept = min(known.start_offset, end_offset)
                losses.report(
                    msgspec.structs.replace(stretch, end=kept), "retention dropped them before they were read"
                )
                stretch = msgspec.structs.replace(stretch, begin=kept)
            made.append(stretch)
    return made
