"""Entries through consensus: three processes, every acknowledgement durable on a majority; and pysyncobj."""

import importlib.util
import shutil
from collections.abc import Iterator
from statistics import mean

import msgspec

from bench.commands import Latencies, Push, Pushed, PushOneByOne, Settings
from bench.processes import Cluster
from bench.results import Bound, Missing, Row, Scene, Yielded

ABOUT = """\
Three processes on loopback with one group; the producer runs inside the leader's process and keeps a
window of entries under way. Payloads are random bytes, each an entry of its own. Talweg's entries come
as frames (uncompressed), as a client would send them, and are acknowledged once two of three processes
have called fdatasync after writing them. pysyncobj pickles its entries, which is a few per cent of its
work, and writes them to a memory-mapped journal; it never calls fsync.

Both are started afresh for each measurement and take turns, and the figure is the mean of the rounds.
pysyncobj is measured with several settings, and the best of them counts at each size. All of them have
its journal on and log compaction off (which would rewrite the journal under way). *default*: everything
else as it comes. *quick ticks*: autoTickPeriod 1 ms, appendEntriesPeriod 20 ms, socket buffers of 1 MB.
*large batches*: the same with appendEntriesBatchSizeBytes 1 MB, so that an entry of 100 KB goes in one
piece. For single entries appendEntriesUseBatch is off, as its documentation advises."""

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


class Pipelined(msgspec.Struct, frozen=True):
    """One size of entry."""

    name: str
    entry_bytes: int
    window: int
    rival_window: int  # pysyncobj's: more makes it slower
    ratio_min: float


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    pipelined: list[Pipelined]
    rounds: int
    warm_seconds: float
    seconds: float
    one_by_one: int
    settings: list[str]  # of pysyncobj


_1_KB = Pipelined("1 KB", 1 << 10, window=4096, rival_window=2000, ratio_min=10)
_100_KB = Pipelined("100 KB", 100 << 10, window=64, rival_window=64, ratio_min=50)

FULL = Sizes([_1_KB, _100_KB], rounds=3, warm_seconds=1.5, seconds=5.0, one_by_one=500, settings=[*_SETTINGS])
QUICK = Sizes(
    [_1_KB, _100_KB], rounds=1, warm_seconds=1.0, seconds=2.0, one_by_one=100, settings=[*_SETTINGS]
)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Pipelined entries of each size, then one at a time."""
    with_rival = importlib.util.find_spec("pysyncobj") is not None
    if not with_rival:
        yield Missing("pysyncobj", "it is not installed here; make bench installs it")
    for size in sizes.pipelined:
        yield from _pipelined(scene, sizes, size, with_rival)
    yield from _one_by_one(scene, sizes, with_rival)


def _pipelined(scene: Scene, sizes: Sizes, size: Pipelined, with_rival: bool) -> Iterator[Yielded]:
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in sizes.settings if with_rival}
    refused = 0
    for number in range(1, sizes.rounds + 1):
        scene.tell(f"{size.name} entries, round {number} of {sizes.rounds}: Talweg")
        push = Push(size.entry_bytes, size.window, sizes.warm_seconds, sizes.seconds)
        pushed = _push(scene, _TALWEG, {}, push)
        ours.append(pushed.entries_per_second)
        refused += pushed.refused
        for name, speeds in theirs.items():
            scene.tell(f"{size.name} entries, round {number} of {sizes.rounds}: pysyncobj, {name}")
            push = Push(size.entry_bytes, size.rival_window, sizes.warm_seconds, sizes.seconds)
            pushed = _push(scene, _PYSYNCOBJ, _SETTINGS[name], push)
            speeds.append(pushed.entries_per_second)
    speed = mean(ours)
    note = f"{speed * size.entry_bytes / 1e6:,.0f} MB/s" + (f", {refused} refused" if refused else "")
    yield Row(f"{size.name} entries, pipelined: Talweg", speed, "entries/s", note=note)
    for name, speeds in theirs.items():
        yield Row(f"{size.name} entries, pipelined: pysyncobj, {name}", mean(speeds), "entries/s")
    if theirs:
        best = max(theirs, key=lambda name: mean(theirs[name]))
        yield Row(
            f"{size.name} entries, pipelined: Talweg against pysyncobj",
            speed / max(mean(theirs[best]), 1e-3),
            "times",
            Bound(at_least=size.ratio_min),
            note=f"against its best setting, {best}",
        )


def _push(scene: Scene, module: str, settings: Settings, push: Push) -> Pushed:
    directory = scene.directory / "entries"
    try:
        with Cluster(module, directory, settings=settings) as cluster:
            leader = cluster.wait_for_leader()
            return leader.ask(push, Pushed, push.warm_seconds + push.seconds + 60)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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
