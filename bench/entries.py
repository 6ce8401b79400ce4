"""Entries through consensus: three processes, every acknowledgement durable on a majority; and pysyncobj."""

import importlib.util
import shutil
import time
from collections.abc import Iterator
from statistics import mean

import msgspec

from bench import usage
from bench.commands import Latencies, Push, Pushed, PushOneByOne, Settings
from bench.disk import bare_bytes_per_second
from bench.processes import Cluster
from bench.results import Bound, Missing, Row, Scene, Yielded

ABOUT = """\
Three processes on loopback with one group; the producer runs inside the leader's process and keeps a
window of entries under way. Payloads are random bytes, each an entry of its own. Talweg's entries are
frames made beforehand, as clients send them (to make one takes some 5 µs, see Records), and are
acknowledged once two of three processes have called fdatasync after writing them. pysyncobj pickles its
entries when it is given them (some 3 % of its work), and writes them to a memory-mapped journal; it never
calls fsync.

Both are started afresh for each measurement and take turns, and the figure is the mean of the rounds.
pysyncobj is measured with several settings and windows, and the best of them counts at each size. All
have its journal on and log compaction off (which would rewrite the journal under way). *default*:
everything else as it comes. *quick ticks*: autoTickPeriod 1 ms, appendEntriesPeriod 20 ms, socket
buffers of 1 MB. *large batches*: the same with appendEntriesBatchSizeBytes 1 MB, so that an entry of 100
KB goes in one piece. For single entries appendEntriesUseBatch is off, as its documentation advises."""

_CATCH_UP_SECONDS_MAX = 10.0
_LOOK_SECONDS = 0.02

_TALWEG = "bench.talweg_process"
_PYSYNCOBJ = "bench.pysyncobj_process"

_COMMON: Settings = {
    "connectionRetryTime": 0.2,  # so that it starts quickly
    "logCompactionMinEntries": 10**9,
    "logCompactionMinTime": 10**6,
}
_QUICK_TICKS = _COMMON | {
    "autoTickPeriod": 0.001,
    "appendEntriesPeriod": 0.02,
    "sendBufferSize": 1 << 20,
    "recvBufferSize": 1 << 20,
}
_SETTINGS: dict[str, Settings] = {
    "default": _COMMON,
    "quick ticks": _QUICK_TICKS,
    "large batches": _QUICK_TICKS | {"appendEntriesBatchSizeBytes": 1 << 20},
}
_SETTINGS_ONE_BY_ONE = _QUICK_TICKS | {"appendEntriesUseBatch": False}


class Rival(msgspec.Struct, frozen=True):
    """pysyncobj with one of its settings."""

    setting: str
    window: int  # too many under way make it slower

    def __str__(self) -> str:
        return f"pysyncobj, {self.setting}, window {self.window:,}"


class Pipelined(msgspec.Struct, frozen=True):
    """One size of entry."""

    name: str
    entry_bytes: int
    window: int
    ratio_min: float
    rivals: list[Rival]


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    pipelined: list[Pipelined]
    rounds: int
    warm_seconds: float
    seconds: float
    one_by_one: int


_1_KB = Pipelined(
    "1 KB",
    1 << 10,
    window=8192,
    ratio_min=10,
    rivals=[Rival(setting, window) for setting in ("default", "quick ticks") for window in (1000, 2000)],
)
_100_KB = Pipelined(
    "100 KB",
    100 << 10,
    window=64,
    ratio_min=50,
    rivals=[
        Rival("default", 64),
        *(Rival(setting, window) for setting in ("quick ticks", "large batches") for window in (16, 64)),
    ],
)
FULL = Sizes([_1_KB, _100_KB], rounds=5, warm_seconds=1.5, seconds=4.0, one_by_one=500)
QUICK = Sizes([_1_KB, _100_KB], rounds=1, warm_seconds=1.0, seconds=2.0, one_by_one=100)


