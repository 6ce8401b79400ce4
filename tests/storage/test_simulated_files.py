"""The simulated disk behaves like a real one, and worse when it is told to."""

import errno
from pathlib import Path
from random import Random

import pytest

from talweg.storage.files import Files, RealFiles
from talweg.testing.disk import PowerCut, SimulatedFiles


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles(tmp_path) if request.param == "real" else SimulatedFiles()


def durable_file(files: SimulatedFiles, path: str, content: bytes) -> None:
    directory = path.rpartition("/")[0]
    if directory:
        files.make_directory(directory)
        files.sync_directory("")
    file = files.open(path)
    file.write_at(content, 0)
    file.sync()
    files.sync_directory(directory)


# The same as real files


def test_bytes_are_read_where_they_were_written(files: Files) -> None:
    file = files.open("file")
    assert file.write_at(b"hello", 0) == 5
    assert file.write_at(memoryview(b"HE"), 0) == 2
    assert file.write_at(b"!", 8) == 1
    assert file.size() == 9
    assert file.read_at(100, 0) == b"HEllo\0\0\0!"
    assert file.read_at(3, 1) == b"Ell"
    assert file.read_at(3, 50) == b""
    assert file.write_parts_at([b"L", memoryview(b"LO, w"), b"orld"], 2) == 10
    assert file.read_at(100, 0) == b"HELLO, world"
    file.close()
    file.close()
    assert files.open("file").read_at(2, 0) == b"HE"


def test_files_are_cut_and_extended(files: Files) -> None:
    file = files.open("file")
    file.write_at(b"hello", 0)
    file.truncate(2)
    assert file.read_at(10, 0) == b"he"
    file.truncate(4)
    assert file.read_at(10, 0) == b"he\0\0"


def test_names_are_made_moved_and_removed(files: Files) -> None:
    files.make_directory("a/b")
    files.make_directory("a/b")
    files.open("a/b/one").write_at(b"1", 0)
    files.open("a/b/two").write_at(b"2", 0)
    assert files.list("a/b") == ["one", "two"]
    assert files.list("a") == ["b"]
    assert files.list("") == ["a"]
    assert files.list("missing") == []
    files.rename("a/b/one", "a/b/two")
    assert files.list("a/b") == ["two"]
    assert files.open("a/b/two").read_at(1, 0) == b"1"
    assert files.exists("a/b/two")
    assert files.exists("a")
    assert not files.exists("a/b/one")
    files.sync_directory("a/b")
    files.sync_directory("")
    files.remove("a/b/two")
    files.remove("a/b/two")
    files.remove_directory("a")
    files.remove_directory("a")
    assert files.list("") == []


def test_a_file_goes_on_for_those_who_have_it_open(files: Files) -> None:
    file = files.open("file")
    file.write_at(b"here", 0)
    files.remove("file")
    assert file.read_at(4, 0) == b"here"
    assert files.open("file").read_at(4, 0) == b""


