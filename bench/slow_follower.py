"""Memory while a follower is down and a producer pushes, and while the follower catches up again."""

import time
from collections.abc import Iterator
from statistics import median

import msgspec

from bench import usage
from bench.commands import Push, Pushed
from bench.processes import Cluster, Process, ProcessFailed
from bench.results import Bound, Curve, Row, Scene, Yielded

ABOUT = """\
One of three processes is killed; a producer in the leader pushes 1 KB entries at full speed to the two
that are left. Their resident memory is sampled all the while. Flat means that its median in the last
third is at most 5 % above that in the first third. Then the third process is started again on its old
files, and is behind by everything that was pushed."""

_ENTRY_BYTES = 1 << 10
_GROWTH_MAX = 5.0  # per cent
_CATCH_UP_SECONDS_MAX = 300.0


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    warm_seconds: float
    seconds: float
    interval_seconds: float  # between samples
    window: int


FULL = Sizes(warm_seconds=3.0, seconds=30.0, interval_seconds=0.25, window=4096)
QUICK = Sizes(warm_seconds=2.0, seconds=6.0, interval_seconds=0.1, window=4096)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """A curve and a row for each process that is left, then the same for the one that comes back."""
    with Cluster("bench.talweg_process", scene.directory / "slow-follower") as cluster:
        leader = cluster.wait_for_leader()
        down, up = [number for number, process in cluster.processes.items() if process is not leader]
        cluster.kill(down)
        watched = {"leader": leader, "live follower": cluster.processes[up]}
        samples, pushed = _push(scene, sizes, watched)
        megabytes = pushed.entries * _ENTRY_BYTES / 1e6
        yield Row("Pushed while a follower is down", megabytes, "MB", note=f"{pushed.entries:,} entries")
        yield from _growth(samples, sizes.interval_seconds)
        # Before it counts: what was pushed to warm up is missing there as well.
        missing = leader.state().last_index * _ENTRY_BYTES / 1e6
        watched["returning follower"] = cluster.start(down)
        samples, seconds = _catch_up(scene, sizes, watched)
        note = f"{missing:,.0f} MB behind, {missing / seconds:,.0f} MB/s"
        yield Row("The follower comes back: until it has caught up", seconds, "s", note=note)
        for name, sampled in samples.items():
            yield Row(f"Memory while it catches up: {name}, highest", max(sampled), "MB")


def _push(scene: Scene, sizes: Sizes, watched: dict[str, Process]) -> tuple[dict[str, list[float]], Pushed]:
    leader = watched["leader"]
    leader.send(Push(_ENTRY_BYTES, sizes.window, sizes.warm_seconds, sizes.seconds))
    scene.tell("a follower is down: warming up")
    leader.answered(sizes.warm_seconds)
    samples: dict[str, list[float]] = {name: [] for name in watched}
    while not leader.answered(sizes.interval_seconds):
        _sample(samples, watched)
        scene.tell(f"a follower is down: {len(samples['leader']) * sizes.interval_seconds:.0f} s pushed")
    return samples, leader.receive(Pushed, 0)


def _catch_up(
    scene: Scene, sizes: Sizes, watched: dict[str, Process]
) -> tuple[dict[str, list[float]], float]:
    goal = watched["leader"].state().last_index
    returning = watched["returning follower"]
    returning.state()  # it has opened its log
    samples: dict[str, list[float]] = {name: [] for name in watched}
    began = time.monotonic()
    while (last_index := returning.state().last_index) < goal:
        _sample(samples, watched)
        scene.tell(f"the follower is back: {100 * last_index / goal:.0f} % caught up")
        if time.monotonic() - began > _CATCH_UP_SECONDS_MAX:
            raise ProcessFailed(f"the follower has {last_index} of {goal} entries")
        time.sleep(sizes.interval_seconds / 5)
    _sample(samples, watched)
    return samples, time.monotonic() - began


def _sample(samples: dict[str, list[float]], watched: dict[str, Process]) -> None:
    for name, process in watched.items():
        samples[name].append(usage.resident_bytes(process.pid) / 1e6)


def _growth(samples: dict[str, list[float]], interval_seconds: float) -> Iterator[Yielded]:
    for name, values in samples.items():
        third = max(len(values) // 3, 1)
        first, last = median(values[:third]), median(values[-third:])
        yield Curve(f"Resident memory of the {name}", "MB", interval_seconds, values)
        yield Row(
            f"Memory growth, last third against first: {name}",
            100 * (last / first - 1),
            "%",
            Bound(at_most=_GROWTH_MAX),
            note=f"{first:.0f} MB, then {last:.0f} MB",
        )
