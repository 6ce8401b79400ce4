"""What was known to be durable is missed when it is gone; behind that, what looks torn is. Segment files."""

import errno
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import pytest

from storage.conftest import GROUP, segment_stores
from storage.logs import LogMaker, contents, frame_bytes, write
from talweg.raft import Entry, HardState
from talweg.storage import SegmentStores, Write
from talweg.storage.files import RealFiles
from talweg.storage.segment_store import SegmentStore
from talweg.storage.stable_file import STABLE_NAME, read_stable_index
from talweg.testing.disk import SimulatedFiles

NOTE = f"{GROUP}/{STABLE_NAME}"


def open_log(files: SimulatedFiles) -> SegmentStore:
    """As a process that has just been started finds it."""
    files.restart()
    return segment_stores(files).open(GROUP, 1)


def written(count: int) -> tuple[SimulatedFiles, list[Entry]]:
    """A closed log, each entry durable before the next."""
    files, entries = SimulatedFiles(), LogMaker().batches(count)
    store = open_log(files)
    for entry in entries:
        write(store, entry)
    store.close()
    return files, entries


def log_files(files: SimulatedFiles) -> list[str]:
    return [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".log")]


def damaged_at(store: SegmentStore) -> int | None:
    damage = store.summary().damage
    return None if damage is None else damage.index


# What was noted


def test_an_end_that_was_durable_and_is_gone_is_damage_wherever_the_log_ends_now() -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    whole = files.content(path)
    ends = [frame_bytes(*entries[:count]) for count in range(6)]
    for size in range(len(whole)):
        files.put(path, whole[:size])
        store = open_log(files)
        sound = sum(end <= size for end in ends[1:])
        assert damaged_at(store) == sound + 1
        assert contents(store) == entries[:sound]
        assert files.content(path) == whole[:size], "what is left may tell somebody something"


@pytest.mark.parametrize("count", [1, 2, 60])
def test_segments_that_were_durable_and_are_gone_are_damage(count: int) -> None:
    files, entries = written(60)
    for path in log_files(files)[-count:]:
        files.remove(path)
    kept = len(contents(open_log(files)))
    assert kept < 60
    assert damaged_at(open_log(files)) == kept + 1
    assert contents(open_log(files)) == entries[:kept]


def test_zeros_where_a_frame_was_durable_are_damage() -> None:
    files, entries = written(6)
    (path,) = log_files(files)
    whole, start = files.content(path), frame_bytes(*entries[:5])
    files.put(path, whole[:start] + bytes(len(whole) - start))
    assert damaged_at(open_log(files)) == 6


def test_zeros_before_frames_that_are_sound_are_damage() -> None:
    files, entries = written(6)
    (path,) = log_files(files)
    whole = files.content(path)
    start, end = frame_bytes(*entries[:2]), frame_bytes(*entries[:3])
    files.put(path, whole[:start] + bytes(end - start) + whole[end:])
    assert damaged_at(open_log(files)) == 3


def test_an_end_that_is_missed_is_missed_until_the_replica_recovers() -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    files.put(path, files.content(path)[:-1])
    store = open_log(files)
    write(store, hard_state=HardState(1, recovering=True))  # a sync, which must not note the shorter log
    assert damaged_at(store) == 5
    store = open_log(files)
    assert damaged_at(store) == 5
    store.cut_damage()
    assert damaged_at(open_log(files)) is None
    store = open_log(files)
    write(store, entries[4])
    assert contents(open_log(files)) == entries


@pytest.mark.parametrize("kept", [0, 3])
def test_what_was_cut_on_purpose_is_not_missed(kept: int) -> None:
    files, entries = written(6)
    store = open_log(files)
    other = LogMaker(kept, 2, kept)
    replacement = [other.noop()]
    store.write(Write(truncate_from=kept + 1, entries=replacement))
    assert damaged_at(open_log(files)) is None
    assert contents(open_log(files)) == entries[:kept] + replacement


def test_a_note_is_of_its_change_only() -> None:
    files, entries = written(6)
    old = files.content(NOTE)
    store = open_log(files)
    store.write(Write(truncate_from=3, entries=[LogMaker(2, 2, 2).noop()]))
    store.sync()
    files.put(NOTE, old)  # as a power cut leaves it that comes before the kernel has written the new one
    assert damaged_at(open_log(files)) is None
    assert contents(open_log(files))[:2] == entries[:2]


# What was not


def unnoted(files: SimulatedFiles) -> SimulatedFiles:
    files.remove(NOTE)
    return files


def spoiled(files: SimulatedFiles) -> SimulatedFiles:
    files.flip(NOTE, 20)
    return files


