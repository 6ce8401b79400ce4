"""Decisions: the first one on a name holds, and nothing is forgotten that somebody still needs."""

import time

import pytest

from talweg.errors import CorruptBatch, Overloaded, StageExpired, TransactionForgotten
from talweg.records import Kind, encode_frame, stamp
from talweg.replication import decisions as module
from talweg.replication.decisions import (
    Complete,
    Decide,
    Decisions,
    Expire,
    Ruling,
    StagePlace,
    digest,
    encode_ruling,
    split_name,
)
from talweg.replication.state import PartitionState


def place(stage: int, topic: str = "lines", partition: int = 0) -> StagePlace:
    return StagePlace(topic, partition, stage)


class Log:
    """A state, and the rulings that a leader would let in."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.index = 0

    @property
    def decisions(self) -> Decisions:
        return self.state.decisions

    def put(self, ruling: Ruling) -> bool:
        """Whether it was new. Raises as the leader would."""
        frame = encode_ruling(ruling)
        if self.state.known(frame) is not None:
            return False
        self.index += 1
        self.state.fold(stamp(frame, index=self.index, term=1, first_offset=0))
        return True

    def decide(self, name: str, *stages: int, now_us: int = 0) -> bool:
        return self.put(Decide(name, tuple(map(place, stages)), now_us))

    def expire(self, name: str, *stages: int) -> list[int]:
        places = tuple(map(place, stages))
        self.put(Expire(name, places))
        return [each.stage for each in self.decisions.decided_among(name, places)]

    def complete(self, *names: str) -> bool:
        return self.put(Complete(names))

    def stages(self, name: str) -> list[int]:
        return [each.stage for each in self.decisions.decisions[name].stages]


def test_the_first_decision_holds() -> None:
    log = Log()
    assert log.decide("t", 1, 2)
    assert not log.decide("t", 3)
    assert log.stages("t") == [1, 2]
    log.decisions.add(Decide("t", (place(3),), 0))  # even were it in the log
    assert log.stages("t") == [1, 2]


def test_a_transaction_of_many_tasks_and_partitions_does_not_hold_up_a_broker() -> None:
    for begun in (Log.decide, Log.expire):
        log = Log()
        begun(log, "t", *range(50_000))
        began = time.process_time()
        for number in range(4):  # as each partition's leader asks for its own
            log.expire("t", *range(49_750 + 500 * number, 50_250 + 500 * number))
        assert (
            time.process_time() - began < 1.5
        )  # a few hundredths; looking through all of them for each, 6 and more


def test_a_decision_is_told_from_another_whatever_the_order_of_its_stages() -> None:
    assert digest([place(1), place(2)]) == digest([place(2), place(1)])
    assert digest([place(1), place(2)]) != digest([place(1), place(3)])
    assert digest([place(1)]) != digest([place(1, "words")])
    assert digest([place(1)]) != digest([place(1, partition=1)])


def test_what_has_expired_cannot_be_decided_on() -> None:
    log = Log()
    assert log.expire("t", 1) == []
    with pytest.raises(StageExpired):
        log.decide("t", 1, 2)
    assert log.decide("t", 2, 3), "others of the same transaction can"


def test_what_is_decided_on_does_not_expire() -> None:
    log = Log()
    log.decide("t", 1, 2)
    assert log.expire("t", 1, 5) == [1]
    assert log.expire("u", 1) == [], "of another transaction"


def test_of_what_is_completed_nothing_waits_any_more() -> None:
    log = Log()
    log.decide("t", 1)
    assert log.complete("t")
    assert not log.complete("t")
    assert not log.complete("never decided")
    assert log.expire("t", 1) == []
    assert log.decisions.decisions["t"].completed
    assert not log.decide("t", 2)
    assert log.decisions.decisions["t"].digest == digest([place(1)])


def test_decisions_that_nobody_completed_are_found() -> None:
    log = Log()
    log.decide("a", 1, now_us=10)
    log.decide("b", 2, now_us=20)
    log.decide("c", 3, now_us=30)
    log.complete("a")
    assert list(log.decisions.open_since(25)) == ["b"]
    assert list(log.decisions.open_since(30)) == ["b", "c"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q/7", ("q", 7)),
        ("a/b/0", ("a/b", 0)),
        ("/1", ("", 1)),
        ("q", ("q", None)),
        ("q/", ("q/", None)),
        ("q/07", ("q/07", None)),
        ("q/-1", ("q/-1", None)),
        ("q/٣", ("q/٣", None)),
        ("q/" + "9" * 30, ("q/" + "9" * 30, None)),
    ],
)
def test_names_of_a_series(name: str, expected: tuple[str, int | None]) -> None:
    assert split_name(name) == expected


def test_of_a_series_the_last_are_known_and_older_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_KEPT", 3)
    log = Log()
    for number in range(10):
        log.decide(f"q/{number}", number)
        log.complete(f"q/{number}")
    assert list(log.decisions.decisions) == ["q/7", "q/8", "q/9"]
    with pytest.raises(TransactionForgotten):
        log.decide("q/6", 1)
    with pytest.raises(TransactionForgotten):
        log.decisions.check_known("q/6")
    log.decisions.check_known("q/7")
    log.decisions.check_known("q/10")
    assert log.expire("q/6", 6) == []
    assert log.decide("q/10", 10)


def test_an_open_decision_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_KEPT", 2)
    monkeypatch.setattr(module, "SINGLES_MAX", 2)
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    log = Log()
    log.decide("open", 1)
    log.decide("silent/0", 3)
    log.decide("q/0", 2)
    for number in range(1, 8):
        log.decide(f"q/{number}", 10 + number)
        log.complete(f"q/{number}")
        log.decide(f"single {number}", 20 + number)
        log.complete(f"single {number}")
        log.decide(f"series {number}/1", 30 + number)
        log.complete(f"series {number}/1")
    assert log.stages("open") == [1]
    assert log.stages("silent/0") == [3]
    assert log.stages("q/0") == [2]
    assert log.expire("q/0", 2) == [2]
    kept = [name for name in log.decisions.decisions if name.startswith("single")]
    assert kept == ["single 6", "single 7"]
    assert sum(name.startswith("series") for name in log.decisions.decisions) == 1
    log.complete("q/0")
    assert [name for name in log.decisions.decisions if name.startswith("q/")] == ["q/6", "q/7"]


def test_an_open_decision_does_not_keep_the_later_ones_of_its_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_KEPT", 3)
    log = Log()
    log.decide("q/0", 1)  # its partition is away
    log.decide("q/1", 2)
    log.complete("q/1")
    log.decide("q/2", 3)  # so is this one's
    for number in range(3, 50):
        log.decide(f"q/{number}", 10 + number)
        log.complete(f"q/{number}")
    assert list(log.decisions.decisions) == ["q/0", "q/2", "q/47", "q/48", "q/49"]
    for state in (log.state, PartitionState.from_bytes(log.state.to_bytes())):
        twin = Log()
        twin.state, twin.index = state, log.index
        assert twin.expire("q/0", 1) == [1]
        assert twin.expire("q/2", 3) == [3]
        assert not twin.decide("q/0", 9), "the first one holds"
        for number in (1, 3, 46):
            with pytest.raises(TransactionForgotten):
                twin.decide(f"q/{number}", 9)
        assert twin.complete("q/0", "q/2")
        assert list(twin.decisions.decisions) == ["q/47", "q/48", "q/49"]
        with pytest.raises(TransactionForgotten):
            twin.decide("q/0", 1)


def test_too_many_open_decisions_are_refused_until_some_are_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    monkeypatch.setattr(module, "OPEN_STAGES_MAX", 4)
    log = Log()
    log.decide("a", 1, 2, 3)
    with pytest.raises(Overloaded):
        log.decide("b", 4, 5)
    log.decide("b", 4)
    log.decide("c")
    with pytest.raises(Overloaded):
        log.decide("d")
    assert not log.decide("a", 1), "what was decided is told all the same"
    log.complete("a")
    assert log.decide("d", 5, 6)


def test_notes_of_what_has_expired_go_when_it_is_decided_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EXPIRED_MAX", 3)
    log = Log()
    log.expire("b", 2, 3)
    log.expire("a", 1)
    log.decide("a", 9)
    log.expire("c", 4)
    for name, stage in (("b", 2), ("c", 4)):
        with pytest.raises(StageExpired):
            log.decide(name, stage)
    log.expire("d", 5)
    with pytest.raises(StageExpired):
        log.decide("d", 5)
    assert log.decide("b", 2), "the oldest notes are forgotten"


def test_notes_of_one_transaction_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRED_MAX", 3)
    log = Log()
    log.expire("q/1", 1, 2)
    log.expire("q/1", 2, 3, 4, 5)  # its task fails again and again, and nobody else's does
    for state in (log.state, PartitionState.from_bytes(log.state.to_bytes())):
        twin = Log()
        twin.state, twin.index = state, log.index
        for stage in (3, 4, 5):
            with pytest.raises(StageExpired):
                twin.decide("q/1", stage)
        twin.expire("q/2", 6)
        with pytest.raises(StageExpired):
            twin.decide("q/1", 4)
        assert twin.decide("q/1", 1, 2, 3), "the oldest notes are forgotten"
        twin.expire("q/2", 7, 8)
        with pytest.raises(StageExpired):
            twin.decide("q/2", 6)  # those of what was decided on count no longer


def test_one_more_note_costs_the_same_however_many_there_are() -> None:
    log = Log()
    for begin in range(0, 150_000, 50_000):
        log.expire("q/1", *range(begin, begin + 50_000))
    began = time.process_time()
    for stage in range(200_000, 201_000):
        log.expire("q/1", stage)
    assert (
        time.process_time() - began < 1.0
    )  # some hundredths; looking through all of them each time, 8 and more


def test_a_snapshot_carries_everything_and_equal_states_give_equal_bytes() -> None:
    log = Log()
    log.decide("q/1", 1)
    log.decide("single", 2)
    log.decide("open", 3)
    log.complete("q/1", "single")
    log.expire("t", 4, 5)
    data = log.state.to_bytes()
    for state in (PartitionState.from_bytes(data), log.state.copy(), PartitionState.from_bytes(data).copy()):
        assert state.to_bytes() == data
        twin = Log()
        twin.state, twin.index = state, log.index
        assert not twin.decide("single", 9)
        with pytest.raises(StageExpired):
            twin.decide("t", 5)
        assert twin.expire("open", 3) == [3]
        twin.complete("open")
        assert twin.decide("open 2", 1)
    assert log.state.to_bytes() == data


@pytest.mark.parametrize("body", [b"\xc1", b"\x92\x02\x91\xa1\xff"], ids=["no MessagePack", "no UTF-8"])
def test_a_ruling_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(CorruptBatch, match="decision at index 9"):
        PartitionState().fold(encode_frame(Kind.DECISION, body, index=9))
