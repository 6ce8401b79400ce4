"""What a log is made of: entries, each for itself or many small ones in one piece. All of them are frozen."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

NOOP = 0  # opens a leader's term; its payload is empty
CONFIGURATION = 1  # its payload is Configuration.to_bytes(); it counts from the moment it is in the log
# Other kinds belong to the application. The core never looks into their payloads.


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One place in the log. Equal index and term mean equal entries (and equal everything before)."""

    index: int  # from 1
    term: int
    kind: int
    payload: bytes

    @property
    def last_index(self) -> int:
        """As of a run: its own."""
        return self.index


class Run(msgspec.Struct, frozen=True, gc=False):
    """Entries of one term that follow one another, moved as one. None of them is the core's own.

    What is done once for a run is not done for each of a thousand small entries.
    """

    index: int  # of the first
    term: int
    kinds: bytes  # one for each entry, and one at least
    payload: bytes  # of all of them, one after another
    ends: list[int]  # where each one's payload ends in there; the last is its length
    notes: list[Any]  # what the application knows of each; the core only keeps it beside them

    @property
    def last_index(self) -> int:
        """Of the last entry."""
        return self.index + len(self.kinds) - 1

    def part(self, first_index: int, last_index: int) -> "Run":
        """Those from `first_index` to `last_index`, both included and both in it."""
        assert self.index <= first_index <= last_index <= self.last_index
        if first_index == self.index and last_index == self.last_index:
            return self
        first, end = first_index - self.index, last_index + 1 - self.index
        begins_at = self.ends[first - 1] if first else 0
        ends = [each - begins_at for each in self.ends[first:end]]
        payload = self.payload[begins_at : begins_at + ends[-1]]
        return Run(first_index, self.term, self.kinds[first:end], payload, ends, self.notes[first:end])

    def entries(self) -> list[Entry]:
        """Each for itself."""
        begins = [0, *self.ends]
        return [
            Entry(index, self.term, kind, self.payload[begin:end])
            for index, (kind, begin, end) in enumerate(
                zip(self.kinds, begins, self.ends, strict=False), self.index
            )
        ]


Entries: TypeAlias = Sequence[Entry | Run]
"""Entries that follow one another, each for itself or in runs."""


def singly(entries: Entries) -> list[Entry]:
    """All of them, each for itself."""
    made: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Run):
            made += entry.entries()
        else:
            made.append(entry)
    return made


def beginning_at(entries: Entries, index: int) -> list[Entry | Run]:
    """Those from `index` on."""
    kept = [entry for entry in entries if entry.last_index >= index]
    if kept and isinstance(kept[0], Run):
        kept[0] = kept[0].part(max(index, kept[0].index), kept[0].last_index)
    return kept


def ending_at(entries: Entries, index: int) -> list[Entry | Run]:
    """Those up to and including `index`."""
    kept = [entry for entry in entries if entry.index <= index]
    if kept and isinstance(kept[-1], Run):
        kept[-1] = kept[-1].part(kept[-1].index, min(index, kept[-1].last_index))
    return kept
