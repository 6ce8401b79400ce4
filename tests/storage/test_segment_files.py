"""How segment files are laid out, found again, bounded and removed."""

import errno
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from storage.conftest import GROUP, segment_stores
from storage.logs import EVERYTHING, LogMaker, contents, mixed, snapshot_at, together, write
from talweg.errors import BadRequest, DamagedLog, InvalidSetting, NewerFormat, StorageError
from talweg.raft import Entry, HardState
from talweg.storage import SegmentStores, Write, head_to_drop
from talweg.storage.files import RealFiles
from talweg.storage.handles import FileGone, Handles
from talweg.storage.kept_snapshots import SNAPSHOTS_MAX
from talweg.storage.segment import Segment
from talweg.storage.segment_store import SegmentStore
from talweg.storage.slots import Slot, write_slot
from talweg.testing.disk import SimulatedFile, SimulatedFiles


def open_log(files: SimulatedFiles) -> SegmentStore:
    files.restart()
    return segment_stores(files).open(GROUP, 1)


def names(files: SimulatedFiles | RealFiles, suffix: str) -> list[str]:
    return [name for name in files.list(GROUP) if name.endswith(suffix)]


def written(count: int, value_bytes: int = 20) -> tuple[SimulatedFiles, list[Entry]]:
    files = SimulatedFiles()
    entries = LogMaker().batches(count, value_bytes)
    store = open_log(files)
    for entry in entries:
        write(store, entry)
    store.close()
    return files, entries


# Segments


def test_a_segment_is_sealed_when_it_has_reached_its_size() -> None:
    files, _ = written(100)
    logs = names(files, ".log")
    assert len(logs) > 4
    for name in logs[:-1]:
        size = len(files.content(f"{GROUP}/{name}"))
        assert 2_000 <= size < 2_300
    assert [name.replace(".index", ".log") for name in names(files, ".index")] == logs[:-1]
    assert logs == sorted(logs)


def test_one_write_may_fill_several_segments() -> None:
    files = SimulatedFiles()
    store = open_log(files)
    entries = LogMaker().batches(100)
    write(store, *entries)
    assert len(names(files, ".log")) > 4
    assert contents(store) == entries
    assert contents(open_log(files)) == entries


def test_frames_are_joined_into_few_writes() -> None:
    files = SimulatedFiles()
    store = SegmentStores(files).open(GROUP, 1)
    make = LogMaker()
    write(store, make.noop())
    before = files.changes
    write(store, *make.batches(500, 1_000))
    assert files.changes - before == 3, "one write, one sync, one note"


def test_a_sync_of_nothing_does_nothing() -> None:
    files, _ = written(3)
    store = open_log(files)
    store.sync()  # what it found is durable, and is noted
    before = files.changes
    for _ in range(5):
        store.sync()
    assert files.changes == before


def test_dropping_the_head_removes_whole_segments() -> None:
    files, entries = written(100)
    store = open_log(files)
    before = names(files, ".log")
    store.save_snapshot(snapshot_at(entries[59]))
    store.drop_head(60)
    logs = names(files, ".log")
    assert logs == before[-len(logs) :]
    assert int(logs[0].removesuffix(".log")) <= 61 < int(logs[1].removesuffix(".log"))
    assert [name.replace(".index", ".log") for name in names(files, ".index")] == logs[:-1]
    assert names(files, ".snapshot") == [f"{60:020}.snapshot"]


def test_leftovers_of_interrupted_changes_are_swept_away() -> None:
    files, entries = written(30)
    for name in (f"{7:020}.log.staged", f"{9:020}.snapshot.staged", "meta.temporary", f"{999:020}.index"):
        files.open(f"{GROUP}/{name}").write_at(b"leftover", 0)
    files.open(f"{GROUP}/notes.txt").write_at(b"not ours", 0)
    store = open_log(files)
    assert contents(store) == entries
    assert not [name for name in files.list(GROUP) if name.endswith((".staged", ".temporary"))]
    assert f"{999:020}.index" not in files.list(GROUP)
    assert "notes.txt" in files.list(GROUP)


# The index


def damage_nothing(files: SimulatedFiles, path: str) -> None:
    pass


def remove(files: SimulatedFiles, path: str) -> None:
    files.remove(path)


def empty(files: SimulatedFiles, path: str) -> None:
    files.put(path, b"")


def flip_digest(files: SimulatedFiles, path: str) -> None:
    files.flip(path, 20)


