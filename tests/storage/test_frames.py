"""Entries as frames: on disk and on the wire the same bytes."""

import pytest

from storage.logs import EVERYTHING, LogMaker, frame_bytes, together
from talweg.errors import CorruptBatch, Incomplete
from talweg.raft import CONFIGURATION, NOOP, Configuration, Entry, Run, singly
from talweg.records import HEADER_BYTES, Kind, read_header
from talweg.storage.frames import (
    LARGE_FRAME_BYTES,
    RUN_BYTES_MAX,
    entries_in,
    entry_of,
    frame_of,
    gathered,
    record_frames,
)


def sample() -> list[Entry]:
    make = LogMaker(last_index=6, term=3, next_offset=40)
    return [make.noop(), make.configuration(1, 2, 3), make.records(b"a", b"bc"), make.positions(b"x" * 13)]


def framed(entries: list[Entry]) -> bytes:
    return b"".join(frame_of(entry, 40) for entry in entries)


def test_an_entry_born_in_the_core_is_framed_where_it_is_stored() -> None:
    body = Configuration.of([1, 2]).to_bytes()
    for kind, payload in ((NOOP, b""), (CONFIGURATION, body)):
        entry = Entry(9, 4, kind, payload)
        frame = frame_of(entry, 77)
        header = read_header(frame)
        assert (header.kind, header.index, header.term) == (kind, 9, 4)
        assert (header.first_offset, header.count, header.next_offset) == (77, 0, 77)
        assert header.frame_bytes == len(frame)
        assert frame[HEADER_BYTES:].startswith(payload)
        assert entry_of(header, frame) == entry


def test_every_other_entry_is_a_frame_already() -> None:
    make = LogMaker(last_index=8, term=4, next_offset=77)
    for entry in (make.records(b"a"), make.positions()):
        assert frame_of(entry, 0) is entry.payload
        assert entry_of(read_header(entry.payload), entry.payload) == entry


def test_large_parts_are_moved_as_they_are_and_small_ones_together() -> None:
    large = bytes(LARGE_FRAME_BYTES)
    made = gathered([b"a", b"b", large, b"c", large, large, b"d", b"e"])
    assert made == [b"ab", large, b"c", large, large, b"de"]
    assert made[1] is large
    assert gathered([b"a", b"b", b"c"]) == [b"abc"]


def test_kinds_are_plain_numbers_again() -> None:
    make = LogMaker()
    entry = make.records(b"a")
    assert type(entry_of(read_header(entry.payload), entry.payload).kind) is int


def test_frames_in_a_row_are_read_back_as_entries() -> None:
    assert singly(entries_in(framed(sample()))) == sample()
    assert entries_in(b"") == []


def test_those_of_a_term_that_are_not_the_cores_own_are_read_back_as_one_run() -> None:
    make = LogMaker(term=3, next_offset=40)
    entries = [make.noop(), *make.batches(3), make.positions(), make.configuration(1, 2), make.records(b"a")]
    make.term = 4
    entries += make.batches(2)
    read = entries_in(framed(entries))
    assert [(each.index, each.last_index) for each in read] == [(1, 1), (2, 5), (6, 6), (7, 7), (8, 9)]
    assert [isinstance(each, Run) for each in read] == [False, True, False, False, True]
    assert singly(read) == entries
    assert [each.last_index for each in entries_in(framed(entries[6:]))] == [7, 9]


def test_small_frames_are_put_together_and_read_back_the_same() -> None:
    make = LogMaker(last_index=6, term=3, next_offset=40)
    entries = [*make.batches(4), make.positions(), *make.batches(4)]
    (run,) = together(entries)
    assert singly([run]) == entries
    assert entries_in(run.payload) == [run]  # notes and all


def test_a_large_frame_is_moved_for_itself() -> None:
    make = LogMaker()
    large = LARGE_FRAME_BYTES
    entries = [*make.batches(2), *make.batches(1, large), *make.batches(1), *make.batches(2, large)]
    assert [each.last_index for each in together(entries)] == [2, 3, 4, 5, 6]
    assert singly(together(entries)) == entries


def test_a_run_does_not_grow_beyond_its_limit() -> None:
    make = LogMaker()
    entries = make.batches(300, LARGE_FRAME_BYTES // 3)
    pieces = together(entries)
    assert singly(pieces) == entries
    assert all(RUN_BYTES_MAX / 2 < len(each.payload) <= RUN_BYTES_MAX for each in pieces[:-1])


def test_messages_are_found_in_a_run_wherever_they_are() -> None:
    make = LogMaker(last_index=6, next_offset=40)
    entries = [make.positions(), make.records(b"a", b"b"), make.positions(), make.positions()]
    entries += [make.records(b"c"), make.records(b"d", b"e", b"f"), make.positions()]
    (run,) = together(entries)
    assert isinstance(run, Run)
    records = [entry for entry in entries if entry.kind == Kind.RECORDS]
    for offset in range(38, 49):
        for last_index in range(5, 15):
            wanted = [
                entry
                for entry in records
                if read_header(entry.payload).next_offset > offset >= 40 and entry.index <= last_index
            ]
            first = wanted and read_header(wanted[0].payload).first_offset <= offset
            expected = [entry.payload for entry in wanted] if first else []
            assert record_frames(run, offset, EVERYTHING, last_index) == expected
            assert record_frames(run, offset, 1, last_index) == expected[:1]


def test_no_more_of_a_run_is_given_than_is_asked_for() -> None:
    make = LogMaker()
    entries = make.batches(6)
    (run,) = together(entries)
    assert isinstance(run, Run)
    size = frame_bytes(entries[0])
    for count in range(1, 4):
        frames = [entry.payload for entry in entries[2 : 2 + count]]
        assert record_frames(run, 2, count * size, 99) == frames
        assert record_frames(run, 2, (count + 1) * size - 1, 99) == frames


def test_every_flipped_byte_in_a_run_is_refused() -> None:
    run = bytearray(framed(sample()))
    for position in range(len(run)):
        run[position] ^= 0x20
        with pytest.raises(CorruptBatch):
            entries_in(bytes(run))
        run[position] ^= 0x20


def test_a_run_that_is_cut_short_is_refused() -> None:
    entries = sample()
    run = framed(entries)
    ends = {len(framed(entries[:count])) for count in range(5)}
    for size in range(len(run)):
        if size not in ends:
            with pytest.raises(Incomplete):
                entries_in(run[:size])


def test_entries_out_of_order_are_refused() -> None:
    entries = sample()
    with pytest.raises(CorruptBatch):
        entries_in(framed([entries[1], entries[0]]))
    with pytest.raises(CorruptBatch):
        entries_in(framed([entries[0], entries[2]]))
    with pytest.raises(CorruptBatch):
        entries_in(framed([entries[0], entries[0]]))


def test_the_kinds_of_the_core_and_of_records_are_the_same_numbers() -> None:
    assert (int(Kind.NOOP), int(Kind.CONFIGURATION)) == (NOOP, CONFIGURATION)
    assert int(Kind.RECORDS) == CONFIGURATION + 1
