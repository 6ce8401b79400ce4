"""What clients ask a leader to append: gathered, stamped, recognised, and answered when it is committed."""

from collections.abc import Sequence
from functools import partial

import pytest

from raft.load import read_all
from raft.stage import Stage
from talweg.errors import (
    CorruptBatch,
    NotLeader,
    OutOfSequence,
    Overloaded,
    StorageFull,
    TalwegError,
    TooManyPositions,
    Undecided,
)
from talweg.raft import Append, Configuration, Message, Role, Settings, singly
from talweg.records import Codec, Kind, encode_frame, encode_values, read_header
from talweg.replication.proposals import Appended, Outcome
from talweg.replication.replica import Replica
from talweg.replication.state import DELETED, POSITIONS_MAX, Position

TIMEOUT = Settings().election_ticks


def make(settings: Settings | None = None) -> Stage:
    """Three brokers; 1 leads, and everyone knows."""
    voters = (1, 2, 3)
    stage = Stage(
        Configuration.of(voters), settings or Settings(), voters, timeouts=dict.fromkeys(voters, 2 * TIMEOUT)
    )
    stage.do(1, lambda replica: replica.raft.campaign())
    stage.pass_time(4)
    assert stage.replica(1).raft.role is Role.LEADER
    return stage


def batch(*values: bytes, producer: int = -1, sequence: int = -1) -> bytes:
    epoch = 0 if producer >= 0 else -1
    return encode_values(
        list(values),
        timestamp=0,
        codec=Codec.NONE,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
    )


class Client:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    @property
    def offsets(self) -> list[int]:
        """Of everything that was acknowledged."""
        return [one.first_offset for outcome in self.told for one in self.appended(outcome)]

    @staticmethod
    def appended(outcome: Outcome) -> Sequence[Appended]:
        assert not isinstance(outcome, TalwegError), outcome
        return outcome

    @property
    def error(self) -> TalwegError:
        """The only thing that it was told."""
        (outcome,) = self.told
        assert isinstance(outcome, TalwegError), outcome
        return outcome

    def ask(self, stage: Stage, broker: int, *frames: bytes) -> "Client":
        """Ask for these, and let the broker work."""
        stage.do(broker, lambda replica: replica.append(list(frames), self.told.append))
        return self


def appends(messages: list[Message], target: int) -> list[Append]:
    return [message for message in messages if isinstance(message, Append) and message.target == target]


def test_an_append_is_answered_when_a_majority_has_it_on_disk() -> None:
    stage = make()
    client = Client().ask(stage, 1, batch(b"a", b"b"), batch(b"c"))
    assert client.told == []
    stage.stabilize()
    assert client.told == [[Appended(0, 2), Appended(2, 1)]]
    assert read_all(stage.replica(1)) == [b"a", b"b", b"c"]


def test_only_followers_let_go_of_what_they_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make()
    uncached: list[int] = []
    for broker in (1, 2, 3):
        monkeypatch.setattr(stage.replica(broker).store, "uncache", partial(uncached.append, broker))
    Client().ask(stage, 1, batch(b"a"))
    stage.pass_time(1)
    assert sorted(uncached) == [2, 3]


def test_answers_come_in_the_order_of_the_log() -> None:
    stage = make()
    told: list[str] = []

    def ask(name: str) -> None:
        stage.replica(1).append([batch(name.encode())], lambda _: told.append(name))

    for name in "abc":
        ask(name)
    stage.work(1)
    stage.stabilize()
    assert told == ["a", "b", "c"]


def test_what_comes_together_goes_into_the_log_together() -> None:
    stage = make()
    for value in (b"a", b"b", b"c"):
        stage.replica(1).append([batch(value)], lambda _: None)
    stage.work(1)
    (sent,) = appends(stage.network, 2)
    assert len(singly(sent.entries)) == 3


def test_positions_that_come_together_share_an_entry() -> None:
    stage = make()
    told: list[Outcome] = []
    last_index = stage.replica(1).raft.log.last_index
    for name in "abc":
        stage.replica(1).commit_positions([Position(name, 1)], told.append)
    stage.work(1)
    assert stage.replica(1).raft.log.last_index == last_index + 1
    assert told == []
    stage.stabilize()
    assert told == [(), (), ()]
    assert stage.replica(1).state.positions == {"a": 1, "b": 1, "c": 1}


