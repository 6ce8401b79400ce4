"""What is asked of the tables of one log. Each function takes a connection, and so a transaction.

Rows up to the log's start may still be there when they are no longer part of it (see `sql_deleting`), so
whatever is asked for is asked for after the start.

The statements are built once: putting one together costs SQLAlchemy more than most of them cost a database.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    SmallInteger,
    bindparam,
    case,
    cast,
    func,
    select,
)

from talweg.raft import Snapshot
from talweg.records import HEADER_BYTES, Kind
from talweg.storage.sql_rows import AnyRow, Place, snapshot_of
from talweg.storage.sql_schema import Owner, entries, groups, parts, snapshots

INDEX_MAX: Final = 2**63 - 1  # the greatest that the databases' integers hold

_GROUP: Final = bindparam("group_id", type_=Integer)
_FIRST: Final = bindparam("first", type_=BigInteger)
_LAST: Final = bindparam("last", type_=BigInteger)
_VALUE: Final = bindparam("value", type_=BigInteger)
_OURS: Final = entries.c.group_id == _GROUP
_IN_RANGE: Final = (_OURS, entries.c.entry_index >= _FIRST, entries.c.entry_index <= _LAST)

_GROUP_ROW: Final = select(groups).where(groups.c.group_id == _GROUP)
_PLACE: Final = select(
    entries.c.entry_index,
    entries.c.term,
    entries.c.term_index,
    entries.c.configuration_index,
    entries.c.next_offset,
    entries.c.next_position,
    entries.c.newest_timestamp,
).where(_OURS)
_PLACE_AT: Final = _PLACE.where(entries.c.entry_index == _FIRST)
# Not ORDER BY with LIMIT 1, for which MariaDB may walk backwards from the log's end, entry by entry.
_LAST_PLACE: Final = _PLACE.where(
    entries.c.entry_index == select(func.max(entries.c.entry_index)).where(*_IN_RANGE).scalar_subquery()
)
_COUNT: Final = select(func.count()).select_from(entries).where(*_IN_RANGE)
_COUNTED_MAX: Final = 1 << 20  # entries at once, which takes a database less than a second or two
_BYTES_AT: Final = (
    select(entries.c.next_position, entries.c.frame_bytes)
    .join_from(entries, groups, groups.c.group_id == entries.c.group_id)
    .where(_OURS, entries.c.entry_index == _FIRST, entries.c.entry_index > groups.c.start_index)
)
_FIRST_BATCH_REACHING: Final = (
    select(entries.c.first_offset)
    .where(*_IN_RANGE, entries.c.kind == int(Kind.RECORDS), entries.c.last_timestamp >= _VALUE)
    .order_by(entries.c.entry_index)
    .limit(1)
)
_SNAPSHOTS: Final = (
    select(
        snapshots.c.entry_index,
        snapshots.c.next_offset,
        snapshots.c.next_position,
        snapshots.c.newest_timestamp,
    )
    .where(
        snapshots.c.group_id == _GROUP, snapshots.c.entry_index >= _FIRST, snapshots.c.entry_index <= _LAST
    )
    .order_by(snapshots.c.entry_index)
)
_SNAPSHOT_AT: Final = select(snapshots).where(
    snapshots.c.group_id == _GROUP, snapshots.c.entry_index == _FIRST
)
_PARTS: Final = (
    select(parts.c.entry_index, parts.c.bytes)
    .where(
        parts.c.group_id == _GROUP,
        parts.c.owner == bindparam("owner", type_=SmallInteger),
        parts.c.entry_index >= _FIRST,
        parts.c.entry_index <= _LAST,
    )
    .order_by(parts.c.entry_index, parts.c.part)
)


def _search_for(column: ColumnElement[Any]) -> Select[int]:
    """Search by halves, done by the database itself: one question, and a few looks by primary key."""
    search = select(cast(_FIRST, BigInteger).label("low"), cast(_LAST, BigInteger).label("high")).cte(
        "search", recursive=True
    )
    middle = (search.c.low + search.c.high) // 2
    at_middle = select(column).where(_OURS, entries.c.entry_index == middle).scalar_subquery()
    is_below = func.coalesce(at_middle, INDEX_MAX) <= _VALUE
    narrower = select(
        case((is_below, middle), else_=search.c.low), case((is_below, search.c.high), else_=middle)
    ).where(search.c.high - search.c.low > 1)
    search = search.union_all(narrower)
    return select(func.min(search.c.high))


_SEARCH_OFFSET: Final = _search_for(entries.c.next_offset)
_SEARCH_POSITION: Final = _search_for(entries.c.next_position)
_SEARCH_TIMESTAMP: Final = _search_for(entries.c.newest_timestamp)


def group_row(connection: Connection, group_id: int) -> AnyRow | None:
    """The group's row; None when the group has been deleted."""
    return connection.execute(_GROUP_ROW, {"group_id": group_id}).one_or_none()


def start_of(group: AnyRow) -> Place:
    """Where the log begins."""
    return Place(
        group.start_index,
        group.start_term,
        group.start_term_index,
        group.start_configuration_index,
        group.start_offset,
        group.start_position,
        group.start_timestamp,
    )


def place_at(connection: Connection, group_id: int, index: int) -> Place | None:
    """After the entry at `index`; None when there is no such entry."""
    row = connection.execute(_PLACE_AT, {"group_id": group_id, "first": index}).one_or_none()
    return None if row is None else Place(*row)


