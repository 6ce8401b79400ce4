"""Which files make up a table, and how far it has come: one JSON document for each version.

A reader takes the newest version and sees exactly the files named there, whatever else lies in the
directory. A writer adds the next version under a name that must not exist yet, so of two writers one wins
and the other looks again. Nothing is ever changed in place, so a crash at any moment leaves the version
before, whole.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from talweg.errors import StorageError

DIRECTORY: Final = "_manifests"  # readers of Parquet pass over names that begin so
VERSIONS_KEPT: Final = 20  # a reader that has just listed them still finds the one it chose
_ATTEMPTS_MAX: Final = 100  # against other writers

Spans = tuple[tuple[int, int], ...]  # offsets, from each first one to below each second one; in order, apart
Coverage = dict[str, dict[int, Spans]]  # by topic and partition


class TableFile(msgspec.Struct, frozen=True):
    """One Parquet file."""

    path: str  # below the table's directory
    rows: int
    bytes: int


class RemovedFile(msgspec.Struct, frozen=True):
    """A file that newer versions do without; readers of older ones may still want it for a while."""

    path: str
    removed_at: float  # seconds since 1970


class Manifest(msgspec.Struct, frozen=True):
    """One version of a table."""

    version: int = 0  # 0: nothing was ever written
    files: tuple[TableFile, ...] = ()
    covered: Coverage = {}  # the messages that went into it
    batches: dict[str, int] = {}  # by query: the last batch that went into it
    latest_us: dict[str, int] = {}  # by topic: the latest time seen, which a watermark follows
    incarnations: dict[str, int] = {}  # by topic: which life of it these offsets belong to
    removed: tuple[RemovedFile, ...] = ()

    @property
    def rows(self) -> int:
        """In all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    def holds(self, files: Sequence[TableFile]) -> bool:
        """Whether any of them is in it, or was and has been merged into others since."""
        known = {file.path for file in self.files} | {file.path for file in self.removed}
        return any(file.path in known for file in files)

    def next_offsets(self) -> dict[str, dict[int, int]]:
        """By topic and partition: the first offset behind everything that is covered."""
        return {
            topic: {partition: spans[-1][1] for partition, spans in partitions.items() if spans}
            for topic, partitions in self.covered.items()
        }


def joined(one: Coverage, other: Coverage) -> Coverage:
    """What either covers."""
    result = {topic: dict(partitions) for topic, partitions in one.items()}
    for topic, partitions in other.items():
        known = result.setdefault(topic, {})
        for partition, spans in partitions.items():
            known[partition] = merged((*known.get(partition, ()), *spans))
    return result


def merged(spans: Spans) -> Spans:
    """The same offsets in as few spans as possible, in order."""
    result: list[tuple[int, int]] = []
    for first, following in sorted(spans):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], following))
        elif first < following:
            result.append((first, following))
    return tuple(result)


def read_manifest(table: Path) -> Manifest:
    """The newest version; an empty one if there is none yet."""
    for _ in range(_ATTEMPTS_MAX):
        versions = _versions(table)
        if not versions:
            return Manifest()
        path = _path(table, versions[-1])
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            continue  # twenty versions came while we looked
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StorageError(f"{path} is no manifest of a table: {error}") from None
    raise StorageError(f"{table}: its versions come faster than they can be read")


def commit(table: Path, change: Callable[[Manifest], Manifest | None]) -> Manifest:
    """Add a version: what `change` makes of the newest one, or nothing if it says None. Durable on return.

    `change` is asked again when another writer came first, and when so many came behind us that nobody can
    say whether we did. So it has to know its own work when it sees it.
    """
    for _ in range(_ATTEMPTS_MAX):
        old = read_manifest(table)
        new = change(old)
        if new is None:
            return old
        new = msgspec.structs.replace(new, version=old.version + 1)
        if _add(table, new):
            _drop_old_versions(table, new.version)
            return new
    raise StorageError(f"{table}: too many others write to it at once")


def sync_directory(path: Path) -> None:
    """Names that were made in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _add(table: Path, manifest: Manifest) -> bool:
    """False if there is such a version already, or may have been."""
    directory = table / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f".{uuid.uuid4().hex}"
    try:
        with draft.open("xb") as file:
            file.write(msgspec.json.encode(manifest))
            file.flush()
            os.fsync(file.fileno())
        try:
            _path(table, manifest.version).hardlink_to(draft)  # unlike a rename, replaces nothing
        except FileExistsError:
            return False
        sync_directory(directory)
        if _versions(table)[-1] >= manifest.version + VERSIONS_KEPT:
            # A version of that number may have been there and was dropped while we paused. Nobody has built
            # on ours then, nor ever will: those that are newer stay.
            _path(table, manifest.version).unlink(missing_ok=True)
            return False
        return True
    finally:
        draft.unlink(missing_ok=True)


def _drop_old_versions(table: Path, newest: int) -> None:
    for version in _versions(table):
        if version <= newest - VERSIONS_KEPT:
            _path(table, version).unlink(missing_ok=True)


def _versions(table: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table / DIRECTORY).glob("[0-9]*.json"))


def _path(table: Path, version: int) -> Path:
    return table / DIRECTORY / f"{version:012}.json"
