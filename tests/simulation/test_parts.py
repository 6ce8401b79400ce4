"""The parts of the simulation: time, the network, the model of a disk, and what the history notices."""

from collections import Counter
from random import Random

import pytest

from storage.logs import LogMaker
from talweg.raft import Append, Configuration, Entry, HardState, Heartbeat, Message, Snapshot
from talweg.replication.proposals import Appended
from talweg.storage import Write
from talweg.testing.simulation.describe import describe
from talweg.testing.simulation.disk_trouble import Trouble, TroubledFiles
from talweg.testing.simulation.durable import DurableLog
from talweg.testing.simulation.history import History, Violation
from talweg.testing.simulation.network import Network, Weather
from talweg.testing.simulation.schedule import Schedule, Trace

ENDS = {"source": 1, "target": 2, "term": 1}


def test_what_is_planned_happens_in_the_order_of_its_time() -> None:
    schedule, happened = Schedule(), []
    for delay_us, name in ((20, "late"), (10, "first"), (10, "second")):
        schedule.after(delay_us, lambda name=name: happened.append((schedule.now_us, name)))  # type: ignore[misc]
    for _ in range(3):
        schedule.run_next()
    assert happened == [(10, "first"), (10, "second"), (20, "late")]


def test_traces_that_differ_have_another_digest() -> None:
    traces = [Trace(Schedule()) for _ in range(3)]
    for trace, text in zip(traces, ("a", "a", "b"), strict=True):
        trace.note(text)
    assert traces[0].digest == traces[1].digest != traces[2].digest


class Wire:
    """A network and what it has delivered."""

    def __init__(self, weather: Weather) -> None:
        self.schedule = Schedule()
        self.delivered: list[Message] = []
        self.counts: Counter[str] = Counter()
        self.network = Network(self.schedule, Random(1), self.counts, weather, self.delivered.append)
        self.sent = 0

    def send(self, count: int) -> None:
        """Numbered heartbeats."""
        for _ in range(count):
            self.sent += 1
            self.network.send(Heartbeat(**ENDS, commit=self.sent))

    def wait(self) -> list[int]:
        """Everything that is on its way arrives; returns the numbers."""
        while self.schedule._queue:
            self.schedule.run_next()
        arrived, self.delivered[:] = list(self.delivered), []
        return [message.commit for message in arrived if isinstance(message, Heartbeat)]


def test_in_fine_weather_everything_arrives_in_order() -> None:
    wire = Wire(Weather())
    wire.send(100)
    assert wire.wait() == list(range(1, 101))


def test_messages_are_lost_repeated_and_overtaken() -> None:
    wire = Wire(Weather(drop=0.2, duplicate=0.2, late=0.2, in_order=False))
    wire.send(500)
    arrived = wire.wait()
    assert arrived != sorted(arrived)
    assert 0 < len(set(arrived)) < 500
    assert len(arrived) > len(set(arrived))
    for name in ("messages dropped", "messages repeated", "messages late"):
        assert wire.counts[name] > 0


def test_a_partition_is_for_one_direction_and_for_what_is_sent_during_it() -> None:
    wire = Wire(Weather())
    wire.send(1)
    wire.network.block(1, 2)
    wire.send(1)
    wire.network.send(Heartbeat(source=2, target=1, term=1, commit=9))
    assert sorted(wire.wait()) == [1, 9]
    wire.network.unblock(1, 2)
    wire.send(1)
    assert wire.wait() == [3]


def test_messages_travel_as_bytes() -> None:
    wire = Wire(Weather())
    entries = [LogMaker().records(b"value")]
    wire.network.send(Append(**ENDS, prev_index=0, prev_term=0, entries=entries, commit=0))
    wire.wait()
    wire.network.send(Append(**ENDS, prev_index=0, prev_term=0, entries=entries, commit=0))
    wire.schedule.run_next()
    (arrived,) = wire.delivered
    assert isinstance(arrived, Append)
    assert arrived.entries == entries
    assert arrived.entries[0] is not entries[0]
    assert describe(arrived) == "1→2 term 1 append after 0/0 1 entries commit 0"


