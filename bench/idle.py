"""What many idle groups cost: processor time, memory, threads, descriptors."""

import time
from collections.abc import Iterator

import msgspec

from bench import usage
from bench.processes import Cluster, ProcessFailed
from bench.results import Bound, Row, Scene, Yielded

ABOUT = """\
Three processes, each with a replica of every group (real segment stores, default settings: a heartbeat
every 200 ms for each group). Nothing is measured until every group has a leader that all three know, and
some seconds more; then each process's own processor time over wall-clock time."""

_SETTLE_SECONDS_MAX = 180.0


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
        leads = _wait_until_settled(scene, cluster, sizes)
        settled_seconds = time.monotonic() - began
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


def _wait_until_settled(scene: Scene, cluster: Cluster, sizes: Sizes) -> dict[int, int]:
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while True:
        states = {number: process.state() for number, process in cluster.processes.items()}
        led = min(state.led for state in states.values())
        leads = {number: state.leads for number, state in states.items()}
        if led == sizes.groups and sum(leads.values()) == sizes.groups:
            return leads
        if time.monotonic() > deadline:
            raise ProcessFailed(f"only {led} of {sizes.groups} groups have a leader")
        scene.tell(f"{sizes.groups} idle groups: {led} have a leader")
        time.sleep(0.2)
