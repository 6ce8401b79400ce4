"""Three (or more) replica hosts in one event loop, with real sockets and real files."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from talweg.raft import Configuration, Settings
from talweg.records import encode_values
from talweg.replication import Group, HostSettings, ReplicaHost
from talweg.storage import LogStores, SegmentStores
from talweg.storage.files import RealFiles

T = TypeVar("T")
QUICK = HostSettings(tick_seconds=0.02, raft=Settings(heartbeat_ticks=2, election_ticks=10))
WAIT_SECONDS = 20.0


async def wait_until(condition: Callable[[], T]) -> T:
    """Returns what `condition` gives once that is true."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {WAIT_SECONDS} s for {condition}"
        await asyncio.sleep(0.005)
    return value


def batch(*values: bytes, producer_id: int = -1, sequence: int = -1, epoch: int = -1) -> bytes:
    """A frame as a client sends it."""
    return encode_values(
        list(values), timestamp=1, producer_id=producer_id, producer_epoch=epoch, sequence=sequence
    )


class Hosts:
    """Brokers 1..n. A broker that was stopped can be started again on the same directory."""

    def __init__(
        self,
        directory: Path,
        *,
        count: int = 3,
        settings: HostSettings = QUICK,
        stores: Callable[[int], LogStores] | None = None,
    ) -> None:
        self.hosts: dict[int, ReplicaHost] = {}
        self.settings = settings
        self._directory = directory
        self._count = count
        self._stores = stores or self._segment_stores
        self._ports: dict[int, int] = {}

    def _segment_stores(self, broker: int) -> LogStores:
        return SegmentStores(RealFiles(self._directory / str(broker)), journal_bytes=64 << 10)

    async def __aenter__(self) -> "Hosts":
        for broker in range(1, self._count + 1):
            await self.start(broker)
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in list(self.hosts):
            await self.stop(broker)

    async def start(self, broker: int) -> ReplicaHost:
        """Start one and tell everyone where it is."""
        host = ReplicaHost(broker, self._stores(broker), settings=self.settings)
        self._ports[broker] = await host.start(port=self._ports.get(broker, 0))
        self.hosts[broker] = host
        for other in self.hosts.values():
            other.connect(broker, "127.0.0.1", self._ports[broker])
        for peer, port in self._ports.items():
            host.connect(peer, "127.0.0.1", port)
        return host

    async def stop(self, broker: int) -> None:
        """Stop one, without handing anything over."""
        await self.hosts.pop(broker).close()

    async def open_group(self, name: str = "topic-0", incarnation: int = 7) -> None:
        """Open a group on every broker that runs."""
        configuration = Configuration.of(range(1, self._count + 1))
        for host in self.hosts.values():
            await host.open_group(name, incarnation, configuration)

    def groups(self, incarnation: int = 7) -> dict[int, Group]:
        """The group on each broker that runs."""
        return {broker: host.group(incarnation) for broker, host in self.hosts.items()}

    async def wait_for_leader(self, incarnation: int = 7) -> Group:
        """The one that leads and has opened its term."""

        def leader() -> Group | None:
            for group in self.groups(incarnation).values():
                raft = group.replica.raft
                if group.leads and raft.commit_index >= raft.term_start_index:
                    return group
            return None

        return await wait_until(leader)  # type: ignore[return-value]

    async def wait_for_agreement(self, incarnation: int = 7) -> None:
        """Every replica has applied the same log."""

        def agreed() -> bool:
            rafts = [group.replica.raft for group in self.groups(incarnation).values()]
            return (
                len({raft.log.last_index for raft in rafts}) == 1
                and len({raft.applied_index for raft in rafts}) == 1
                and rafts[0].applied_index == rafts[0].log.last_index
            )

        await wait_until(agreed)
