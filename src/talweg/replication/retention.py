"""What retention has to leave: entries that are still needed, and messages that somebody has yet to read."""

import msgspec

from talweg.storage import SnapshotMark


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Retention waits for a consumer, while the log has no more than so many bytes."""

    next_offset: int  # the first one that it has not read
    keep_bytes: int


class Needed(msgspec.Struct, frozen=True):
    """As of some moment."""

    index: int  # of the first entry that is needed; all behind it stay as well
    holds: tuple[Hold, ...] = ()

    def lets_go(self, mark: SnapshotMark) -> bool:
        """Whether the log may be cut there."""
        return mark.index < self.index and all(
            mark.next_offset <= hold.next_offset or mark.bytes_after >= hold.keep_bytes for hold in self.holds
        )
