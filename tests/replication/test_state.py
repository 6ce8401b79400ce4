"""The small replicated state: what a retry is recognised by, and how far everyone has read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.logs import LogMaker, together
from talweg.errors import CorruptBatch, OutOfSequence, TooManyPositions
from talweg.raft import NOOP, Entry
from talweg.records import Kind, encode_frame, encode_values, stamp
from talweg.replication import state as state_module
from talweg.replication.state import (
    DELETED,
    POSITIONS_MAX,
    RECENT_BATCHES,
    PartitionState,
    Position,
    encode_positions,
)

PRODUCER = 7


def batch(sequence: int, count: int = 1, *, producer: int = PRODUCER, epoch: int = 0) -> bytes:
    values = [b"x"] * count
    return encode_values(values, timestamp=1, producer_id=producer, producer_epoch=epoch, sequence=sequence)


def write(state: PartitionState, frame: bytes) -> int:
    """As the leader and the log would: a new frame gets the next offset."""
    assert state.known(frame) is None
    first_offset = state.next_offset
    state.fold(stamp(frame, index=1, term=1, first_offset=first_offset))
    return first_offset


def commit(state: PartitionState, *positions: Position) -> None:
    state.fold(
        encode_frame(Kind.POSITIONS, encode_positions(list(positions)), first_offset=state.next_offset)
    )


def test_entries_in_a_run_add_up_to_what_each_for_itself_does() -> None:
    make = LogMaker()
    entries = [make.records(b"a", b"b"), make.records(b"c")]
    leader = PartitionState()
    leader.next_offset = make.next_offset
    positions = encode_frame(Kind.POSITIONS, encode_positions([Position("reader", 2)]))
    for kind, frame in (
        (Kind.RECORDS, batch(0, 3)),
        (Kind.POSITIONS, positions),
        (Kind.RECORDS, batch(3, 2)),
        (Kind.RECORDS, batch(0, 1, producer=PRODUCER + 1)),
    ):
        index = len(entries) + 1
        stamped = stamp(frame, index=index, term=1, first_offset=leader.next_offset)
        leader.fold(stamped)
        entries.append(Entry(index, 1, int(kind), stamped))
    (run,) = together(entries)
    in_one, each = PartitionState(), PartitionState()
    in_one.fold_all([Entry(0, 1, NOOP, b""), run])
    each.fold_all(entries)
    assert in_one.to_bytes() == each.to_bytes()
    assert (in_one.next_offset, in_one.positions) == (9, {"reader": 2})
    assert in_one.known(batch(3, 2)) == 6


# Producers


def test_a_batch_seen_for_the_first_time_is_new() -> None:
    state = PartitionState()
    assert state.known(batch(0)) is None


def test_a_batch_without_a_producer_or_a_sequence_is_always_new() -> None:
    state = PartitionState()
    for frame in (batch(-1), batch(0, producer=-1), encode_values([b"x"], timestamp=1)):
        assert write(state, frame) == write(state, frame) - 1


def test_a_retry_is_answered_with_the_offset_of_the_first_copy() -> None:
    state = PartitionState()
    write(state, batch(0, 3))
    assert write(state, batch(3, 2)) == 3
    assert state.known(batch(0, 3)) == 0
    assert state.known(batch(3, 2)) == 3
    assert state.next_offset == 5


def test_a_part_of_a_batch_is_recognised_too() -> None:
    state = PartitionState()
    write(state, encode_values([b"x"] * 4, timestamp=1))
    write(state, batch(0, 5))
    assert state.known(batch(2, 3)) == 6
    assert state.known(batch(4, 1)) == 8


def test_a_copy_that_goes_on_past_the_first_one_is_out_of_sequence() -> None:
    state = PartitionState()
    write(state, batch(0, 3))
    with pytest.raises(OutOfSequence):
        state.known(batch(1, 3))


def test_a_gap_is_out_of_sequence_for_a_producer_with_an_epoch() -> None:
    state = PartitionState()
    write(state, batch(0, 3))
    with pytest.raises(OutOfSequence, match="expected 3: one before it is missing"):
        state.known(batch(4))
    assert state.known(batch(3)) is None


def test_without_an_epoch_numbers_need_only_grow() -> None:
    state = PartitionState()
    write(state, batch(3, epoch=-1))
    write(state, batch(9, epoch=-1))
    assert state.known(batch(3, epoch=-1)) == 0
    assert state.known(batch(9, epoch=-1)) == 1
    with pytest.raises(OutOfSequence):
        state.known(batch(5, epoch=-1))  # passed over; a new message would get a new number


def test_a_new_epoch_begins_anew() -> None:
    state = PartitionState()
    write(state, batch(0, 3, epoch=1))
    assert write(state, batch(0, 2, epoch=2)) == 3
    assert state.known(batch(0, 2, epoch=2)) == 3


@pytest.mark.parametrize("wrote_before", [False, True])
def test_an_epoch_begins_with_its_first_message(wrote_before: bool) -> None:
    # Taken as the first, a later one would shut out those before it, which may still be on their way.
    state = PartitionState()
    if wrote_before:
        write(state, batch(0, epoch=1))
    with pytest.raises(OutOfSequence, match="began epoch 2 with sequence 3, expected 0"):
        state.known(batch(3, epoch=2))
    write(state, batch(0, 3, epoch=2))
    assert state.known(batch(3, epoch=2)) is None


def test_an_old_epoch_has_been_superseded() -> None:
    state = PartitionState()
    write(state, batch(0, epoch=2))
    with pytest.raises(OutOfSequence, match="superseded"):
        state.known(batch(1, epoch=1))


def test_producers_do_not_know_of_each_other() -> None:
    state = PartitionState()
    write(state, batch(0, 3, producer=1))
    assert write(state, batch(0, 3, producer=2)) == 3


def test_only_so_many_batches_are_remembered() -> None:
    state = PartitionState()
    for sequence in range(RECENT_BATCHES + 1):
        write(state, batch(sequence))
    for sequence in range(1, RECENT_BATCHES + 1):
        assert state.known(batch(sequence)) == sequence
    with pytest.raises(OutOfSequence, match="not remembered"):
        state.known(batch(0))


def test_the_producer_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # Patched because the real limit takes seconds to reach.
    monkeypatch.setattr(state_module, "PRODUCERS_MAX", 3)
    state = PartitionState()
    for producer in (1, 2, 3):
        write(state, batch(0, producer=producer))
    write(state, batch(1, producer=1))
    write(state, batch(0, producer=4))
    assert state.known(batch(0, producer=2)) is None  # forgotten
    assert state.known(batch(1, producer=1)) == 3
    assert state.known(batch(0, producer=3)) == 2
    assert PartitionState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


# Positions


def test_a_position_moves_forward() -> None:
    state = PartitionState()
    commit(state, Position("a", 5))
    commit(state, Position("a", 8), Position("b", 2))
    assert state.positions == {"a": 8, "b": 2}


def test_a_position_never_goes_back_by_itself() -> None:
    state = PartitionState()
    commit(state, Position("a", 8))
    commit(state, Position("a", 5))
    commit(state, Position("a", 9), Position("a", 6))
    assert state.positions == {"a": 9}


def test_a_position_goes_back_when_asked_to() -> None:
    state = PartitionState()
    commit(state, Position("a", 8))
    commit(state, Position("a", 3, seek=True))
    assert state.positions == {"a": 3}
    commit(state, Position("a", 0, seek=True))
    assert state.positions == {"a": 0}


def test_the_token_of_a_take_stays_with_the_position_that_it_moved() -> None:
    state = PartitionState()
    commit(state, Position("a", 1, token=7))
    assert state.tokens == {"a": 7}
    commit(state, Position("a", 1, token=8))  # it moved nothing
    assert state.tokens == {"a": 7}
    assert PartitionState.from_bytes(state.to_bytes()).tokens == {"a": 7}
    assert state.copy().tokens == {"a": 7}
    commit(state, Position("a", 2))
    assert state.tokens == {}


def test_a_position_that_is_deleted_leaves_nothing_behind() -> None:
    state = PartitionState()
    commit(state, Position("b", 1))
    before = state.to_bytes()
    commit(state, Position("a", 5, token=7, keep_bytes=100))
    commit(state, Position("a", DELETED))
    assert state.to_bytes() == before
    commit(state, Position("a", DELETED))  # what is not there can be deleted
    commit(state, Position("a", 2))  # and it begins anew, even further back
    assert state.positions == {"a": 2, "b": 1}


def test_what_is_committed_and_deleted_together_happens_in_that_order() -> None:
    state = PartitionState()
    commit(state, Position("a", 5), Position("a", DELETED), Position("b", DELETED), Position("b", 3))
    assert state.positions == {"b": 3}


def test_there_is_room_for_so_many_positions_and_for_those_that_are_there() -> None:
    state = PartitionState()
    names = [f"reader {number}" for number in range(POSITIONS_MAX)]
    state.check_room([Position(name, 1) for name in names])
    commit(state, *(Position(name, 1) for name in names))
    state.check_room([Position(name, 2) for name in names])
    state.check_room([Position("one more", DELETED)])
    with pytest.raises(TooManyPositions, match=r"10000 consumers .* \(talweg consumer delete\)"):
        state.check_room([Position("one more", 0)])
    commit(state, Position(names[0], DELETED))
    state.check_room([Position("one more", 0), Position("one more", 1), *(Position(n, 2) for n in names[1:])])
    with pytest.raises(TooManyPositions):
        state.check_room([Position("one more", 0), Position("and another", 1)])


def test_positions_take_no_offset() -> None:
    state = PartitionState()
    write(state, batch(0, 3))
    commit(state, Position("a", 1))
    assert state.next_offset == 3
    assert write(state, batch(3)) == 3


@pytest.mark.parametrize("body", [b"\xc1", b"\x91\x92\xa1\xff\x01"], ids=["no MessagePack", "no UTF-8"])
def test_positions_that_cannot_be_read_are_an_error(body: bytes) -> None:
    with pytest.raises(CorruptBatch, match="positions"):
        PartitionState().fold(encode_frame(Kind.POSITIONS, body, index=9))


# Copies and snapshots


def test_a_copy_goes_its_own_way() -> None:
    state = PartitionState()
    write(state, batch(0))
    commit(state, Position("a", 1))
    before = state.to_bytes()
    twin = state.copy()
    write(twin, batch(1))
    commit(twin, Position("a", 2))
    assert state.to_bytes() == before
    assert state.known(batch(1)) is None


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\x93\x00\x91\x92\xa1\xff\x01\x90"], ids=["no MessagePack", "no UTF-8"]
)
def test_bytes_that_are_no_state_are_an_error(data: bytes) -> None:
    with pytest.raises(CorruptBatch, match="state"):
        PartitionState.from_bytes(data)


def test_no_bytes_are_an_empty_state() -> None:
    assert PartitionState.from_bytes(b"").to_bytes() == PartitionState().to_bytes()


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 4)),
    st.tuples(st.just("position"), st.sampled_from("abc"), st.integers(0, 20), st.booleans()),
    st.just(("stamped",)),
)


@given(st.lists(steps, max_size=40))
def test_a_state_comes_back_from_its_bytes_and_goes_on_the_same(history: list[tuple[object, ...]]) -> None:
    state, restored = PartitionState(), PartitionState()
    sequences = dict.fromkeys(range(4), 0)
    highest: dict[str, int] = {}
    for step in history:
        match step:
            case ("write", int(producer), int(count)):
                frame = batch(sequences[producer], count, producer=producer)
                sequences[producer] += count
                assert write(state, frame) == write(restored, frame)
                assert state.known(frame) == restored.known(frame) == state.next_offset - count
            case ("position", str(name), int(offset), bool(seek)):
                commit(state, Position(name, offset, seek))
                commit(restored, Position(name, offset, seek))
                highest[name] = offset if seek else max(highest.get(name, 0), offset)
            case _:
                restored = PartitionState.from_bytes(restored.to_bytes())
        assert restored.to_bytes() == state.to_bytes()
    assert {name: offset for name, offset in highest.items() if offset} == {
        name: offset for name, offset in state.positions.items() if offset
    }