def test_positions_beyond_what_is_kept_are_refused_before_they_are_in_the_log() -> None:
    stage = make()
    told: list[Outcome] = []
    first, rest = Position("reader 0", 1), [Position(f"reader {n}", 1) for n in range(1, POSITIONS_MAX)]
    # All of these come together, and none of them is committed when the next is looked at.
    for positions in ([first], rest, [Position("too many", 1)], [Position("reader 0", 2)]):
        stage.replica(1).commit_positions(positions, told.append)
    stage.do(1, lambda replica: replica.commit_positions([Position("too many", 1)], told.append))
    stage.pass_time(4)
    assert [each for each in told if not isinstance(each, TalwegError)] == [(), (), ()]
    assert [type(each) for each in told if isinstance(each, TalwegError)] == [TooManyPositions] * 2
    for broker in (1, 2, 3):
        positions_there = stage.replica(broker).state.positions
        assert (len(positions_there), positions_there["reader 0"]) == (POSITIONS_MAX, 2)
        assert "too many" not in positions_there


def test_a_position_that_was_deleted_makes_room_on_every_replica() -> None:
    stage = make()
    told: list[Outcome] = []

    def commit(*positions: Position) -> None:
        stage.do(1, lambda replica: replica.commit_positions(list(positions), told.append))
        stage.stabilize()

    commit(*(Position(f"reader {n}", 1) for n in range(POSITIONS_MAX)))
    commit(Position("reader 7", DELETED))
    commit(Position("new", 1))
    assert told == [(), (), ()]
    stage.pass_time(4)
    for broker in (1, 2, 3):
        positions = stage.replica(broker).state.positions
        assert "new" in positions
        assert "reader 7" not in positions
    # Whoever leads next knows how many there are.
    stage.do(1, lambda replica: replica.raft.transfer(2))
    stage.pass_time(4)
    stage.do(2, lambda replica: replica.commit_positions([Position("one more", 1)], told.append))
    stage.stabilize()
    assert isinstance(told[3], TooManyPositions)


def test_a_follower_refuses_and_names_the_leader() -> None:
    stage = make()
    error = Client().ask(stage, 2, batch(b"a")).error
    assert isinstance(error, NotLeader)
    assert error.leader == 1
    positions: list[Outcome] = []
    stage.do(2, lambda replica: replica.commit_positions([Position("a", 1)], positions.append))
    assert isinstance(positions[0], NotLeader)


def test_a_leader_that_hands_over_refuses_and_does_not_name_itself() -> None:
    stage = make()
    stage.cut = {(1, 2)}
    stage.do(1, lambda replica: replica.raft.transfer(2))
    error = Client().ask(stage, 1, batch(b"a")).error
    assert isinstance(error, NotLeader)
    assert error.leader is None


def test_too_much_at_once_is_refused() -> None:
    stage = make(Settings(uncommitted_bytes_max=1_000))
    taken = Client().ask(stage, 1, batch(bytes(600)))
    refused = Client().ask(stage, 1, batch(bytes(600)))
    assert isinstance(refused.error, Overloaded)
    assert refused.error.retriable
    stage.stabilize()
    assert taken.offsets == [0]
    assert Client().ask(stage, 1, batch(bytes(600))).told == []


def test_what_is_gathered_before_it_reaches_the_log_is_limited_too() -> None:
    stage = make(Settings(uncommitted_bytes_max=1_000))
    clients = [Client() for _ in range(10)]
    for client in clients:
        stage.replica(1).append([batch(bytes(300))], client.told.append)
    stage.work(1)
    stage.stabilize()
    assert [isinstance(client.told[0], Overloaded) for client in clients] == [False] * 2 + [True] * 8
    # One that is larger than the limit is taken when nothing else waits, and only then.
    large, small = Client(), Client()
    stage.replica(1).append([batch(bytes(5_000))], large.told.append)
    stage.replica(1).append([batch(b"a")], small.told.append)
    stage.work(1)
    stage.stabilize()
    assert large.offsets == [2]
    assert isinstance(small.error, Overloaded)


def test_a_retry_gets_the_first_answer_and_takes_no_entry() -> None:
    stage = make()
    frame = batch(b"a", b"b", producer=7, sequence=0)
    first = Client().ask(stage, 1, frame)
    stage.stabilize()
    last_index = stage.replica(1).raft.log.last_index
    again = Client().ask(stage, 1, frame)
    assert again.told == [[Appended(0, 2, duplicate=True)]]
    assert first.told == [[Appended(0, 2)]]
    assert stage.replica(1).raft.log.last_index == last_index


def test_a_retry_waits_for_a_first_copy_that_is_not_committed() -> None:
    stage = make()
    frame = batch(b"a", producer=7, sequence=0)
    first, again = Client().ask(stage, 1, frame), Client().ask(stage, 1, frame)
    assert first.told == again.told == []
    stage.stabilize()
    assert (first.offsets, again.offsets) == ([0], [0])


