"""The people who run the cluster: brokers come and go, clients are listed."""

import time
from collections.abc import Mapping
from typing import Final

from talweg.errors import (
    BrokerNotFound,
    Forbidden,
    MetadataUnavailable,
    NowhereToMove,
    StaleVersion,
)
from talweg.http import Answer, Call, Request
from talweg.http.calls import Handler
from talweg.manager.admission import Admission
from talweg.manager.calls_topics import WRITING
from talweg.manager.parts import Parts
from talweg.metadata import Broker, BrokerStatus, Consumer, MemberKind, Producer, loads_of
from talweg.protocol.control import AddBroker, BrokerAdded
from talweg.protocol.plain import (
    BrokerList,
    BrokerNumber,
    BrokerShown,
    ClientShown,
    ConsumerList,
    ProducerList,
    Removing,
)

_TAG: Final = "Administration"
_ATTEMPTS: Final = 5  # at a change that others overtake


class AdminCalls:
    """Answers them for one manager."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._admission = Admission(parts.client, parts.settings.broker_networks)

    def calls(self) -> list[Call]:
        """What is answered here."""
        to_primary = self._parts.forwarding.to_primary
        changing = (*WRITING, BrokerNotFound)
        return [
            Call(
                "POST",
                "/admin/broker/add",
                to_primary("POST", "/admin/broker/add", BrokerAdded, self._add),
                "Add a broker; brokers do so themselves",
                body=AddBroker,
                answer=BrokerAdded,
                errors=(*WRITING, Forbidden),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/admin/broker/remove",
                to_primary("POST", "/admin/broker/remove", Removing, self._remove),
                "Move everything away from a broker, then remove it",
                body=BrokerNumber,
                answer=Removing,
                errors=(*changing, NowhereToMove),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/admin/broker/activate",
                to_primary("POST", "/admin/broker/activate", Answer, self._activate),
                "Let a broker have partitions and lead",
                body=BrokerNumber,
                answer=Answer,
                errors=changing,
                tag=_TAG,
            ),
            Call(
                "POST",
                "/admin/broker/deactivate",
                to_primary("POST", "/admin/broker/deactivate", Answer, self._deactivate),
                "Give a broker no new partitions, and let others lead",
                body=BrokerNumber,
                answer=Answer,
                errors=changing,
                tag=_TAG,
            ),
            _listing("/admin/brokers", self._brokers, "All brokers", BrokerList),
            _listing("/admin/producers", self._producers, "All producers", ProducerList),
            _listing("/admin/consumers", self._consumers, "All consumers", ConsumerList),
        ]

    async def _add(self, request: Request[None, AddBroker]) -> BrokerAdded:
        endpoint, face = await self._admission.look_at(request.body)
        broker = await self._parts.writer.write(
            lambda store, epoch: store.register_broker(
                endpoint,
                face.incarnation,
                peer_endpoint=face.peer_endpoint,
                now_us=time.time_ns() // 1000,
                epoch=epoch,
            )
        )
        self._parts.watch.hear(broker)
        return BrokerAdded(broker_id=broker.id)

    async def _remove(self, request: Request[None, BrokerNumber]) -> Removing:
        number = request.body.broker_id
        for _ in range(_ATTEMPTS):
            async with self._parts.writer.deciding:
                broker = await self._find(number)
                stuck = [a for a in self._parts.watch.plan(leaving=number).stuck if number in a.intended]
                if stuck:
                    raise NowhereToMove(
                        f"no other active broker could take {len(stuck)} of the partitions of broker {number}"
                    )
                if await self._set(broker, BrokerStatus.DRAINING):
                    return Removing(message=f"broker {number} is drained, then removed")
        raise StaleVersion(f"broker {number} is being changed by others")

    async def _activate(self, request: Request[None, BrokerNumber]) -> Answer:
        return await self._change(request.body.broker_id, BrokerStatus.ACTIVE)

    async def _deactivate(self, request: Request[None, BrokerNumber]) -> Answer:
        return await self._change(request.body.broker_id, BrokerStatus.DEACTIVATED)

    async def _change(self, number: int, status: BrokerStatus) -> Answer:
        for _ in range(_ATTEMPTS):
            async with self._parts.writer.deciding:
                if await self._set(await self._find(number), status):
                    return Answer()
        raise StaleVersion(f"broker {number} is being changed by others")

    async def _find(self, number: int) -> Broker:
        broker = await self._parts.watch.find(number)
        if broker.status is BrokerStatus.REMOVED:
            raise BrokerNotFound(f"broker {number} was removed")
        return broker

    async def _set(self, broker: Broker, status: BrokerStatus) -> bool:
        """Whether it was not overtaken by another change."""
        try:
            if broker.status is not status:
                await self._parts.watch.set_status(broker, status)
        except StaleVersion:
            await self._parts.follower.follow()
            return False
        self._parts.nudging.nudge_all()
        self._parts.watch.wake()
        return True

    async def _brokers(self, request: Request[None, None]) -> BrokerList:
        await self._parts.follower.refresh()
        self._parts.follower.check_loaded()
        brokers = self._parts.follower.copy.brokers
        known = {broker.id: broker.last_heartbeat_us for broker in brokers.values()}
        last = await self._parts.heartbeats.last(MemberKind.BROKER, known)
        loads = loads_of(self._parts.follower.groups.values())
        led = self._parts.leaders.counts()
        return BrokerList(
            brokers=[
                BrokerShown(
                    id=number,
                    endpoint=broker.endpoint,
                    status=broker.status.value,
                    last_heartbeat=last[number],
                    partitions=loads[number].partitions if number in loads else 0,
                    leaders=led[number],
                )
                for number, broker in sorted(brokers.items())
                if number in last
            ]
        )

    async def _producers(self, request: Request[None, None]) -> ProducerList:
        clients = dict(self._parts.follower.copy.producers)
        return ProducerList(producers=await self._shown(MemberKind.PRODUCER, clients))

    async def _consumers(self, request: Request[None, None]) -> ConsumerList:
        clients = dict(self._parts.follower.copy.consumers)
        return ConsumerList(consumers=await self._shown(MemberKind.CONSUMER, clients))

    async def _shown(self, kind: MemberKind, clients: Mapping[int, Producer | Consumer]) -> list[ClientShown]:
        self._parts.follower.check_loaded()
        known = {number: client.last_heartbeat_us for number, client in clients.items()}
        last = await self._parts.heartbeats.last(kind, known)
        alive_since = time.time_ns() // 1000 - int(self._parts.settings.client_seconds * 1e6)
        return [
            ClientShown(
                id=number,
                topic=client.topic,
                status="active" if last[number] > alive_since else "inactive",
                last_heartbeat=last[number],
                partition=client.partition if isinstance(client, Consumer) else None,
            )
            for number, client in sorted(clients.items())
        ]


def _listing(path: str, handler: Handler, summary: str, answer: type[Answer]) -> Call:
    return Call("GET", path, handler, summary, answer=answer, errors=(MetadataUnavailable,), tag=_TAG)
