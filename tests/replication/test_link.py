"""Packets between two brokers, however large and however the network cuts them."""

import asyncio
import struct
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from replication.hosts import wait_until
from talweg.replication import link, wire
from talweg.replication.link import Links


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def packet(body: bytes) -> list[bytes]:
    return [struct.pack("<I", len(body)), body]


class Pair:
    """Two brokers that are connected; what the second hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.first = Links(1, lambda peer, packet: None, lambda peer, connected: None)
        self.second = Links(
            2, lambda peer, packet: self.heard.append(bytes(packet)), lambda peer, connected: None
        )

    async def __aenter__(self) -> "Pair":
        port = await self.second.listen("127.0.0.1", 0)
        self.first.connect(2, "127.0.0.1", port)
        await wait_until(lambda: 1 in self.second.connected and 2 in self.first.connected)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.first.close()
        await self.second.close()


def test_packets_arrive_whole_and_in_order_whatever_their_size() -> None:
    async def test() -> None:
        random = Random(1)
        sizes = [
            1,
            5_000_000,
            2,
            link._RECEIVE_BYTES - 4,
            link._RECEIVE_BYTES,
            3,
            100_000,
            100_000,
            9_000_000,
        ]
        sizes += [random.randrange(1, 300_000) for _ in range(60)] + [0, 0, 7]
        bodies = [random.randbytes(size) for size in sizes]
        async with Pair() as pair:
            for body in bodies:
                assert pair.first.send(2, packet(body))
            await wait_until(lambda: len(pair.heard) == len(bodies))
            assert pair.heard == bodies

    run(test())


def test_after_a_large_packet_its_buffer_is_let_go() -> None:
    async def test() -> None:
        async with Pair() as pair:
            pair.first.send(2, packet(bytes(20 << 20)))
            pair.first.send(2, packet(b"small"))
            await wait_until(lambda: len(pair.heard) == 2)
            (connection,) = pair.second._accepted
            assert len(connection._buffer) == link._RECEIVE_BYTES

    run(test())


def test_bytes_that_trickle_in_make_the_same_packets() -> None:
    heard: list[bytes] = []
    links = Links(2, lambda peer, packet: heard.append(bytes(packet)), lambda peer, connected: None)
    connection = link._Connection(links, None)
    stream = wire.hello(1) + b"".join(b"".join(packet(body)) for body in (b"a", b"", b"bcd" * 1000))
    for byte in stream:
        view = connection.get_buffer(-1)
        view[0] = byte
        connection.buffer_updated(1)
    assert heard == [b"a", b"", b"bcd" * 1000]


class Silent(asyncio.Protocol):
    """Says nothing by itself, and notes its connections."""

    def __init__(self, made: list["Silent"] | None = None) -> None:
        self.made = [] if made is None else made
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


def test_a_stranger_makes_no_room_for_more_than_a_greeting() -> None:
    async def test() -> None:
        async with Pair() as pair:
            assert pair.second._server is not None
            host, port = pair.second._server.sockets[0].getsockname()
            stranger = Silent()
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: stranger, host, port)
            transport.write(struct.pack("<I", wire.HELLO_BYTES + 1))
            await wait_until(lambda: stranger.lost)
            assert pair.first.connected == {2}

    run(test())


def test_who_does_not_greet_is_hung_up_on_and_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "GREETING_SECONDS_MAX", 0.05)

    async def test() -> None:
        callers: list[Silent] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Silent(callers), "127.0.0.1", 0)
        links = Links(1, lambda peer, packet: None, lambda peer, connected: None)
        links.connect(2, "127.0.0.1", server.sockets[0].getsockname()[1])
        await wait_until(lambda: len(callers) > 1 and callers[0].lost)
        await links.close()
        await wait_until(lambda: all(caller.lost for caller in callers))
        server.close()
        await server.wait_closed()

    run(test())


def test_who_has_greeted_may_be_silent() -> None:
    async def test() -> None:
        async with Pair() as pair:
            for links in (pair.first, pair.second):
                (connection,) = links._accepted
                assert connection._deadline is None

    run(test())
