"""Many messages at once, in portions that the buffer takes one after the other: how far that has come.

When it ends halfway, whoever sent them is told how many were accepted, and is given the others.
"""

from collections import deque
from copy import copy
from typing import Any, TypeVar

import pyarrow as pa

from talweg.client.columns import by_partition, cut
from talweg.client.delivery import Fate
from talweg.client.draft import check_partition
from talweg.errors import TalwegError

E = TypeVar("E", bound=TalwegError)

Portion = tuple[int | None, Any, int]  # the partition, or None for any; a record batch; its bytes
Run = tuple[Fate, int, int]  # a batch, the first message in it, and how many


class Portions:
    """Of one `send_arrow`: record batches, each apart by partition when it is its turn."""

    def __init__(self, batches: list[Any], partition: int | None, batch_bytes: int) -> None:
        check_partition(partition)
        self._batches = deque(batches)  # that were not begun
        self._portions: deque[Portion] = deque()  # of the one that was
        self._partition = partition
        self._batch_bytes = batch_bytes
        self.runs: list[Run] = []  # what was accepted

    @property
    def left(self) -> bool:
        """Whether there is more."""
        return bool(self._portions or self._batches)

    @property
    def keyed(self) -> bool:
        """Whether the next one goes where keys say: then `next` must know how many partitions there are."""
        return not self._portions and self._partition is None and "key" in self._batches[0].schema.names

    def next(self, partitions: int = 0) -> Portion:
        """What is to be accepted next."""
        if not self._portions:
            placed = [(self._partition, self._batches[0])]
            if self.keyed:
                placed = by_partition(self._batches[0], partitions)
            self._portions.extend(
                (place, piece, piece_bytes)
                for place, rows in placed
                for piece, piece_bytes in cut(rows, self._batch_bytes)
            )
            self._batches.popleft()
        return self._portions[0]

    def accepted(self, fate: Fate) -> None:
        """It was."""
        self.runs.append((fate, 0, self._portions.popleft()[1].num_rows))

    def halfway(self, error: E) -> E:
        """The error that ended it, and how far it had come."""
        rest = [piece for _, piece, _ in self._portions] + list(self._batches)
        return halfway(error, sum(count for _, _, count in self.runs), rest)


def halfway(error: E, accepted: int, rest: list[Any]) -> E:
    """The same error, which also says how many messages were accepted, and holds those that were not."""
    # A copy: it may be one that is raised for everybody, such as that the producer is closed.
    told = copy(error)
    # Rows whose keys are all null may be without that column.
    told.rest = pa.concat_tables(map(_table, rest), promote_options="default") if rest else None
    told.accepted = accepted
    total = accepted + sum(batch.num_rows for batch in rest)
    told.args = (f"{error}; {accepted} of {total} messages were accepted, the others are in its `rest`",)
    return told


def _table(batch: Any) -> Any:
    return pa.Table.from_batches([batch])