class Measured(msgspec.Struct, frozen=True):
    """What one measurement of one contestant gave."""

    entries_per_second: float
    refused: int
    leader_us: float  # processor time for each entry, of the leader's process
    all_us: float  # and of all three
    copies: float  # of an entry that were made by the time the producer had its last answer


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Pipelined entries of each size, then one at a time."""
    with_rival = importlib.util.find_spec("pysyncobj") is not None
    if not with_rival:
        yield Missing("pysyncobj", "it is not installed here; make bench installs it")
    for size in sizes.pipelined:
        yield from _pipelined(scene, sizes, size, with_rival)
    yield from _one_by_one(scene, sizes, with_rival)


def _pipelined(scene: Scene, sizes: Sizes, size: Pipelined, with_rival: bool) -> Iterator[Yielded]:
    ours: list[Measured] = []
    theirs: dict[Rival, list[Measured]] = {rival: [] for rival in size.rivals if with_rival}
    disk: list[float] = []
    for number in range(1, sizes.rounds + 1):
        doing = f"{size.name} entries, round {number} of {sizes.rounds}"
        scene.tell(f"{doing}: Talweg")
        push = Push(size.entry_bytes, size.window, sizes.warm_seconds, sizes.seconds)
        ours.append(_measure(scene, _TALWEG, {}, push))
        scene.tell(f"{doing}: the bare disk")
        disk.append(
            bare_bytes_per_second(scene.directory, loops=3, write_bytes=1 << 20, seconds=sizes.seconds / 2)
        )
        for rival, measured in theirs.items():
            scene.tell(f"{doing}: {rival}")
            push = Push(size.entry_bytes, rival.window, sizes.warm_seconds, sizes.seconds)
            measured.append(_measure(scene, _PYSYNCOBJ, _SETTINGS[rival.setting], push))
    speed = _speed(ours)
    yield Row(
        f"{size.name} entries, pipelined: Talweg",
        speed,
        "entries/s",
        note=f"{_written(ours, size.entry_bytes)}; {_cost(ours)}",
    )
    for rival, measured in theirs.items():
        what = f"{size.name} entries, pipelined: {rival}"
        yield Row(what, _speed(measured), "entries/s", note=_cost(measured))
    if theirs:
        best = max(theirs, key=lambda rival: _speed(theirs[rival]))
        yield Row(
            f"{size.name} entries, pipelined: Talweg against pysyncobj",
            speed / max(_speed(theirs[best]), 1e-3),
            "times",
            Bound(at_least=size.ratio_min),
            note=f"against the best: {best}",
        )
    yield Row(
        f"{size.name} entries, pipelined: what the disk gives",
        mean(disk) / 1e6,
        "MB/s",
        note="in the same rounds: three bare loops at once of write and fdatasync of 1 MB",
    )


def _speed(measured: list[Measured]) -> float:
    return mean(each.entries_per_second for each in measured)


def _written(measured: list[Measured], entry_bytes: int) -> str:
    copies = mean(each.copies for each in measured)
    written = mean(each.copies * each.entries_per_second * entry_bytes for each in measured)
    return f"{copies:.2f} copies of each, {written / 1e6:,.0f} MB/s to the disk in all"


def _cost(measured: list[Measured]) -> str:
    refused = sum(each.refused for each in measured)
    leader_us, all_us = mean(each.leader_us for each in measured), mean(each.all_us for each in measured)
    text = f"{all_us:,.0f} µs of processor time an entry, {leader_us:,.0f} of it the leader's"
    return text + (f"; {refused} refused" if refused else "")


def _measure(scene: Scene, module: str, settings: Settings, push: Push) -> Measured:
    directory = scene.directory / "entries"
    try:
        with Cluster(module, directory, settings=settings) as cluster:
            leader = cluster.wait_for_leader()
            processes = cluster.processes.values()
            first_index = leader.state().last_index
            before = {process: usage.cpu_seconds(process.pid) for process in processes}
            pushed = leader.ask(push, Pushed, push.warm_seconds + push.seconds + 60)
            durable = [process.state().last_index for process in processes]
            _wait_until_all_hold_it(cluster)
            spent = {process: usage.cpu_seconds(process.pid) - before[process] for process in processes}
            entries = max(leader.state().last_index - first_index, 1)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Measured(
        pushed.entries_per_second,
        pushed.refused,
        leader_us=1e6 * spent[leader] / entries,
        all_us=1e6 * sum(spent.values()) / entries,
        copies=copies_made(first_index, durable),
    )


def copies_made(first_index: int, last_indexes: list[int]) -> float:
    """How many copies there are of an entry, on average. Two processes acknowledge: the third may lag."""
    written = [index - first_index for index in last_indexes]
    return sum(written) / max(*written, 1)


def _wait_until_all_hold_it(cluster: Cluster) -> None:
    # Two of three acknowledge. What the third has yet to do belongs to the cost of an entry all the same.
    deadline = time.monotonic() + _CATCH_UP_SECONDS_MAX
    while len({process.state().last_index for process in cluster.processes.values()}) > 1:
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)


def _one_by_one(scene: Scene, sizes: Sizes, with_rival: bool) -> Iterator[Yielded]:
    contestants: list[tuple[str, str, Settings]] = [
        ("Talweg", _TALWEG, {}),
        ("pysyncobj", _PYSYNCOBJ, _SETTINGS_ONE_BY_ONE),
    ]
    for name, module, settings in contestants[: 2 if with_rival else 1]:
        scene.tell(f"1 KB entries, one at a time: {name}")
        directory = scene.directory / "one-by-one"
        with Cluster(module, directory, settings=settings) as cluster:
            leader = cluster.wait_for_leader()
            leader.ask(PushOneByOne(1 << 10, max(sizes.one_by_one // 10, 1)), Latencies, 60)  # warm
            latencies = leader.ask(PushOneByOne(1 << 10, sizes.one_by_one), Latencies, 120)
        shutil.rmtree(directory, ignore_errors=True)
        p99 = latencies.quantile_ms(0.99)
        yield Row(f"1 KB entries, one at a time: {name}, median", latencies.quantile_ms(0.5), "ms")
        yield Row(f"1 KB entries, one at a time: {name}, 99 of 100 within", p99, "ms")
