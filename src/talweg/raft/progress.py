"""Follower progress, as the leader sees it. All transitions live here."""

from collections import deque
from enum import Enum


class Feeding(Enum):
    """How a follower is fed."""

    PROBE = "probe"  # where its log agrees is not known: one message, then wait
    REPLICATE = "replicate"  # known: send ahead, within the in-flight limits
    INSTALL = "install"  # a snapshot is under way: send nothing else


class Progress:
    """One follower. Invariant: 0 <= match_index < next_index."""

    def __init__(self, next_index: int, clock: int) -> None:
        self.match_index = 0  # durable there, as far as its replies told
        self.match_life = 0  # the life in which it told so
        self.counted_index = 0  # the same, by replies of a replica that was not recovering: see `recovery`
        self.next_index = next_index  # the next to send
        self.feeding = Feeding.PROBE
        self.heard_at = clock  # tick of its last reply that counts; a new leader gives everyone one timeout
        self.recovering_life = 0  # the life in which it said last that it lost some of its log
        self.recovery_index = 0  # then: all it ever acknowledged to us is at or below this; 0: it never did
        self.recovery_round = 0  # then: once this round is confirmed, it may be told
        self.read_round = 0  # newest round of read confirmation it has answered
        self.probe_sent = False  # in PROBE: wait for an answer (or a heartbeat's) before the next
        self.fetching = False  # the entries or the snapshot it needs are being read from disk
        self.snapshot_index = 0  # in INSTALL: the index it will have
        self.sent_at = clock  # in INSTALL: when it left
        self._match_at_heartbeat = -1  # what match_index was at the last heartbeat reply
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of messages on their way
        self._inflight_bytes = 0  # == the sum over _inflight

    def paused(self, messages_max: int, bytes_max: int) -> bool:
        """Whether entries must wait."""
        if self.fetching or self.feeding is Feeding.INSTALL:
            return True
        if self.feeding is Feeding.PROBE:
            return self.probe_sent
        return len(self._inflight) >= messages_max or self._inflight_bytes >= bytes_max

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Entries up to `last_index` have been sent."""
        if self.feeding is Feeding.REPLICATE:
            self.next_index = last_index + 1
            self._inflight.append((last_index, size_bytes))
            self._inflight_bytes += size_bytes
        else:
            self.probe_sent = True

    def acknowledged(self, index: int, *, recovering: bool = False, life: int = 0) -> bool:
        """It holds everything up to `index`. Whether that is news that counts."""
        news = index > self.counted_index and not recovering
        if news:
            self.counted_index = index
        if index >= self.match_index:
            self.match_index, self.match_life = index, life
        self.next_index = max(self.next_index, index + 1)
        while self._inflight and self._inflight[0][0] <= index:
            self._inflight_bytes -= self._inflight.popleft()[1]
        installed = self.feeding is Feeding.INSTALL and index >= self.snapshot_index
        if self.feeding is Feeding.PROBE or installed:
            self._feed(Feeding.REPLICATE)
            self.next_index = self.match_index + 1
        return news

    def rejected(self, prev_index: int, retry_index: int) -> bool:
        """It could not append after `prev_index`; its log may agree up to `retry_index`.
        False for a reply that is too old to mean anything."""
        if self.feeding is Feeding.INSTALL or prev_index <= self.match_index:
            return False
        if self.feeding is Feeding.REPLICATE:
            self._feed(Feeding.PROBE)
            # What is in flight after the gap will be rejected too; begin where it is known to agree,
            # or later if its own hint says so.
            self.next_index = max(self.match_index, min(retry_index, prev_index - 1)) + 1
            return True
        if prev_index != self.next_index - 1:
            return False
        self.next_index = max(min(prev_index, retry_index + 1), self.match_index + 1)
        self.probe_sent = False
        return True

    def has_lost(self, prev_index: int, life: int) -> bool:
        """It could not append after `prev_index`: whether it had acknowledged that, in an earlier life."""
        return prev_index <= self.match_index and life != self.match_life

    def lost_its_log(self, retry_index: int, *, recovering: bool = True) -> None:
        """What it acknowledged before is there no longer. It is recovering, or does not know of its loss
        (a disk that lied, a backup that was restored)."""
        assert retry_index >= 0, "no log ends before its start"
        if not recovering:
            # It votes all the same: nothing more may be committed by counting on what it has not.
            self.counted_index = min(self.counted_index, retry_index)
        self.match_index = min(self.match_index, retry_index)
        self.next_index = retry_index + 1
        self._feed(Feeding.PROBE)

    def installing(self, snapshot_index: int, clock: int) -> None:
        """A snapshot is on its way."""
        self._feed(Feeding.INSTALL)
        self.snapshot_index = snapshot_index
        self.sent_at = clock

    def probe_again(self) -> None:
        """Forget what is in flight and ask anew where its log agrees."""
        self._feed(Feeding.PROBE)
        self.next_index = self.match_index + 1

    def stalled(self) -> bool:
        """Asked at each heartbeat reply: whether nothing was acknowledged since the last one."""
        stalled = self.match_index == self._match_at_heartbeat
        self._match_at_heartbeat = self.match_index
        return stalled

    def _feed(self, feeding: Feeding) -> None:
        self.feeding = feeding
        self.probe_sent = False
        self._inflight.clear()
        self._inflight_bytes = 0

    def __repr__(self) -> str:
        paused = " waiting" if self.probe_sent or self.fetching else ""
        inflight = f" inflight={len(self._inflight)}" if self._inflight else ""
        return f"{self.feeding.value} match={self.match_index} next={self.next_index}{inflight}{paused}"