def flip_points(files: SimulatedFiles, path: str) -> None:
    files.flip(path, len(files.content(path)) - 10)


def cut(files: SimulatedFiles, path: str) -> None:
    files.put(path, files.content(path)[:-5])


def garbage(files: SimulatedFiles, path: str) -> None:
    files.put(path, b"TwIx" + Random(1).randbytes(500))


@pytest.mark.parametrize("spoil", [damage_nothing, remove, empty, flip_digest, flip_points, cut, garbage])
def test_an_index_that_is_missing_or_not_sound_is_made_again(spoil: object) -> None:
    files, entries = written(100)
    indexes = names(files, ".index")
    whole = {name: files.content(f"{GROUP}/{name}") for name in indexes}
    for name in indexes:
        spoil(files, f"{GROUP}/{name}")  # type: ignore[operator]
    store = open_log(files)
    summary = store.summary()
    assert (summary.damage, summary.terms, summary.last_index) == (None, [(1, 1)], 100)
    for index in (50, 1, 99, 17, 64):
        assert store.read(index, 1) == entries[index - 1 : index]
    assert store.offset_at(0, 100) == 0
    assert contents(store) == entries
    if spoil not in (flip_points, cut):  # found only when it is used, and then done without
        assert {name: files.content(f"{GROUP}/{name}") for name in indexes} == whole


def test_an_index_of_another_segment_is_not_believed() -> None:
    files, entries = written(100)
    first, second, *_ = names(files, ".index")
    files.put(f"{GROUP}/{first}", files.content(f"{GROUP}/{second}"))
    store = open_log(files)
    assert store.summary().damage is None
    assert contents(store) == entries


def test_a_segment_that_is_cut_has_no_index_that_says_otherwise() -> None:
    files, entries = written(100)
    store = open_log(files)
    base = int(names(files, ".log")[2].removesuffix(".log"))
    store.write(Write(truncate_from=base + 3))
    assert [name.replace(".index", ".log") for name in names(files, ".index")] == names(files, ".log")[:2]
    assert names(files, ".log")[-1] == f"{base:020}.log"
    assert contents(open_log(files)) == entries[: base + 2]


def test_a_large_sealed_log_is_opened_without_reading_the_messages() -> None:
    files = SimulatedFiles()
    store = SegmentStores(files, segment_bytes=200_000).open(GROUP, 1)
    make = LogMaker()
    entries = make.batches(200, value_bytes=20_000)
    for entry in entries:
        write(store, entry)
    store.close()
    logs = names(files, ".log")
    sealed_bytes = sum(len(files.content(f"{GROUP}/{name}")) for name in logs[:-1])
    last_bytes = len(files.content(f"{GROUP}/{logs[-1]}"))
    files.restart()
    before = files.read_bytes
    store = SegmentStores(files, segment_bytes=200_000).open(GROUP, 1)
    assert store.summary().last_index == 200
    assert sealed_bytes > 3_000_000
    assert files.read_bytes - before < 2 * last_bytes + 8_192 * (len(logs) + 4)


def test_reading_in_order_does_not_look_for_the_place_again() -> None:
    files = SimulatedFiles()
    store = SegmentStores(files, index_interval_bytes=1 << 20).open(GROUP, 1)
    make = LogMaker()
    write(store, *make.batches(1_000, 100))
    store.read(500, 1)
    before = files.read_bytes
    store.read(501, 1)
    exact = files.read_bytes - before
    store.read_frames(700, 1, 1_000)
    before = files.reads
    store.read_frames(701, 1, 1_000)
    assert files.reads - before == 1
    before = files.reads
    store.read(502, 1)
    assert files.reads - before == 1
    assert exact < 200_000


# Bounds


def test_open_files_are_bounded_whatever_the_number_of_groups_and_segments() -> None:
    files = SimulatedFiles()
    stores = SegmentStores(files, segment_bytes=500, open_files_max=16)
    logs = {}
    for number in range(60):
        store = stores.open(f"group-{number}", 1)
        logs[store] = LogMaker().batches(12)
        write(store, *logs[store], hard_state=HardState(1))
        assert files.open_count <= 17
    for _ in range(2):
        for store, entries in logs.items():
            assert contents(store) == entries
            assert files.open_count <= 17
    assert stores.open_files <= 16
    stores.close()
    assert files.open_count == 0


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_hundreds_of_groups_of_real_files_fit_into_few_descriptors(tmp_path: Path) -> None:
    stores = SegmentStores(RealFiles(tmp_path), open_files_max=64)
    before = descriptors()
    for number in range(300):
        write(stores.open(f"group-{number}", 1), LogMaker().noop(), hard_state=HardState(1))
    assert descriptors() - before <= 66
    stores.close()
    assert descriptors() <= before


