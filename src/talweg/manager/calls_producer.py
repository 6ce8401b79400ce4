"""Producers: registration, single messages, heartbeats."""

import time
from typing import Final

from talweg.errors import (
    BatchTooLarge,
    MetadataUnavailable,
    OutOfSequence,
    PartitionNotFound,
    ProducerNotFound,
    StorageFull,
    Undecided,
)
from talweg.http import Answer, Call, Request
from talweg.manager.calls_topics import CREATING, WRITING
from talweg.manager.parts import Parts
from talweg.metadata import MemberKind
from talweg.protocol.plain import ClientHeartbeat, Produce, Produced, ProducerRegistered, RegisterProducer

_TAG: Final = "Producers"
_PRODUCE: Final = "/producer/produce"
_JSON_GROWTH: Final = 6  # a control character of one byte is written as \u0000
_JSON_FRAME_BYTES: Final = 16 << 10  # for everything beside the message, and a key of some length


class ProducerCalls:
    """Answers them for one manager."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lease = parts.lease
        self._produce_message = parts.producing.produce

    def calls(self) -> list[Call]:
        """What is answered here."""
        forwarding = self._parts.forwarding
        settings = self._parts.settings
        message_json_bytes = settings.message_bytes_max * _JSON_GROWTH + _JSON_FRAME_BYTES
        return [
            Call(
                "POST",
                "/producer/register",
                forwarding.to_primary("POST", "/producer/register", ProducerRegistered, self._register),
                "Register a producer, and create its topic if there is none",
                body=RegisterProducer,
                answer=ProducerRegistered,
                errors=(*WRITING, *CREATING),
                tag=_TAG,
            ),
            Call(
                "POST",
                _PRODUCE,
                self._produce,
                "Produce a message",
                body=Produce,
                answer=Produced,
                errors=(
                    ProducerNotFound,
                    PartitionNotFound,
                    OutOfSequence,
                    BatchTooLarge,
                    StorageFull,
                    Undecided,
                    MetadataUnavailable,
                ),
                bytes_max=min(message_json_bytes, settings.body_bytes_max),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/producer/heartbeat",
                forwarding.to_primary("POST", "/producer/heartbeat", Answer, self._heartbeat),
                "A producer lives",
                body=ClientHeartbeat,
                answer=Answer,
                errors=(ProducerNotFound, MetadataUnavailable),
                tag=_TAG,
            ),
        ]

    async def _register(self, request: Request[None, RegisterProducer]) -> ProducerRegistered:
        topic = await self._parts.topics.find_or_create(request.body.topic)
        producer = await self._parts.writer.write(
            lambda store, epoch: store.register_producer(
                topic.name, now_us=time.time_ns() // 1000, epoch=epoch
            )
        )
        return ProducerRegistered(producer_id=producer.id)

    async def _produce(self, request: Request[None, Produce]) -> Produced:
        # Here, and not at any manager, because whose turn it is among partitions is known in one place.
        if not self._lease.holds and not await self._parts.forwarding.stands_in():
            return await self._parts.forwarding.forward(request, "POST", _PRODUCE, Produced, lost=Undecided)
        wanted = request.body
        partition, offset = await self._produce_message(
            wanted.topic,
            wanted.producer_id,
            wanted.message.encode(),
            partition=wanted.partition,
            key=None if wanted.key is None else wanted.key.encode(),
            sequence=wanted.sequence,
        )
        return Produced(partition=partition, offset=offset)

    async def _heartbeat(self, request: Request[None, ClientHeartbeat]) -> Answer:
        await self._parts.follower.producer(request.body.id)
        self._parts.heartbeats.hear(MemberKind.PRODUCER, request.body.id)
        return Answer()
