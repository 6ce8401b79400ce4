"""What goes wrong, by chance: partitions, crashes, disks, clocks. Every fault ends again after a while."""

from random import Random
from typing import TYPE_CHECKING

import msgspec

from talweg.testing.simulation.disk_trouble import Trouble
from talweg.testing.simulation.profile import draw_weather
from talweg.testing.simulation.schedule import TICK_US

if TYPE_CHECKING:
    from talweg.testing.simulation.broker import Broker
    from talweg.testing.simulation.cluster import Cluster


class Faults:
    """One method for each kind that `profile.FAULTS` names."""

    def __init__(self, cluster: "Cluster", random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._over = False

    def begin(self) -> None:
        """From now on things go wrong."""
        if self._cluster.profile.faults:
            self._plan()

    def end(self) -> None:
        """Nothing more goes wrong, and what did is put right."""
        self._over = True
        cluster = self._cluster
        cluster.network.heal()
        cluster.network.weather = msgspec.structs.replace(
            cluster.network.weather, drop=0.0, late=0.0, duplicate=0.0, in_order=True
        )
        for broker in cluster.brokers.values():
            broker.resume()
            broker.disk.trouble = None
            broker.disk.keep_power()
            broker.late_reads = 0.0
            broker.disk_us = min(broker.disk_us, cluster.profile.disk_us)
            broker.tick_us = TICK_US
        for broker in cluster.members():
            broker.start()

    def _plan(self) -> None:
        ticks = self._random.expovariate(1.0) * self._cluster.profile.fault_interval_ticks
        self._cluster.schedule.after(int(ticks * TICK_US), self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        name = self._random.choice(self._cluster.profile.faults)
        getattr(self, name)()
        self._plan()

    def _after(self, ticks_min: float, ticks_max: float) -> int:
        return int(self._random.uniform(ticks_min, ticks_max) * TICK_US)

    def _happened(self, name: str, who: object = "") -> None:
        self._cluster.counts[name] += 1
        self._cluster.trace.note(f"fault: {name} {who}")

    def _any_up(self) -> "Broker | None":
        up = [broker for broker in self._cluster.brokers.values() if broker.up]
        return self._random.choice(up) if up else None

    # The network

    def partition(self) -> None:
        """Two groups that cannot reach each other."""
        numbers = list(self._cluster.brokers)
        self._random.shuffle(numbers)
        cut = self._random.randrange(1, len(numbers))
        self._happened("partitions", sorted(numbers[:cut]))
        links = [(one, other) for one in numbers[:cut] for other in numbers[cut:]]
        self._block([*links, *((other, one) for one, other in links)])

    def one_way_partition(self) -> None:
        """Some links work in one direction only."""
        numbers = list(self._cluster.brokers)
        links = [(one, other) for one in numbers for other in numbers if one != other]
        if self._random.random() < 0.5:
            victim = self._random.choice(numbers)
            end = self._random.randrange(2)
            links = [link for link in links if link[end] == victim]
        else:
            links = self._random.sample(links, self._random.randrange(1, len(links)))
        self._happened("one-way partitions", links)
        self._block(links)

    def isolate_leader(self) -> None:
        """The leader, alone or with one other, is cut off."""
        leader = self._cluster.leader()
        if leader is None:
            return
        others = [number for number in self._cluster.brokers if number != leader.number]
        inside = {leader.number, *self._random.sample(others, self._random.randrange(2))}
        self._happened("leaders isolated", sorted(inside))
        links = [(one, other) for one in sorted(inside) for other in others if other not in inside]
        self._block([*links, *((other, one) for one, other in links)])

    def _links_of(self, number: int) -> list[tuple[int, int]]:
        others = [other for other in self._cluster.brokers if other != number]
        return [*((number, other) for other in others), *((other, number) for other in others)]

    def _block(self, links: list[tuple[int, int]]) -> None:
        network = self._cluster.network
        for source, target in links:
            network.block(source, target)

        def heal() -> None:
            self._cluster.trace.note("a partition ends")
            for source, target in links:
                network.unblock(source, target)

        self._cluster.schedule.after(self._after(5, 120), heal)

    def storm(self) -> None:
        """For a while the network is another one."""
        usual = self._cluster.network.weather
        self._cluster.network.weather = msgspec.structs.replace(
            draw_weather(self._random), drop=self._random.uniform(0, 0.4), in_order=False
        )
        self._happened("storms", self._cluster.network.weather)

        def calm() -> None:
            if not self._over:
                self._cluster.network.weather = usual

        self._cluster.schedule.after(self._after(10, 80), calm)

    def connection_loss(self) -> None:
        """Connections break though nobody died."""
        broker = self._any_up()
        if broker is not None:
            self._cluster.connection_lost(broker.number)

    # Brokers

    def crash(self) -> None:
        """One broker, and sometimes a second one."""
        for _ in range(self._random.choice((1, 1, 2))):
            broker = self._any_up()
            if broker is not None:
                self._crash(broker)

    def crash_leader(self) -> None:
        """The leader of all brokers."""
        leader = self._cluster.leader()
        if leader is not None:
            self._crash(leader)

    def crash_all(self) -> None:
        """The whole building loses its power."""
        self._happened("crashes of all")
        for broker in self._cluster.brokers.values():
            self._crash(broker)

    def crash_during_disk_work(self) -> None:
        """One broker, in the middle of the next thing that it does to its disk."""
        broker = self._any_up()
        if broker is not None:
            broker.disk.cut_power_after(self._random.randrange(30))
            self._cluster.trace.note(f"fault: b{broker.number} will crash while it writes")

    def _crash(self, broker: "Broker") -> None:
        if broker.up:
            kills = self._cluster.profile.journal_bytes > 0 and self._random.random() < 0.4
            # Who dies after a sync that failed leaves its next life no choice but to believe the kernel.
            broker.crash(power=not kills or broker.disk.has_forgotten)
            self._cluster.schedule.after(self._after(1, 80), broker.start)

    def pause(self) -> None:
        """One broker stops for a while and does not know it."""
        broker = self._any_up()
        if broker is None or broker.paused:
            return
        self._happened("pauses")
        broker.pause()
        self._cluster.schedule.after(self._after(5, 100), broker.resume)

    def drift(self) -> None:
        """A clock begins to run at another speed."""
        broker = self._random.choice(list(self._cluster.brokers.values()))
        broker.tick_us = int(TICK_US * self._random.uniform(0.5, 2.0))
        self._happened("clocks that drift", f"b{broker.number} {broker.tick_us}")

    # Disks

    def full_disk(self) -> None:
        """No space: writes are refused."""
        self._trouble("full disks", Trouble.FULL)

    def failing_disk(self) -> None:
        """Writes fail, and some of their bytes arrive all the same."""
        self._trouble("failing disks", Trouble.WRITES_FAIL)

    def failing_sync(self) -> None:
        """Writes pass and cannot be made durable."""
        self._trouble("failing syncs", Trouble.SYNCS_FAIL)

    def _trouble(self, name: str, trouble: Trouble) -> None:
        broker = self._any_up()
        if broker is None or broker.disk.trouble is not None:
            return
        self._happened(name, f"b{broker.number}")
        broker.disk.trouble = trouble

        def end() -> None:
            self._cluster.trace.note(f"the disk of b{broker.number} works again")
            broker.disk.trouble = None

        self._cluster.schedule.after(self._after(5, 80), end)

    def slow_disk(self) -> None:
        """A disk takes its time."""
        broker = self._random.choice(list(self._cluster.brokers.values()))
        usual_us = self._cluster.profile.disk_us
        broker.disk_us = self._random.randrange(TICK_US, 5 * TICK_US)
        self._happened("slow disks", f"b{broker.number} {broker.disk_us}")

        def end() -> None:
            broker.disk_us = usual_us

        self._cluster.schedule.after(self._after(10, 80), end)

    def wipe(self) -> None:
        """A broker loses its disk, as long as a majority keeps theirs."""
        broker = self._loser()
        if broker is None:
            return
        self._happened("wipes", f"b{broker.number}")
        broker.crash()
        broker.wipe()
        self._cluster.schedule.after(self._after(1, 60), broker.start)

    def rot(self) -> None:
        """A broker finds its log damaged when it starts, as long as a majority's is sound."""
        broker = self._loser()
        if broker is None:
            return
        broker.crash()
        if broker.rot(self._random):
            self._happened("logs that rotted", f"b{broker.number}")
        self._cluster.schedule.after(self._after(1, 60), broker.start)

    def forgetful_voter(self) -> None:
        """The leader is stopped; whoever voted for the next one loses its disk and meets the old one.

        The old leader does not know that it leads no more, the voter not that it has promised to follow
        another. If the new leader, who knows, cannot be reached, only the rules of recovery are left.
        """
        old = self._cluster.leader()
        if old is None or old.paused:
            return
        self._happened("leaders stopped", f"b{old.number}")
        old.pause()
        self._block(self._links_of(old.number))
        self._cluster.schedule.after(self._after(60, 100), old.resume)
        self._cluster.schedule.after(self._after(15, 40), lambda: self._forget(old))

    def _forget(self, old: "Broker") -> None:
        new = self._cluster.leader()
        if self._over or new is None or new is old or not old.paused:
            return
        assert new.replica is not None
        voters = [self._cluster.brokers[voter] for voter in new.replica.raft.configuration.voters]
        voters = [voter for voter in voters if voter not in (old, new) and voter.up]
        if not voters or not self._cluster.may_lose(voters[0].number):
            return
        self._happened("voters that forgot", f"b{voters[0].number}")
        voters[0].crash()
        voters[0].wipe()
        voters[0].start()
        self._block(self._links_of(new.number))
        self._cluster.network.unblock(old.number, voters[0].number)
        self._cluster.network.unblock(voters[0].number, old.number)
        old.resume()

    def _loser(self) -> "Broker | None":
        broker = self._any_up()
        if broker is None or not self._cluster.may_lose(broker.number):
            return None
        return broker
