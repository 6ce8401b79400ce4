"""Topics and their partitions, as people ask for them."""

import asyncio
from typing import Final
from urllib.parse import quote

from talweg.errors import (
    BadTopicName,
    Forbidden,
    LeaseLost,
    MetadataUnavailable,
    TooFewBrokers,
    TooManyPartitions,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from talweg.http import Answer, Call, Request
from talweg.manager.parts import Parts
from talweg.manager.routing import ENDS, Question
from talweg.metadata import RESERVED_PREFIX, Topic
from talweg.protocol.bundles import AskEnd, Ends
from talweg.protocol.plain import (
    CreateTopic,
    PartitionList,
    PartitionShown,
    TopicCreated,
    TopicList,
    TopicPath,
)

WRITING: Final = (LeaseLost, MetadataUnavailable)  # how every change of the metadata may fail
CREATING: Final = (BadTopicName, TooFewBrokers, TooManyPartitions, Unavailable)

_SIZES_SECONDS_MAX: Final = 2.0  # for leaders to say how much there is
_TAG: Final = "Topics"


class TopicCalls:
    """Answers them for one manager."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def calls(self) -> list[Call]:
        """What is answered here."""
        forwarding = self._parts.forwarding
        return [
            Call(
                "POST",
                "/topics",
                forwarding.to_primary("POST", "/topics", TopicCreated, self._create),
                "Create a topic",
                body=CreateTopic,
                answer=TopicCreated,
                errors=(*WRITING, *CREATING, TopicExists),
                tag=_TAG,
            ),
            Call(
                "GET",
                "/topics",
                self._list,
                "The names of all topics",
                answer=TopicList,
                errors=(TopicNotFound, MetadataUnavailable),
                tag=_TAG,
            ),
            Call(
                "GET",
                "/topics/{name}/partitions",
                self._partitions,
                "A topic's partitions",
                parameters=TopicPath,
                answer=PartitionList,
                errors=(TopicNotFound, MetadataUnavailable),
                tag=_TAG,
            ),
            Call(
                "DELETE",
                "/topics/{name}",
                forwarding.to_primary("DELETE", _topic_target, Answer, self._delete),
                "Delete a topic with everything in it",
                parameters=TopicPath,
                answer=Answer,
                errors=(*WRITING, TopicNotFound, Forbidden),
                tag=_TAG,
            ),
        ]

    async def _create(self, request: Request[None, CreateTopic]) -> TopicCreated:
        wanted = request.body
        topic = await self._parts.topics.create(
            wanted.name,
            partitions=wanted.partitions,
            replication=wanted.replication,
            retention_ms=wanted.retention_ms,
            retention_bytes=wanted.retention_bytes,
        )
        return TopicCreated(message=f"topic {topic.name} is created", partitions=topic.partitions)

    async def _list(self, request: Request[None, None]) -> TopicList:
        await self._parts.follower.refresh()
        self._parts.follower.check_loaded()
        topics = sorted(t for t in self._parts.follower.copy.topics if not t.startswith(RESERVED_PREFIX))
        if not topics:
            raise TopicNotFound("no topics found")
        return TopicList(topics=topics)

    async def _partitions(self, request: Request[TopicPath, None]) -> PartitionList:
        topic = await self._parts.follower.topic(request.parameters.name)
        ends = await self._ends(topic)
        leaders = self._parts.leaders.by_group
        return PartitionList(
            partitions=[
                PartitionShown(
                    id=assignment.partition,
                    leader=leaders.get(assignment.incarnation) if end is not None else None,
                    replicas=tuple(replica.broker for replica in assignment.replicas),
                    size=end.next_offset - end.start_offset if end is not None else None,
                )
                for number, end in enumerate(ends)
                if (assignment := self._parts.follower.groups.get(topic.incarnation + number)) is not None
            ]
        )

    async def _ends(self, topic: Topic) -> list[Ends | None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(_SIZES_SECONDS_MAX, self._parts.settings.request_seconds_max)
        found = await asyncio.gather(
            *(self._parts.router.ask(Question(ENDS, g, AskEnd(g), deadline)) for g in topic.groups),
            return_exceptions=True,
        )
        return [end if isinstance(end, Ends) else None for end in found]

    async def _delete(self, request: Request[TopicPath, None]) -> Answer:
        await self._parts.topics.delete(request.parameters.name)
        return Answer()


def _topic_target(request: Request[TopicPath, None]) -> str:
    return f"/topics/{quote(request.parameters.name, safe='')}"
