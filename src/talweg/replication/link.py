"""One connection for a pair of brokers, whatever the number of groups they share.

The broker with the smaller id dials, the other answers, so that a pair never ends up with two. Packets
that cannot be sent are dropped: the consensus core is made for that, and a queue for a dead peer would
only grow.
"""

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable
from typing import cast

from talweg.errors import CorruptBatch
from talweg.replication import wire
from talweg.storage.frames import gathered

_LENGTH = struct.Struct("<I")
SEND_BUFFER_BYTES_MAX = 64 << 20  # beyond that packets are dropped, as if the network had lost them
# Between attempts to dial; the last one repeats. Soon: a broker that is back can lead only once it is heard.
RETRY_SECONDS = (0.05, 0.1, 0.2)
# Who has said nothing by then is hung up on, and dialled again: a machine that died right after its kernel
# had taken the connection would never be heard of otherwise.
GREETING_SECONDS_MAX = 10.0
# Who takes nothing for so long is hung up on. Left to itself TCP tries again after ever longer pauses: a
# network that was away for a minute would be back for half a minute more before anybody noticed.
SILENCE_SECONDS_MAX = 3.0
DIAL_SECONDS_MAX = 5.0  # for the same reason; but time enough to look a name up

_RECEIVE_BYTES = 2 << 20  # the usual buffer: an Append of the usual size fits in it

PacketArrived = Callable[[int, memoryview], None]  # from which broker, what; only until it returns
LinkChanged = Callable[[int, bool], None]  # which broker, whether it is connected now


class Links:
    """All connections of one broker to its peers."""

    def __init__(self, broker: int, arrived: PacketArrived, changed: LinkChanged) -> None:
        self.broker = broker
        self._arrived = arrived
        self._changed = changed
        self._open: dict[int, _Connection] = {}  # by peer, greeted
        self._accepted: set[_Connection] = set()  # not greeted yet, or open
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, bound: socket.socket | None = None) -> int:
        """Accept peers; returns the port, which is the given one unless that was 0, or that of a socket
        that is bound already."""
        loop = asyncio.get_running_loop()
        if bound is not None:
            self._server = await loop.create_server(lambda: _Connection(self, None), sock=bound)
        else:
            self._server = await loop.create_server(lambda: _Connection(self, None), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def connect(self, peer: int, host: str, port: int) -> None:
        """Keep a connection to `peer`, if it is ours to dial; a second call changes its address."""
        if peer <= self.broker:
            return
        if (task := self._dialling.pop(peer, None)) is not None:
            task.cancel()
        self._dialling[peer] = asyncio.get_running_loop().create_task(self._keep_dialling(peer, host, port))

    async def _keep_dialling(self, peer: int, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(DIAL_SECONDS_MAX):
                    _, connection = await loop.create_connection(lambda: _Connection(self, peer), host, port)
                attempt = 0
                await connection.closed.wait()
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1

    def send(self, peer: int, parts: list[bytes]) -> bool:
        """Send packets, or drop them. Whether they were sent."""
        connection = self._open.get(peer)
        return connection is not None and connection.send(parts)

    @property
    def connected(self) -> frozenset[int]:
        """The peers that can be reached now."""
        return frozenset(self._open)

    async def close(self) -> None:
        """Hang up everywhere."""
        for task in self._dialling.values():
            task.cancel()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self._accepted):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    # For connections

    def made(self, connection: "_Connection") -> None:
        """A connection exists; who is at the other end is not known yet."""
        self._accepted.add(connection)

    def greeted(self, connection: "_Connection", peer: int) -> None:
        """Now it is. A peer that comes again has lost its old connection, whether we noticed or not."""
        old = self._open.get(peer)
        self._open[peer] = connection
        if old is not None:
            old.abort()
        self._changed(peer, True)

    def lost(self, connection: "_Connection", peer: int | None) -> None:
        """The connection is gone."""
        self._accepted.discard(connection)
        if peer is not None and self._open.get(peer) is connection:
            del self._open[peer]
            self._changed(peer, False)

    def arrived(self, peer: int, packet: memoryview) -> None:
        """A packet has come. It is gone when this returns."""
        self._arrived(peer, packet)


class _Connection(asyncio.BufferedProtocol):
    """Cuts the stream into packets. The first one must be a greeting.

    Bytes are received where they are read from: of a large batch there is then one copy, the frame that
    is kept, where handing on what arrived would make three.
    """

    def __init__(self, links: Links, expected_peer: int | None) -> None:
        self.closed = asyncio.Event()
        self._links = links
        self._expected_peer = expected_peer
        self._peer: int | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None  # for the greeting
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._begin = self._end = 0  # of what was received and not yet read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        _limit_silence(self._transport.get_extra_info("socket"))
        self._links.made(self)
        self._transport.write(wire.hello(self._links.broker))
        self._deadline = asyncio.get_running_loop().call_later(GREETING_SECONDS_MAX, self.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_deadline()
        self.closed.set()
        self._links.lost(self, self._peer)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive next. There is always room: see `_make_room`."""
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes more have been received."""
        self._end += nbytes
        needed = 4
        try:
            while self._end - self._begin >= 4:
                (length,) = _LENGTH.unpack_from(self._buffer, self._begin)
                # A stranger does not make us keep room for more than a greeting.
                if length > (wire.HELLO_BYTES if self._peer is None else wire.PACKET_BYTES_MAX):
                    raise CorruptBatch(f"a packet of {length} bytes")
                needed = 4 + length
                if self._end - self._begin < needed:
                    break
                packet = self._buffer[self._begin + 4 : self._begin + needed]
                self._begin += needed
                needed = 4
                self._packet(packet)
        except CorruptBatch:
            self.abort()  # whoever this is, we do not speak the same language
            return
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        # For all of the packet that is coming in, and never for nothing at all.
        received = self._end - self._begin
        if received == 0 and len(self._buffer) == _RECEIVE_BYTES:
            self._begin = self._end = 0
        elif self._begin + needed > len(self._buffer) or received == 0:
            target = self._buffer
            size = max(needed, _RECEIVE_BYTES)
            if len(target) != size:
                target = memoryview(bytearray(size))
            target[:received] = self._buffer[self._begin : self._end]
            self._buffer, self._begin, self._end = target, 0, received

    def _packet(self, packet: memoryview) -> None:
        if self._peer is not None:
            self._links.arrived(self._peer, packet)
            return
        peer = wire.read_hello(packet)
        if peer == self._links.broker or self._expected_peer not in (None, peer):
            raise CorruptBatch(f"broker {peer} answered where broker {self._expected_peer} was expected")
        self._peer = peer
        self._end_deadline()
        self._links.greeted(self, peer)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send(self, parts: list[bytes]) -> bool:
        """Write, unless too much waits already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > SEND_BUFFER_BYTES_MAX:
            return False
        transport.writelines(gathered(parts))
        return True

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()


def _limit_silence(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for two who have nothing to say
    if sys.platform == "linux":  # elsewhere TCP's own patience must do
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, round(SILENCE_SECONDS_MAX) or 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SILENCE_SECONDS_MAX))