def test_a_retry_in_the_same_request_is_recognised() -> None:
    stage = make()
    frame = batch(b"a", producer=7, sequence=0)
    client = Client().ask(stage, 1, frame, frame, batch(b"b", producer=7, sequence=1))
    stage.stabilize()
    assert client.told == [[Appended(0, 1), Appended(0, 1, duplicate=True), Appended(1, 1)]]


def test_frames_before_one_that_is_refused_stand() -> None:
    stage = make()
    frames = [batch(b"a", producer=7, sequence=0), batch(b"c", producer=7, sequence=2)]
    client = Client().ask(stage, 1, *frames)
    assert client.told == []  # not before it is sure that 1 still leads: another may have written more
    stage.stabilize()
    assert isinstance(client.error, OutOfSequence)
    assert read_all(stage.replica(1)) == [b"a"]
    again = Client().ask(stage, 1, frames[0], batch(b"b", producer=7, sequence=1), frames[1])
    stage.stabilize()
    assert again.offsets == [0, 1, 2]
    assert read_all(stage.replica(1)) == [b"a", b"b", b"c"]


def test_a_leader_of_the_past_turns_no_producer_away_for_good() -> None:
    # It misses what was written since: what looks like a gap to it is none.
    stage = make()
    Client().ask(stage, 1, batch(b"a", producer=7, sequence=0))
    stage.stabilize()
    stage.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
    client = Client().ask(stage, 1, batch(b"c", producer=7, sequence=2))
    assert client.told == []
    stage.pass_time(TIMEOUT)
    assert isinstance(client.error, NotLeader)


@pytest.mark.parametrize("frame", [b"", b"nonsense", b"\0" * 200])
def test_bytes_that_are_no_frame_are_refused_and_leave_no_entry(frame: bytes) -> None:
    stage = make()
    last_index = stage.replica(1).raft.log.last_index
    assert isinstance(Client().ask(stage, 1, frame).error, CorruptBatch)
    assert stage.replica(1).raft.log.last_index == last_index


def test_what_cannot_be_read_is_refused_and_what_came_with_it_stands() -> None:
    stage = make()
    nonsense = encode_frame(Kind.POSITIONS, b"\xffnonsense")
    told: list[Outcome] = []
    for frames in ([batch(b"a")], [batch(b"b"), nonsense, batch(b"never")], [batch(b"c"), batch(b"d")]):
        stage.replica(1).append(frames, told.append)
    stage.work(1)
    stage.pass_time(TIMEOUT)
    assert isinstance(told[0], CorruptBatch)
    assert told[1:] == [[Appended(0, 1)], [Appended(2, 1), Appended(3, 1)]]
    for broker in (1, 2, 3):
        assert read_all(stage.replica(broker)) == [b"a", b"b", b"c", b"d"]


def test_lost_leadership_leaves_open_what_waits() -> None:
    stage = make()
    client = Client().ask(stage, 1, batch(b"a"))
    positions: list[Outcome] = []
    stage.do(1, lambda replica: replica.commit_positions([Position("a", 1)], positions.append))
    stage.cut = {(1, 2), (1, 3)}
    stage.pass_time(TIMEOUT + 2)
    assert isinstance(client.error, Undecided)
    assert isinstance(positions[0], Undecided)


def test_what_was_overwritten_is_not_acknowledged_by_what_took_its_place() -> None:
    # One message brings the old leader everything: that it no longer leads, another entry in the place
    # where its own was, and that this place is committed.
    stage = make()
    client = Client().ask(stage, 1, batch(b"lost"))
    stage.network.clear()
    stage.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
    for broker in (2, 3):
        stage.replica(broker).raft.elapsed = TIMEOUT
    stage.do(2, lambda replica: replica.raft.campaign())
    stage.stabilize()
    Client().ask(stage, 2, batch(b"kept"))
    stage.stabilize()
    old, new = stage.replica(1).raft, stage.replica(2).raft
    assert old.role is new.role is Role.LEADER
    stage.cut.clear()
    entries = new.log.tail(2)
    stage.send(
        Append(
            source=2,
            target=1,
            term=new.term,
            prev_index=1,
            prev_term=1,
            entries=entries,
            commit=new.commit_index,
        )
    )
    assert old.commit_index == new.commit_index >= 2
    assert isinstance(client.error, Undecided)


