"""The log as the core sees it: where it starts, the term of every entry, and its recent entries.

Payloads that are durable, applied and delivered are let go; the core asks for them again by `Fetch`
when a slow follower needs them, so memory does not grow with the log. Terms are kept as runs: a log
of a billion entries and three elections is three pairs.
"""

from bisect import bisect_right
from collections.abc import Iterable

from talweg.raft.messages import Entry, Snapshot


class Log:
    """Entries `start_index + 1 .. last_index`; the payloads of the last ones are at hand."""

    def __init__(
        self,
        start_index: int = 0,
        start_term: int = 0,
        terms: Iterable[tuple[int, int]] = (),
        last_index: int = 0,
    ) -> None:
        self.start_index = start_index  # dropped up to and including here
        self.start_term = start_term
        self.last_index = max(last_index, start_index)
        self.tail_bytes = 0  # of the payloads at hand
        self._runs = list(terms)  # (first index, term), both growing; covers start_index + 1 .. last_index
        self._tail: list[Entry] = []
        self._tail_first = self.last_index + 1  # index of _tail[0]
        # Where each payload of the tail would begin if all that ever were at hand lay one after another, and
        # where the last one ends: what a run of entries weighs is one subtraction, not a sum.
        self._bounds = [0]  # one more than _tail has

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._runs[-1][1] if self._runs else self.start_term

    @property
    def tail_first(self) -> int:
        """The first index whose payload is at hand."""
        return self._tail_first

    def term(self, index: int) -> int | None:
        """The term of the entry at `index`; None where the log does not reach."""
        if index > self.last_index or index < self.start_index:
            return None
        if index == self.start_index:
            return self.start_term
        runs = self._runs
        if runs[-1][0] <= index:
            return runs[-1][1]
        return runs[bisect_right(runs, index, key=_first) - 1][1]

    def append(self, entries: list[Entry]) -> None:
        """Add entries after the last one."""
        assert entries[0].index == self.last_index + 1, "the log has no gaps"
        term, bounds = self.last_term, self._bounds
        begin = end = bounds[-1]
        for entry in entries:
            if entry.term != term:
                assert entry.term > term, "terms never go back within a log"
                term = entry.term
                self._runs.append((entry.index, term))
            elif not self._runs:
                self._runs.append((entry.index, term))
            end += len(entry.payload)
            bounds.append(end)
        self._tail.extend(entries)
        self.tail_bytes += end - begin
        self.last_index = entries[-1].index

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and everything after it."""
        assert self.start_index < index <= self.last_index
        while self._runs and self._runs[-1][0] >= index:
            self._runs.pop()
        keep = max(index - self._tail_first, 0)
        self.tail_bytes -= self._bounds[-1] - self._bounds[keep]
        del self._tail[keep:]
        del self._bounds[keep + 1 :]
        self._tail_first = min(self._tail_first, index)
        self.last_index = index - 1

    def tail(self, first_index: int) -> list[Entry]:
        """Everything from `first_index` on. Its payloads must be at hand."""
        assert first_index >= self._tail_first
        return self._tail[first_index - self._tail_first :]

    def at_hand(self) -> list[Entry]:
        """Every entry whose payload is at hand. A copy: another thread may look through it."""
        return self._tail[:]

    def slice(self, first_index: int, bytes_max: int) -> list[Entry]:
        """Entries from `first_index` on, up to `bytes_max` of payload but at least one if there is one."""
        assert first_index >= self._tail_first
        start = first_index - self._tail_first
        end = bisect_right(self._bounds, self._bounds[start] + bytes_max, lo=start + 1) - 1
        return self._tail[start : max(end, start + 1)]

    def payload_bytes(self, first_index: int, last_index: int) -> int:
        """Payload bytes at hand from `first_index` to `last_index`, both included."""
        start = min(max(first_index - self._tail_first, 0), len(self._tail))
        end = min(max(last_index + 1 - self._tail_first, start), len(self._tail))
        return self._bounds[end] - self._bounds[start]

    def release(self, index: int) -> None:
        """Let go of the payloads up to and including `index`."""
        count = min(index + 1 - self._tail_first, len(self._tail))
        if count > 0:
            self.tail_bytes -= self._bounds[count] - self._bounds[0]
            del self._tail[:count]
            del self._bounds[:count]
            self._tail_first += count

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, keeping that entry's term."""
        assert self.start_index <= index <= self.last_index
        term, next_term = self.term(index), self.term(index + 1)
        assert term is not None
        self.release(index)
        self._runs = [run for run in self._runs if run[0] > index]
        if next_term is not None and (not self._runs or self._runs[0][0] > index + 1):
            self._runs.insert(0, (index + 1, next_term))  # the run that spans the cut goes on after it
        self.start_index, self.start_term = index, term

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot."""
        self.start_index, self.start_term = snapshot.index, snapshot.term
        self.last_index = snapshot.index
        self._runs.clear()
        self._tail.clear()
        self._tail_first = snapshot.index + 1
        self._bounds = [0]
        self.tail_bytes = 0

    def last_index_of_term_at_most(self, term: int, index: int) -> int:
        """The last place at or before `index` whose term is at most `term` (the start, if none is)."""
        index = min(index, self.last_index)
        position = bisect_right(self._runs, index, key=_first) - 1
        while position >= 0:
            first, run_term = self._runs[position]
            if run_term <= term:
                return index
            index = first - 1
            position -= 1
        return max(index, self.start_index)


def _first(run: tuple[int, int]) -> int:
    return run[0]
