"""The sparse indexes of sealed segments: read when first needed, and only so many kept."""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from talweg.storage.files import Files
from talweg.storage.recovery import load_points
from talweg.storage.segment import Segment
from talweg.storage.sparse_index import SparseIndex


class IndexCache:
    """Shared by all stores of a broker: at most `indexes_max` are in memory."""

    def __init__(self, files: Files, indexes_max: int) -> None:
        self._files = files
        self._indexes_max = indexes_max
        self._lock = Lock()
        self._indexes: OrderedDict[Segment, SparseIndex] = OrderedDict()  # least recently used first

    def points_of(self, segment: Segment) -> SparseIndex:
        """The index of a sealed segment. Raises OSError, FileGone."""
        with self._lock:
            points = self._indexes.get(segment)
            if points is not None:
                self._indexes.move_to_end(segment)
                return points
        # Not under the lock: others need not wait for our disk.
        points = load_points(self._files, segment)
        with self._lock:
            self._indexes[segment] = points
            self._indexes.move_to_end(segment)
            while len(self._indexes) > self._indexes_max:
                self._indexes.popitem(last=False)
        return points

    def forget(self, segments: Iterable[Segment]) -> None:
        """Let go of segments that are no more."""
        with self._lock:
            for segment in segments:
                self._indexes.pop(segment, None)
