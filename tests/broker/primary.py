"""A primary that does as a test says, and three real brokers under it, all in one event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from talweg.broker import Broker
from talweg.config import BrokerSettings
from talweg.errors import BrokerNotFound, TopicNotFound
from talweg.http import Application, Call, HttpClient, Request, Server
from talweg.protocol.control import (
    AddBroker,
    BrokerAdded,
    BrokerMetadata,
    Heartbeat,
    HeartbeatAnswer,
    Metadata,
    PartitionAssignment,
    PartitionMetadata,
    Peer,
    TopicMetadata,
)
from talweg.protocol.plain import AskMetadata
from talweg.protocol.transactions import TransactionsReady

QUICK = BrokerSettings(
    port=0, heartbeat_seconds=0.1, tick_seconds=0.02, request_seconds_max=5.0, retention_check_seconds=0.1
)
DEADLINE_SECONDS = 60.0


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - whatever it is, there is no event for it
            await asyncio.sleep(0.01)


class Primary:
    """Answers registration and heartbeats. What it answers is what the test put into its fields."""

    def __init__(self) -> None:
        self.epoch = 1
        self.version = 1
        self.peers: dict[str, Peer] = {}  # by incarnation
        self.wishes: dict[int, PartitionAssignment] = {}  # by group
        self.removed: set[int] = set()
        self.heartbeats: dict[int, Heartbeat] = {}  # by broker: the last one
        self.forgotten: set[int] = set()  # brokers that are told to register again
        self.registrations = 0
        calls = [
            Call("POST", "/admin/broker/add", self._add, "", body=AddBroker, answer=BrokerAdded),
            Call(
                "POST",
                "/broker/heartbeat",
                self._beat,
                "",
                body=Heartbeat,
                answer=HeartbeatAnswer,
                errors=(BrokerNotFound,),
            ),
            Call(
                "GET",
                "/v1/metadata",
                self._metadata,
                "",
                parameters=AskMetadata,
                answer=Metadata,
                errors=(TopicNotFound,),
            ),
            Call("POST", "/v1/transactions", self._transactions, "", answer=TransactionsReady),
        ]
        self.server = Server(Application(calls, title="primary", version="0"))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def wish(self, assignment: PartitionAssignment) -> None:
        self.wishes[assignment.group] = assignment
        self.version += 1

    async def _add(self, request: Request[None, AddBroker]) -> BrokerAdded:
        self.registrations += 1
        body = request.body
        assert body.incarnation is not None
        assert body.peer_endpoint is not None
        known = self.peers.get(body.incarnation)
        number = known.id if known else len(self.peers)
        self.peers[body.incarnation] = Peer(
            id=number, endpoint=body.endpoint, peer_endpoint=body.peer_endpoint
        )
        self.forgotten.discard(number)
        return BrokerAdded(broker_id=number)

    async def _beat(self, request: Request[None, Heartbeat]) -> HeartbeatAnswer:
        beat = request.body
        if beat.broker_id in self.forgotten:
            raise BrokerNotFound(f"no broker {beat.broker_id}")
        self.heartbeats[beat.broker_id] = beat
        changed = (beat.epoch, beat.version) != (self.epoch, self.version)
        wishes = tuple(
            wish
            for wish in self.wishes.values()
            # Also who is to leave: it may lead, and somebody has to tell the leader.
            if beat.broker_id in (*wish.voters, *wish.learners) or wish.group in beat.carries
        )
        return HeartbeatAnswer(
            epoch=self.epoch,
            version=self.version,
            peers=tuple(self.peers.values()),
            assignments=wishes if changed else None,
            removed=tuple(self.removed & set(beat.carries)),
        )

    async def _metadata(self, request: Request[AskMetadata, None]) -> Metadata:
        (name,) = request.parameters.topics
        wishes = [wish for wish in self.wishes.values() if wish.topic == name]
        if not wishes:
            raise TopicNotFound("there is no topic of that name")
        leads = [(beat.broker_id, report) for beat in self.heartbeats.values() for report in beat.leads]
        partitions = []
        for wish in wishes:
            leaders = [(report.term, broker) for broker, report in leads if report.group == wish.group]
            term, leader = max(leaders, default=(0, None))
            partitions.append(
                PartitionMetadata(partition=wish.partition, leader=leader, term=term, replicas=wish.voters)
            )
        return Metadata(
            version=self.version,
            brokers=tuple(BrokerMetadata(id=p.id, endpoint=p.endpoint) for p in self.peers.values()),
            topics=(TopicMetadata(topic=name, incarnation=wishes[0].group, partitions=tuple(partitions)),),
        )

    async def _transactions(self, request: Request[None, None]) -> TransactionsReady:
        return TransactionsReady(partitions=1)


class Brokers:
    """Real brokers on real files, and a primary over them."""

    def __init__(self, path: Path, count: int = 3, settings: BrokerSettings = QUICK) -> None:
        self.path = path
        self.primary = Primary()
        self.client = HttpClient()
        self._settings = settings
        self._count = count
        self.running: dict[int, Broker] = {}  # by number

    async def __aenter__(self) -> Self:
        await self.primary.server.start()
        for number in range(self._count):
            await self.start(number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        await asyncio.gather(*(broker.stop() for broker in self.running.values()))
        await self.primary.server.stop()

    async def start(self, number: int) -> Broker:
        settings = msgspec.structs.replace(
            self._settings, data=str(self.path / f"broker-{number}"), managers=(self.primary.endpoint,)
        )
        broker = Broker(settings)
        await broker.start()
        self.running[number] = broker
        await wait_until(lambda: broker.broker_id is not None)
        assert broker.broker_id == number
        return broker

    async def stop(self, number: int) -> None:
        await self.running.pop(number).stop()

    async def topic(self, name: str = "lines", *, group: int = 10, **more: object) -> int:
        """One partition on the brokers that run, and all of them carry it; returns its leader."""
        assignment = PartitionAssignment(
            topic=name, partition=0, group=group, voters=tuple(self.running), partitions=1, replication=3
        )
        assignment = msgspec.structs.replace(assignment, **more)
        self.primary.wish(assignment)
        carriers = [self.running[number].hosting for number in assignment.voters if number in self.running]
        await wait_until(lambda: all(group in hosting.partitions for hosting in carriers))
        return await self.leader(group)

    async def leader(self, group: int = 10) -> int:
        """Who leads and serves it, once somebody does."""
        found: list[int] = []

        def serves() -> bool:
            for number, broker in self.running.items():
                partition = broker.hosting.partitions.get(group)
                if partition is not None and partition.group.replica.serves:
                    found.append(number)
            return bool(found)

        await wait_until(serves)
        return found[-1]