@pytest.mark.parametrize("after", range(6))
def test_a_log_that_cannot_be_opened_leaves_no_file_open(after: int) -> None:
    files, _ = written(60)
    files.restart()
    stores = segment_stores(files)
    for doing in ("sync", "sync_directory", "read", "read"):
        files.fail_next(doing, after=after, error=errno.ENOMEM)
        with suppress(StorageError):
            stores.open(GROUP, 1).close()
        assert stores.open_files == 0
        assert files.open_count == 0
        files.fail_no_more()


def test_opening_a_log_reads_no_snapshot_but_the_one_at_its_start() -> None:
    files, entries = written(60)
    store = open_log(files)
    for entry in entries[9:59:10]:
        store.save_snapshot(snapshot_at(entry, bytes(100_000)))
    store.drop_head(10)
    marks = store.snapshots()
    before = files.read_bytes
    store = open_log(files)
    assert 100_000 < files.read_bytes - before < 200_000
    assert store.snapshots() == marks
    assert store.snapshot() == snapshot_at(entries[49], bytes(100_000))


def test_snapshots_do_not_pile_up_and_retention_can_still_cut_nearly_where_it_wants() -> None:
    files = SimulatedFiles()
    store = SegmentStores(files).open(GROUP, 1)
    make = LogMaker()
    first = make.batches(1)
    write(store, *first)
    store.save_snapshot(snapshot_at(first[0]))
    store.drop_head(1)
    for _ in range(400):
        entries = make.batches(2)
        write(store, *entries)
        store.save_snapshot(snapshot_at(entries[-1]))
    marks = store.snapshots()
    assert len(names(files, ".snapshot")) == len(marks) == SNAPSHOTS_MAX
    assert marks[0].index == 1
    assert [mark.index for mark in marks[-8:]] == list(range(787, 802, 2))
    every = store.log_bytes() // 400
    for wanted in range(0, store.log_bytes(), every):
        (left,) = [
            mark.bytes_after
            for mark in marks
            if mark.index == head_to_drop(marks, bytes_max=wanted, before_timestamp=None)
        ]
        assert left <= 1.2 * wanted + every
    assert open_log(files).snapshots() == marks


def test_a_file_that_is_gone_is_not_made_again_by_who_still_looks_for_it() -> None:
    files = SimulatedFiles()
    handle = Handles(files, 4).handle("file", create=True)
    with handle as file:
        file.write_at(b"here", 0)
        handle.discard()
        files.remove("file")
        assert file.read_at(4, 0) == b"here", "it stays open for those who are reading it"
    assert files.open_count == 0
    with pytest.raises(FileGone), handle:
        pass
    assert not files.exists("file")


@pytest.mark.parametrize("change", ["truncate", "install", "drop the head"])
def test_a_reader_who_comes_late_does_not_bring_a_removed_file_back(change: str) -> None:
    """Its files were closed for others' sake, and are opened again just after they were removed."""

    class Haunted(SimulatedFiles):
        ghosts = 0

        def remove(self, path: str) -> None:
            super().remove(path)
            for segment in segments:
                if segment.log.path == path:
                    with suppress(FileGone, FileNotFoundError), segment.log:
                        pass
                    assert not self.exists(path)
                    self.ghosts += 1

    segments: tuple[Segment, ...] = ()
    files = Haunted()
    store = SegmentStores(files, segment_bytes=2_000, open_files_max=0).open(GROUP, 1)
    entries = LogMaker().batches(60)
    write(store, *entries)
    store.save_snapshot(snapshot_at(entries[39]))
    segments = store._log.view.segments
    if change == "truncate":
        store.write(Write(truncate_from=41, entries=together(LogMaker(40, 2, 40).batches(3))))
    elif change == "install":
        store.write(Write(snapshot=snapshot_at(entries[20]), next_offset=21))
    else:
        store.drop_head(40)
    assert files.ghosts > 0
    assert store.summary().damage is None
    assert open_log(files).summary() == store.summary()


