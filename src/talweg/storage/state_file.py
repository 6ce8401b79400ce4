"""The hard state on disk: what a replica must never forget, in two slots (see `slots`)."""

import msgspec

from talweg.errors import DamagedLog
from talweg.raft import HardState
from talweg.storage.files import File
from talweg.storage.handles import Handle
from talweg.storage.slots import Slot, read_newest, write_first, write_slot

STATE_NAME = "state"

_MAGIC = b"TwHs"


def write_new(file: File) -> None:
    """The file of a new group: it says, soundly, that there is no state yet."""
    write_first(file, _MAGIC, _encode(None))


class StateFile:
    """Written by one thread. `value` is the state last written; None if there never was one."""

    def __init__(self, handle: Handle) -> None:
        """Read what is there. Raises NewerFormat, OSError."""
        self.path = handle.path
        self._handle = handle
        self._file: File | None = None  # kept open while there is something to sync
        self._in_doubt = False  # the slot to be synced may not hold `value`
        with handle as file:
            # A process may have died between a write and its sync: what we believe must be durable.
            file.sync()
            slot, is_unsure = read_newest(file, _MAGIC, handle.path)
        self._durable = slot or Slot(0, 0, b"")
        self._is_unsure = is_unsure  # the disk cannot read the other slot, and that may be the newer one
        self.is_lost = slot is None or is_unsure  # something was written once, and cannot be read
        self.value = None if slot is None or is_unsure else _decode(slot.value, handle.path)

    @property
    def is_unsynced(self) -> bool:
        """Whether the next sync has anything to do."""
        return self._file is not None

    def write(self, state: HardState) -> None:
        """Write it, to be made durable by `sync`. Raises OSError; then `value` stays the one before, and
        is written again by the next sync."""
        self._put(state)
        self.value = state
        self.is_lost = False

    def sync(self) -> None:
        """Make `value` durable. Raises OSError."""
        if self._file is None:
            return
        if self._in_doubt:
            self._put(self.value)
        try:
            self._file.sync()
        except OSError:
            # The kernel may have dropped the bytes: write them again before believing the next sync.
            self._in_doubt = True
            raise
        self._durable = self._next_slot(self.value)
        self._release()

    def close(self) -> None:
        """Let go of the file, synced or not, for good."""
        self._release()
        self._handle.discard()

    def _release(self) -> None:
        if self._file is not None:
            self._file = None
            self._handle.release()

    def _put(self, value: HardState | None) -> None:
        if self._file is None:
            self._file = self._handle.acquire()
        self._in_doubt = True
        if self._is_unsure:
            self._outdo(self._file, value)
        write_slot(self._file, _MAGIC, self._next_slot(value))
        self._in_doubt = False

    def _outdo(self, file: File, value: HardState | None) -> None:
        # First over the slot that can be read, durably: as long as the other one cannot, the state is lost.
        # Were that one half written before, a crash would leave an old state that looks sound.
        newest = Slot(self._durable.place, self._durable.number + 2, _encode(value))
        write_slot(file, _MAGIC, newest)
        file.sync()
        self._durable, self._is_unsure = newest, False

    def _next_slot(self, value: HardState | None) -> Slot:
        # Always the same one until it is durable: the other is what a crash falls back on.
        return Slot(1 - self._durable.place, self._durable.number + 1, _encode(value))


def _encode(state: HardState | None) -> bytes:
    return msgspec.msgpack.encode(state)


def _decode(value: bytes, path: str) -> HardState | None:
    try:
        return msgspec.msgpack.decode(value, type=HardState | None)
    except msgspec.MsgspecError as error:
        raise DamagedLog(f"{path} is not what was written: {error}") from error
