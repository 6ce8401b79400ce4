"""What retention leaves: what is needed, and what consumers asked it to keep for them, up to a size."""

from replication.test_state import commit
from talweg.replication.retention import Hold, Needed
from talweg.replication.state import PartitionState, Position
from talweg.storage import SnapshotMark


def mark(index: int, next_offset: int, bytes_after: int) -> SnapshotMark:
    return SnapshotMark(index, next_offset, bytes_after, 0)


def test_the_log_is_cut_before_the_first_entry_that_is_needed() -> None:
    needed = Needed(10)
    assert needed.lets_go(mark(9, 5, 100))
    assert not needed.lets_go(mark(10, 5, 100))


def test_the_log_is_cut_before_what_everybody_has_yet_to_read_or_at_their_caps() -> None:
    needed = Needed(100, (Hold(20, 1_000), Hold(30, 5_000)))
    assert needed.lets_go(mark(1, 20, 10))
    assert not needed.lets_go(mark(1, 21, 10)), "the first has not read offset 20"
    assert not needed.lets_go(mark(1, 31, 1_000)), "the second has not read offset 30"
    assert needed.lets_go(mark(1, 30, 1_000)), "the first waits at most for 1,000 bytes"
    assert needed.lets_go(mark(1, 99, 5_000))


def test_who_retention_waits_for_is_part_of_the_state() -> None:
    state = PartitionState()
    commit(state, Position("spark", 3, keep_bytes=500), Position("other", 3))
    assert state.holds == {"spark": 500}
    commit(state, Position("spark", 5))
    assert (state.holds, state.positions["spark"]) == ({"spark": 500}, 5)
    commit(state, Position("spark", 1, keep_bytes=700))  # it does not go back, and keeps more
    assert (state.holds, state.positions["spark"]) == ({"spark": 700}, 5)
    for twin in (PartitionState.from_bytes(state.to_bytes()), state.copy()):
        assert twin.to_bytes() == state.to_bytes()
        commit(twin, Position("spark", 5, keep_bytes=0))
        assert twin.holds == {}
    assert state.holds == {"spark": 700}
