"""A broker's data directory: who it is, and what it carries. (Logs have a store of their own.)

A broker is known by its directory: a wiped one is another broker. What it was last told to carry is kept
as well, so that after a restart it serves at once, even while no manager can be reached.
"""

import fcntl
import os
import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

from talweg.errors import InvalidSetting, NewerFormat, StorageError
from talweg.protocol.control import PartitionAssignment, Peer

T = TypeVar("T", bound=msgspec.Struct)

FORMAT = 1
IDENTITY_NAME = "identity"
CARRIED_NAME = "carried"


class Identity(msgspec.Struct, frozen=True):
    """Made once, when the directory is made."""

    format: int
    incarnation: str  # random; no other directory has it


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker was last told by a primary, and carried out."""

    broker_id: int | None = None  # None until it is registered
    peer_port: int = 0  # where it listened for its peers, who may know no better when it comes back
    epoch: int = 0  # of the primary that said so: what one of a lower epoch says is not heeded
    version: int = 0
    peers: tuple[Peer, ...] = ()
    assignments: tuple[PartitionAssignment, ...] = ()


class DataDirectory:
    """One process at a time works on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self.identity = self._identify()
            self.carried = self._read(CARRIED_NAME, Carried) or Carried()
        except OSError as error:
            raise InvalidSetting(f"--data: {path} cannot be used: {error.strerror or error}") from error

    def save(self, carried: Carried) -> None:
        """Remember, durably."""
        if carried != self.carried:
            self._write(CARRIED_NAME, carried)
            self.carried = carried

    def close(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InvalidSetting(f"--data: {self.path} is in use by another broker") from None

    def _identify(self) -> Identity:
        identity = self._read(IDENTITY_NAME, Identity)
        if identity is None:
            identity = Identity(FORMAT, uuid.uuid4().hex)
            self._write(IDENTITY_NAME, identity)  # durable before it is told to anybody
        if identity.format > FORMAT:
            raise NewerFormat(
                f"{self.path} was written by a newer Talweg (format {identity.format}, this one knows "
                f"{FORMAT}): start that version, or use another directory"
            )
        return identity

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"{path} cannot be read ({error}): is this a broker's directory?") from error

    def _write(self, name: str, value: msgspec.Struct) -> None:
        draft = self.path / f"{name}.new"
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / name)
        assert self._lock is not None
        os.fsync(self._lock)  # the directory itself
