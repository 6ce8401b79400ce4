"""Everything that the simulation has found: the seeds, and each mistake by itself.

A seed finds what it found only as long as the simulation draws the same from it; what is pinned below are the
sentences. That each mistake would be found again, if somebody made it, is shown in test_broken_cores.
"""

from random import Random

import pytest

from raft.cores import TIMEOUT, Core, make_settled_leader
from storage.logs import LogMaker, snapshot_at, write
from talweg.errors import OutOfSequence, StorageError
from talweg.raft import Append, AppendReply, Configuration, Entry, Feeding, HardState, RequestVote, Role
from talweg.records import Batch, encode_values
from talweg.replication.state import PartitionState
from talweg.storage import LogStore
from talweg.storage.segments import SegmentStores
from talweg.testing import SimulatedFiles, SimulatedNode
from talweg.testing.node import GROUP, INCARNATION
from talweg.testing.simulation import run

FOUND = {
    0: "a batch sent ahead was taken for the first of its producer's epoch, and shut out the real first one",
    12: "an old leader went on with a voter that had lost its disk, over what a new one had committed",
    128: "a store with damage where the index was no help looked for its sound end for ever",
    151: "the answer to an append of an earlier term was taken for a rejection of entry -1",
    342: "a leader that did not know that it led no more told a producer that it had left something out",
    558: "after a failed sync the meta file was read back, believed, and the log's only file removed",
    1438: "the same, and what was lost was the file before the last",
    3040: "whoever alone held the change that removed it did not stand, and kept the others from winning",
    103809: "the simulation held a vote against a replica that it had given itself before it lost its disk",
    4032: "entries to be applied could not be read for a moment, and that stopped the replica for good",
    5011354: "a snapshot was to be saved behind damage that a reader had found meanwhile",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_once_failed(seed: int) -> None:
    report = run(seed)
    assert report.failure is None, f"once: {FOUND[seed]}\n{report}"


# The partition's state


def batch(sequence: int, *, epoch: int = 0) -> bytes:
    return encode_values([b"a"], timestamp=1, producer_id=7, producer_epoch=epoch, sequence=sequence)


def test_an_epoch_begins_with_its_first_batch() -> None:
    state = PartitionState()
    with pytest.raises(OutOfSequence, match="began epoch 0 with sequence 1, expected 0"):
        state.known(batch(1))
    assert state.known(batch(0)) is None
    state.fold(batch(0))
    with pytest.raises(OutOfSequence, match="began epoch 1"):
        state.known(batch(1, epoch=1))
    assert state.known(batch(0, epoch=1)) is None


def test_without_an_epoch_a_producer_begins_where_it_likes() -> None:
    assert PartitionState().known(batch(5, epoch=-1)) is None


# The core


def test_an_answer_to_an_earlier_term_is_no_rejection() -> None:
    leader = make_settled_leader()
    leader.propose(b"a")
    leader.acknowledge(2, 2)
    answer = AppendReply(source=2, target=1, term=leader.raft.term, index=0, rejected=True, recovering=True)
    assert leader.step(answer) == []
    assert leader.raft.progress[2].feeding is Feeding.REPLICATE
    assert leader.raft.progress[2].next_index == 3


def leave_out_oneself() -> Core:
    """A leader of three that alone holds the change that removes it, and has stepped down."""
    leader = make_settled_leader()
    assert leader.raft.propose_configuration(Configuration.of([2, 3])) is None
    leader.pump()
    leader.tick(TIMEOUT + 1)
    assert leader.raft.role is not Role.LEADER
    return leader


def test_who_is_left_out_stands_until_that_is_settled() -> None:
    left_out = leave_out_oneself()
    asked = [message for message in left_out.tick(2 * TIMEOUT) if isinstance(message, RequestVote)]
    assert {message.target for message in asked} == {2, 3}
    left_out.grant(2, 3)
    assert left_out.has_role(Role.LEADER)
    left_out.acknowledge(2, left_out.raft.log.last_index)
    left_out.acknowledge(3, left_out.raft.log.last_index)
    assert left_out.has_role(Role.FOLLOWER), "it goes once its removal is committed"
    assert left_out.tick(5 * TIMEOUT) == [], "and stands no more"


# The driver


def entries_of(*values: bytes, term: int) -> list[Entry]:
    maker = LogMaker(term=term)
    return [maker.noop(), *(maker.records(value) for value in values)]


def append_from(leader: int, term: int, entries: list[Entry], commit: int) -> Append:
    return Append(
        source=leader, target=1, term=term, prev_index=0, prev_term=0, entries=entries, commit=commit
    )


@pytest.fixture
def node() -> SimulatedNode:
    return SimulatedNode(1, Configuration.of([1, 2, 3]), Random(1))


def values_read(node: SimulatedNode) -> list[bytes]:
    assert node.replica is not None
    frames = node.replica.read_frames(0, 1 << 20)
    return [value for frame in frames for value in Batch.from_frame(frame).values() if value is not None]


def test_a_reader_gets_nothing_that_another_leader_has_overwritten(node: SimulatedNode) -> None:
    replica = node.start()
    replica.step(append_from(2, 1, entries_of(b"never committed", term=1), commit=0))
    node.settle()
    replica.step(append_from(3, 2, entries_of(b"committed", term=2), commit=2))
    replica.pump()  # and the disk has not been given it yet
    assert values_read(node) == [b"committed"]
    assert replica.offset_at(0) == 0
    assert replica.offset_at(10 << 40) == 0, "what it holds there is not looked at"
    node.settle()
    assert values_read(node) == [b"committed"]
    assert replica.offset_at(10 << 40) == 1


def test_entries_that_cannot_be_read_are_applied_when_they_can(node: SimulatedNode) -> None:
    replica = node.start()
    replica.step(append_from(2, 1, entries_of(b"a", b"b", term=1), commit=0))
    node.settle()
    node.crash()
    replica = node.start()  # nothing is at hand now
    read, fails = replica.store.read, True

    def read_unless_it_fails(first_index: int, bytes_max: int, last_index: int | None = None) -> list[Entry]:
        if fails:
            raise StorageError("for a moment")
        return read(first_index, bytes_max, last_index)

    replica.store.read = read_unless_it_fails  # type: ignore[method-assign]
    replica.step(append_from(2, 1, entries_of(b"a", b"b", term=1), commit=3))
    replica.pump()
    assert (replica.raft.commit_index, replica.raft.applied_index, replica.high_watermark) == (3, 0, 0)
    fails = False
    replica.pump()
    assert (replica.raft.applied_index, replica.high_watermark) == (3, 2)


# The store


def open_store(files: SimulatedFiles) -> LogStore:
    return SegmentStores(files, segment_bytes=300).open(GROUP, INCARNATION)


def full_store(files: SimulatedFiles) -> LogStore:
    """Some segments of a few entries each, and the last one open."""
    store = open_store(files)
    maker = LogMaker()
    write(store, maker.noop(), *maker.batches(12), hard_state=HardState(term=1))
    return store


def logs(files: SimulatedFiles) -> list[str]:
    return [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".log")]


