"""Consumers: registration, single messages, what is left, heartbeats."""

import asyncio
import base64
import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from talweg.errors import (
    BadRequest,
    ConsumerNotFound,
    MetadataUnavailable,
    NoMessage,
    PartitionNotFound,
    StorageFull,
    TooManyPositions,
    TopicNotFound,
    Undecided,
)
from talweg.http import Answer, Call, Request
from talweg.manager.calls_topics import WRITING
from talweg.manager.follower import check_partition
from talweg.manager.parts import Parts
from talweg.manager.routing import START, Question
from talweg.metadata import RESERVED_PREFIX, MemberKind, Start, Topic
from talweg.protocol.bundles import StartAt, consumer_name, position_name
from talweg.protocol.plain import (
    AskSize,
    ClientHeartbeat,
    Consume,
    Consumed,
    ConsumerRegistered,
    RegisterConsumer,
    Size,
)

_TAG: Final = "Consumers"
_TIMESTAMP_MAX: Final = (1 << 63) - 1


class ConsumerCalls:
    """Answers them for one manager."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._take = parts.consuming.consume

    def calls(self) -> list[Call]:
        """What is answered here."""
        forwarding = self._parts.forwarding
        finding = (ConsumerNotFound, PartitionNotFound, MetadataUnavailable, Undecided)
        return [
            Call(
                "POST",
                "/consumer/register",
                forwarding.to_primary("POST", "/consumer/register", ConsumerRegistered, self._register),
                "Register a consumer",
                body=RegisterConsumer,
                answer=ConsumerRegistered,
                errors=(*WRITING, TopicNotFound, PartitionNotFound, StorageFull, TooManyPositions, Undecided),
                tag=_TAG,
            ),
            Call(
                "GET",
                "/consumer/consume",
                self._consume,
                "The next message; it is not given to this consumer again",
                parameters=Consume,
                answer=Consumed,
                errors=(*finding, NoMessage, StorageFull, TooManyPositions),
                safe=False,
                tag=_TAG,
            ),
            Call(
                "GET",
                "/size",
                self._size,
                "How many messages a consumer has not read",
                parameters=AskSize,
                answer=Size,
                errors=(*finding, TopicNotFound),
                tag=_TAG,
            ),
            Call(
                "POST",
                "/consumer/heartbeat",
                forwarding.to_primary("POST", "/consumer/heartbeat", Answer, self._heartbeat),
                "A consumer lives",
                body=ClientHeartbeat,
                answer=Answer,
                errors=(ConsumerNotFound, MetadataUnavailable),
                tag=_TAG,
            ),
        ]

    async def _register(self, request: Request[None, RegisterConsumer]) -> ConsumerRegistered:
        wanted = request.body
        start = read_start(wanted.start)
        if wanted.topic.startswith(RESERVED_PREFIX):
            raise TopicNotFound(f"topics whose names begin with {RESERVED_PREFIX!r} hold nothing to consume")
        topic = await self._parts.follower.topic(wanted.topic)
        if wanted.partition is not None:
            check_partition(topic, wanted.partition)
        consumer = await self._parts.writer.write(
            lambda store, epoch: store.register_consumer(
                wanted.topic,
                partition=wanted.partition,
                start=start,
                now_us=time.time_ns() // 1000,
                epoch=epoch,
            )
        )
        if start != "earliest":
            await self._settle_start(topic, consumer.id, wanted.partition, start)
        return ConsumerRegistered(consumer_id=consumer.id)

    async def _settle_start(self, topic: Topic, consumer: int, partition: int | None, start: Start) -> None:
        """Write its positions: where `latest` is must not depend on when it is first asked for."""
        deadline = asyncio.get_running_loop().time() + self._parts.settings.request_seconds_max
        name = consumer_name(consumer)
        groups = topic.groups if partition is None else (topic.incarnation + partition,)
        # Sent twice it is the same: a position does not go back by itself.
        await self._parts.router.ask_all(
            [Question(START, group, StartAt(group, name, start), deadline) for group in groups]
        )

    async def _consume(self, request: Request[Consume, None]) -> Consumed:
        wanted = request.parameters
        taken = await self._take(
            wanted.topic, wanted.consumer_id, wanted.partition, wanted.wait_ms, request.wait_until_gone
        )
        if taken is None:
            raise NoMessage("no message is left for this consumer now")
        partition, message = taken
        value = message.value
        text: str | None = None
        encoded: str | msgspec.UnsetType = msgspec.UNSET
        if value is not None:
            try:
                text = value.decode()
            except UnicodeDecodeError:
                encoded = base64.b64encode(value).decode("ascii")
        return Consumed(
            message=text,
            partition=partition,
            offset=message.offset,
            timestamp=message.timestamp,
            producer_id=message.producer_id if message.producer_id >= 0 else None,
            message_base64=encoded,
        )

    async def _size(self, request: Request[AskSize, None]) -> Size:
        wanted = request.parameters
        consuming = self._parts.consuming
        name = position_name(wanted.consumer, wanted.consumer_id)
        if wanted.consumer_id is not None:
            sizes = await consuming.sizes(wanted.topic, wanted.consumer_id, wanted.partition)
        else:
            sizes = await consuming.sizes_of_group(wanted.topic, name, wanted.partition)
        total = sum(sizes.values())
        if wanted.partition is not None:
            return Size(size=total)
        return Size(size=total, partitions={str(partition): size for partition, size in sizes.items()})

    async def _heartbeat(self, request: Request[None, ClientHeartbeat]) -> Answer:
        await self._parts.follower.consumer(request.body.id)
        self._parts.heartbeats.hear(MemberKind.CONSUMER, request.body.id)
        return Answer()


def read_start(given: int | str) -> Start:
    """Where a consumer begins; raises BadRequest."""
    match given:
        case int() | "earliest" | "latest":
            return given
        case _:
            return _read_moment(given)


def _read_moment(given: str) -> int:
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        microseconds = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
    except (ValueError, OverflowError):
        raise BadRequest(
            "start: expected earliest, latest, microseconds since 1970 or a moment in ISO 8601"
        ) from None
    return min(max(microseconds, 0), _TIMESTAMP_MAX)
