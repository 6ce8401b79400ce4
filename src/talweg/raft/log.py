"""The log as the core sees it: where it starts, the term of every entry, and its recent entries.

Payloads that are durable, applied and delivered are let go; the core asks for them again by `Fetch`
when a slow follower needs them, so memory does not grow with the log. Terms are kept as one pair for
each: a log of a billion entries and three elections is three pairs.
"""

from bisect import bisect_right
from collections.abc import Iterable

from talweg.raft.entries import Entries, Entry, Run, beginning_at
from talweg.raft.messages import Snapshot


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
        self._terms = list(terms)  # (first index, term), both growing; covers start_index + 1 .. last_index
        self._tail: list[Entry | Run] = []
        self._firsts: list[int] = []  # the index of each, or of its first
        # Where each payload of the tail would begin if all that ever were at hand lay one after another, and
        # where the last one ends: what many entries weigh is one subtraction, not a sum.
        self._bounds = [0]  # one more than _tail has

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._terms[-1][1] if self._terms else self.start_term

    @property
    def tail_first(self) -> int:
        """The first index whose payload is at hand."""
        return self._firsts[0] if self._firsts else self.last_index + 1

    def term(self, index: int) -> int | None:
        """The term of the entry at `index`; None where the log does not reach."""
        if index > self.last_index or index < self.start_index:
            return None
        if index == self.start_index:
            return self.start_term
        terms = self._terms
        if terms[-1][0] <= index:
            return terms[-1][1]
        return terms[bisect_right(terms, index, key=_first) - 1][1]

    def append(self, entries: Entries) -> None:
        """Add entries after the last one."""
        term, last_index, bounds = self.last_term, self.last_index, self._bounds
        begin = end = bounds[-1]
        for entry in entries:
            assert entry.index == last_index + 1, "the log has no gaps"
            last_index = entry.last_index
            if entry.term != term:
                assert entry.term > term, "terms never go back within a log"
                term = entry.term
                self._terms.append((entry.index, term))
            elif not self._terms:
                self._terms.append((entry.index, term))
            end += len(entry.payload)
            bounds.append(end)
            self._firsts.append(entry.index)
        self._tail.extend(entries)
        self.tail_bytes += end - begin
        self.last_index = last_index

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and everything after it."""
        assert self.start_index < index <= self.last_index
        while self._terms and self._terms[-1][0] >= index:
            self._terms.pop()
        place = max(bisect_right(self._firsts, index) - 1, 0)
        cut = self._tail[place] if place < len(self._tail) else None
        self._drop_tail(place)
        if cut is not None and cut.index < index:
            assert isinstance(cut, Run)
            kept = cut.part(cut.index, index - 1)
            self._tail.append(kept)
            self._firsts.append(kept.index)
            self._bounds.append(self._bounds[-1] + len(kept.payload))
            self.tail_bytes += len(kept.payload)
        self.last_index = index - 1

    def _drop_tail(self, place: int) -> None:
        self.tail_bytes -= self._bounds[-1] - self._bounds[place]
        del self._tail[place:]
        del self._firsts[place:]
        del self._bounds[place + 1 :]

    def tail(self, first_index: int) -> list[Entry | Run]:
        """Everything from `first_index` on. Its payloads must be at hand."""
        assert first_index >= self.tail_first
        return self._from(first_index, len(self._tail))

    def _from(self, first_index: int, end: int) -> list[Entry | Run]:
        # Of the tail, up to the place `end`.
        found = self._tail[max(bisect_right(self._firsts, first_index) - 1, 0) : end]
        return beginning_at(found, first_index) if found and found[0].index < first_index else found

    def at_hand(self) -> list[Entry | Run]:
        """Every entry whose payload is at hand. A copy: another thread may look through it."""
        return self._tail[:]

    def slice(self, first_index: int, bytes_max: int) -> list[Entry | Run]:
        """Entries from `first_index` on, up to `bytes_max` of payload but at least one if there is one. It
        may end before that where a run would have to be cut."""
        assert first_index >= self.tail_first
        begins_at = self._at(first_index)
        end = bisect_right(self._bounds, begins_at + bytes_max) - 1
        found = self._from(first_index, end)
        if found or first_index > self.last_index:
            return found
        first = self._tail[end]  # it holds `first_index`
        if isinstance(first, Run):  # longer than all that is wanted
            count = bisect_right(first.ends, begins_at - self._bounds[end] + bytes_max)
            first = first.part(first_index, max(first.index + count - 1, first_index))
        return [first]

    def payload_bytes(self, first_index: int, last_index: int) -> int:
        """Payload bytes at hand from `first_index` to `last_index`, both included."""
        return max(self._at(last_index + 1) - self._at(first_index), 0)

    def _at(self, index: int) -> int:
        # Where the payload of an entry begins, in the sense of `_bounds`; or where the nearest one does.
        place = bisect_right(self._firsts, index) - 1
        if place < 0:
            return self._bounds[0]
        entry = self._tail[place]
        if index > entry.last_index:  # behind the last one
            return self._bounds[-1]
        if index == entry.index:
            return self._bounds[place]
        assert isinstance(entry, Run)
        return self._bounds[place] + entry.ends[index - entry.index - 1]

    def release(self, index: int) -> None:
        """Let go of the payloads up to and including `index`; of a run only when that is all of it."""
        count = bisect_right(self._firsts, index + 1) - 1 if index < self.last_index else len(self._tail)
        if count > 0:
            self.tail_bytes -= self._bounds[count] - self._bounds[0]
            del self._tail[:count]
            del self._firsts[:count]
            del self._bounds[:count]

    def drop_head(self, index: int) -> None:
        """Forget the log up to and including `index`, keeping that entry's term."""
        assert self.start_index <= index <= self.last_index
        term, next_term = self.term(index), self.term(index + 1)
        assert term is not None
        self.release(index)
        if self._tail and self.tail_first <= index:  # the cut is in the midst of a run
            self._bounds[0] = self._at(index + 1)
            self._tail[0] = beginning_at(self._tail[:1], index + 1)[0]
            self._firsts[0] = index + 1
            self.tail_bytes = self._bounds[-1] - self._bounds[0]
        self._terms = [each for each in self._terms if each[0] > index]
        if next_term is not None and (not self._terms or self._terms[0][0] > index + 1):
            self._terms.insert(0, (index + 1, next_term))  # the one that spans the cut goes on after it
        self.start_index, self.start_term = index, term

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot."""
        self.start_index, self.start_term = snapshot.index, snapshot.term
        self.last_index = snapshot.index
        self._terms.clear()
        self._tail.clear()
        self._firsts.clear()
        self._bounds = [0]
        self.tail_bytes = 0

    def last_index_of_term_at_most(self, term: int, index: int) -> int:
        """The last place at or before `index` whose term is at most `term` (the start, if none is)."""
        index = min(index, self.last_index)
        position = bisect_right(self._terms, index, key=_first) - 1
        while position >= 0:
            first, at_first = self._terms[position]
            if at_first <= term:
                return index
            index = first - 1
            position -= 1
        return max(index, self.start_index)


def _first(term: tuple[int, int]) -> int:
    return term[0]
