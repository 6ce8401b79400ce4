"""Entries and snapshots as rows, and back again: framing, splitting, and the checks on the way."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c
from sqlalchemy import Row

from talweg.errors import CorruptBatch, DamagedLog
from talweg.raft import Configuration, Entry, Snapshot
from talweg.records import Header, Kind, check_body, read_header
from talweg.storage.frames import frame_of
from talweg.storage.sql_schema import PART_BYTES, Owner

if TYPE_CHECKING:
    AnyRow: TypeAlias = Row[*tuple[Any, ...]]
else:
    AnyRow = Row  # whose parameters differ between versions of SQLAlchemy


class Place(msgspec.Struct, frozen=True, gc=False):
    """The state of a log right after one entry (or at its start): what the next entry continues."""

    index: int
    term: int
    term_index: int  # of the first entry of this term
    configuration_index: int  # of the last configuration entry; 0: none
    next_offset: int
    next_position: int  # bytes of all frames ever appended up to here
    newest_timestamp: int  # of all messages up to here; 0 when there was none


class Rows(NamedTuple):
    """What a list of entries comes to."""

    entries: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    end: Place  # after the last of them


def rows_of(group_id: int, entries: Iterable[Entry], place: Place) -> Rows:
    """The rows of entries that follow `place`."""
    index, term, term_index, configuration_index, offset, position, newest = msgspec.structs.astuple(place)
    entry_rows: list[dict[str, Any]] = []
    part_rows: list[dict[str, Any]] = []
    for entry in entries:
        frame = frame_of(entry, offset)
        header = read_header(frame)
        index += 1
        assert entry.index == index, "the log has no gaps"
        assert (header.index, header.term) == (index, entry.term), "the frame is not stamped"
        assert header.first_offset == offset, "offsets have no gaps"
        assert header.frame_bytes == len(frame), "the payload is not one frame"
        offset = header.next_offset
        position += len(frame)
        if header.term != term:
            term, term_index = header.term, index
        if header.kind is Kind.CONFIGURATION:
            configuration_index = index
        elif header.kind is Kind.RECORDS and header.count:
            newest = max(newest, header.last_timestamp)
        entry_rows.append(
            {
                "group_id": group_id,
                "entry_index": index,
                "term": term,
                "term_index": term_index,
                "configuration_index": configuration_index,
                "kind": int(header.kind),
                "first_offset": header.first_offset,
                "next_offset": offset,
                "last_timestamp": header.last_timestamp,
                "newest_timestamp": newest,
                "frame_bytes": len(frame),
                "next_position": position,
            }
        )
        part_rows += rows_of_parts(group_id, Owner.ENTRY, index, frame)
    end = Place(index, term, term_index, configuration_index, offset, position, newest)
    return Rows(entry_rows, part_rows, end)


def rows_of_parts(group_id: int, owner: Owner, index: int, data: bytes) -> list[dict[str, Any]]:
    """Bytes in pieces that every database takes; one piece at least, though it be empty."""
    return [
        {
            "group_id": group_id,
            "owner": int(owner),
            "entry_index": index,
            "part": start // PART_BYTES,
            "bytes": data[start : start + PART_BYTES],
        }
        for start in range(0, max(len(data), 1), PART_BYTES)
    ]


def checked_frame(index: int, frame: bytes | None) -> tuple[Header, bytes]:
    """The frame found for an entry, and its header; CorruptBatch when it is not what was written."""
    if frame is None:
        raise CorruptBatch("the frame is missing")
    header = read_header(frame)
    if header.frame_bytes != len(frame):
        raise CorruptBatch(f"{len(frame)} bytes, the frame has {header.frame_bytes}")
    check_body(header, frame)
    if header.index != index:
        raise CorruptBatch(f"the frame of entry {header.index} in the place of entry {index}")
    return header, frame


def row_of_snapshot(group_id: int, snapshot: Snapshot, place: Place) -> dict[str, Any]:
    """The row of a snapshot taken at `place`."""
    assert (place.index, place.term) == (snapshot.index, snapshot.term), "a snapshot of another log"
    configuration = snapshot.configuration.to_bytes()
    return {
        "group_id": group_id,
        "entry_index": snapshot.index,
        "term": snapshot.term,
        "next_offset": place.next_offset,
        "next_position": place.next_position,
        "newest_timestamp": place.newest_timestamp,
        "configuration": configuration,
        "checksum": crc32c(snapshot.state, crc32c(configuration)),
    }


def snapshot_of(row: AnyRow, state: bytes | None) -> Snapshot:
    """The snapshot of a row and its bytes; DamagedLog when it is not what was saved."""
    configuration = bytes(row.configuration)
    if state is None or crc32c(state, crc32c(configuration)) != row.checksum:
        raise DamagedLog(f"the snapshot at entry {row.entry_index} does not match its checksum")
    return Snapshot(row.entry_index, row.term, Configuration.from_bytes(configuration), state)
