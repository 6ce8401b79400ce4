"""Open files, of which there are never too many.

A broker has thousands of segment files and only some hundred descriptors. A `Handle` opens its file
when it is used and keeps it open while others are more in the way; the one least recently used is
closed first.
"""

from collections import OrderedDict
from threading import Lock
from types import TracebackType

from talweg.storage.files import File, Files


class FileGone(Exception):
    """The file was removed or replaced while somebody still wanted to read it."""


class Handle:
    """One file by name. `with handle as file:` keeps it open meanwhile; it may be nested."""

    def __init__(self, handles: "Handles", path: str, *, create: bool) -> None:
        self.path = path
        self._handles = handles
        # Changed by Handles alone, under its lock:
        self.file: File | None = None
        self.create = create  # when it is opened next
        self.pins = 0  # users at this moment; a pinned file is never closed
        self.gone = False

    def __enter__(self) -> File:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> File:
        """Open if need be, and keep open until released. Raises FileGone, OSError."""
        return self._handles.acquire(self)

    def release(self) -> None:
        """The counterpart of `acquire`."""
        self._handles.release(self)

    def discard(self) -> None:
        """The name is removed or given to another file: nobody may open it by this handle again."""
        self._handles.discard(self)


class Handles:
    """At most `open_max` files are open, those in use apart."""

    def __init__(self, files: Files, open_max: int) -> None:
        self.files = files
        self.open_max = open_max
        self._lock = Lock()
        self._open: OrderedDict[Handle, None] = OrderedDict()  # least recently used first

    @property
    def open_count(self) -> int:
        """How many files are open now."""
        return len(self._open)

    def handle(self, path: str, *, create: bool = False) -> Handle:
        """A handle on a file; with `create` it is made on first use. Nobody else makes files: a reader
        who comes late must not bring back what was removed."""
        return Handle(self, path, create=create)

    def acquire(self, handle: Handle) -> File:
        """Open if need be, and keep open until released."""
        with self._lock:
            if handle.gone:
                raise FileGone(handle.path)
            if handle.file is None:
                handle.file = self.files.open(handle.path, create=handle.create)
                handle.create = False
                self._open[handle] = None
            else:
                self._open.move_to_end(handle)
            handle.pins += 1
            if len(self._open) > self.open_max:
                self._close_oldest()
            return handle.file

    def release(self, handle: Handle) -> None:
        """One user fewer."""
        with self._lock:
            handle.pins -= 1
            assert handle.pins >= 0
            if handle.pins == 0 and (handle.gone or len(self._open) > self.open_max):
                self._close(handle)

    def discard(self, handle: Handle) -> None:
        """Close as soon as nobody uses it, and never open it again."""
        with self._lock:
            handle.gone = True
            if handle.pins == 0:
                self._close(handle)

    def discard_below(self, directory: str) -> None:
        """The same for every file in a directory, whoever has a handle on it."""
        with self._lock:
            for handle in [handle for handle in self._open if handle.path.startswith(f"{directory}/")]:
                handle.gone = True
                if handle.pins == 0:
                    self._close(handle)

    def _close_oldest(self) -> None:
        for handle in self._open:
            if handle.pins == 0:
                self._close(handle)
                return

    def _close(self, handle: Handle) -> None:
        if handle.file is not None:
            handle.file.close()
            handle.file = None
            del self._open[handle]
