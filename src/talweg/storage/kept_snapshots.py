"""Which snapshots of a log there are, and which of them are worth keeping.

Opening a log reads only the one at its start, without which the log means nothing. Of the others a name in
the directory is enough, since the log itself says where they stand. Whether they are sound turns out when
somebody reads them; the log from the start on says the same.
"""

import msgspec

from talweg.errors import DamagedLog
from talweg.storage.contract import Damage
from talweg.storage.files import Files
from talweg.storage.reading import LogReader
from talweg.storage.scan import UnsoundEntry
from talweg.storage.snapshot_file import read_snapshot, snapshot_name
from talweg.storage.view import View

SNAPSHOTS_MAX = 64  # kept of one log; a new one takes the place of one that is missed least
_NEWEST = 8  # of these none is given up


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that is on disk."""

    index: int
    term: int
    next_offset: int
    last_timestamp: int
    at: int  # bytes before the log's next entry, on the scale of Segment.begins_at


def find_kept(
    files: Files, reader: LogReader, directory: str, view: View, indexes: list[int]
) -> tuple[list[Kept], Damage | None]:
    """Those at these indexes that are part of the log; and what their names, or the first of them, say of
    its damage. Raises OSError, NewerFormat."""
    kept: list[Kept] = []
    damage = None
    for index in indexes:
        if index > view.last_index:
            # It was durable only after the entries that it stands for were.
            detail = f"the log ends at entry {view.last_index}, but there is a snapshot of entry {index}"
            damage = damage or Damage(view.last_index + 1, detail)
            continue
        try:
            if index == view.start_index:
                read_snapshot(files, directory, index)
            survey = reader.survey(view, index)
        except (DamagedLog, UnsoundEntry):
            continue
        at = view.at(survey.place)
        kept.append(Kept(index, view.term(index), survey.next_offset, survey.last_timestamp, at))
    if view.start_index > 0 and (not kept or kept[0].index != view.start_index):
        name = snapshot_name(view.start_index)
        return kept, Damage(view.start_index, f"{directory}/{name}, where the log starts, cannot be read")
    return kept, damage


def superfluous(kept: list[Kept]) -> Kept | None:
    """The one to give up, when there are too many: whose neighbours lie closest together for their age.

    Retention cuts at what is left. The older the log is there, the further apart they may lie: then it
    keeps a little more than it was asked to, in proportion to how much that is.
    """
    if len(kept) <= SNAPSHOTS_MAX:
        return None
    end_at = kept[-1].at
    between = range(1, len(kept) - _NEWEST)  # nor the oldest: it may be the log's start

    def gap(number: int) -> float:
        before, after = kept[number - 1], kept[number + 1]
        return (after.at - before.at) / max(end_at - before.at, 1)

    return kept[min(between, key=gap)]
