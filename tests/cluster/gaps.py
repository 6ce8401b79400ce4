"""How long nobody can write when a leader goes: killed, or sent away on purpose.

`PYTHONPATH=tests python -m cluster.gaps --kills 50` measures on a cluster of its own, with default settings.
"""

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from talweg.errors import TalwegError
from talweg.testing.asking import Asker
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import ClusterError, wait_until

_SECONDS_MAX: Final = 30.0  # for a gap to end
_CALM: Final = 20  # acknowledgements after which writing goes on as before
_PRODUCERS: Final = 2
# Brokers dial one that was away again within a second, and nothing shows from outside that they have. The
# next event would otherwise meet a cluster that is still short of one.
_SETTLE_SECONDS: Final = 1.5


class Gaps(msgspec.Struct, frozen=True):
    """Seconds without an acknowledgement around each of some events."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half are shorter."""
        return statistics.median(self.seconds)

    @property
    def worst(self) -> float:
        """The longest."""
        return max(self.seconds)


class Writers:
    """Produce to one partition all the time, from `with` to its end, and note when each was acknowledged."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._stop = threading.Event()
        self._times: list[float] = []  # appended by all; the order is nearly that of time
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(_PRODUCERS)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        self.wait_for_more(_CALM)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_SECONDS_MAX)

    def _write(self) -> None:
        with Asker(self._endpoint, 5.0) as asker:
            producer: int | None = None
            sequence = 0
            while not self._stop.is_set():
                try:
                    if producer is None:
                        producer = int(asker.post("/producer/register", topic=self._topic)["producer_id"])
                    asker.post(
                        "/producer/produce",
                        topic=self._topic,
                        producer_id=producer,
                        message="x" * 100,
                        partition=0,
                        sequence=sequence,
                    )
                    self._times.append(time.monotonic())
                    sequence += 1
                except TalwegError as error:
                    if not error.retriable:
                        raise
                    self._stop.wait(0.005)

    def wait_for_more(self, count: int) -> None:
        """So many acknowledgements from now on."""
        wanted = len(self._times) + count
        wait_until(lambda: len(self._times) >= wanted, "messages to be acknowledged", _SECONDS_MAX)

    def gap_around(self, event: Callable[[], None]) -> float:
        """The longest silence from just before an event until writing goes on as before."""
        first = max(0, len(self._times) - 1)
        event()
        self.wait_for_more(_CALM)
        # A few may have been on their way when it happened: the silence lies behind them.
        times = sorted(self._times[first:])
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def measure_kills(cluster: LocalCluster, kills: int, topic: str = "gaps-by-kill") -> Gaps:
    """Kill the leader of a partition so many times, and start it again each time."""
    return Gaps(tuple(_each_leader(cluster, topic, kills, cluster.kill)))


def measure_pauses(cluster: LocalCluster, pauses: int, topic: str = "gaps-by-pause") -> Gaps:
    """Stop the leader of a partition where it stands (SIGSTOP) so many times, and wake it each time."""
    return Gaps(tuple(_each_leader(cluster, topic, pauses, cluster.pause)))


def measure_stops(cluster: LocalCluster, stops: int, topic: str = "gaps-by-stop") -> Gaps:
    """Stop the leader of a partition in good order so many times, and start it again each time."""

    def stop(name: str) -> None:
        cluster.terminate(name)

    return Gaps(tuple(_each_leader(cluster, topic, stops, stop)))


def measure_deactivations(cluster: LocalCluster, moves: int, topic: str = "gaps-by-move") -> Gaps:
    """Deactivate the broker that leads a partition so many times, and activate it again each time."""

    def deactivate(name: str) -> None:
        number = cluster.number(name)
        with cluster.ask() as manager:
            manager.post("/admin/broker/deactivate", broker_id=number)
        cluster.wait_for_leader(topic, 0, other_than=name)

    return Gaps(tuple(_each_leader(cluster, topic, moves, deactivate)))


def _each_leader(
    cluster: LocalCluster, topic: str, times: int, event: Callable[[str], None]
) -> Iterator[float]:
    with cluster.ask() as manager:
        manager.post("/topics", name=topic, partitions=1)
    cluster.wait_for_leader(topic, 0)
    with Writers(cluster.url, topic) as writers:
        for _ in range(times):
            leader = cluster.wait_for_leader(topic, 0)
            yield writers.gap_around(lambda leader=leader: event(leader))  # type: ignore[misc]
            _put_right(cluster, leader)
            writers.wait_for_more(_CALM)


def _put_right(cluster: LocalCluster, name: str) -> None:
    """Everything as before the event: it runs, is active, and has what it missed."""
    if cluster.processes[name].paused:
        cluster.resume(name)
    elif not cluster.processes[name].running:
        cluster.restart(name)
    elif cluster.statuses().get(name) != "active":
        with cluster.ask() as manager:
            manager.post("/admin/broker/activate", broker_id=cluster.number(name))
    cluster.wait_for_status(name, "active")
    time.sleep(_SETTLE_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each sort of event."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--moves", type=int, default=10)
    wanted = parser.parse_args(arguments)
    try:
        with LocalCluster() as cluster:
            for what, gaps in (
                ("leader killed", measure_kills(cluster, wanted.kills)),
                ("leader stopped", measure_stops(cluster, wanted.moves)),
                ("leader paused", measure_pauses(cluster, wanted.moves)),
                ("leader deactivated", measure_deactivations(cluster, wanted.moves)),
            ):
                told = f"median {gaps.median:.3f} s, worst {gaps.worst:.3f} s"
                print(f"{what:20} {len(gaps.seconds):3} times: {told}")  # noqa: T201 - that is what it is for
    except ClusterError as error:
        print(error)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
