"""What many idle groups cost: processor time, memory, threads, descriptors."""

import time
from collections.abc import Iterator

import msgspec

from bench import usage
from bench.commands import Spread, State
from bench.processes import Cluster, ProcessFailed
from bench.results import Bound, Row, Scene, Yielded

ABOUT = """\
Three processes, each with a replica of every group (real segment stores, default settings: a heartbeat
every 200 ms for each group). Nothing is measured until every group has a leader that all three know, each
process leads a third of them, as a cluster's primary would have it (elections alone gave one between 30 and
670), and some seconds more; then each process's own processor time over wall-clock time."""

_SETTLE_SECONDS_MAX = 180.0
_LOOK_SECONDS = 0.2


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    groups: int
    rest_seconds: float  # between the last election and measuring
    seconds: float


FULL = Sizes(groups=1000, rest_seconds=5.0, seconds=20.0)
QUICK = Sizes(groups=1000, rest_seconds=3.0, seconds=5.0)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """A few rows for each process."""
    with Cluster("bench.talweg_process", scene.directory / "idle", groups=sizes.groups) as cluster:
        began = time.monotonic()
        _wait_until_led(scene, cluster, sizes)
        settled_seconds = time.monotonic() - began
        leads = _spread(scene, cluster, sizes)
        scene.tell(f"{sizes.groups} idle groups: measuring for {sizes.seconds:.0f} s")
        time.sleep(sizes.rest_seconds)
        pids = {number: process.pid for number, process in cluster.processes.items()}
        before = {number: usage.cpu_seconds(pid) for number, pid in pids.items()}
        began = time.monotonic()
        time.sleep(sizes.seconds)
        seconds = time.monotonic() - began
        after = {number: usage.cpu_seconds(pid) for number, pid in pids.items()}
        for number, pid in pids.items():
            yield Row(
                f"{sizes.groups:,} idle groups: process {number}",
                100 * (after[number] - before[number]) / seconds,
                "% of a core",
                Bound(at_most=10),
                note=(
                    f"leads {leads[number]}; {usage.threads(pid)} threads, "
                    f"{usage.descriptors(pid)} descriptors, {usage.resident_bytes(pid) / 1e6:.0f} MB"
                ),
            )
    yield Row(f"{sizes.groups:,} groups: from nothing until all have a leader", settled_seconds, "s")


def _wait_until_led(scene: Scene, cluster: Cluster, sizes: Sizes) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while (led := _led(_states(cluster))) < sizes.groups:
        if time.monotonic() > deadline:
            raise ProcessFailed(f"only {led} of {sizes.groups} groups have a leader")
        scene.tell(f"{sizes.groups} idle groups: {led} have a leader")
        time.sleep(_LOOK_SECONDS)


def _spread(scene: Scene, cluster: Cluster, sizes: Sizes) -> dict[int, int]:
    """Have each lead as many; returns how many each leads."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while True:
        states = _states(cluster)
        leads = {number: state.leads for number, state in states.items()}
        if _led(states) == sizes.groups and max(leads.values()) <= -(-sizes.groups // len(leads)):
            return leads
        if time.monotonic() > deadline:
            raise ProcessFailed(f"the groups could not be spread evenly: {leads}")
        scene.tell(f"{sizes.groups} idle groups: spreading their leaders")
        for process in cluster.processes.values():
            process.ask(Spread(), State, _SETTLE_SECONDS_MAX)
        time.sleep(_LOOK_SECONDS)


def _states(cluster: Cluster) -> dict[int, State]:
    return {number: process.state() for number, process in cluster.processes.items()}


def _led(states: dict[int, State]) -> int:
    """How many groups have a leader, as everybody knows."""
    return min(*(state.led for state in states.values()), sum(state.leads for state in states.values()))
