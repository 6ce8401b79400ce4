"""What must be on a broker's disk: a model beside the real store, moved only by syncs that succeeded."""

from talweg.raft import HardState, Raft, singly
from talweg.storage import Write


class DurableLog:
    """The terms of the durable entries `start_index + 1 .. last_index`, and the durable hard state."""

    def __init__(self) -> None:
        self.start_index = 0
        self.start_term = 0
        self.terms: list[int] = []
        self.hard_state = HardState()

    @classmethod
    def of(cls, raft: Raft) -> "DurableLog":
        """What a replica that has just been opened found."""
        found = cls()
        found.start_index, found.start_term = raft.log.start_index, raft.log.start_term
        for index in range(raft.log.start_index + 1, raft.log.last_index + 1):
            term = raft.log.term(index)
            assert term is not None
            found.terms.append(term)
        found.hard_state = raft.hard_state
        return found

    @property
    def last_index(self) -> int:
        """Of the last durable entry."""
        return self.start_index + len(self.terms)

    def term(self, index: int) -> int | None:
        """The term of a durable entry; None where there is none."""
        if index == self.start_index:
            return self.start_term
        place = index - self.start_index - 1
        return self.terms[place] if 0 <= place < len(self.terms) else None

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry is durable here, or stood for by a snapshot."""
        return index <= self.start_index or self.term(index) == term

    def apply(self, write: Write) -> tuple[int, int] | None:
        """A write has become durable. Index and term of the first entry that it cut, if it cut any."""
        cut = None
        if write.snapshot is not None:
            self.start_index, self.start_term = write.snapshot.index, write.snapshot.term
            self.terms.clear()
        if write.truncate_from is not None and write.truncate_from <= self.last_index:
            term = self.term(write.truncate_from)
            assert term is not None
            cut = write.truncate_from, term
            del self.terms[write.truncate_from - self.start_index - 1 :]
        if write.entries:
            assert write.entries[0].index == self.last_index + 1, "a gap on the disk"
            self.terms.extend([entry.term for entry in singly(write.entries)])
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        return cut

    def drop_head(self, index: int) -> None:
        """Retention has cut the log."""
        if index > self.start_index:
            term = self.term(index)
            assert term is not None, "the head was dropped beyond the log's end"
            del self.terms[: index - self.start_index]
            self.start_index, self.start_term = index, term
