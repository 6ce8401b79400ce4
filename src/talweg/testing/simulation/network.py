"""The network between brokers: it loses, delays, repeats and reorders messages, and falls apart.

Messages travel as the bytes that would be on the wire.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec

from talweg.raft import Message
from talweg.replication import wire
from talweg.testing.node import INCARNATION
from talweg.testing.simulation.schedule import TICK_US, Schedule

_LENGTH_BYTES = 4

Deliver = Callable[[Message], None]


class Weather(msgspec.Struct, frozen=True):
    """How the network behaves on the whole."""

    delay_us: int = 500  # of most messages, on average
    late: float = 0.0  # share of messages that come late
    late_us: int = 5 * TICK_US  # how much, on average
    drop: float = 0.0  # share of messages that are lost
    duplicate: float = 0.0  # share that comes twice, the second time late
    in_order: bool = True  # between two brokers, messages do not overtake each other


class Network:
    """All links, one for each direction between two brokers."""

    def __init__(
        self, schedule: Schedule, random: Random, counts: Counter[str], weather: Weather, deliver: Deliver
    ) -> None:
        self.weather = weather
        self._schedule = schedule
        self._random = random
        self._counts = counts
        self._deliver = deliver
        self._blocked: set[tuple[int, int]] = set()  # (source, target)
        self._last_arrival_us: dict[tuple[int, int], int] = {}

    def send(self, message: Message) -> None:
        """Take a message, and do with it what the weather is like."""
        if (message.source, message.target) in self._blocked:
            self._counts["messages cut off"] += 1
            return
        if self._random.random() < self.weather.drop:
            self._counts["messages dropped"] += 1
            return
        # Bytes once, decoded anew for each delivery: nothing is shared between brokers.
        data = b"".join(wire.packets([(INCARNATION, message)]))
        self._travel(message.source, message.target, data, self._delay_us())
        if self._random.random() < self.weather.duplicate:
            self._counts["messages repeated"] += 1
            self._travel(message.source, message.target, data, self._delay_us() + self._late_us(), again=True)

    def block(self, source: int, target: int) -> None:
        """Nothing sent from now on passes in this direction; what is on its way still arrives."""
        self._blocked.add((source, target))

    def unblock(self, source: int, target: int) -> None:
        """Messages pass again."""
        self._blocked.discard((source, target))

    def heal(self) -> None:
        """Everything passes everywhere."""
        self._blocked.clear()

    def _delay_us(self) -> int:
        delay_us = self._random.randrange(self.weather.delay_us, 3 * self.weather.delay_us) // 2
        if self._random.random() < self.weather.late:
            self._counts["messages late"] += 1
            delay_us += self._late_us()
        return delay_us

    def _late_us(self) -> int:
        return int(self._random.expovariate(1.0) * self.weather.late_us)

    def _travel(self, source: int, target: int, data: bytes, delay_us: int, *, again: bool = False) -> None:
        arrival_us = self._schedule.now_us + delay_us
        if self.weather.in_order and not again:
            arrival_us = max(arrival_us, self._last_arrival_us.get((source, target), 0))
            self._last_arrival_us[source, target] = arrival_us

        def arrive() -> None:
            for _, message in wire.read_packet(data[_LENGTH_BYTES:], source, target):
                self._deliver(message)

        self._schedule.after(arrival_us - self._schedule.now_us, arrive)
