"""The cluster: brokers, the network between them, virtual time, and what must hold of all of it."""

from collections import Counter
from collections.abc import Callable
from random import Random

from talweg.raft import Configuration, Message
from talweg.testing.node import SimulatedNode
from talweg.testing.simulation.broker import Broker
from talweg.testing.simulation.disk_trouble import TroubledFiles
from talweg.testing.simulation.history import History
from talweg.testing.simulation.invariants import Invariants
from talweg.testing.simulation.network import Network
from talweg.testing.simulation.profile import Profile
from talweg.testing.simulation.schedule import TICK_US, Schedule, Trace


def branch(random: Random) -> Random:
    """A generator of its own for one part, so that parts do not disturb each other."""
    return Random(random.getrandbits(64))  # noqa: S311 - it has to be repeatable, not secret


class Cluster:
    """Brokers `1 .. voters` are the group at first; the spares after them are empty."""

    def __init__(
        self, profile: Profile, random: Random, counts: Counter[str], verbose: Callable[[str], None] | None
    ) -> None:
        self.profile = profile
        self.counts = counts
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, verbose)
        self.configuration = Configuration.of(range(1, profile.voters + 1))  # when the group began
        self.history = History(self.configuration)
        self.brokers: dict[int, Broker] = {}
        self.invariants = Invariants(self.history, counts, self.brokers)
        self.network = Network(self.schedule, branch(random), counts, profile.weather, self._deliver)
        self._random = branch(random)
        for number in range(1, profile.voters + profile.spares + 1):
            self.brokers[number] = self._broker(number, branch(random))

    def start(self) -> None:
        """The group begins."""
        for number in self.configuration.voters:
            self.brokers[number].start()

    def leader(self) -> Broker | None:
        """The one who leads the newest term, as only the simulation can know."""
        leading = [broker for broker in self.brokers.values() if broker.leads]
        return max(leading, key=_term, default=None)

    def members(self) -> list[Broker]:
        """Everybody in a configuration that is committed, or that may yet be."""
        members = {number for configuration in self.configurations() for number in configuration.members}
        return [self.brokers[number] for number in sorted(members)]

    def configurations(self) -> list[Configuration]:
        """The one last committed, and all in anybody's log that may yet follow it."""
        index, committed = self.history.configurations[-1]
        later: list[tuple[int, Configuration]] = []
        for broker in self.brokers.values():
            raft = broker.replica.raft if broker.replica is not None else None
            held = raft.configuration_history if raft else broker.configurations
            later += [(at, configuration) for at, configuration in held if at > index]
        return [committed, *(configuration for _, configuration in later)]

    def may_lose(self, number: int) -> bool:
        """Whether the promises still hold if this broker loses its disk: a majority keeps theirs."""
        for configuration in self.configurations():
            if number not in configuration.voters:
                continue
            lost = [voter for voter in configuration.voters if self.brokers[voter].lost or voter == number]
            if len(lost) > len(configuration.voters) - configuration.quorum:
                return False
        return True

    def connection_lost(self, number: int) -> None:
        """Connections to this broker break, and some of the others notice at once."""
        for broker in self.brokers.values():
            if broker.number != number and broker.up and self._random.random() < 0.5:
                self.counts["connections lost"] += 1
                broker.lose_contact(number, self._random.randrange(2 * TICK_US))

    def _deliver(self, message: Message) -> None:
        self.brokers[message.target].deliver(message)

    def _broker(self, number: int, random: Random) -> Broker:
        node = SimulatedNode(
            number,
            self.configuration,
            branch(random),
            settings=self.profile.settings,
            segment_bytes=self.profile.segment_bytes,
            snapshot_interval_bytes=self.profile.snapshot_interval_bytes,
            journal_bytes=self.profile.journal_bytes,
            new_disk=TroubledFiles,
        )
        broker = Broker(number, self, random, node)
        broker.disk_us = self.profile.disk_us
        if number not in self.configuration.voters:
            broker.join = broker.lost = True
        return broker


def _term(broker: Broker) -> int:
    assert broker.replica is not None
    return broker.replica.raft.term
