"""Stages: invisible until they are published, and then each item once, whoever leads and whoever crashes."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from raft.load import read_all
from raft.stage import Stage as Scene
from talweg.errors import (
    BadRequest,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    Overloaded,
    StageDecided,
    StageExpired,
    StageNotFound,
    TalwegError,
)
from talweg.raft import Configuration, Settings
from talweg.records import STAGE_ID_MIN, Batch, Codec, encode_values, stamp
from talweg.replication import staging as module
from talweg.replication.proposals import Outcome
from talweg.replication.replica import Replica
from talweg.replication.staging import encode_discard, encode_item, staged_frame
from talweg.replication.state import PartitionState

TIMEOUT = Settings().election_ticks
FIRST = STAGE_ID_MIN + 1
SECOND = STAGE_ID_MIN + 2
NOW_US = 1_000_000
STEPS_MAX = 5_000


def records(*values: bytes, stage: int = -1, number: int = -1) -> bytes:
    return encode_values(
        list(values), timestamp=0, codec=Codec.NONE, producer_id=stage, producer_epoch=-1, sequence=number
    )


def item(
    number: int, *values: bytes, stage: int = FIRST, transaction: str = "t", now_us: int = NOW_US
) -> bytes:
    return encode_item(transaction, records(*(values or (b"x",)), stage=stage, number=number), now_us)


class Log:
    """A state, and the entries that a leader would let in."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.index = 0

    def put(self, frame: bytes) -> bool:
        """Whether it was new. Raises as the leader would."""
        if self.state.known(frame) is not None:
            return False
        self.index += 1
        self.state.fold(stamp(frame, index=self.index, term=1, first_offset=self.state.next_offset))
        return True

    def publish(self, stage: int = FIRST) -> None:
        for number, _ in enumerate(self.state.staging.waiting_items(stage, 1 << 30)):
            self.put(records(b"x", stage=stage, number=number))


# The state


def test_a_staged_frame_comes_out_as_it_went_in() -> None:
    frame = records(b"a", b"b", stage=FIRST, number=0)
    for transaction in ("t", "ein Gespräch/17", "x" * 255):
        assert staged_frame(encode_item(transaction, frame, NOW_US)) == frame


def test_staging_moves_no_offset_and_publishing_does() -> None:
    log = Log()
    log.put(item(0, b"a", b"b"))
    assert log.state.next_offset == 0
    log.put(records(b"a", b"b", stage=FIRST, number=0))
    assert log.state.next_offset == 2


def test_the_same_item_again_is_known_and_a_gap_is_refused() -> None:
    log = Log()
    assert log.put(item(0))
    assert not log.put(item(0))
    with pytest.raises(OutOfSequence):
        log.put(item(2))
    with pytest.raises(OutOfSequence):
        log.put(item(1, stage=SECOND))
    assert log.put(item(1))
    assert [each.index for each in log.state.staging.stages[FIRST].items] == [1, 2]


def test_a_stage_belongs_to_one_transaction() -> None:
    log = Log()
    log.put(item(0))
    with pytest.raises(BadRequest):
        log.put(item(1, transaction="another"))


def test_nothing_is_added_to_a_stage_that_is_being_published() -> None:
    log = Log()
    log.put(item(0))
    log.put(item(1))
    log.put(records(b"x", stage=FIRST, number=0))
    with pytest.raises(OutOfSequence):
        log.put(item(2))
    assert not log.put(item(1)), "one that is there is answered as the first time"
    log.put(records(b"x", stage=FIRST, number=1))
    with pytest.raises(OutOfSequence):
        log.put(item(2))
    assert not log.put(item(1))


def test_items_are_published_in_their_order_each_once() -> None:
    log = Log()
    log.put(item(0))
    log.put(item(1))
    with pytest.raises(OutOfSequence):
        log.put(records(b"x", stage=FIRST, number=1))
    assert log.put(records(b"x", stage=FIRST, number=0))
    assert not log.put(records(b"x", stage=FIRST, number=0))
    assert log.put(records(b"x", stage=FIRST, number=1))
    assert not log.put(records(b"x", stage=FIRST, number=1))
    assert log.state.next_offset == 2
    settled = log.state.staging.settled[FIRST]
    assert (settled.items, settled.count, settled.first_offset) == (2, 2, 0)
    assert log.state.staging.waiting_items(FIRST, 1) == []


