"""Snapshots as files: one for each, named by its index, written whole and checked when read."""

import msgspec

from talweg.errors import DamagedLog
from talweg.raft import Configuration, Snapshot
from talweg.storage.checked_file import is_unreadable, read_file, seal, unseal
from talweg.storage.files import Files

SNAPSHOT_SUFFIX = ".snapshot"

_MAGIC = b"TwSn"


class KeptSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot and what the log was like there. On disk as MessagePack."""

    index: int
    term: int
    next_offset: int  # the first offset after it
    last_timestamp: int  # newest message at or before it
    configuration: Configuration
    state: bytes

    @property
    def snapshot(self) -> Snapshot:
        """As the consensus core knows it."""
        return Snapshot(self.index, self.term, self.configuration, self.state)


def snapshot_name(index: int) -> str:
    """The name of the file of the snapshot at `index`."""
    return f"{index:020}{SNAPSHOT_SUFFIX}"


def keep(snapshot: Snapshot, next_offset: int, last_timestamp: int) -> bytes:
    """The file's bytes."""
    kept = KeptSnapshot(
        snapshot.index, snapshot.term, next_offset, last_timestamp, snapshot.configuration, snapshot.state
    )
    return seal(_MAGIC, msgspec.msgpack.encode(kept))


def read_snapshot(files: Files, directory: str, index: int) -> KeptSnapshot:
    """The snapshot at `index`. Raises DamagedLog, also when it is missing; NewerFormat, OSError."""
    path = f"{directory}/{snapshot_name(index)}"
    try:
        kept = msgspec.msgpack.decode(unseal(_MAGIC, read_file(files, path), path), type=KeptSnapshot)
    except msgspec.MsgspecError as error:
        raise DamagedLog(f"{path} is not what was written: {error}") from error
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise DamagedLog(f"the disk cannot read {path}: {error.strerror}") from error
    if kept.index != index:
        raise DamagedLog(f"{path} holds the snapshot of entry {kept.index}")
    return kept
