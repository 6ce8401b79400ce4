"""Packets between two brokers, however large and however the network cuts them."""

import asyncio
import socket
import struct
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
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


class Deaf(asyncio.Protocol):
    """Greets as broker 2, and takes nothing any more: its window is full, and nothing is acknowledged."""

    def __init__(self, made: list[asyncio.Transport]) -> None:
        self.made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made.append(transport)
        transport.write(wire.hello(2))
        transport.pause_reading()


def test_who_acknowledges_nothing_is_hung_up_on_and_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS_MAX", 0.2)

    async def test() -> None:
        callers: list[asyncio.Transport] = []
        changes: list[bool] = []
        server = await asyncio.get_running_loop().create_server(lambda: Deaf(callers), "127.0.0.1", 0)
        links = Links(1, lambda peer, packet: None, lambda peer, connected: changes.append(connected))
        links.connect(2, "127.0.0.1", server.sockets[0].getsockname()[1])
        await wait_until(lambda: 2 in links.connected)
        assert links.send(2, packet(bytes(32 << 20)))
        await wait_until(lambda: changes[:3] == [True, False, True] and len(callers) > 1)
        await links.close()
        for transport in callers:
            transport.abort()
        server.close()
        await server.wait_closed()

    run(test())


def dialling(port: int) -> set[str]:
    """The local addresses from which somebody dials a port of this machine, and is not answered."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "02"}


def test_a_dial_that_nobody_answers_is_given_up_and_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "DIAL_SECONDS_MAX", 0.1)

    async def test() -> None:
        links = Links(1, lambda peer, packet: None, lambda peer, connected: None)
        with ExitStack() as sockets:
            server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            address = server.getsockname()
            while not dialling(address[1]):  # until its queue is full, and further ones are passed over
                waiting = sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
            before = dialling(address[1])
            dialled: set[str] = set()
            links.connect(2, *address)
            await wait_until(lambda: len(dialled.update(dialling(address[1]) - before) or dialled) > 2)
            await links.close()

    run(test())


def test_who_has_greeted_may_be_silent() -> None:
    async def test() -> None:
        async with Pair() as pair:
            for links in (pair.first, pair.second):
                (connection,) = links._accepted
                assert connection._deadline is None

    run(test())
