"""The log as the core sees it, alone and against a model that keeps everything in one list."""

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raft.cores import entries, run_of, together
from talweg.raft import Configuration, Entry, Log, Run, Snapshot, beginning_at, ending_at, singly


def log_of(*terms: int) -> Log:
    log = Log()
    log.append(entries(*terms))
    return log


def terms_of(log: Log) -> list[int | None]:
    return [log.term(index) for index in range(log.start_index, log.last_index + 1)]


def test_an_empty_log_ends_where_it_starts() -> None:
    log = Log()
    assert (log.start_index, log.last_index, log.last_term) == (0, 0, 0)
    assert log.term(0) == 0
    assert log.term(1) is None


def test_every_entry_has_the_term_it_was_appended_with() -> None:
    log = log_of(1, 1, 2, 5, 5)
    assert terms_of(log) == [0, 1, 1, 2, 5, 5]
    assert log.last_term == 5
    assert log.term(6) is None


def test_a_log_that_was_opened_knows_its_terms_without_its_entries() -> None:
    log = Log(4, 2, [(5, 2), (8, 3)], 9)
    assert terms_of(log) == [2, 2, 2, 2, 3, 3]
    assert log.term(3) is None
    assert log.tail_first == 10
    assert log.tail(10) == []


def test_a_gap_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="no gaps"):
        log_of(1).append(entries(1, first=3))


def test_a_term_that_goes_back_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="never go back"):
        log_of(2).append(entries(1, first=2))


def test_truncation_takes_the_terms_with_it() -> None:
    log = log_of(1, 2, 2, 3)
    log.truncate_from(3)
    assert terms_of(log) == [0, 1, 2]
    log.append(entries(4, first=3))
    assert terms_of(log) == [0, 1, 2, 4]


def test_truncation_below_the_entries_at_hand_leaves_none() -> None:
    log = log_of(1, 1, 1, 1)
    log.release(3)
    log.truncate_from(2)
    assert (log.last_index, log.tail_first, log.tail_bytes) == (1, 2, 0)
    log.append(entries(2, first=2))
    assert [entry.term for entry in log.tail(2)] == [2]


def test_a_head_that_is_dropped_leaves_its_last_term() -> None:
    log = log_of(1, 2, 2, 3)
    log.drop_head(2)
    assert (log.start_index, log.start_term) == (2, 2)
    assert terms_of(log) == [2, 2, 3]
    assert log.term(1) is None


def test_a_log_can_be_dropped_whole_and_go_on() -> None:
    log = log_of(1, 2)
    log.drop_head(2)
    assert terms_of(log) == [2]
    log.append(entries(2, 3, first=3))
    assert terms_of(log) == [2, 2, 3]


def test_a_snapshot_replaces_everything() -> None:
    log = log_of(1, 1, 2)
    log.restore(Snapshot(9, 4, Configuration.of([1]), b""))
    assert (log.start_index, log.last_index, log.last_term, log.tail_bytes) == (9, 9, 4, 0)
    assert log.term(3) is None
    log.append(entries(4, first=10))
    assert terms_of(log) == [4, 4]


def test_a_slice_keeps_to_the_size_but_never_starves() -> None:
    log = Log()
    log.append([Entry(index, 1, 2, bytes(size)) for index, size in enumerate([10, 10, 30, 5], 1)])
    assert [entry.index for entry in log.slice(1, 20)] == [1, 2]
    assert [entry.index for entry in log.slice(1, 29)] == [1, 2]
    assert [entry.index for entry in log.slice(3, 20)] == [3]
    assert [entry.index for entry in log.slice(3, 1000)] == [3, 4]
    assert log.slice(5, 10) == []


def test_bytes_of_entries_that_are_not_at_hand_count_for_nothing() -> None:
    log = log_of(1, 1, 1, 1)
    all_bytes = log.payload_bytes(1, 4)
    assert all_bytes == log.tail_bytes > 0
    log.release(2)
    assert log.payload_bytes(1, 4) == log.tail_bytes == all_bytes // 2
    assert log.payload_bytes(1, 1) == 0


@pytest.mark.parametrize(
    ("term", "index", "expected"),
    [(3, 6, 6), (2, 6, 4), (2, 3, 3), (1, 6, 2), (0, 6, 0), (9, 9, 6), (3, 0, 0)],
)
def test_the_last_place_of_a_term_is_found(term: int, index: int, expected: int) -> None:
    assert log_of(1, 1, 2, 2, 3, 3).last_index_of_term_at_most(term, index) == expected


