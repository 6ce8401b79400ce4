"""The metadata store is down: changes stop, messages do not."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from manager.clusters import Cluster, until
from manager.conftest import Play
from talweg.errors import MetadataUnavailable, Unavailable
from talweg.metadata import MetadataStore
from talweg.metadata.sql import SqlMetadata

LEASE_SECONDS = 1.0


class Switch:
    """Whether the store can be reached."""

    def __init__(self) -> None:
        self.down = False


def fragile(switch: Switch) -> Callable[[str], MetadataStore]:
    """Opens a store that is down when the switch says so."""

    def guarded(method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if switch.down:
                raise MetadataUnavailable("down, as the test wishes")
            return method(*arguments, **named)

        return call

    names = MetadataStore.__abstractmethods__ - {"close"}
    methods = {name: guarded(getattr(SqlMetadata, name)) for name in names}
    return type("FragileStore", (SqlMetadata,), methods)


def test_messages_flow_while_the_store_is_down(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        switch = Switch()
        primary = await cluster.manager(open_store=fragile(switch))
        reader = await cluster.manager(open_store=fragile(switch), read_only=True)
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        await client.produce(primary.endpoint, "m0")
        assert await client.consume(reader.endpoint) == "m0"
        switch.down = True
        await until(lambda: not primary.is_primary, "the lease has lapsed")
        for n in range(1, 10):
            await client.produce((primary, reader)[n % 2].endpoint, f"m{n}")
            assert await client.consume((primary, reader)[n // 2 % 2].endpoint) == f"m{n}"
        for endpoint in (primary.endpoint, reader.endpoint):
            with pytest.raises(MetadataUnavailable):
                await cluster.caller.post(endpoint, "/topics", name="another", replication=1)
            face = await cluster.caller.get(endpoint, "/")
            assert (face["healthy"], face["metadata_available"]) == (True, False)
            assert (await cluster.caller.get(endpoint, "/topics"))["topics"] == ["t"]
        with pytest.raises(MetadataUnavailable):
            await cluster.caller.get(reader.endpoint, "/size", topic="t", consumer_id=99)
        switch.down = False
        await until(lambda: primary.is_primary, "it is the primary again")
        await cluster.caller.post(reader.endpoint, "/topics", name="another", replication=1)

    play(scenario, lease_seconds=LEASE_SECONDS)


def test_a_manager_that_finds_no_store_at_its_start_waits_for_it(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        switch = Switch()
        opened = fragile(switch)

        def open_store(url: str) -> MetadataStore:
            if switch.down:
                raise MetadataUnavailable("down, as the test wishes")
            return opened(url)

        switch.down = True
        manager = await cluster.manager(open_store=open_store)
        assert not (await cluster.caller.get(manager.endpoint, "/"))["healthy"]
        with pytest.raises(Unavailable):
            await cluster.caller.post(manager.endpoint, "/topics", name="t")
        # It does not know of any topic or broker, which is not to know that there is none.
        for listing in ("/topics", "/admin/brokers", "/admin/producers", "/admin/consumers", "/v1/metadata"):
            with pytest.raises(MetadataUnavailable):
                await cluster.caller.get(manager.endpoint, listing)
        switch.down = False
        await until(lambda: manager.is_primary, "it is the primary")
        assert (await cluster.caller.get(manager.endpoint, "/"))["healthy"]

    play(scenario, lease_seconds=LEASE_SECONDS)


def test_a_store_that_hangs_holds_up_no_messages(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        hanging = False
        free = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang(method: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                if hanging:
                    asyncio.run_coroutine_threadsafe(free.wait(), loop).result()
                return method(*arguments, **named)

            return call

        names = MetadataStore.__abstractmethods__ - {"close"}
        methods = {name: hang(getattr(SqlMetadata, name)) for name in names}
        primary = await cluster.manager(open_store=type("HangingStore", (SqlMetadata,), methods))
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        await client.produce(primary.endpoint, "m0")
        hanging = True
        await until(lambda: not primary.is_primary, "the lease has lapsed")
        began = time.monotonic()
        for n in range(1, 13):
            await client.produce(primary.endpoint, f"m{n}")
        assert time.monotonic() - began < 4.0, "the store is waited for once, not with every message"
        assert await client.consume_all(primary.endpoint) == [f"m{n}" for n in range(13)]
        hanging = False
        free.set()
        await until(lambda: primary.is_primary, "it is the primary again")

    play(scenario, lease_seconds=LEASE_SECONDS)
