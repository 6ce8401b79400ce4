"""Segment files: the log of each group in a directory of its own. The default store.

    <group>/meta                    whose log it is and where it starts
    <group>/state                   the hard state
    <group>/stable                  up to which entry all is known to have been durable
    <group>/<base index>.log        frames, one after another; a new file after `segment_bytes`
    <group>/<base index>.index      what a sealed segment holds, and where; made again when missing
    <group>/<index>.snapshot        the small state as of an entry
    +journal-0, +journal-1          small appends to all of them, until their segments are synced

A directory without `meta` is no group: it was never finished, or is being removed.
"""

import re
from collections.abc import Callable, Sequence
from threading import RLock

import msgspec

from talweg.errors import BadRequest, DamagedLog, GroupNotFound, InvalidSetting, TalwegError
from talweg.raft import HardState
from talweg.storage.checked_file import storage_error, write_durably
from talweg.storage.contract import LogStore, LogStores, sync_error
from talweg.storage.files import Files
from talweg.storage.handles import Handles
from talweg.storage.index_cache import IndexCache
from talweg.storage.journal import Journal, JournalFull
from talweg.storage.journal_format import Append
from talweg.storage.log_writer import SegmentSettings, Shared
from talweg.storage.meta_file import META_NAME, Meta, create_meta, read_meta
from talweg.storage.recovery import TEMPORARY_SUFFIX
from talweg.storage.segment_store import SegmentStore
from talweg.storage.state_file import STATE_NAME, StateFile, write_new

_GROUP_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")  # what fits into the name of a directory
_DELETED_NAME = "deleted"  # what the meta file of a group on its way out is called
_SMALL_BYTES_MAX = 64 << 10  # an append beyond this costs more to write twice than to sync by itself


