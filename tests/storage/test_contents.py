"""What is known of a segment: the same, however the entries came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.logs import LogMaker, together
from talweg.raft import Entry, Run, singly
from talweg.storage.contents import Contents

INTERVAL_BYTES = 300


def sample() -> list[Entry]:
    make = LogMaker(term=2)
    entries = [make.noop(), *make.batches(9), make.positions(), make.records(b"old", timestamp=5)]
    make.term = 5
    return [*entries, *make.batches(3), make.configuration(1, 2), *make.batches(7)]


def fill(pieces: list[Entry | Run], segment_bytes: int) -> tuple[list[bytes], list[Contents]]:
    """Segments that are full with so many bytes: the bytes of each, and what is known of it."""
    files, filled = [], []
    index, offset = 1, 0
    rest = pieces
    while rest:
        filled.append(Contents(index, offset, INTERVAL_BYTES))
        frames, rest = filled[-1].take(rest, segment_bytes)
        files.append(b"".join(frames))
        index, offset = filled[-1].last_index + 1, filled[-1].next_offset
    return files, filled


def known(contents: Contents) -> object:
    return contents.mark(), contents.terms, contents.configurations, contents.points.to_bytes()


@given(st.integers(1, 4000))
def test_a_run_leaves_what_its_entries_would_each_for_itself(segment_bytes: int) -> None:
    files, filled = fill([*sample()], segment_bytes)
    files_of_runs, filled_with_runs = fill(together(sample()), segment_bytes)
    assert files_of_runs == files
    assert [known(each) for each in filled_with_runs] == [known(each) for each in filled]


def test_a_run_has_a_point_in_the_sparse_index_wherever_one_is_due() -> None:
    (run,) = together(LogMaker().batches(50))
    contents = Contents(1, 0, INTERVAL_BYTES)
    contents.take([run], 1 << 20)
    assert len(run.payload) / INTERVAL_BYTES / 2 < len(contents.points) <= len(run.payload) / INTERVAL_BYTES


@pytest.mark.parametrize("change", ["index", "term", "offset"])
def test_a_run_that_does_not_follow_is_our_mistake(change: str) -> None:
    make = LogMaker(last_index=change == "index", term=3, next_offset=change == "offset")
    (run,) = together(make.batches(3))
    if change == "term":
        run = Run(run.index, 4, run.kinds, run.payload, run.ends, run.notes)
    assert singly([run])
    with pytest.raises(AssertionError):
        Contents(1, 0, INTERVAL_BYTES).take([run], 1 << 20)
