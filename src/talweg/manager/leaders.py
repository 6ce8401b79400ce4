"""Who leads which group, as far as this manager knows. Reports count by their term; hints have none.

A report is a leader's own word in its heartbeat. A hint is what a broker that does not lead says of who
does. Neither is proof: whoever is asked and does not lead says so, and that is put right here.
"""

from collections import Counter
from collections.abc import Callable, Container


class Leaders:
    """Lives in one event loop. `by_group` is read directly by those in a hurry."""

    def __init__(self) -> None:
        self.by_group: dict[int, int] = {}  # whom to ask first
        self._terms: dict[int, int] = {}  # the highest that was reported
        self._hinted: set[int] = set()  # groups whose entry nobody has reported
        self._listeners: list[Callable[[int, int], None]] = []

    def listen(self, listener: Callable[[int, int], None]) -> None:
        """Have something called with a group, and the broker that no longer leads it."""
        self._listeners.append(listener)

    def report(self, group: int, leader: int, term: int) -> None:
        """A broker leads in that term. Of an older one than is known it says nothing."""
        if term < self._terms.get(group, 0):
            return
        before = self.by_group.get(group)
        self.by_group[group] = leader
        self._terms[group] = term
        self._hinted.discard(group)
        if before is not None and before != leader:
            self._moved(group, before)

    def correct(self, group: int, asked: int, leader: int | None) -> None:
        """`asked` does not lead, and says who does, if it knows."""
        if self.by_group.get(group, asked) != asked:
            return  # somebody has put it right already
        if leader is None or leader == asked:
            self.by_group.pop(group, None)
            self._hinted.discard(group)
        else:
            self.by_group[group] = leader
            self._hinted.add(group)
            self._moved(group, asked)

    def found(self, group: int, leader: int) -> None:
        """A broker was asked on a guess, and leads."""
        if self.by_group.get(group) != leader:
            self.by_group[group] = leader
            self._hinted.add(group)

    def term(self, group: int) -> int:
        """In which the known leader leads; 0 if that is a guess."""
        if group in self._hinted or group not in self.by_group:
            return 0
        return self._terms.get(group, 0)

    def counts(self) -> Counter[int]:
        """How many groups each broker leads."""
        return Counter(self.by_group.values())

    def keep(self, groups: Container[int]) -> None:
        """Forget all groups but these."""
        for group in [group for group in self._terms.keys() | self.by_group.keys() if group not in groups]:
            self.by_group.pop(group, None)
            self._terms.pop(group, None)
            self._hinted.discard(group)

    def _moved(self, group: int, before: int) -> None:
        for listener in self._listeners:
            listener(group, before)