class SegmentStores(LogStores):
    """All logs below one directory. Their open files and indexes are bounded together."""

    def __init__(
        self,
        files: Files,
        *,
        segment_bytes: int = 64 << 20,
        index_interval_bytes: int = 32 << 10,
        unsynced_bytes_max: int = 64 << 20,
        open_files_max: int = 256,
        indexes_max: int = 64,
        journal_bytes: int = 0,
        journal_least: int = 2,
        new_salt: Callable[[], int] | None = None,
    ) -> None:
        """`open_files_max` counts files that nobody uses at the moment; `indexes_max` sealed segments.
        The journal has two files of `journal_bytes`, and is used for `journal_least` appends or more.
        Raises StorageError, NewerFormat when a journal was left that cannot be read."""
        if segment_bytes < 1 or index_interval_bytes < 1:
            raise InvalidSetting("segment_bytes and index_interval_bytes: expected at least 1")
        self._files = files
        self._handles = Handles(files, open_files_max)
        self._journal = Journal(files, journal_bytes, new_salt)
        self._shared = Shared(
            self._handles,
            IndexCache(files, indexes_max),
            self._journal,
            SegmentSettings(segment_bytes, index_interval_bytes, unsynced_bytes_max),
        )
        self._lock = RLock()
        self._open: dict[str, SegmentStore] = {}
        self._journal_least = journal_least
        try:
            self._journal.recover(self._mark_all_recovering)
        except Exception as error:
            self._let_go()  # whoever tries again must not find us in the way
            if isinstance(error, OSError):
                raise storage_error(error, "recovering the journal") from error
            raise

    def _mark_all_recovering(self) -> None:
        # Whose appends are missing cannot be told. Who is recovering counts only once it has caught up.
        for group in self.groups():
            state = StateFile(self._handles.handle(f"{group}/{STATE_NAME}", create=True))
            try:
                if not state.is_lost:  # which says as much
                    state.write(msgspec.structs.replace(state.value or HardState(), recovering=True))
                    state.sync()
            finally:
                state.close()

    @property
    def open_files(self) -> int:
        """How many files are open now."""
        return self._handles.open_count

    def open(self, group: str, incarnation: int) -> SegmentStore:
        """Open a group's log, creating it if need be; the same store if it is open already."""
        _check_name(group)
        with self._lock:
            try:
                store = self._open.get(group)
                found = store.incarnation if store is not None else self._find_or_create(group, incarnation)
                if found != incarnation:
                    raise GroupNotFound(f"{group} is here in incarnation {found}, expected {incarnation}")
                if store is None:
                    store = self._open[group] = self._open_store(group)
            except OSError as error:
                raise storage_error(error, f"opening {group}") from error
            return store

    def _open_store(self, group: str) -> SegmentStore:
        try:
            return SegmentStore(group, self._shared, lambda: self._forget(group))
        except Exception:
            self._handles.discard_below(group)  # nobody will close what was opened so far
            raise

    def sync(self, stores: Sequence[LogStore]) -> list[TalwegError | None]:
        """`LogStore.sync` of several. Where many wrote little, one sync of the journal does for all."""
        journaled = self._sync_by_journal(stores)
        return [None if store in journaled else sync_error(store) for store in stores]

    def _sync_by_journal(self, stores: Sequence[LogStore]) -> set[LogStore]:
        small: dict[SegmentStore, Append] = {}
        for store in stores if len(stores) >= self._journal_least else ():
            assert isinstance(store, SegmentStore)
            append = store.unsynced()
            if append is not None and sum(map(len, append.frames)) <= _SMALL_BYTES_MAX:
                small[store] = append
        if len(small) < self._journal_least:
            return set()
        try:
            self._journal.append(small.values())
        except (JournalFull, OSError):
            return set()  # each by itself, then; what is wrong with the disk will show
        for store in small:
            store.journaled()
        return set(small)

    @property
    def checkpoint_due(self) -> bool:
        """Whether a file of the journal is full."""
        return self._journal.checkpoint_due

    def checkpoint(self) -> None:
        """Sync every segment that the journal's full file speaks of."""
        try:
            self._journal.checkpoint()
        except OSError as error:
            raise storage_error(error, "syncing what is in the journal") from error

    def groups(self) -> dict[str, int]:
        """The groups that have a log here, with their incarnations. One whose meta file is damaged is
        left out: opening it says what is wrong."""
        found: dict[str, int] = {}
        try:
            for group in self._files.list(""):
                if not _is_name(group):
                    continue
                try:
                    meta = read_meta(self._files, group)
                except DamagedLog:
                    continue
                if meta is not None:
                    found[group] = meta.incarnation
        except OSError as error:
            raise storage_error(error, "listing groups") from error
        return found

    def delete(self, group: str) -> None:
        """Remove a group's log (closed first). Removing what is not there is harmless."""
        _check_name(group)
        with self._lock:
            try:
                store = self._open.get(group)
                if store is not None:
                    store.discard()
                if self._files.exists(f"{group}/{META_NAME}"):
                    # A rename takes no space: deleting must work on a full disk.
                    self._files.rename(f"{group}/{META_NAME}", f"{group}/{_DELETED_NAME}")
                if self._files.exists(group):
                    self._remove(group)
            except OSError as error:
                raise storage_error(error, f"deleting {group}") from error

    def close(self) -> None:
        """Close every store that is open."""
        with self._lock:
            stores = list(self._open.values())
        failures: list[TalwegError] = []
        for store in stores:
            try:
                store.close()
            except TalwegError as error:
                failures.append(error)  # the others are closed all the same
        try:
            self._journal.close()
        except OSError as error:
            failures.append(storage_error(error, "emptying the journal"))
        finally:
            self._let_go()
        if failures:
            raise failures[0]

    def _let_go(self) -> None:
        self._journal.let_go()
        self._files.unlock()

    def _forget(self, group: str) -> None:
        with self._lock:
            self._open.pop(group, None)
            self._handles.discard_below(group)  # also what a look at the files that failed has left open

    def _find_or_create(self, group: str, incarnation: int) -> int:
        meta = read_meta(self._files, group)
        if meta is not None:
            return meta.incarnation
        names = self._files.list(group)
        if _DELETED_NAME in names:
            self._remove(group)
        elif any(name != STATE_NAME and not name.endswith(TEMPORARY_SUFFIX) for name in names):
            raise DamagedLog(f"{group} holds a log, but no {META_NAME} file that says whose")
        self._files.make_directory(group)
        self._files.sync_directory("")
        write_durably(self._files, f"{group}/{STATE_NAME}", write_new)
        self._files.sync_directory(group)
        # Last: once it is there the group is, with all that it needs.
        create_meta(self._files, group, Meta(incarnation))
        return incarnation

    def _remove(self, group: str) -> None:
        # Whoever put the mark there may have died, or failed, before it was durable.
        self._files.sync_directory(group)
        self._journal.forget(group)
        # The mark goes last: as long as anything is left, it says that this is no log to be missed.
        for name in self._files.list(group):
            if name != _DELETED_NAME:
                self._files.remove(f"{group}/{name}")
        self._files.sync_directory(group)
        self._files.remove_directory(group)
        self._files.sync_directory("")


def _is_name(group: str) -> bool:
    return _GROUP_NAME.fullmatch(group) is not None and group not in (".", "..")


def _check_name(group: str) -> None:
    if not _is_name(group):
        raise BadRequest(f"group name {group[:300]!r}: expected 1 to 255 of A-Z a-z 0-9 . _ -, not . or ..")