def test_the_model_of_a_disk_follows_its_writes() -> None:
    disk, maker = DurableLog(), LogMaker()
    assert disk.apply(Write(entries=[maker.noop(), *maker.batches(3)], hard_state=HardState(1))) is None
    assert (disk.last_index, disk.hard_state) == (4, HardState(1))
    other = maker.at(2, 2, 1)
    assert disk.apply(Write(truncate_from=3, entries=[other.noop()])) == (3, 1)
    assert [disk.term(index) for index in range(5)] == [0, 1, 1, 2, None]
    disk.drop_head(2)
    assert (disk.start_index, disk.start_term, disk.last_index) == (2, 1, 3)
    assert disk.holds(1, 1)
    assert disk.holds(3, 2)
    assert not disk.holds(3, 1)
    disk.apply(Write(snapshot=Snapshot(9, 3, Configuration.of([1]), b"")))
    assert (disk.start_index, disk.last_index, disk.term(9)) == (9, 9, 3)


@pytest.mark.parametrize(
    ("trouble", "fails"),
    [(Trouble.WRITES_FAIL, "write"), (Trouble.SYNCS_FAIL, "sync"), (Trouble.FULL, "write")],
)
def test_a_disk_in_trouble_fails_until_it_is_over(trouble: Trouble, fails: str) -> None:
    files = TroubledFiles()
    file = files.open("file")
    files.trouble = trouble
    for _ in range(3):
        with pytest.raises(OSError, match=r"error|space"):
            file.write_at(b"data", 0) if fails == "write" else file.sync()
    files.trouble = None
    file.write_at(b"data", 0)
    file.sync()


# What the history notices


def history_of(*entries: Entry) -> History:
    history = History(Configuration.of([1, 2, 3]))
    previous_term = 0
    for entry in entries:
        history.entry_seen(1, entry, previous_term)
        history.entry_committed(1, entry.index, entry.term, entry.term)
        previous_term = entry.term
    return history


def test_what_is_as_it_should_be_passes() -> None:
    maker = LogMaker()
    history = history_of(
        maker.noop(), maker.records(b"a", b"b"), maker.positions(b"\x90"), maker.records(b"c")
    )
    assert (history.commit_index, history.next_offset) == (4, 3)


def test_two_entries_of_one_index_and_term_are_noticed() -> None:
    history = history_of(LogMaker().records(b"a"))
    with pytest.raises(Violation, match="is not the known one"):
        history.entry_seen(2, LogMaker().records(b"b"), 0)


def test_an_entry_after_two_different_ones_is_noticed() -> None:
    maker = LogMaker()
    maker.noop()
    entry = maker.records(b"a")
    history = history_of()
    history.entry_seen(1, entry, 1)
    with pytest.raises(Violation, match="others after one of term 1"):
        history.entry_seen(2, entry, 0)


def test_another_commit_at_the_same_place_is_noticed() -> None:
    history = history_of(LogMaker().records(b"a"))
    with pytest.raises(Violation, match="committed was one of term 1"):
        history.entry_committed(2, 1, 2, 2)


def test_a_gap_between_offsets_is_noticed() -> None:
    with pytest.raises(Violation, match="has offset 1, expected 0"):
        history_of(LogMaker(next_offset=1).records(b"a"))


@pytest.mark.parametrize(
    ("sent", "appended", "match"),
    [
        (b"a", Appended(1, 1), "acknowledged and is not committed"),
        (b"b", Appended(0, 1), "but there stands"),
        (b"a", Appended(0, 2), "but there stands"),
    ],
)
def test_a_false_acknowledgement_is_noticed(sent: bytes, appended: Appended, match: str) -> None:
    history = history_of(LogMaker().records(b"a"))
    assert history.batch_acknowledged(LogMaker().records(b"a").payload, Appended(0, 1)) == 1
    with pytest.raises(Violation, match=match):
        history.batch_acknowledged(LogMaker().records(sent).payload, appended)


def test_a_read_of_what_is_not_committed_is_noticed() -> None:
    history = history_of(LogMaker().records(b"a"))
    history.frame_read(LogMaker().records(b"a").payload)
    with pytest.raises(Violation, match="not committed"):
        history.frame_read(LogMaker().records(b"b").payload)