def test_what_is_not_there_is_an_error(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.open("missing/file")
    with pytest.raises(FileNotFoundError):
        files.rename("missing", "other")
    with pytest.raises(FileNotFoundError):
        files.sync_directory("missing")
    files.make_directory("directory")
    with pytest.raises(IsADirectoryError):
        files.open("directory")


# Crashes


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(50):
        files = SimulatedFiles()
        durable_file(files, "d/file", b"durable")
        files.crash(Random(seed))
        assert files.content("d/file") == b"durable"


def test_of_what_was_not_synced_some_prefix_survives() -> None:
    found = set()
    for seed in range(400):
        files = SimulatedFiles()
        durable_file(files, "file", b"ab")
        file = files.open("file")
        file.write_at(b"cd", 2)
        file.write_at(b"efg", 4)
        assert files.content("file") == b"abcdefg"
        files.crash(Random(seed))
        found.add(files.content("file"))
    prefixes = {b"abcdefg"[:size] for size in range(2, 8)}
    assert found == prefixes | {b"ab" + bytes(5)}, "or the length, but no sector that was not durable"


def test_the_length_of_a_file_may_survive_without_its_last_sectors() -> None:
    found = set()
    for seed in range(400):
        files = SimulatedFiles()
        durable_file(files, "file", b"a" * 700)
        file = files.open("file")
        file.write_at(b"b" * 1_300, 700)
        file.write_at(b"c" * 500, 2_000)
        files.crash(Random(seed))
        content = files.content("file")
        if content.endswith(b"\0"):
            found.add((len(content.rstrip(b"\0")), len(content)))
    ends = {700, 1_024, 1_536}
    assert found == {(end, 2_500) for end in ends | {2_048}}


def test_a_cut_that_was_not_synced_may_be_undone() -> None:
    found = set()
    for seed in range(200):
        files = SimulatedFiles()
        durable_file(files, "file", b"abcd")
        file = files.open("file")
        file.truncate(1)
        file.write_at(b"X", 1)
        files.crash(Random(seed))
        found.add(files.content("file"))
    assert found == {b"abcd", b"a", b"aX", b"a\0"}


def test_names_that_were_not_synced_may_survive_or_not() -> None:
    found = set()
    for seed in range(200):
        files = SimulatedFiles()
        durable_file(files, "d/old", b"old")
        durable_file(files, "d/gone", b"gone")
        files.open("d/new")
        files.rename("d/old", "d/renamed")
        files.remove("d/gone")
        files.crash(Random(seed))
        found.add(tuple(files.list("d")))
    assert len(found) == 8
    assert ("gone", "old") in found
    assert ("new", "renamed") in found


def test_a_rename_is_all_or_nothing() -> None:
    for seed in range(50):
        files = SimulatedFiles()
        durable_file(files, "d/a", b"a")
        durable_file(files, "d/b", b"b")
        files.rename("d/a", "d/b")
        files.crash(Random(seed))
        assert [(name, files.content(f"d/{name}")) for name in files.list("d")] in (
            [("a", b"a"), ("b", b"b")],
            [("b", b"a")],
        )


def test_a_durable_name_may_point_at_bytes_that_are_not() -> None:
    found = set()
    for seed in range(50):
        files = SimulatedFiles()
        files.open("file").write_at(b"ab", 0)
        files.sync_directory("")
        files.crash(Random(seed))
        found.add(files.content("file"))
    assert found == {b"", b"a", b"ab", b"\0\0"}


def test_a_directory_that_was_not_synced_takes_all_it_holds_with_it() -> None:
    found = set()
    for seed in range(20):
        files = SimulatedFiles()
        files.make_directory("d")
        file = files.open("d/file")
        file.write_at(b"x", 0)
        file.sync()
        files.sync_directory("d")
        files.crash(Random(seed))
        found.add(files.exists("d/file"))
    assert found == {True, False}


def test_the_same_seed_is_the_same_crash() -> None:
    def crashed(seed: int) -> tuple[list[str], bytes]:
        files = SimulatedFiles()
        durable_file(files, "d/file", b"abc")
        files.open("d/file").write_at(bytes(range(100)), 3)
        for number in range(20):
            files.open(f"d/{number}")
        files.crash(Random(seed))
        return files.list("d"), files.content("d/file")

    assert [crashed(seed) for seed in range(20)] == [crashed(seed) for seed in range(20)]
    assert crashed(1) != crashed(2)


def test_open_files_are_useless_after_a_crash() -> None:
    files = SimulatedFiles()
    file = files.open("file")
    files.crash(Random(1))
    with pytest.raises(OSError, match="crashed"):
        file.read_at(1, 0)
    file.close()


def test_a_dead_process_loses_its_descriptors_and_nothing_else() -> None:
    files = SimulatedFiles()
    file = files.open("file")
    file.write_at(b"written", 0)
    assert files.open_count == 1
    files.restart()
    assert files.open_count == 0
    assert files.content("file") == b"written"
    with pytest.raises(OSError, match="closed"):
        file.sync()


def test_a_power_cut_stops_everything_until_the_crash() -> None:
    files = SimulatedFiles()
    file = files.open("file")
    files.cut_power_after(2)
    file.write_at(b"a", 0)
    file.sync()
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.write_at(b"b", 1)
    with pytest.raises(PowerCut):
        file.read_at(1, 0)
    with pytest.raises(PowerCut):
        files.sync_directory("")
    files.crash(Random(3))
    files.open("other").write_at(b"b", 0)


# Faults


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    files = SimulatedFiles(space_bytes=5)
    file = files.open("file")
    assert file.write_at(b"abc", 0) == 3
    assert file.write_at(b"defg", 3) == 2
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at(b"f", 5)
    assert caught.value.errno == errno.ENOSPC
    assert file.write_at(b"ABCDE", 0) == 5, "overwriting takes no space"
    file.truncate(1)
    assert files.space_bytes == 4
    other = files.open("other")
    assert other.write_at(b"123456", 0) == 4
    files.remove("other")
    assert files.space_bytes == 4


def test_space_comes_back_with_what_a_crash_takes() -> None:
    files = SimulatedFiles(space_bytes=10)
    files.open("file").write_at(b"12345", 0)
    for seed in range(20):
        files.crash(Random(seed))
    assert files.space_bytes is not None
    left = len(files.content("file")) if files.exists("file") else 0
    assert files.space_bytes == 10 - left


def test_writes_can_be_short() -> None:
    files = SimulatedFiles(write_bytes_max=3)
    assert files.open("file").write_at(b"abcdef", 0) == 3
    assert files.content("file") == b"abc"


def test_failures_come_when_they_were_asked_for() -> None:
    files = SimulatedFiles()
    file = files.open("file")
    files.fail_next("write", after=1)
    files.fail_next("write", error=errno.ENOSPC)
    file.write_at(b"a", 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.write_at(b"b", 1)
    with pytest.raises(OSError, match="No space"):
        file.write_at(b"b", 1)
    assert file.write_at(b"b", 1) == 1
    files.fail_next("sync")
    files.fail_no_more()
    file.sync()
    with pytest.raises(AssertionError):
        files.fail_next("nothing")


def test_what_a_failed_sync_lost_no_later_sync_brings_back() -> None:
    files = SimulatedFiles()
    durable_file(files, "file", b"ab")
    file = files.open("file")
    file.write_at(b"cd", 2)
    files.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    assert file.read_at(4, 0) == b"abcd", "the kernel still has it"
    file.sync()
    file.write_at(b"e", 4)
    file.sync()
    files.crash(Random(1))
    assert files.content("file") == b"ab\0\0e"


def test_bits_rot() -> None:
    files = SimulatedFiles()
    durable_file(files, "file", b"abc")
    files.flip("file", 1, 0x02)
    assert files.content("file") == b"a`c"
    files.crash(Random(1))
    assert files.content("file") == b"a`c"


def test_of_a_sync_that_failed_everybody_is_told_once_who_has_the_file_open() -> None:
    files = SimulatedFiles()
    file, other = files.open("a"), files.open("a")
    file.write_at(b"lost", 0)
    files.fail_next("sync")
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    files.open("a").sync()  # it was not there
    with pytest.raises(OSError, match="Input/output error"):
        other.sync()
    other.sync()