def test_what_was_never_staged_or_was_discarded_cannot_be_published() -> None:
    log = Log()
    with pytest.raises(StageNotFound):
        log.put(records(b"x", stage=FIRST, number=0))
    with pytest.raises(StageNotFound):
        log.state.staging.waiting_items(FIRST, 1)
    log.put(item(0))
    assert log.put(encode_discard([FIRST]))
    assert not log.put(encode_discard([FIRST]))
    with pytest.raises(StageExpired):
        log.put(records(b"x", stage=FIRST, number=0))
    with pytest.raises(StageExpired):
        log.state.staging.waiting_items(FIRST, 1)
    with pytest.raises(StageExpired):
        log.put(item(0))


def test_what_is_being_published_cannot_be_discarded() -> None:
    log = Log()
    log.put(item(0))
    log.put(item(1))
    log.put(records(b"x", stage=FIRST, number=0))
    with pytest.raises(StageDecided):
        log.put(encode_discard([FIRST]))
    log.put(records(b"x", stage=FIRST, number=1))
    with pytest.raises(StageDecided):
        log.put(encode_discard([FIRST]))


def test_a_discard_of_what_is_not_there_changes_nothing() -> None:
    log = Log()
    assert not log.put(encode_discard([FIRST]))


def test_stages_that_nobody_adds_to_are_found() -> None:
    log = Log()
    log.put(item(0, now_us=10))
    log.put(item(0, stage=SECOND, transaction="u", now_us=20))
    log.put(item(1, now_us=30))
    assert log.state.staging.idle_since(25) == {SECOND: "u"}
    assert log.state.staging.idle_since(30) == {FIRST: "t", SECOND: "u"}


def test_the_oldest_entry_that_is_needed_is_that_of_the_oldest_item_not_yet_published() -> None:
    log = Log()
    assert log.state.staging.oldest_index() is None
    log.put(item(0))  # 1
    log.put(item(1))  # 2
    log.put(item(0, stage=SECOND))  # 3
    assert log.state.staging.oldest_index() == 1
    log.put(records(b"x", stage=FIRST, number=0))
    assert log.state.staging.oldest_index() == 2
    log.put(records(b"x", stage=FIRST, number=1))
    assert log.state.staging.oldest_index() == 3
    log.put(encode_discard([SECOND]))
    assert log.state.staging.oldest_index() is None


def test_items_are_given_out_up_to_a_size_but_one_at_least() -> None:
    log = Log()
    for number in range(5):
        log.put(item(number))
    size = log.state.staging.stages[FIRST].items[0].frame_bytes
    assert len(log.state.staging.waiting_items(FIRST, 1)) == 1
    assert len(log.state.staging.waiting_items(FIRST, 3 * size)) == 3
    log.put(records(b"x", stage=FIRST, number=0))
    assert [each.index for each in log.state.staging.waiting_items(FIRST, 1 << 20)] == [2, 3, 4, 5]


def test_the_stages_settled_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED_MAX", 2)
    log = Log()
    for stage in range(FIRST, FIRST + 3):
        log.put(item(0, stage=stage))
        log.publish(stage)
    assert list(log.state.staging.settled) == [FIRST + 1, FIRST + 2]
    with pytest.raises(StageNotFound):
        log.state.staging.waiting_items(FIRST, 1)


def test_too_many_stages_or_items_are_refused_until_some_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGES_MAX", 2)
    monkeypatch.setattr(module, "ITEMS_MAX", 3)
    log = Log()
    log.put(item(0))
    log.put(item(0, stage=SECOND))
    with pytest.raises(Overloaded):
        log.put(item(0, stage=SECOND + 1))
    log.put(item(1))
    with pytest.raises(Overloaded):
        log.put(item(2))
    log.put(encode_discard([SECOND]))
    assert log.put(item(2))
    log.publish()
    assert log.put(item(0, stage=SECOND + 1))


def test_a_snapshot_carries_everything_and_equal_states_give_equal_bytes() -> None:
    log = Log()
    log.put(item(0))
    log.put(item(1))
    log.put(item(0, stage=SECOND))
    log.put(encode_discard([SECOND]))
    log.put(records(b"x", stage=FIRST, number=0))
    data = log.state.to_bytes()
    restored = PartitionState.from_bytes(data)
    assert restored.to_bytes() == data
    assert restored.copy().to_bytes() == data
    for state in (restored, restored.copy()):
        twin = Log()
        twin.state, twin.index = state, log.index
        assert not twin.put(records(b"x", stage=FIRST, number=0))
        assert twin.put(records(b"x", stage=FIRST, number=1))
        with pytest.raises(StageExpired):
            twin.put(item(0, stage=SECOND))