def cut_short(files: SimulatedFiles) -> SimulatedFiles:
    files.put(NOTE, files.content(NOTE)[:-1])
    return files


def unreadable(files: SimulatedFiles) -> SimulatedFiles:
    files.spoil(NOTE, 0)
    return files


@pytest.mark.parametrize("lose", [unnoted, spoiled, cut_short, unreadable])
def test_without_a_sound_note_nothing_is_known_to_have_been_durable(
    lose: Callable[[SimulatedFiles], SimulatedFiles],
) -> None:
    files, entries = written(5)
    (path,) = log_files(files)
    files.put(path, files.content(path)[:-1])
    store = open_log(lose(files))
    assert damaged_at(store) is None
    assert contents(store) == entries[:4]


def test_every_flipped_byte_of_a_note_makes_it_none() -> None:
    files, _ = written(5)
    assert read_stable_index(files, GROUP, 0) == 5
    assert read_stable_index(files, GROUP, 1) == 0
    for position in range(len(files.content(NOTE))):
        files.flip(NOTE, position)
        assert read_stable_index(files, GROUP, 0) == 0
        files.flip(NOTE, position)


def test_an_append_is_torn_whichever_of_its_sectors_are_missing() -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = SegmentStores(files).open(GROUP, 1)
    durable, torn = make.batches(5), [make.records(b"x" * 900), make.records(b"y" * 700), *make.batches(2)]
    write(store, *durable)
    (path,) = log_files(files)
    start = len(files.content(path))
    store.write(Write(entries=torn))
    whole = files.content(path)
    boundaries = [start, *range(-(-start // 512) * 512, len(whole), 512), len(whole)]
    pieces = [slice(begin, end) for begin, end in pairwise(boundaries)]
    ends = [frame_bytes(*durable, *torn[:count]) for count in range(len(torn) + 1)]
    assert len(pieces) == 5
    for present in product((True, False), repeat=len(pieces)):
        content = bytearray(whole)
        for piece, is_there in zip(pieces, present, strict=True):
            if not is_there:
                content[piece] = bytes(piece.stop - piece.start)
        files.put(path, content)
        files.restart()
        store = SegmentStores(files).open(GROUP, 1)
        reached = next((piece.start for piece, there in zip(pieces, present, strict=True) if not there), 1e9)
        survivors = sum(end <= reached for end in ends[1:])
        assert damaged_at(store) is None, present
        assert contents(store) == durable + torn[:survivors]
        assert len(files.content(path)) == ends[survivors]


def test_a_frame_of_which_every_sector_has_something_did_not_tear() -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = SegmentStores(files).open(GROUP, 1)
    write(store, make.records(b"x" * 3_000), make.records(b"y" * 1_000))
    (path,) = log_files(files)
    whole = files.content(path)
    for position in range(0, len(whole), 97):
        files.put(path, whole)
        files.flip(path, position)
        files.restart()
        assert damaged_at(SegmentStores(unnoted(files)).open(GROUP, 1)) in (1, 2)


# Noting


def test_a_note_follows_each_sync() -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = open_log(files)
    for count in range(1, 30):  # over several segments
        store.write(Write(entries=[make.noop()]))
        assert read_stable_index(files, GROUP, 0) == count - 1
        store.sync()
        assert read_stable_index(files, GROUP, 0) == count


def test_what_could_not_be_synced_is_not_noted() -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = open_log(files)
    write(store, make.noop())
    store.write(Write(entries=[make.noop()]))
    files.fail_next("sync")
    with pytest.raises(Exception, match="the disk failed"):
        store.sync()
    assert read_stable_index(files, GROUP, 0) == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("doing", ["open", "write"])
def test_a_note_that_cannot_be_written_is_done_without(doing: str, error: int) -> None:
    files, make = SimulatedFiles(), LogMaker()
    store = open_log(files)
    store.write(Write(entries=[make.noop()]))
    files.fail_next(doing, error=error)
    store.sync()
    assert read_stable_index(files, GROUP, 0) == 0
    write(store, make.noop())
    assert read_stable_index(files, GROUP, 0) == 2


def test_where_syncs_do_not_wait_for_the_disk_nothing_is_known_to_be_durable(tmp_path: Path) -> None:
    for durable, known in ((True, 3), (False, 0)):
        files = RealFiles(tmp_path / str(durable), durable=durable)
        stores = SegmentStores(files)
        write(stores.open(GROUP, 1), *LogMaker().batches(3))
        assert read_stable_index(files, GROUP, 0) == known
        stores.close()
