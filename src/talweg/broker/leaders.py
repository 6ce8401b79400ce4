"""Asks the leaders of partitions, wherever they are: for what brokers have to settle among themselves."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from talweg.errors import GroupNotFound, NotLeader, PartitionNotFound, TalwegError, Unavailable
from talweg.http import HttpClient
from talweg.protocol.control import Metadata
from talweg.protocol.transactions import (
    ANSWER_MS,
    TRANSACTIONS,
    Expire,
    Expired,
    Published,
    StageRef,
    TransactionsReady,
    decision_partition,
)

A = TypeVar("A")

_CONNECTIONS_MAX: Final = 16  # to one server
_PAUSE_SECONDS: Final = 0.1  # between two rounds of everybody
_SOME: Final = {ANSWER_MS: "1000"}  # what is published by then will do


class Leaders:
    """Finds them through managers. Lives in one event loop; every question has a deadline."""

    def __init__(self, managers: tuple[str, ...], *, request_seconds_max: float) -> None:
        self._managers = list(managers)  # the one that answered last is the first
        self._seconds_max = request_seconds_max
        self._client = HttpClient(connections_max=_CONNECTIONS_MAX)
        self._decision_partitions: int | None = None  # never changes

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()

    async def expire(self, transaction: str, stages: list[StageRef]) -> tuple[StageRef, ...]:
        """Those that were decided on; all others never will be."""
        partition = await self.keeper(transaction)
        body = Expire(transaction=transaction, stages=stages)
        answer = await self._ask(TRANSACTIONS, partition, "/decisions/expire", Expired, body)
        return answer.decided

    async def publish(self, stage: StageRef) -> bool:
        """Publish a stage that was decided on, or some of it if it is large; whether nothing is left."""
        path = f"/stages/{stage.stage}/publish"
        answer = await self._ask(stage.topic, stage.partition, path, Published, headers=_SOME)
        return answer.complete

    async def keeper(self, transaction: str) -> int:
        """The partition of the internal topic that decides on it."""
        if self._decision_partitions is None:
            # Made if it is not there: that nobody has decided on anything is then a decision like any other.
            ready = await self._ask_manager("POST", "/v1/transactions", TransactionsReady)
            self._decision_partitions = ready.partitions
        return decision_partition(transaction, self._decision_partitions)

    async def _ask(
        self,
        topic: str,
        partition: int,
        path: str,
        answer: type[A],
        body: msgspec.Struct | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> A:
        target = f"/v1/topics/{quote(topic, safe='')}/partitions/{partition}{path}"
        error: TalwegError = Unavailable(f"nobody leads partition {partition} of topic {topic}")
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds_max
        while (left := deadline - clock()) > 0:
            for endpoint in await self._candidates(topic, partition):
                try:
                    return await self._client.call(
                        endpoint,
                        "POST",
                        target,
                        answer,
                        body,
                        headers=headers or {},
                        seconds_max=max(deadline - clock(), 0.001),
                    )
                except (NotLeader, GroupNotFound, Unavailable) as failure:
                    error = failure
            await asyncio.sleep(min(_PAUSE_SECONDS, left))
        raise error

    async def _candidates(self, topic: str, partition: int) -> list[str]:
        """Endpoints of a partition's replicas, the leader's first as far as it is known."""
        target = f"/v1/metadata?topics={quote(topic, safe='')}"
        metadata = await self._ask_manager("GET", target, Metadata)
        endpoints = {broker.id: broker.endpoint for broker in metadata.brokers}

        def brokers() -> Iterator[int]:
            for part in metadata.topics[0].partitions:
                if part.partition == partition:
                    yield from () if part.leader is None else (part.leader,)
                    yield from part.replicas
                    return
            raise PartitionNotFound(f"topic {topic} has no partition {partition}")

        return [endpoints[broker] for broker in dict.fromkeys(brokers()) if broker in endpoints]

    async def _ask_manager(self, method: str, target: str, answer: type[A]) -> A:
        error: TalwegError = Unavailable("no manager is known")
        for manager in tuple(self._managers):
            try:
                found = await self._client.call(
                    manager, method, target, answer, seconds_max=self._seconds_max
                )
            except Unavailable as failure:
                error = failure
                continue
            self._managers.remove(manager)
            self._managers.insert(0, manager)
            return found
        raise error
