"""Reads that must not be stale: a leader answers only after a majority confirmed that it still leads.

Raft thesis, section 6.4. Requests gather into rounds; a round is a number that heartbeats carry and
replies repeat.
"""

from collections import deque

from talweg.raft.messages import ReadReady


class Reads:
    """The requests of one leader's term."""

    def __init__(self) -> None:
        self.round = 0  # the newest one that heartbeats carry
        self.confirmed_round = 0  # the newest one that a majority has answered
        self.waiting: list[int] = []  # requests that belong to no round yet
        self._rounds: deque[tuple[int, int, list[int]]] = deque()  # (round, commit index then, requests)

    def ask(self, request: int) -> None:
        """Remember a request until the next round begins."""
        self.waiting.append(request)

    def begin_round(self, commit_index: int) -> None:
        """Everything that waits is to be answered as of `commit_index`, once confirmed."""
        self.round += 1
        self._rounds.append((self.round, commit_index, self.waiting))
        self.waiting = []

    def begin_bare_round(self) -> int:
        """A round for which no request waits: whether a majority answers it is of interest in itself."""
        self.round += 1
        return self.round

    def confirmed(self, round_number: int) -> list[ReadReady]:
        """A majority has answered `round_number`: it and all before it are settled."""
        self.confirmed_round = max(self.confirmed_round, round_number)
        settled: list[ReadReady] = []
        while self._rounds and self._rounds[0][0] <= round_number:
            _, index, requests = self._rounds.popleft()
            settled.extend(ReadReady(request, index) for request in requests)
        return settled

    def fail_all(self) -> list[int]:
        """Leadership is lost: every open request."""
        failed = [request for _, _, requests in self._rounds for request in requests] + self.waiting
        self._rounds.clear()
        self.waiting = []
        return failed