def base_index(log: str) -> int:
    return int(log.rpartition("/")[2].removesuffix(".log"))


def test_damage_where_the_index_is_no_help_ends_the_sound_part() -> None:
    files = SimulatedFiles()
    full_store(files).close()
    *_, last_but_one, last = logs(files)
    index = last_but_one.replace(".log", ".index")
    files.flip(index, len(files.content(index)) - 1)  # the places in it; what it says of the whole is sound
    frames = base_index(last) - base_index(last_but_one)
    files.flip(last_but_one, len(files.content(last_but_one)) // frames + 10)  # the header of the second one
    files.flip(last, 10)
    store = open_store(files)
    store.cut_damage()
    assert (store.summary().last_index, store.summary().damage) == (base_index(last_but_one), None)


def test_damage_on_the_way_to_damage_is_cut_too() -> None:
    files = SimulatedFiles()
    full_store(files).close()
    last_but_one, last = logs(files)[-2:]
    files.flip(last_but_one, 90)  # the body of its first frame; nobody looks at it when the store is opened
    files.flip(last_but_one, 10)  # and its header
    files.flip(last, 10)
    store = open_store(files)
    assert store.summary().damage is not None
    store.cut_damage()
    assert store.summary().damage is None
    assert store.summary().last_index == base_index(last_but_one) - 1


def test_what_a_failed_sync_left_in_memory_is_not_taken_for_durable() -> None:
    files = SimulatedFiles()
    store = open_store(files)
    maker = LogMaker()
    entries = [maker.noop(), *maker.batches(3)]
    write(store, *entries, hard_state=HardState(term=1))
    store.save_snapshot(snapshot_at(entries[-1]))
    files.fail_next("sync")
    with pytest.raises(StorageError):
        store.drop_head(4)
    store.drop_head(4)  # now it works, and the file may go
    files.crash(Random(1))
    summary = open_store(files).summary()
    assert (summary.start_index, summary.last_index, summary.damage) == (4, 4, None)
