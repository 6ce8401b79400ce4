"""What the processes of the cluster, and clients that find leaders themselves, ask of a manager."""

from typing import Final, Literal

from talweg.errors import (
    BrokerNotFound,
    LeaseLost,
    MetadataUnavailable,
    TooFewBrokers,
    TooManyPartitions,
    TopicNotFound,
)
from talweg.http import Call, Request
from talweg.manager.parts import Parts
from talweg.metadata import RESERVED_PREFIX, BrokerStatus, Topic
from talweg.protocol.control import (
    BrokerMetadata,
    Heartbeat,
    HeartbeatAnswer,
    Metadata,
    PartitionMetadata,
    TopicMetadata,
)
from talweg.protocol.plain import AskMetadata, ManagerFace
from talweg.protocol.transactions import TransactionsReady
from talweg.version import __version__

_TAG: Final = "Cluster"
# A heartbeat names every partition that the broker carries: whatever clients may send, brokers must be heard.
_HEARTBEAT_BYTES_MAX: Final = 16 << 20


class ClusterCalls:
    """Answers them for one manager."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [
            Call("GET", "/", self._face, "Who this is", answer=ManagerFace, tag=_TAG),
            Call(
                "GET",
                "/v1/metadata",
                self._metadata,
                "Topics, partitions, and who leads them",
                parameters=AskMetadata,
                answer=Metadata,
                errors=(TopicNotFound, MetadataUnavailable),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/v1/transactions",
                self._parts.forwarding.to_primary(
                    "POST", "/v1/transactions", TransactionsReady, self._transactions
                ),
                "See to it that transactions can be decided on",
                answer=TransactionsReady,
                errors=(LeaseLost, MetadataUnavailable, TooFewBrokers, TooManyPartitions),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/broker/heartbeat",
                self._heartbeat,
                "A broker lives, and learns what it should carry",
                body=Heartbeat,
                answer=HeartbeatAnswer,
                errors=(BrokerNotFound, LeaseLost, MetadataUnavailable),
                bytes_max=max(_HEARTBEAT_BYTES_MAX, self._parts.settings.body_bytes_max),
                tag=_TAG,
            ),
        ]

    async def _face(self, request: Request[None, None]) -> ManagerFace:
        parts = self._parts
        role: Literal["primary", "stand-by", "read-only"] = "stand-by"
        if parts.settings.read_only:
            role = "read-only"
        elif parts.lease.holds:
            role = "primary"
        lease = parts.follower.copy.lease
        return ManagerFace(
            role=role,
            version=__version__,
            healthy=parts.follower.loaded,
            metadata_available=parts.follower.available,
            primary=lease.endpoint if lease is not None else None,
        )

    async def _metadata(self, request: Request[AskMetadata, None]) -> Metadata:
        follower = self._parts.follower
        names = [name for given in request.parameters.topics for name in given.split(",") if name]
        if names:
            topics = [await follower.topic(name) for name in dict.fromkeys(names)]
        else:
            follower.check_loaded()
            internal = request.parameters.internal
            shown = [
                t for t in follower.copy.topics.values() if internal or not t.name.startswith(RESERVED_PREFIX)
            ]
            topics = sorted(shown, key=lambda topic: topic.name)
        return Metadata(
            version=follower.copy.version,
            brokers=tuple(
                BrokerMetadata(id=broker.id, endpoint=broker.endpoint)
                for broker in follower.copy.brokers.values()
                if broker.status is not BrokerStatus.REMOVED
            ),
            topics=tuple(self._topic(topic) for topic in topics),
        )

    def _topic(self, topic: Topic) -> TopicMetadata:
        leaders = self._parts.leaders
        partitions = []
        for number, group in enumerate(topic.groups):
            assignment = self._parts.follower.groups.get(group)
            intended = assignment.intended if assignment is not None else ()
            guess = intended[0] if intended else None
            partitions.append(
                PartitionMetadata(
                    partition=number,
                    leader=leaders.by_group.get(group, guess),
                    term=leaders.term(group),
                    replicas=tuple(r.broker for r in assignment.replicas) if assignment is not None else (),
                )
            )
        return TopicMetadata(topic=topic.name, incarnation=topic.incarnation, partitions=tuple(partitions))

    async def _transactions(self, request: Request[None, None]) -> TransactionsReady:
        topic = await self._parts.topics.find_or_create_transactions()
        return TransactionsReady(partitions=topic.partitions)

    async def _heartbeat(self, request: Request[None, Heartbeat]) -> HeartbeatAnswer:
        heartbeat = request.body
        watch = self._parts.watch
        if not self._parts.lease.holds:
            known = self._parts.follower.copy.brokers.get(heartbeat.broker_id)
            if known is not None and known.incarnation == heartbeat.incarnation:
                watch.learn(heartbeat)
            return await self._parts.forwarding.forward(request, "POST", "/broker/heartbeat", HeartbeatAnswer)
        broker = await watch.find(heartbeat.broker_id)
        if broker.incarnation != heartbeat.incarnation:
            raise BrokerNotFound(f"broker {heartbeat.broker_id} is another one")
        watch.learn(heartbeat)
        return watch.answer(broker, heartbeat)