def last_place(connection: Connection, group_id: int, start: Place, index: int = INDEX_MAX) -> Place:
    """After the last entry, or the last one up to `index`; `start` when there is none."""
    numbers = {"group_id": group_id, "first": start.index + 1, "last": index}
    row = connection.execute(_LAST_PLACE, numbers).one_or_none()
    return start if row is None else Place(*row)


def term_runs(connection: Connection, group_id: int, start: Place, end: Place) -> list[tuple[int, int]]:
    """(first index, term) for each run of equal terms from `start` to `end`, oldest first."""
    runs: list[tuple[int, int]] = []
    last: Place | None = end
    while last is not None and last.index > start.index:
        runs.append((max(last.term_index, start.index + 1), last.term))
        last = place_at(connection, group_id, last.term_index - 1)
    return runs[::-1]


def configuration_indexes(connection: Connection, group_id: int, start: Place, end: Place) -> list[int]:
    """Where the configuration entries from `start` to `end` are, oldest first."""
    indexes: list[int] = []
    last: Place | None = end
    while last is not None and last.configuration_index > start.index:
        indexes.append(last.configuration_index)
        last = place_at(connection, group_id, last.configuration_index - 1)
    return indexes[::-1]


def first_gap(connection: Connection, group_id: int, start: Place) -> int | None:
    """The first index that has no row although a later one has."""

    def is_whole(low: int, high: int) -> bool:
        counted = connection.execute(_COUNT, {"group_id": group_id, "first": low + 1, "last": high})
        return counted.scalar_one() == high - low

    low, last = start.index, last_place(connection, group_id, start).index
    while low < last:
        high = min(low + _COUNTED_MAX, last)
        if not is_whole(low, high):
            return _first_missing(is_whole, low, high)
        low = high
    return None


def _first_missing(is_whole: Callable[[int, int], bool], low: int, high: int) -> int:
    while high - low > 1:  # invariant: none is missing in (start, low], some in (low, high]
        middle = (low + high) // 2
        if is_whole(low, middle):
            low = middle
        else:
            high = middle
    return high


def first_beyond_offset(connection: Connection, group_id: int, offset: int, start: Place, end: Place) -> int:
    """The first entry after which the next offset is greater than `offset`: the one that holds it."""
    assert start.next_offset <= offset < end.next_offset
    return _search(connection, _SEARCH_OFFSET, group_id, offset, (start.index, end.index + 1))


def last_within(connection: Connection, group_id: int, first: int, last: int, bytes_max: int) -> int | None:
    """How far one gets from entry `first` on with `bytes_max` bytes, but not beyond `last`.

    `first` itself in any case; None when there is no such entry in the log.
    """
    row = connection.execute(_BYTES_AT, {"group_id": group_id, "first": first}).one_or_none()
    if row is None:
        return None
    position_max = row.next_position + max(bytes_max - row.frame_bytes, 0)
    end = min(last, first + bytes_max // HEADER_BYTES) + 1
    return _search(connection, _SEARCH_POSITION, group_id, position_max, (first, end)) - 1


def offset_for_timestamp(
    connection: Connection, group_id: int, timestamp: int, start: Place, end: Place
) -> int | None:
    """The first offset of the first batch from `start` to `end` with a message at or after `timestamp`."""
    reached = _search(connection, _SEARCH_TIMESTAMP, group_id, timestamp - 1, (start.index, end.index + 1))
    # Nearly always that entry itself. But when a message that was dropped with the log's head was newer,
    # the running maximum says nothing of what follows, and one entry after the other is looked at.
    for last in (reached, end.index):
        found = connection.execute(
            _FIRST_BATCH_REACHING,
            {"group_id": group_id, "first": reached, "last": last, "value": timestamp},
        ).scalar_one_or_none()
        if found is not None or reached > end.index:
            return found
    return None


def _search(
    connection: Connection, statement: Select[int], group_id: int, value: int, within: tuple[int, int]
) -> int:
    """The first index in (low, high) where a column that never falls is above `value`; or `high`.

    An entry that is missing counts as above.
    """
    low, high = within
    found = connection.execute(statement, {"group_id": group_id, "first": low, "last": high, "value": value})
    return int(found.scalar_one())


def parts_between(
    connection: Connection, group_id: int, owner: Owner, first: int, last: int
) -> dict[int, bytes]:
    """The bytes of entries or snapshots from `first` to `last`, put together, by index."""
    rows = connection.execute(
        _PARTS, {"group_id": group_id, "owner": int(owner), "first": first, "last": last}
    )
    return {index: b"".join([part for _, part in run]) for index, run in groupby(rows, lambda row: row[0])}


def snapshots_between(connection: Connection, group_id: int, first: int, last: int) -> Sequence[AnyRow]:
    """What there is from `first` to `last`, oldest first, sound or not; without the bytes."""
    return connection.execute(_SNAPSHOTS, {"group_id": group_id, "first": first, "last": last}).all()


def snapshot_at(connection: Connection, group_id: int, index: int) -> Snapshot | None:
    """The one at `index`; raises DamagedLog when it is not what was saved."""
    row = connection.execute(_SNAPSHOT_AT, {"group_id": group_id, "first": index}).one_or_none()
    if row is None:
        return None
    return snapshot_of(row, parts_between(connection, group_id, Owner.SNAPSHOT, index, index).get(index))