@given(st.lists(st.integers(1, 6), max_size=30).map(sorted), st.data())
def test_the_hint_skips_a_whole_term_at_a_time(terms: list[int], data: st.DataObject) -> None:
    log = Log()
    if terms:
        log.append(entries(*terms))
    start = data.draw(st.integers(0, len(terms)))
    log.drop_head(start)
    term, index = data.draw(st.integers(0, 7)), data.draw(st.integers(start, 35))
    fitting = [at for at in range(start + 1, min(index, len(terms)) + 1) if terms[at - 1] <= term]
    assert log.last_index_of_term_at_most(term, index) == max(fitting, default=start)


def test_a_run_is_cut_where_it_is_asked_to_be() -> None:
    held = entries(3, 3, 3, 3, first=7)
    run = run_of(held)
    assert (run.index, run.last_index, run.entries()) == (7, 10, held)
    assert run.part(7, 10) is run
    for first in range(7, 11):
        for last in range(first, 11):
            part = run.part(first, last)
            assert part.entries() == held[first - 7 : last - 6]
            assert part.notes == list(range(first, last + 1))
            assert (part.ends[-1], part.term) == (len(part.payload), 3)


@given(st.lists(st.integers(0, 1), max_size=12), st.integers(0, 14))
def test_entries_are_cut_wherever_a_run_begins_or_ends(rise: list[int], index: int) -> None:
    held = entries(*[1 + sum(rise[: place + 1]) for place in range(len(rise))])
    for some in (held, together(held)):
        assert singly(beginning_at(some, index)) == held[max(index - 1, 0) :]
        assert singly(ending_at(some, index)) == held[:index]


def test_a_slice_cuts_a_run_only_when_it_is_more_than_all_that_is_wanted() -> None:
    log = Log()
    log.append([run_of([Entry(index, 1, 2, bytes(10)) for index in first]) for first in ((1, 2, 3), (4, 5))])
    assert [(each.index, each.last_index) for each in log.slice(1, 50)] == [(1, 3), (4, 5)]
    assert [(each.index, each.last_index) for each in log.slice(1, 49)] == [(1, 3)]
    assert [(each.index, each.last_index) for each in log.slice(1, 29)] == [(1, 2)]
    assert [(each.index, each.last_index) for each in log.slice(2, 40)] == [(2, 3), (4, 5)]
    assert [(each.index, each.last_index) for each in log.slice(4, 1)] == [(4, 4)]


def test_a_run_is_let_go_of_as_a_whole() -> None:
    log = Log()
    log.append([run_of(entries(1, 1, 1)), run_of(entries(1, 1, first=4))])
    log.release(2)
    assert (log.tail_first, log.tail_bytes) == (1, log.payload_bytes(1, 5))
    log.release(3)
    assert (log.tail_first, log.tail_bytes) == (4, log.payload_bytes(4, 5))
    log.release(5)
    assert (log.tail_first, log.tail_bytes, log.at_hand()) == (6, 0, [])


def bytes_of(some: list[Entry]) -> int:
    return sum(len(entry.payload) for entry in some)