def test_a_copy_is_folded_without_touching_the_first() -> None:
    log = Log()
    log.put(item(0))
    before = log.state.to_bytes()
    twin = Log()
    twin.state, twin.index = log.state.copy(), log.index
    twin.put(item(1))
    twin.publish()
    assert log.state.to_bytes() == before


def test_a_snapshot_from_before_there_were_stages_can_be_read() -> None:
    old = msgspec.msgpack.encode([7, [["spark", 3]], [], [["spark", 9]]])
    state = PartitionState.from_bytes(old)
    assert (state.next_offset, state.positions, state.tokens) == (7, {"spark": 3}, {"spark": 9})
    assert state.staging.stages == {}
    assert PartitionState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


# On replicas


def make() -> Scene:
    """Three brokers; 1 leads, and everyone knows."""
    voters = (1, 2, 3)
    timeouts = {broker: TIMEOUT + 4 * broker for broker in voters}  # no two stand at the same moment
    scene = Scene(Configuration.of(voters), Settings(), voters, timeouts=timeouts)
    scene.do(1, lambda replica: replica.raft.campaign())
    scene.pass_time(4)
    assert scene.replica(1).serves
    return scene


def elect(scene: Scene, broker: int) -> None:
    """Let that one lead, as soon as the others let it."""
    for other in scene.running:
        scene.do(other, lambda replica: replica.raft.transfer(broker))
    for _ in range(20):
        scene.pass_time(TIMEOUT // 2)
        if scene.replica(broker).serves:
            return
        scene.do(broker, lambda replica: replica.raft.campaign())
    raise AssertionError(f"{broker} does not get elected")


def ask(scene: Scene, broker: int, *frames: bytes) -> list[Outcome]:
    told: list[Outcome] = []
    scene.do(broker, lambda replica: replica.append(list(frames), told.append))
    return told


def done(scene: Scene, broker: int, *frames: bytes) -> Outcome:
    told = ask(scene, broker, *frames)
    scene.stabilize()
    (outcome,) = told
    return outcome


def publish_turn(replica: Replica, stage: int, tell: Callable[[Outcome], None], bytes_max: int = 1) -> bool:
    """Propose what comes next of a stage; whether there was anything."""
    items = replica.state.staging.waiting_items(stage, bytes_max)
    if items:
        replica.append(replica.read_staged(items), tell)
    return bool(items)


def publish_all(scene: Scene, broker: int, stage: int) -> None:
    told: list[Outcome] = []
    while scene.do(broker, lambda replica: publish_turn(replica, stage, told.append)):
        scene.stabilize()
        assert not isinstance(told[-1], TalwegError), told[-1]


def test_readers_see_nothing_of_a_stage_until_it_is_published() -> None:
    scene = make()
    done(scene, 1, records(b"before"))
    done(scene, 1, item(0, b"a", b"b"), item(1, b"c"))
    done(scene, 1, records(b"between"))
    for broker in scene.nodes:
        scene.pass_time(3)
        assert read_all(scene.replica(broker)) == [b"before", b"between"]
    publish_all(scene, 1, FIRST)
    scene.pass_time(3)
    for broker in scene.nodes:
        assert read_all(scene.replica(broker)) == [b"before", b"between", b"a", b"b", b"c"]


def test_what_a_majority_has_is_published_though_the_leaders_own_disk_is_behind() -> None:
    scene = make()
    done(scene, 1, item(0, b"a"))
    scene.set_disk(1, "stopped")
    done(scene, 1, item(1, b"b"), item(2, b"c"))
    replica = scene.replica(1)
    items = replica.state.staging.waiting_items(FIRST, 1 << 20)
    assert items[0].index <= replica.raft.stable_index < items[1].index
    values = [Batch.from_frame(frame).values() for frame in replica.read_staged(items)]
    assert values == [[b"a"], [b"b"], [b"c"]]


def test_what_is_published_keeps_its_timestamps_and_has_no_producer_that_deduplicates() -> None:
    scene = make()
    done(scene, 1, item(0, b"a"))
    publish_all(scene, 1, FIRST)
    (frame,) = scene.replica(1).read_frames(0, 1 << 20)
    assert Batch.from_frame(frame).values() == [b"a"]
    assert scene.replica(1).state._producers == {}


@pytest.mark.parametrize("published", [0, 1, 2, 3])
def test_a_leader_that_takes_over_goes_on_where_the_last_one_was(published: int) -> None:
    scene = make()
    done(scene, 1, *(item(number, b"%d" % number) for number in range(3)))
    for _ in range(published):
        scene.do(1, lambda replica: publish_turn(replica, FIRST, lambda _: None))
        scene.stabilize()
    scene.crash(1)
    elect(scene, 2)
    publish_all(scene, 2, FIRST)
    scene.start(1)
    scene.pass_time(3 * TIMEOUT)
    for broker in scene.nodes:
        assert read_all(scene.replica(broker)) == [b"0", b"1", b"2"]


def test_a_leader_of_the_past_turns_nobody_away_for_good() -> None:
    scene = make()
    scene.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    for _ in range(4 * TIMEOUT):  # it has yet to notice, for its time stands still
        for broker in (2, 3):
            scene.do(broker, Replica.tick)
        scene.stabilize()
    done(scene, next(broker for broker in (2, 3) if scene.replica(broker).serves), item(0, b"a"))
    assert scene.replica(1).serves
    told = ask(scene, 1, records(b"a", stage=FIRST, number=0))  # it does not know of the stage
    assert told == []
    scene.cut = set()
    scene.pass_time(3 * TIMEOUT)
    (outcome,) = told
    assert isinstance(outcome, NotLeader)


def test_a_refusal_of_the_leader_is_its_word() -> None:
    scene = make()
    assert isinstance(done(scene, 1, records(b"a", stage=FIRST, number=0)), StageNotFound)
    done(scene, 1, item(0))
    done(scene, 1, encode_discard([FIRST]))
    assert isinstance(done(scene, 1, item(0)), StageExpired)


def test_retention_does_not_take_what_is_staged() -> None:
    scene = make()
    done(scene, 1, records(b"old"))
    scene.do(1, Replica.snapshot_now)
    before = scene.replica(1).raft.applied_index
    done(scene, 1, item(0, b"a"), item(1, b"b"))
    done(scene, 1, records(b"new"))
    scene.do(1, Replica.snapshot_now)
    replica = scene.replica(1)
    assert replica.retain(bytes_max=0, before_timestamp=None) == before
    assert not replica.drop_head(replica.raft.applied_index)
    scene.work(1)
    assert replica.raft.log.start_index == before
    publish_all(scene, 1, FIRST)
    scene.do(1, Replica.snapshot_now)
    index = replica.retain(bytes_max=0, before_timestamp=None)
    assert index == replica.raft.applied_index
    scene.work(1)
    assert replica.start_offset == 4


def test_a_follower_that_got_a_snapshot_knows_what_is_staged_and_published() -> None:
    scene = make()
    scene.crash(3)
    done(scene, 1, item(0, b"a"), item(1, b"b"))
    scene.do(1, lambda replica: publish_turn(replica, FIRST, lambda _: None))
    done(scene, 1, item(0, b"c", stage=SECOND))
    scene.do(1, Replica.snapshot_now)
    publish_all(scene, 1, FIRST)
    done(scene, 1, encode_discard([SECOND]))
    replica = scene.replica(1)
    replica.retain(bytes_max=0, before_timestamp=None)
    scene.work(1)
    assert replica.raft.log.start_index > 1
    scene.start(3)
    scene.pass_time(3 * TIMEOUT)
    assert scene.replica(3).state.to_bytes() == replica.state.to_bytes()
    elect(scene, 3)
    assert isinstance(done(scene, 3, item(0, stage=SECOND)), StageExpired)
    assert scene.replica(3).state.staging.waiting_items(FIRST, 1) == []


# Whatever happens, in whatever order


class Play:
    """Writers stage and decide, publishers ask whoever leads, while brokers crash and cut their logs."""

    ITEMS = 3  # of each stage

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scene = make()
        self.scene.silent = True
        self.staged: dict[int, int] = {FIRST + writer: 0 for writer in range(3)}  # items acknowledged
        self.decided: set[int] = set()
        self.given_up: set[int] = set()
        self.seen: list[bytes] = []  # by offset, from any replica: retention takes it away later

    def run(self, decisions: int) -> None:
        acts: list[tuple[Callable[[], None], int]] = [
            (self.stage, 12),
            (self.decide, 4),
            (self.publish, 8),
            (self.discard, 1),
            (self.plain, 1),
            (self.some_messages, 16),
            (self.all_messages, 3),
            (self.crash, 1),
            (self.start, 2),
            (self.time, 2),
            (self.cut, 2),
        ]
        for _ in range(STEPS_MAX):
            (act,) = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])
            act()
            self.look()
            if len(self.decided) >= decisions:
                break
        self.end()

    def leaders(self) -> list[int]:
        """Those who think so; one of them may be a leader of the past."""
        return [broker for broker in self.scene.running if self.scene.replica(broker).serves]

    def stage(self) -> None:
        stage = self.random.choice(self.unsettled())
        number = self.staged[stage]
        if number == self.ITEMS:
            return

        def tell(outcome: Outcome) -> None:
            if not isinstance(outcome, TalwegError):
                self.staged[stage] = max(self.staged[stage], number + 1)

        frame = item(number, b"%d:%d" % (stage, number), stage=stage)
        for broker in self.leaders():
            self.scene.do(broker, lambda replica: replica.append([frame], tell))

    def unsettled(self) -> list[int]:
        return [stage for stage in self.staged if stage not in self.decided | self.given_up]

    def decide(self) -> None:
        for stage in self.unsettled():
            if self.staged[stage] == self.ITEMS:
                self.decided.add(stage)
                self.staged[max(self.staged) + 1] = 0

    def publish(self) -> None:
        if not self.decided:
            return
        stage = self.random.choice(sorted(self.decided)[-4:])
        for broker in self.leaders():
            replica = self.scene.replica(broker)
            try:
                publish_turn(replica, stage, lambda _: None, bytes_max=self.random.choice((1, 400)))
            except (StageNotFound, OffsetOutOfRange):
                # A leader of the past; it would find that out before it told anybody.
                assert len(self.leaders()) > 1
            self.scene.work(broker)

    def discard(self) -> None:
        stage = self.random.choice(self.unsettled())
        self.given_up.add(stage)
        self.staged[max(self.staged) + 1] = 0
        for broker in self.leaders():
            self.scene.do(broker, lambda replica: replica.append([encode_discard([stage])], lambda _: None))

    def plain(self) -> None:
        for broker in self.leaders():
            self.scene.do(broker, lambda replica: replica.append([records(b"plain")], lambda _: None))

    def some_messages(self) -> None:
        self.scene.deliver(self.scene.network[: self.random.randint(1, 6)])

    def all_messages(self) -> None:
        self.scene.stabilize()

    def crash(self) -> None:
        broker = self.random.choice(self.leaders() or self.scene.running)
        if len(self.scene.running) > 1 or self.random.random() < 0.3:
            self.scene.crash(broker, torn_bytes=self.random.randrange(300))
        if not self.scene.running:
            self.start()

    def start(self) -> None:
        for broker, node in self.scene.nodes.items():
            if not node.up:
                self.scene.start(broker)

    def time(self) -> None:
        self.scene.pass_time(self.random.randint(1, 2 * TIMEOUT))

    def cut(self) -> None:
        broker = self.random.choice(self.scene.running)
        self.scene.do(broker, Replica.snapshot_now)
        self.scene.replica(broker).retain(bytes_max=0, before_timestamp=None)
        self.scene.work(broker)

    def end(self) -> None:
        self.start()
        self.scene.pass_time(6 * TIMEOUT)
        (leader,) = self.leaders()
        for stage in sorted(self.decided):
            publish_all(self.scene, leader, stage)
        self.scene.pass_time(TIMEOUT)
        self.look()

    def look(self) -> None:
        """Read what is committed everywhere, and hold it to what was read before."""
        self.scene.lines.clear()
        for broker in self.scene.running:
            replica = self.scene.replica(broker)
            offset = max(replica.start_offset, len(self.seen) - 20)
            while offset < replica.high_watermark:
                for frame in replica.read_frames(offset, 1 << 20):
                    offset = self.look_at(Batch.from_frame(frame), offset)

    def look_at(self, batch: Batch, offset: int) -> int:
        assert batch.header.first_offset <= offset < batch.header.next_offset, "offsets have no gaps"
        for number, value in enumerate(batch.values(), batch.header.first_offset):
            assert value is not None
            assert number <= len(self.seen), "something was cut that nobody has seen"
            if number == len(self.seen):
                self.seen.append(value)
            assert self.seen[number] == value
        return batch.header.next_offset


@pytest.mark.parametrize("seed", range(15))
def test_each_item_of_a_decided_stage_is_there_once_and_nothing_of_the_others(seed: int) -> None:
    play = Play(seed)
    play.run(decisions=10)
    assert len({play.scene.replica(broker).state.to_bytes() for broker in play.scene.nodes}) == 1
    assert len(play.decided) >= 10, "too little happened"
    by_stage: dict[int, list[bytes]] = {}
    for value in play.seen:
        if value != b"plain":
            by_stage.setdefault(int(value.split(b":")[0]), []).append(value)
    assert by_stage == {
        stage: [b"%d:%d" % (stage, number) for number in range(Play.ITEMS)] for stage in play.decided
    }