def test_a_segment_that_somebody_removed_is_damage(tmp_path: Path) -> None:
    stores = SegmentStores(RealFiles(tmp_path), segment_bytes=2_000, open_files_max=0)
    store = stores.open(GROUP, 1)
    entries = LogMaker().batches(60)
    write(store, *entries)
    path = tmp_path / GROUP / names(RealFiles(tmp_path), ".log")[1]
    path.unlink()
    assert store.read(1, EVERYTHING)[-1].index == int(path.stem) - 1
    with pytest.raises(DamagedLog):
        store.read(int(path.stem) + 3, EVERYTHING)
    assert store.summary().last_index == int(path.stem) - 1
    assert not path.exists()
    stores.close()


def test_a_file_in_use_is_not_closed() -> None:
    files = SimulatedFiles()
    handles = Handles(files, 2)
    several = [handles.handle(f"file {number}", create=True) for number in range(5)]
    with several[0] as first:
        first.write_at(b"here", 0)
        for other in several[1:]:
            with other as file:
                file.write_at(b"there", 0)
        assert first.read_at(4, 0) == b"here"
        assert handles.open_count == 2
    assert files.open_count == 2


def test_what_is_uncached_is_what_was_synced_since_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    uncached: list[tuple[int, int]] = []
    monkeypatch.setattr(
        SimulatedFile, "uncache", lambda file, position, size: uncached.append((position, size))
    )
    files, make = SimulatedFiles(), LogMaker()
    store = open_log(files)
    store.uncache()
    write(store, *make.batches(3))
    store.write(Write(entries=together(make.batches(2))))
    store.uncache()  # what is not synced yet is left alone
    store.sync()
    store.uncache()
    (name,) = names(files, ".log")
    size = len(files.content(f"{GROUP}/{name}"))
    assert uncached == [(0, size * 3 // 5), (size * 3 // 5, size * 2 // 5)]


def test_a_file_that_is_uncached_is_read_from_the_disk(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    content = os.urandom(1 << 20)
    file = files.open("file")
    file.write_at(content, 0)
    file.sync()
    file.uncache(5_000, 500_000)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        # Memory disks keep what they are told to let go; on all others the middle is gone, the edges are not.
        os.posix_fadvise(descriptor, 800_000, 100_000, os.POSIX_FADV_DONTNEED)
        drops = not in_memory(descriptor, 850_000)
        assert in_memory(descriptor, 250_000) is not drops
        assert in_memory(descriptor, 600_000)
        assert in_memory(descriptor, 504_999), "the page that is written to next is kept"
    finally:
        os.close(descriptor)
    assert file.read_at(1 << 20, 0) == content


def in_memory(descriptor: int, position: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def test_indexes_in_memory_are_bounded() -> None:
    files, entries = written(200)
    files.restart()
    stores = SegmentStores(files, segment_bytes=2_000, index_interval_bytes=300, indexes_max=2)
    store = stores.open(GROUP, 1)
    for index in (1, 199, 50, 120, 80, 1, 150):
        assert store.read(index, 1) == entries[index - 1 : index]
    assert len(stores._shared.cache._indexes) <= 2


def test_a_log_that_nobody_reads_keeps_no_indexes_in_memory() -> None:
    files = SimulatedFiles()
    stores = SegmentStores(files, segment_bytes=2_000, index_interval_bytes=300)
    store = stores.open(GROUP, 1)
    entries = LogMaker().batches(200)
    write(store, *entries)
    assert len(names(files, ".index")) > 4
    assert not stores._shared.cache._indexes
    assert store.read(50, 1) == entries[49:50]
    assert len(stores._shared.cache._indexes) == 1


def test_remembered_places_are_bounded() -> None:
    files, entries = written(600)
    store = open_log(files)
    for index in range(1, 601):
        assert store.read(index, 1) == entries[index - 1 : index]
        assert store.read_frames(index - 1, 1, 600) == [entries[index - 1].payload]
    assert len(store._reader._ends_by_index) <= 256
    assert len(store._reader._ends_by_offset) <= 256


# Readers and the writer


def test_readers_go_on_while_tails_and_heads_are_replaced(tmp_path: Path) -> None:
    """Whatever a reader gets is one of the entries that were ever at that place, and sound."""
    stores = SegmentStores(
        RealFiles(tmp_path), segment_bytes=2_000, index_interval_bytes=300, open_files_max=3
    )
    store = stores.open(GROUP, 1)
    make = LogMaker()
    write(store, *make.batches(40))
    done = False

    def read_along(seed: int) -> int:
        random, count = Random(seed), 0
        while not done:
            summary = store.summary()
            if summary.last_index == summary.start_index:
                continue
            first = random.randint(summary.start_index + 1, summary.last_index)
            try:
                found = store.read(first, 600)
            except BadRequest:
                continue  # dropped meanwhile
            assert not found or found[0].index == first
            count += len(found)
        return count

    def replace(step: int) -> None:
        summary = store.summary()
        if step % 10 == 9:
            entry = store.read(summary.last_index - 15, 1)[0]
            store.save_snapshot(snapshot_at(entry))
            store.drop_head(entry.index)
        elif step % 3 == 0:
            from_index = summary.last_index - step % 11
            offset = summary.next_offset - (summary.last_index + 1 - from_index)
            other = LogMaker(from_index - 1, step + 2, offset)
            store.write(Write(truncate_from=from_index, entries=mixed(other.batches(12))))
            store.sync()
        else:
            term = summary.terms[-1][1]
            write(store, *LogMaker(summary.last_index, term, summary.next_offset).batches(8))

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_along, seed) for seed in range(3)]
        try:
            for step in range(60):
                replace(step)
        finally:
            done = True
        assert all(reader.result(60) > 0 for reader in readers)
    assert store.summary().damage is None
    stores.close()


# Real processes


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from storage.logs import LogMaker, write
        from talweg.storage import SegmentStores
        from talweg.storage.files import RealFiles
        store = SegmentStores(RealFiles(sys.argv[1]), segment_bytes=50_000).open("g", 1)
        make = LogMaker()
        while True:
            write(store, *make.batches(5, 300))
            print(make.last_index, flush=True)
        """
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:
        assert process.stdout is not None
        try:
            while acknowledged < 500:
                acknowledged = int(process.stdout.readline())
        finally:
            process.kill()
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    store = SegmentStores(RealFiles(tmp_path), segment_bytes=50_000).open("g", 1)
    assert len(contents(store)) >= acknowledged
    assert store.summary().damage is None
    store.close()


# Groups


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "ü", "x" * 256, "a\n", "a\0b"])
def test_a_group_name_that_could_be_a_path_is_refused(name: str) -> None:
    files = SimulatedFiles()
    stores = segment_stores(files)
    with pytest.raises(BadRequest):
        stores.open(name, 1)
    with pytest.raises(BadRequest):
        stores.delete(name)
    assert files.list("") == []


@pytest.mark.parametrize("name", ["a", "...", "x" * 255, "A-Z_0.9", "meta", "state"])
def test_every_good_group_name_works_on_real_files(name: str, tmp_path: Path) -> None:
    stores = SegmentStores(RealFiles(tmp_path))
    write(stores.open(name, 1), LogMaker().noop())
    stores.close()
    assert stores.groups() == {name: 1}
    assert stores.open(name, 1).summary().last_index == 1
    stores.delete(name)
    assert stores.groups() == {}
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_group_is_not_listed(tmp_path: Path) -> None:
    stores = SegmentStores(RealFiles(tmp_path))
    stores.open("group", 3).close()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    assert stores.groups() == {"group": 3}


def test_an_open_group_is_opened_once() -> None:
    stores = segment_stores(SimulatedFiles())
    assert stores.open(GROUP, 1) is stores.open(GROUP, 1)


def test_a_format_from_the_future_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = written(3)
    monkeypatch.setattr("talweg.storage.slots.FORMAT_VERSION", 2)
    file = files.open(f"{GROUP}/meta")
    write_slot(file, b"TwMt", Slot(0, 99, b"who knows"))
    file.sync()
    monkeypatch.undo()
    files.restart()
    stores = segment_stores(files)
    with pytest.raises(NewerFormat):
        stores.open(GROUP, 1)
    with pytest.raises(NewerFormat):
        stores.groups()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidSetting):
        SegmentStores(SimulatedFiles(), segment_bytes=0)
    with pytest.raises(InvalidSetting):
        SegmentStores(SimulatedFiles(), index_interval_bytes=0)


def test_a_read_limit_larger_than_memory_is_no_harm() -> None:
    files, entries = written(10)
    assert open_log(files).read(1, 1 << 62) == entries
    assert len(open_log(files).read_frames(0, EVERYTHING, 10)) == 10