class LogAgainstAList(RuleBasedStateMachine):
    """Whatever is done to a log, it answers as a plain list of entries would."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.model: list[Entry] = []  # since index 1; nothing is ever dropped from it
        self.start_index = self.start_term = 0
        self.first_at_hand = 1
        self.runs: set[int] = set()  # the indexes that go on the run of the one before

    @property
    def last_index(self) -> int:
        return self.start_index + len(self._kept) if self.model else self.start_index

    @property
    def _kept(self) -> list[Entry]:
        return [entry for entry in self.model if entry.index > self.start_index]

    @initialize(start=st.integers(0, 5), runs=st.lists(st.integers(1, 3), max_size=3))
    def open(self, start: int, runs: list[int]) -> None:
        terms = [term for term, length in enumerate(runs, 2) for _ in range(length)]
        firsts = [start + 1 + sum(runs[:position]) for position in range(len(runs))]
        self.start_index, self.start_term = start, int(start > 0)
        self.model = entries(*terms, first=start + 1)
        self.first_at_hand = self.last_index + 1
        runs_of_terms = list(zip(firsts, range(2, 2 + len(runs)), strict=True))
        self.log = Log(start, self.start_term, runs_of_terms, self.last_index)

    @rule(rise=st.lists(st.sampled_from((0, 0, 0, 1)), min_size=1, max_size=8), in_runs=st.booleans())
    def append(self, rise: list[int], in_runs: bool) -> None:
        term = self._kept[-1].term if self._kept else self.start_term
        terms = [max(term + sum(rise[: position + 1]), 1) for position in range(len(rise))]
        added = entries(*terms, first=self.last_index + 1)
        pieces: list[Entry | Run] = together(added) if in_runs else [*added]
        self.runs -= {entry.index for entry in added}
        self.runs |= {index for piece in pieces for index in range(piece.index + 1, piece.last_index + 1)}
        self.log.append(pieces)
        self.model += added

    @precondition(lambda self: self._kept)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.start_index + 1, self.last_index))
        self.log.truncate_from(index)
        self.model = [entry for entry in self.model if entry.index < index]
        self.first_at_hand = min(self.first_at_hand, index)

    @rule(data=st.data())
    def drop_head(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.start_index, self.last_index))
        if index > self.start_index:
            self.start_term = self._kept[index - self.start_index - 1].term
        self.log.drop_head(index)
        self.start_index = index
        self.model = self._kept
        self.first_at_hand = max(self.first_at_hand, index + 1)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.last_index))
        self.log.release(index)
        if index < self.last_index:
            while index + 1 in self.runs and index > self.start_index:
                index -= 1  # a run is let go of as a whole
        self.first_at_hand = max(self.first_at_hand, index + 1)

    @rule(ahead=st.integers(0, 5))
    def restore(self, ahead: int) -> None:
        index, term = self.last_index + ahead, self.log.last_term + 1
        self.log.restore(Snapshot(index, term, Configuration.of([1]), b""))
        self.start_index, self.start_term, self.model = index, term, []
        self.first_at_hand = index + 1

    @rule(bytes_max=st.integers(0, 40))
    def slice(self, bytes_max: int) -> None:
        for first_index in range(self.first_at_hand, self.last_index + 2):
            pieces = self._pieces(first_index)
            whole = bisect_right(list(accumulate(map(bytes_of, pieces))), bytes_max)
            expected = [entry for piece in pieces[:whole] for entry in piece]
            if pieces and not whole:  # then a part of the first one, and one entry at least
                ends = list(accumulate(len(entry.payload) for entry in pieces[0]))
                expected = pieces[0][: max(bisect_right(ends, bytes_max), 1)]
            assert singly(self.log.slice(first_index, bytes_max)) == expected

    def _pieces(self, first_index: int) -> list[list[Entry]]:
        pieces: list[list[Entry]] = []
        for entry in self._kept:
            if entry.index == first_index or (entry.index > first_index and entry.index not in self.runs):
                pieces.append([entry])
            elif entry.index > first_index:
                pieces[-1].append(entry)
        return pieces

    @invariant()
    def same_ends(self) -> None:
        assert (self.log.start_index, self.log.start_term) == (self.start_index, self.start_term)
        assert self.log.last_index == self.last_index
        assert self.log.last_term == (self._kept[-1].term if self._kept else self.start_term)

    @invariant()
    def same_terms(self) -> None:
        expected = [self.start_term, *[entry.term for entry in self._kept]]
        assert terms_of(self.log) == expected
        assert self.log.term(self.last_index + 1) is None
        assert self.log.term(self.start_index - 1) is None

    @invariant()
    def same_entries_at_hand(self) -> None:
        at_hand = [entry for entry in self._kept if entry.index >= self.first_at_hand]
        assert self.log.tail_first == self.first_at_hand
        assert singly(self.log.tail(self.log.tail_first)) == at_hand
        assert self.log.tail_bytes == sum(len(entry.payload) for entry in at_hand)
        assert self.log.payload_bytes(0, self.last_index) == self.log.tail_bytes
        for entry in at_hand:
            assert self.log.payload_bytes(entry.index, entry.index) == len(entry.payload)
            assert singly(self.log.tail(entry.index)) == at_hand[entry.index - self.first_at_hand :]


TestLogAgainstAList = LogAgainstAList.TestCase
