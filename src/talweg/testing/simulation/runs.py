"""Where runs are cut. It is counted: nearly all are moved whole, so what happens in their midst is rare."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from talweg.raft import Append, Entry, Log, Raft, Run

Pieces = Sequence[Entry | Run]


class RunCuts:
    """Looks at logs before and after something happened to them."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def append_leaves(self, log: Log, append: Append) -> None:
        """A leader sends entries; those that it has at hand may be a part of a run."""
        first, last = append.entries[0], append.entries[-1]
        at_hand = log.at_hand()
        run = _run_at(at_hand, first.index) if isinstance(first, Run) else None
        self._counts["appends that begin in a run"] += run is not None and run.index < first.index
        run = _run_at(at_hand, last.last_index) if isinstance(last, Run) else None
        self._counts["appends that end in a run"] += run is not None and last.last_index < run.last_index

    def append_comes(self, raft: Raft, append: Append) -> None:
        """A follower is about to be given entries; it may have some of a run already."""
        log = raft.log
        is_old = append.term < raft.term or append.prev_index < raft.commit_index
        if is_old or log.term(append.prev_index) != append.prev_term:
            return
        for piece in append.entries:
            if log.term(piece.index) == piece.term != log.term(piece.last_index):
                self._counts["runs that were there in part"] += 1

    def log_changed(self, before: Pieces, log: Log, unchanged_index: int) -> None:
        """What was at hand before, and up to where the log is as it was then."""
        at_hand = log.at_hand()
        if at_hand and isinstance(at_hand[0], Run):
            run = _run_at(before, log.start_index)
            dropped = run is not None and at_hand[0].index == log.start_index + 1 <= run.last_index
            self._counts["heads dropped in a run"] += dropped
        kept, run = _run_at(at_hand, unchanged_index), _run_at(before, unchanged_index)
        truncated = kept is not None and run is not None and kept.last_index < run.last_index
        self._counts["truncations in a run"] += truncated

    def applied(self, log: Log, index: int) -> None:
        """The state was brought up to `index`."""
        self._counts["applies that end in a run"] += is_within_a_run(log, index)


def is_within_a_run(log: Log, index: int) -> bool:
    """Whether the entry after this one belongs to the same run, which is at hand."""
    run = _run_at(log.at_hand(), index)
    return run is not None and index < run.last_index


def _run_at(pieces: Pieces, index: int) -> Run | None:
    place = bisect_right(pieces, index, key=_first_index) - 1
    piece = pieces[place] if place >= 0 else None
    return piece if isinstance(piece, Run) and index <= piece.last_index else None


def _first_index(piece: Entry | Run) -> int:
    return piece.index
