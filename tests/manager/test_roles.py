"""Primaries, stand-bys and read-only managers: who does what when one of them is gone, or only was away."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from manager.clusters import Cluster, until
from manager.conftest import Play
from talweg.config import ManagerSettings
from talweg.errors import Unavailable
from talweg.manager.forwarding import FORWARDED
from talweg.metadata import Lease
from talweg.metadata.sql import SqlMetadata


def test_a_stand_by_takes_over_and_messages_keep_their_order(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.manager()
        second = await cluster.manager()
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        for n in range(6):
            await client.produce(first.endpoint, f"m{n}")
        assert not second.is_primary
        await cluster.stop_manager(first)
        await until(lambda: second.is_primary, "the second is the primary")
        for n in range(6, 12):
            await client.produce(second.endpoint, f"m{n}")
        assert await client.consume_all(second.endpoint) == [f"m{n}" for n in range(12)]

    play(scenario)


def test_a_read_only_manager_goes_on_when_there_is_no_primary(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        primary = await cluster.manager()
        reader = await cluster.manager(read_only=True)
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        for n in range(8):
            await client.produce(reader.endpoint, f"m{n}")
        assert await client.consume(reader.endpoint) == "m0"
        await cluster.stop_manager(primary)
        assert await client.consume_all(reader.endpoint) == [f"m{n}" for n in range(1, 8)]
        assert await client.size(reader.endpoint) == 0
        assert (await cluster.caller.get(reader.endpoint, "/topics"))["topics"] == ["t"]
        with pytest.raises(Unavailable):
            await cluster.caller.post(reader.endpoint, "/topics", name="another")
        with pytest.raises(Unavailable):
            await client.produce(reader.endpoint, "m8")
        assert not reader.is_primary

    play(scenario)


def test_who_lost_the_lease_looks_for_the_new_primary_before_it_says_that_there_is_none(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    renewals = threading.Event()
    renewals.set()

    class SlowRenewals(SqlMetadata):
        def renew_lease(self, *arguments: Any, **named: Any) -> Lease:
            renewals.wait()
            return super().renew_lease(*arguments, **named)

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.manager(open_store=SlowRenewals, follow_seconds=60.0)
        second = await cluster.manager()
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        await client.produce(first.endpoint, "m0")
        renewals.clear()
        await until(lambda: second.is_primary, "the second is the primary")
        renewals.set()
        await until(lambda: "no longer the primary" in caplog.text, "the first knows that it is not")
        await client.produce(first.endpoint, "m1")
        assert await client.consume_all(second.endpoint) == ["m0", "m1"]

    try:
        play(scenario)
    finally:
        renewals.set()  # or its thread would wait for ever


def test_what_was_registered_a_moment_ago_is_found_by_a_manager_that_seldom_looks(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        primary = await cluster.manager()
        reader = await cluster.manager(read_only=True, follow_seconds=60.0)
        await cluster.broker("broker")
        client = await cluster.client(replication=1)
        await client.produce(primary.endpoint, "m0")
        assert await client.size(reader.endpoint) == 1
        assert await client.consume(reader.endpoint) == "m0"

    play(scenario)


def test_what_was_sent_on_once_is_not_sent_on_again(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.manager()
        reader = await cluster.manager(read_only=True)
        with pytest.raises(Unavailable, match="no primary"):
            await cluster.caller.client.request(
                reader.endpoint,
                "POST",
                "/topics",
                b'{"name": "t"}',
                media_type="application/json",
                headers={FORWARDED: "1"},
                seconds_max=5.0,
            )

    play(scenario)


@asynccontextmanager
async def manager_process(settings: ManagerSettings) -> AsyncIterator[tuple[int, str]]:
    """Its process and its URL."""
    script = Path(__file__).with_name("manager_process.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        msgspec.json.encode(settings).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.pid, (await process.stdout.readline()).decode().strip()
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_primary_that_was_paused_does_no_harm_when_it_wakes(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        caller = cluster.caller
        settings = ManagerSettings(port=0, metadata=cluster.metadata, **cluster.settings)
        async with manager_process(settings) as (process, paused):
            second = await cluster.manager()
            assert (await caller.get(paused, "/"))["role"] == "primary"
            assert not second.is_primary
            await cluster.broker("broker", managers=(paused, second.endpoint))
            await caller.post(paused, "/topics", name="t", replication=1)
            os.kill(process, signal.SIGSTOP)
            await until(lambda: second.is_primary, "the second is the primary")
            client = await cluster.client_of("t")
            for n in range(5):
                await client.produce(second.endpoint, f"m{n}")
            os.kill(process, signal.SIGCONT)
            for n in range(5, 10):
                await client.produce(paused, f"m{n}")  # at once, while it may think that it is the primary
            assert await client.consume_all(second.endpoint) == [f"m{n}" for n in range(10)]
            assert (await caller.get(paused, "/"))["role"] == "stand-by"
            await caller.post(paused, "/topics", name="after", replication=1)
            assert second.is_primary
            assert (await caller.get(paused, "/"))["primary"] == second.endpoint

    play(scenario)
