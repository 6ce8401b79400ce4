"""One driver's work for the disk, done outside the event loop, and what gathers for the next."""

from collections import deque

import msgspec

from talweg.raft import AppendReply, Message, Snapshot
from talweg.storage import LogStore, Write

_SMALL_BYTES_MAX = 64 << 10
# A disk that hangs may do so for days, and others go on asking. What they were to be told long ago is left
# out, as if the network had lost it.
_MESSAGES_MAX = 64


class Gathered:
    """For the next job: writes in order, and messages that may leave once all of them are durable."""

    def __init__(self) -> None:
        self.number = 0  # of the last Ready in it
        self.writes: deque[Write] = deque()
        self.messages: list[Message] = []

    def __bool__(self) -> bool:
        return bool(self.writes or self.messages)

    def add(self, number: int, write: Write | None, messages: list[Message]) -> None:
        """A Ready: perhaps something to write, and what is promised with it or with what went before."""
        self.number = number
        if write is not None:
            self.writes.append(write)
        for message in messages:
            if self.messages and (both := _in_one(self.messages[-1], message)) is not None:
                self.messages[-1] = both
            else:
                self.messages.append(message)
        del self.messages[:-_MESSAGES_MAX]


def _in_one(earlier: Message, later: Message) -> Message | None:
    # Of acknowledgements that leave together, the one that goes furthest says it all. (The last one may be
    # the answer to something that came again.)
    if (
        not isinstance(earlier, AppendReply)
        or not isinstance(later, AppendReply)
        or earlier.rejected
        or later.rejected
        or (earlier.target, earlier.term, earlier.recovering) != (later.target, later.term, later.recovering)
    ):
        return None
    return later if later.index >= earlier.index else earlier


class Job(msgspec.Struct):
    """Work for the disk. Runs outside the event loop; may be run again after a failure."""

    store: LogStore
    number: int  # of the last Ready in it
    writes: deque[Write]
    messages_after: list[Message]
    snapshot: Snapshot | None = None
    drop_head: int | None = None
    is_follower: bool = False
    start_index: int = 0  # once the head was dropped: the entry before the first one kept
    start_offset: int = 0  # and the first message kept

    @property
    def is_small(self) -> bool:
        """Whether it only adds a little to the log: then it is best done together with others."""
        if self.snapshot is not None or self.drop_head is not None:
            return False
        entries_bytes = 0
        for write in self.writes:
            if write.snapshot is not None or write.truncate_from is not None:
                return False
            for entry in write.entries:
                entries_bytes += len(entry.payload)
                if entries_bytes > _SMALL_BYTES_MAX:
                    return False
        return True

    def write(self) -> None:
        """Everything but the sync. What succeeded is not done again."""
        if self.drop_head is not None:
            # First: where the disk is full, this is what makes room for the rest. What is dropped was durable
            # before its snapshot was, so it need not wait for a sync.
            self.store.drop_head(self.drop_head)
            summary = self.store.summary()  # here, as it may take long, and may fail
            self.start_index, self.start_offset = summary.start_index, summary.start_offset
        while self.writes:
            self.store.write(self.writes[0])
            self.writes.popleft()

    def finish(self) -> None:
        """Durable, then the housekeeping that must not overtake it."""
        self.store.sync()
        if self.is_follower:
            # Readers ask the leader. What lies in memory here would only be in the way of what they ask for.
            self.store.uncache()
        if self.snapshot is not None:
            self.store.save_snapshot(self.snapshot)
