"""What a replica opens with: its hard state and its newest snapshot, as far as the disk has kept them."""

import msgspec

from talweg.raft import HardState, Snapshot
from talweg.storage import LogStore, Write


def sound_hard_state(store: LogStore, *, join: bool) -> HardState:
    """Term and vote, durable; of a log that is damaged, or joins without having been there, as recovering."""
    # Durable before the damaged part is cut: a crash in between must not leave a shorter log that
    # looks whole.
    summary = store.summary()
    hard_state = summary.hard_state or HardState(recovering=join)
    if summary.damage is not None:
        hard_state = msgspec.structs.replace(hard_state, recovering=True)
    # Also when it says nothing new: of one that cannot be read, the summary gives what it should be.
    if hard_state != summary.hard_state or summary.damage is not None:
        store.write(Write(hard_state=hard_state))
        store.sync()
    if summary.damage is not None:
        store.cut_damage()
    return hard_state


def newest_snapshot(store: LogStore, last_index: int) -> Snapshot | None:
    """The newest that is sound, of what the log still has."""
    for mark in reversed(store.snapshots()):
        if mark.index <= last_index:  # one beyond it belongs to a part that damage took away
            snapshot = store.snapshot(mark.index)
            if snapshot is not None:  # else it is not sound: an older one and the log say the same
                return snapshot
    return None