def test_a_leader_that_is_removed_acknowledges_what_is_committed_before_it_goes() -> None:
    stage = make()
    client = Client().ask(stage, 1, batch(b"a"))
    assert stage.replica(1).raft.propose_configuration(Configuration.of([2, 3])) is None
    stage.work(1)
    stage.stabilize()
    assert stage.replica(1).raft.role is Role.FOLLOWER
    assert client.offsets == [0]


@pytest.mark.parametrize("state", ["full", "failing"])
def test_what_a_leader_could_not_write_itself_may_be_written_and_a_retry_writes_it_once(state: str) -> None:
    stage = make()
    stage.set_disk(1, state)
    order = batch(b"order 17", producer=7, sequence=0)
    assert isinstance(Client().ask(stage, 1, order).error, Undecided)
    stage.stabilize()
    for broker in (2, 3):
        stage.replica(broker).raft.elapsed = TIMEOUT
    stage.do(2, lambda replica: replica.raft.campaign())
    stage.stabilize()
    again = Client().ask(stage, 2, order)
    stage.stabilize()
    assert again.told == [[Appended(0, 1, duplicate=True)]]
    assert read_all(stage.replica(2)) == [b"order 17"]


def test_a_disk_that_refuses_is_named_to_all_and_told_as_such_to_what_is_not_in_the_log() -> None:
    stage = make()
    stage.set_disk(1, "stopped")
    in_the_log = Client().ask(stage, 1, batch(b"a"))
    replica = stage.replica(1)
    gathered = Client()
    replica.append([batch(b"b")], gathered.told.append)  # and no turn to put it there
    assert replica._job is not None
    replica.job_failed(replica._job, StorageFull("no space left"))
    assert isinstance(in_the_log.error, Undecided)
    assert "no space left" in str(in_the_log.error)
    assert isinstance(gathered.error, StorageFull)


def test_offsets_go_on_where_an_earlier_leader_stopped_even_before_that_is_committed() -> None:
    stage = make()
    Client().ask(stage, 1, batch(b"a", b"b"))
    stage.stabilize({1, 2})
    stage.crash(1)
    stage.network.clear()
    for broker in (2, 3):
        stage.replica(broker).raft.elapsed = TIMEOUT
    stage.do(2, lambda replica: replica.raft.campaign())
    for _ in range(4):  # pre-vote, its answer, vote, its answer
        stage.deliver(list(stage.network))
    assert stage.replica(2).raft.role is Role.LEADER
    assert stage.replica(2).high_watermark == 0
    client = Client().ask(stage, 2, batch(b"c"))
    stage.stabilize()
    assert client.offsets == [2]
    assert read_all(stage.replica(2)) == [b"a", b"b", b"c"]


def test_nothing_uncommitted_is_ever_read() -> None:
    stage = make()
    Client().ask(stage, 1, batch(b"a"))
    replica: Replica = stage.replica(1)
    assert replica.raft.stable_index == 2
    assert (replica.high_watermark, replica.read_frames(0, 1_000)) == (0, [])
    stage.stabilize()
    assert (replica.high_watermark, len(replica.read_frames(0, 1_000))) == (1, 1)


@pytest.mark.parametrize("asked_together", [False, True])
def test_what_a_majority_has_is_read_though_the_leaders_own_disk_is_behind(asked_together: bool) -> None:
    stage = make()
    stage.set_disk(1, "stopped")
    batches = [batch(b"a", b"b"), batch(b"c"), batch(b"d")]
    for frames in [batches] if asked_together else [[each] for each in batches]:
        Client().ask(stage, 1, *frames)
    stage.stabilize()
    replica = stage.replica(1)
    assert replica.raft.stable_index < replica.raft.log.last_index
    assert read_all(replica) == [b"a", b"b", b"c", b"d"]
    assert replica.read_frames(4, 1_000) == []


def test_what_is_read_ahead_of_the_leaders_own_disk_is_as_much_as_was_asked_for() -> None:
    stage = make()
    stage.set_disk(1, "stopped")
    batches = [batch(b"a", b"b"), batch(b"c"), batch(b"d"), batch(b"e")]
    Client().ask(stage, 1, *batches)
    stage.stabilize()
    replica = stage.replica(1)
    assert len(replica.read_frames(0, 1 << 20)) == 4
    assert [read_header(frame).first_offset for frame in replica.read_frames(2, 1 << 20)] == [2, 3, 4]
    assert [read_header(frame).first_offset for frame in replica.read_frames(1, 1)] == [0]
    two_bytes = len(batches[1]) + len(batches[2])
    assert [read_header(frame).first_offset for frame in replica.read_frames(2, two_bytes)] == [2, 3]
