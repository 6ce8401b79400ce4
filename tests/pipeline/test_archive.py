"""The archive holds every message once, whatever comes again, breaks off or is merged meanwhile."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.made import frame, message, offsets
from talweg.errors import StorageError
from talweg.pipeline.archive import add_to_archive, archive_table, check_incarnations, read_archive
from talweg.pipeline.compaction import compact, mergeable
from talweg.pipeline.manifest import VERSIONS_KEPT, Manifest, TableFile, commit, merged, read_manifest
from talweg.pipeline.table import STAGING

pytestmark = pytest.mark.xdist_group("spark")
LONG = "t" * 249  # no topic has a longer name


def add(spark: SparkSession, archive: Path, rows: list[tuple[Any, ...]]) -> int:
    return add_to_archive(archive, frame(spark, rows), {})


def files_on_disk(archive: Path) -> set[str]:
    directory = archive / "messages"
    return {str(path.relative_to(directory)) for path in directory.rglob("*.parquet")}


def test_messages_lie_by_topic_and_date_and_come_back_as_they_were(
    spark: SparkSession, archive: Path
) -> None:
    headers = [("trace", b"1")]
    rows = [
        message(b"\x00a", 0, key=b"k", headers=headers),
        message(None, 1, seconds=43_200),  # midnight, so another day
        message("c", 7, topic="2026", partition=2),  # a name that looks like a number stays a name
        message("d", 8, topic=LONG),
    ]
    assert add(spark, archive, rows) == 4
    assert {str(Path(path).parent) for path in files_on_disk(archive)} == {
        "topic=logs/date=2026-01-31",
        "topic=logs/date=2026-02-01",
        "topic=2026/date=2026-01-31",
        f"topic={LONG}/date=2026-01-31",
    }
    found = sorted(map(tuple, read_archive(spark, archive).collect()), key=lambda row: row[4])
    assert [(row[0] and bytes(row[0]), row[1] and bytes(row[1]), *row[2:5]) for row in found] == [
        (b"k", b"\x00a", "logs", 0, 0),
        (None, None, "logs", 0, 1),
        (None, b"c", "2026", 2, 7),
        (None, b"d", LONG, 0, 8),
    ]
    assert [(each.key, bytes(each.value)) for each in found[0][6]] == headers
    assert read_archive(spark, archive, "2026").count() == 1
    covered = archive_table(archive).manifest().covered
    assert covered == {"logs": {0: ((0, 2),)}, "2026": {2: ((7, 8),)}, LONG: {0: ((8, 9),)}}


def test_what_comes_again_is_added_once(spark: SparkSession, archive: Path) -> None:
    first = [message(f"{n}", n, partition=p) for p in (0, 1) for n in range(10)]
    assert add(spark, archive, first) == 20
    assert add(spark, archive, first) == 0  # as after a crash before Spark noted the batch
    # As by a query that lost its checkpoint: other batches, the old and the new mixed.
    assert add(spark, archive, [*first[5:15], message("10", 10), message("11", 10, partition=1)]) == 2
    assert offsets(read_archive(spark, archive)) == [("logs", p, n) for p in (0, 1) for n in range(11)]


def test_a_crash_before_the_commit_leaves_nothing_to_see(
    spark: SparkSession, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(spark, archive, [message("a", 0)])
    rows = [message("b", 1), message("c", 2)]

    class Crash(Exception):
        pass

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched:  # the one moment that cannot be reached from outside
        patched.setattr("talweg.pipeline.table.commit", crash)
        with pytest.raises(Crash):
            add(spark, archive, rows)
    assert len(files_on_disk(archive)) > 1  # strays
    assert offsets(read_archive(spark, archive)) == [("logs", 0, 0)]
    assert add(spark, archive, rows) == 2
    assert offsets(read_archive(spark, archive)) == [("logs", 0, n) for n in range(3)]
    compact(spark, archive_table(archive), grace_seconds=-1)
    assert files_on_disk(archive) == {file.path for file in archive_table(archive).manifest().files}
    assert list((archive / "messages" / STAGING).glob("*")) == []


def test_two_writers_at_once_add_every_message_once(spark: SparkSession, archive: Path) -> None:
    batches = [[message(f"{n}", n) for n in range(20)], [message(f"{n}", n) for n in range(30)]]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rows: add(spark, archive, rows), batches))
    assert offsets(read_archive(spark, archive)) == [("logs", 0, n) for n in range(30)]


def test_compaction_merges_files_and_readers_do_not_notice(spark: SparkSession, archive: Path) -> None:
    for n in range(6):
        add(spark, archive, [message(f"{n}", 2 * n), message(f"{n}'", 2 * n + 1)])
    table = archive_table(archive)
    before = files_on_disk(archive)
    reader = read_archive(spark, archive)  # has chosen its files
    done = compact(spark, table)
    assert (done.files_before, done.files_after, done.deleted) == (len(before), 1, 0)
    everything = [("logs", 0, n) for n in range(12)]
    assert offsets(reader) == everything
    assert offsets(read_archive(spark, archive)) == everything
    assert compact(spark, table, grace_seconds=-1).deleted == len(before)
    assert len(files_on_disk(archive)) == 1
    assert offsets(read_archive(spark, archive)) == everything
    assert add(spark, archive, [message("0", 0), message("12", 12)]) == 1  # what is covered stays so


def test_a_crash_in_the_middle_of_compaction_changes_nothing(
    spark: SparkSession, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        add(spark, archive, [message(f"{n}", n)])
    version = archive_table(archive).manifest()

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("talweg.pipeline.table.commit", crash)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, archive_table(archive))
    assert archive_table(archive).manifest() == version
    assert offsets(read_archive(spark, archive)) == [("logs", 0, n) for n in range(4)]
    compact(spark, archive_table(archive), grace_seconds=-1)
    assert len(files_on_disk(archive)) == 1
    assert offsets(read_archive(spark, archive)) == [("logs", 0, n) for n in range(4)]


def test_a_topic_that_was_made_anew_is_refused(spark: SparkSession, archive: Path) -> None:
    add_to_archive(archive, frame(spark, [message("a", 0)]), {"logs": 7})
    check_incarnations(archive_table(archive), {"logs": 7, "other": 1})
    with pytest.raises(StorageError, match="topic logs as it was before it was deleted"):
        check_incarnations(archive_table(archive), {"logs": 9})


def test_groups_of_small_files_are_no_larger_than_a_file_should_be() -> None:
    sizes = [10, 60, 40, 30, 90, 5, 49, 20]
    files = tuple(TableFile(f"topic=a/{n}", 1, size) for n, size in enumerate(sizes))
    groups = list(mergeable(Manifest(files=files), file_bytes=100, files_min=2))
    assert [[file.bytes for file in group] for group in groups] == [[10, 40, 30, 5], [49, 20]]


def test_of_many_writers_each_version_has_one(tmp_path: Path) -> None:
    begin = threading.Barrier(8)

    def write(name: int) -> None:
        begin.wait()
        for turn in range(5):
            mine = {f"{name}-{turn}": 1}
            commit(tmp_path, lambda now, mine=mine: msgspec.structs.replace(now, batches=now.batches | mine))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    last = read_manifest(tmp_path)
    assert last.version == len(last.batches) == 40
    assert not [name for name in (tmp_path / "_manifests").iterdir() if name.name.startswith(".")]


def note(table: Path, *names: str) -> None:
    """A version for each name, as by other writers."""
    for name in names:
        commit(table, lambda now, name=name: msgspec.structs.replace(now, batches={**now.batches, name: 1}))


def test_a_writer_that_paused_does_not_take_a_number_that_was_dropped(tmp_path: Path) -> None:
    note(tmp_path, "first")
    asked: list[int] = []

    def change(now: Manifest) -> Manifest:
        asked.append(now.version)
        if len(asked) == 1:  # it has read, and the others go on until nobody knows the version behind it
            note(tmp_path, *(f"other {n}" for n in range(VERSIONS_KEPT + 5)))
        return msgspec.structs.replace(now, batches=now.batches | {"mine": 1})

    made = commit(tmp_path, change)
    assert asked == [1, VERSIONS_KEPT + 6]
    assert read_manifest(tmp_path) == made
    assert len(made.batches) == made.version == VERSIONS_KEPT + 7


def test_what_was_added_is_known_again_however_many_versions_came_meanwhile(
    spark: SparkSession, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(directory: Path) -> None:
        monkeypatch.undo()
        note(directory.parent, *(f"other {n}" for n in range(VERSIONS_KEPT)))

    # The one moment that cannot be reached from outside: its version is there, and it has not looked yet.
    monkeypatch.setattr("talweg.pipeline.manifest.sync_directory", pause)
    assert add(spark, archive, [message("a", 0), message("b", 1)]) == 2
    assert archive_table(archive).manifest().rows == 2
    assert offsets(read_archive(spark, archive)) == [("logs", 0, 0), ("logs", 0, 1)]


@pytest.mark.parametrize("content", [b"{", b'{"files": [{"path": "\xff"}]}'])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_manifests").mkdir()
    (tmp_path / "_manifests" / "000000000001.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"000000000001\.json is no manifest"):
        read_manifest(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)))
def test_merged_spans_are_the_same_offsets(spans: list[tuple[int, int]]) -> None:
    found = merged(tuple(spans))
    assert {n for a, b in found for n in range(a, b)} == {n for a, b in spans for n in range(a, b)}
    assert all(left[1] < right[0] for left, right in itertools.pairwise(found))
