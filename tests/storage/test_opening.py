"""Which stores a setting names."""

import os
from pathlib import Path

import pytest

from storage.logs import LogMaker, write
from talweg.errors import InvalidSetting, StorageError
from talweg.raft import HardState
from talweg.storage import MemoryStores, SegmentStores, Write, head_to_drop, open_stores
from talweg.storage.contract import SnapshotMark
from talweg.storage.files import RealFiles
from talweg.storage.journal_format import JOURNAL_NAMES


@pytest.mark.parametrize("scheme", ["", "segments://"])
def test_segment_files_are_opened_by_directory_or_url(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}{tmp_path}/new/logs"
    stores = open_stores(url)
    assert isinstance(stores, SegmentStores)
    write(stores.open("group", 1), LogMaker().noop())
    stores.close()
    assert (tmp_path / "new" / "logs" / "group" / "meta").exists()
    assert open_stores(url).groups() == {"group": 1}


def test_a_relative_directory_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_stores("data").open("group", 1)
    assert (tmp_path / "data" / "group").is_dir()


def test_a_directory_with_a_space_in_it_is_found(tmp_path: Path) -> None:
    open_stores(f"segments://{tmp_path}/my%20logs").open("group", 1)
    assert (tmp_path / "my logs" / "group").is_dir()


def test_memory_is_opened_by_url() -> None:
    assert isinstance(open_stores("memory://"), MemoryStores)


def test_a_database_is_opened_by_url(tmp_path: Path) -> None:
    from talweg.storage.sql import SqlStores

    stores = open_stores(f"sqlite:///{tmp_path}/logs.sqlite")
    assert isinstance(stores, SqlStores)
    stores.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory://host",
        "memory:///somewhere",
        "segments://",
        "segments://host/path",
        "segments:///path?x=1",
        "redis://localhost",
        "file:///tmp/x",
        "bad\0name",
    ],
)
def test_a_wrong_setting_is_refused_and_says_what_was_expected(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"expected a directory, segments:///directory, memory://"):
        open_stores(url)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidSetting, match="cannot be used"):
        open_stores(str(tmp_path / "file" / "logs"))


def test_a_directory_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    stores = open_stores(str(tmp_path))
    stores.open("group", 1)
    with pytest.raises(StorageError, match="in use"):
        open_stores(f"segments://{tmp_path}")
    stores.close()
    again = open_stores(str(tmp_path))
    assert again.groups() == {"group": 1}
    again.close()


def test_a_directory_that_cannot_be_opened_is_let_go_of(tmp_path: Path) -> None:
    open_stores(str(tmp_path)).close()
    journal = tmp_path / JOURNAL_NAMES[0]
    journal.mkdir()
    for _ in range(2):
        with pytest.raises(StorageError, match="recovering the journal"):
            open_stores(str(tmp_path))
    journal.rmdir()
    open_stores(str(tmp_path)).close()


def test_a_new_directory_is_durable_with_all_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    RealFiles(tmp_path / "a" / "b")
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "a")]
    RealFiles(tmp_path / "c" / "d", durable=False)
    assert len(synced) == 2


# What retention chooses

MARKS = [
    SnapshotMark(index=10, next_offset=10, bytes_after=900, last_timestamp=100),
    SnapshotMark(index=20, next_offset=20, bytes_after=600, last_timestamp=200),
    SnapshotMark(index=30, next_offset=30, bytes_after=300, last_timestamp=300),
]


def test_the_newest_snapshot_that_leaves_enough_is_chosen_by_size() -> None:
    assert head_to_drop(MARKS, bytes_max=600, before_timestamp=None) == 20
    assert head_to_drop(MARKS, bytes_max=601, before_timestamp=None) == 10
    assert head_to_drop(MARKS, bytes_max=0, before_timestamp=None) == 30
    assert head_to_drop(MARKS, bytes_max=1_000, before_timestamp=None) is None


def test_the_newest_snapshot_of_only_old_messages_is_chosen_by_age() -> None:
    assert head_to_drop(MARKS, bytes_max=None, before_timestamp=201) == 20
    assert head_to_drop(MARKS, bytes_max=None, before_timestamp=200) == 10
    assert head_to_drop(MARKS, bytes_max=None, before_timestamp=100) is None


def test_size_and_age_each_suffice() -> None:
    assert head_to_drop(MARKS, bytes_max=600, before_timestamp=101) == 20
    assert head_to_drop(MARKS, bytes_max=900, before_timestamp=301) == 30
    assert head_to_drop(MARKS, bytes_max=None, before_timestamp=None) is None
    assert head_to_drop([], bytes_max=0, before_timestamp=1_000) is None


@pytest.mark.parametrize("durable", [True, False])
def test_files_that_are_not_durable_wait_for_the_disk_with_votes_alone(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fdatasync", sync)
    store = open_stores(str(tmp_path), durable=durable).open("group", 1)
    synced.clear()
    store.write(Write(hard_state=HardState(term=1, vote=2)))
    store.sync()
    assert synced == ["state"]
    synced.clear()
    write(store, LogMaker().noop())
    assert [name.endswith(".log") for name in synced] == [True] * durable
