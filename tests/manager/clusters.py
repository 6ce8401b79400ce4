"""Whole clusters in one event loop: real managers on an SQLite file, and real brokers on directories."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from talweg.broker import Broker
from talweg.config import BrokerSettings, ManagerSettings
from talweg.errors import NoMessage
from talweg.http import Answer, HttpClient
from talweg.manager import Manager
from talweg.metadata import MetadataStore, open_metadata

PATIENCE_SECONDS = 60.0


async def until(condition: Callable[[], Awaitable[Any] | Any], what: str = "") -> Any:
    """Wait for something to become true; what it then is."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(0.01)


class Caller:
    """Calls a server as people do: JSON in, JSON out, failures too."""

    def __init__(self) -> None:
        self.client = HttpClient()

    async def get(self, endpoint: str, path: str, /, **query: Any) -> Any:
        target = f"{path}?{urlencode(query)}" if query else path
        response = await self.client.request(endpoint, "GET", target, seconds_max=60.0)
        return msgspec.json.decode(response.body)

    async def post(self, endpoint: str, path: str, /, **body: Any) -> Any:
        response = await self.client.request(
            endpoint,
            "POST",
            path,
            msgspec.json.encode(body),
            media_type="application/json",
            seconds_max=60.0,
        )
        return msgspec.json.decode(response.body)

    async def delete(self, endpoint: str, path: str) -> Any:
        return await self.client.call(endpoint, "DELETE", path, Answer, seconds_max=60.0)


class Client:
    """A producer and a consumer of one topic, through any manager."""

    def __init__(self, caller: Caller, topic: str, producer_id: int, consumer_id: int) -> None:
        self.caller = caller
        self.topic = topic
        self.producer_id = producer_id
        self.consumer_id = consumer_id

    async def produce(self, endpoint: str, message: str, **more: Any) -> tuple[int, int]:
        body = {"topic": self.topic, "producer_id": self.producer_id, "message": message} | more
        answer = await self.caller.post(endpoint, "/producer/produce", **body)
        return answer["partition"], answer["offset"]

    async def consume(self, endpoint: str, **more: Any) -> str:
        query = {"topic": self.topic, "consumer_id": self.consumer_id} | more
        return str((await self.caller.get(endpoint, "/consumer/consume", **query))["message"])

    async def consume_all(self, endpoint: str) -> list[str]:
        read = []
        while True:
            try:
                read.append(await self.consume(endpoint))
            except NoMessage:
                return read

    async def size(self, endpoint: str) -> int:
        answer = await self.caller.get(endpoint, "/size", topic=self.topic, consumer_id=self.consumer_id)
        return int(answer["size"])


class Cluster:
    """Managers and brokers, to be started and stopped one by one."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.metadata = f"sqlite:///{directory}/metadata.db"
        self.settings = {
            "heartbeat_seconds": 0.3,
            "health_seconds": 0.1,
            "lease_seconds": 2.0,
            "follow_seconds": 0.05,
            "request_seconds_max": 8.0,
            "stop_seconds_max": 1.0,
        } | settings
        self.managers: list[Manager] = []
        self.brokers: dict[str, Broker] = {}
        self.caller = Caller()

    @property
    def primary(self) -> str:
        """The endpoint of the manager that is the primary now."""
        return next(manager.endpoint for manager in self.managers if manager.is_primary)

    async def has_primary(self) -> None:
        """Wait until there is one: on a machine that stands still for a moment a lease may lapse."""
        await until(lambda: any(manager.is_primary for manager in self.managers), "somebody is the primary")

    async def manager(
        self, *, open_store: Callable[[str], MetadataStore] = open_metadata, **settings: Any
    ) -> Manager:
        chosen = {"port": 0, "metadata": self.metadata} | self.settings | settings
        manager = Manager(ManagerSettings(**chosen), open_store=open_store)
        await manager.start()
        self.managers.append(manager)
        return manager

    async def broker(self, name: str, **settings: Any) -> Broker:
        chosen = {
            "port": 0,
            "data": str(self.directory / name),
            "managers": tuple(manager.endpoint for manager in self.managers),
            "stop_seconds_max": 1.0,
            "heartbeat_seconds": self.settings["heartbeat_seconds"],
            "request_seconds_max": self.settings["request_seconds_max"],
        }
        broker = Broker(BrokerSettings(**(chosen | settings)))
        await broker.start()
        self.brokers[name] = broker
        await until(lambda: broker.broker_id is not None, f"{name} is registered")
        return broker

    async def start(self, brokers: int = 3) -> Manager:
        manager = await self.manager()
        for number in range(brokers):
            await self.broker(f"broker-{number}")
        return manager

    async def client(self, topic: str = "t", **created: Any) -> Client:
        """A new topic with a producer and a consumer of it."""
        await self.has_primary()
        await self.caller.post(self.primary, "/topics", name=topic, **created)
        return await self.client_of(topic)

    async def client_of(self, topic: str) -> Client:
        """A new producer and consumer of a topic that is there."""
        await self.has_primary()
        producer = await self.caller.post(self.primary, "/producer/register", topic=topic)
        consumer = await self.caller.post(self.primary, "/consumer/register", topic=topic)
        return Client(self.caller, topic, producer["producer_id"], consumer["consumer_id"])

    async def statuses(self) -> dict[int, str]:
        """What brokers are said to be, by number."""
        listed = await self.caller.get(self.primary, "/admin/brokers")
        return {broker["id"]: broker["status"] for broker in listed["brokers"]}

    async def partitions(self, topic: str) -> list[Any]:
        """A topic's partitions, as they are listed."""
        listed = await self.caller.get(self.primary, f"/topics/{topic}/partitions")
        return list(listed["partitions"])

    async def stop_broker(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def stop_manager(self, manager: Manager) -> None:
        self.managers.remove(manager)
        await manager.stop()

    async def stop(self) -> None:
        await self.caller.client.close()
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        await asyncio.gather(*(manager.stop() for manager in self.managers))
