"""For how long nobody can write to a partition, when its leader is killed and when it hands over."""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from statistics import median

import msgspec

from bench.processes import ProcessFailed
from bench.results import Bound, Row, Scene, Yielded
from bench.steady_writer import SteadyWriter
from bench.talweg_cluster import create_topic
from talweg.testing.asking import try_to_get
from talweg.testing.cluster import LocalCluster
from talweg.testing.processes import wait_until

ABOUT = """\
A writer produces a small message to one partition through the primary, waits for the answer, and after 5 ms
produces the next; what fails is tried again with the same sequence number, for as long as it takes. A gap
is the longest time between two acknowledged messages around an event. Three brokers, replication 3,
default settings. *Killed*: the partition's leader gets SIGKILL, and is started again when the gap is over.
*On purpose*: the leader is deactivated and activated again; stopped with SIGTERM and started again; or, in
a cluster with brokers to spare, removed. Afterwards the partition must hold every acknowledged message
once, in order."""

_TOPIC = "gaps"
_PARTITION = 0
_SETTLED = 40  # messages acknowledged after an event, and a gap is over
_PAUSE_SECONDS_MAX = 0.3  # so that events come at any moment between two heartbeats
_LOOK_SECONDS = 0.05
_MOVE_SECONDS_MAX = 60.0


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    kills: int
    moves: int  # of each kind
    removals: int  # each wants a broker to spare
    # With the same leader before an event: longer than it takes the primary to hear of one and to move it.
    steady_seconds: float


FULL = Sizes(kills=50, moves=10, removals=3, steady_seconds=1.5)
QUICK = Sizes(kills=3, moves=2, removals=1, steady_seconds=1.5)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Kills and moves in one cluster, removals in another."""
    with Stage(scene, sizes, brokers=3) as stage:
        killed = [stage.gap(f"kill {n} of {sizes.kills}", stage.kill) for n in _counted(sizes.kills)]
        yield Row(
            "Write gap after kill -9 of a leader: median",
            median(killed),
            "s",
            Bound(at_most=1.5),
            note=f"{len(killed)} kills, from {min(killed):.2f} s on",
        )
        yield Row("Write gap after kill -9 of a leader: worst", max(killed), "s", Bound(at_most=4))
        moved = {
            "deactivated": [stage.gap(f"deactivation {n}", stage.deactivate) for n in _counted(sizes.moves)],
            "stopped": [stage.gap(f"clean stop {n}", stage.stop) for n in _counted(sizes.moves)],
        }
        yield stage.check("Messages written around kills and moves")
    with Stage(scene, sizes, brokers=3 + sizes.removals) as stage:
        moved["removed"] = [stage.gap(f"removal {n}", stage.remove) for n in _counted(sizes.removals)]
        yield stage.check("Messages written around removals")
    for how, gaps in moved.items():
        yield Row(
            f"Write gap when a leader is {how}: worst",
            1000 * max(gaps),
            "ms",
            Bound(at_most=300),
            note=f"median {1000 * median(gaps):.0f} ms of {len(gaps)}",
        )


def _counted(count: int) -> range:
    return range(1, count + 1)


class Stage:
    """A cluster with a writer, and what can befall the broker that leads the writer's partition."""

    def __init__(self, scene: Scene, sizes: Sizes, *, brokers: int) -> None:
        self._scene = scene
        self._steady_seconds = sizes.steady_seconds
        self._directory = scene.directory / "talweg"
        self._cluster = LocalCluster(self._directory, brokers=brokers, readers=0)
        self._writer: SteadyWriter

    def __enter__(self) -> "Stage":
        self._scene.tell("gaps: starting a cluster")
        self._cluster.start()
        try:
            create_topic(self._cluster, _TOPIC, 1)
            self._writer = SteadyWriter(self._cluster.url, _TOPIC, _PARTITION)
            self._writer.start()
            self._writer.wait_for_more(_SETTLED)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.stop()
        self._close()

    def _close(self) -> None:
        self._cluster.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def gap(self, what: str, befall: Callable[[str], None]) -> float:
        """The gap in seconds when something befalls the leader. Everything is well again afterwards."""
        self._scene.tell(f"gaps: {what}")
        leader = self._wait_for_steady_leader()
        time.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))
        began = time.monotonic()
        befall(leader)
        wait_until(
            lambda: self._leader() not in (None, leader), f"a leader other than {leader}", _MOVE_SECONDS_MAX
        )
        self._writer.wait_for_more(_SETTLED)
        gap = self._writer.longest_gap_since(began)
        self._mend(leader)
        return gap

    def kill(self, leader: str) -> None:
        """A power cut, for one broker."""
        self._cluster.kill(leader)

    def stop(self, leader: str) -> None:
        """SIGTERM, and it hands over."""
        self._cluster.terminate(leader)

    def deactivate(self, leader: str) -> None:
        """By hand: it goes on, but leads nothing."""
        with self._cluster.ask() as manager:
            manager.post("/admin/broker/deactivate", broker_id=self._cluster.number(leader))

    def remove(self, leader: str) -> None:
        """For ever: what it carries moves to others first."""
        with self._cluster.ask(seconds_max=_MOVE_SECONDS_MAX) as manager:
            manager.post("/admin/broker/remove", broker_id=self._cluster.number(leader))

    def _mend(self, name: str) -> None:
        if not self._cluster.processes[name].running:
            self._cluster.restart(name)
        elif self._cluster.statuses()[name] == "deactivated":
            with self._cluster.ask() as manager:
                manager.post("/admin/broker/activate", broker_id=self._cluster.number(name))
        else:
            return  # removed for ever
        self._cluster.wait_for_status(name, "active", _MOVE_SECONDS_MAX)
        wait_until(lambda: self._leads(name) is not None, f"{name} to take part again", _MOVE_SECONDS_MAX)
        self._writer.wait_for_more(_SETTLED)

    def _wait_for_steady_leader(self) -> str:
        """Who leads, once that has not changed for a while: the primary may still be moving leadership."""
        leader, since = self._leader(), time.monotonic()
        deadline = since + _MOVE_SECONDS_MAX
        while leader is None or time.monotonic() - since < self._steady_seconds:
            if time.monotonic() > deadline:
                raise ProcessFailed(f"no steady leader in {_MOVE_SECONDS_MAX:.0f} s")
            time.sleep(_LOOK_SECONDS)
            if (now := self._leader()) != leader:
                leader, since = now, time.monotonic()
        return leader

    def _leader(self) -> str | None:
        """Who says of itself that it leads. Managers know it only by the next heartbeat."""
        return next((name for name in self._cluster.brokers if self._leads(name)), None)

    def _leads(self, name: str) -> bool | None:
        """Whether a broker leads; None if it does not answer, or does not carry the partition."""
        if not self._cluster.processes[name].running:
            return None
        answer = try_to_get(self._cluster.endpoint(name), f"/v1/topics/{_TOPIC}/offsets")
        return None if answer is None else str(_PARTITION) in answer["offsets"]

    def check(self, what: str) -> Row:
        """Stop writing; what was acknowledged is there, once and in order."""
        self._writer.stop()
        self._scene.tell("gaps: reading what was written")
        found = self._writer.check(lambda: self._cluster.endpoint(self._wait_for_steady_leader()))
        return Row(
            what, found, "messages", note=f"all there once, in order; {self._writer.retries} tried again"
        )
