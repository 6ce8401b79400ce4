"""Serves an application on a port, inside an event loop that is running already.

uvicorn does the work. What is changed here: it takes no signals (whoever runs the process does), it
answers even a request that is no HTTP in JSON, and it bounds a request's head, in bytes and in time, and the
time for which an answer waits to be read, which it would not.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from talweg.errors import BadRequest, InvalidSetting
from talweg.http.answering import failure_response

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

HEAD_BYTES_MAX: Final = 64 << 10  # of a request line and its headers, beside what two reads may bring
HEAD_SECONDS_MAX: Final = 30.0  # for a head to arrive, from the opening of a connection or its first byte
UNREAD_SECONDS_MAX: Final = 60.0  # without a byte being read of an answer that waits in memory
KEEP_ALIVE_SECONDS: Final = 75  # longer than clients keep what they do not use: they close, we do not
_BACKLOG: Final = 2048
_HEAD_BEGINS: Final = b"HTTP/1.1 "
_JOINED_BYTES_MAX: Final = 64 << 10  # what is larger is not copied to be sent with its head
_LAST_WORDS_SECONDS: Final = 1.0  # for requests that were told to stop to say so


class Server:
    """Listens from `start` to `stop`. Port 0 takes any free one."""

    def __init__(
        self,
        application: Asgi,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        head_seconds_max: float = HEAD_SECONDS_MAX,
        unread_seconds_max: float = UNREAD_SECONDS_MAX,
    ) -> None:
        self.host = host
        self.port = port  # the real one, after start
        self._limits = {"head_seconds_max": head_seconds_max, "unread_seconds_max": unread_seconds_max}
        self._application = application
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises InvalidSetting when host and port cannot be listened on."""
        assert self._serving is None, "a server starts once"
        listening = await self._listen()
        self.port = listening.getsockname()[1]
        self._uvicorn = _Uvicorn(_config(self._application, self._limits))
        self._serving = asyncio.get_running_loop().create_task(self._uvicorn.serve([listening]))
        ready = asyncio.ensure_future(self._uvicorn.ready.wait())
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self._serving  # raises what kept it from starting
        return self.port

    async def _listen(self) -> socket.socket:
        where = f"{self.host}:{self.port}"
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, address = found[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                # Now, and not when uvicorn does: whoever is told the port may connect.
                listening.listen(_BACKLOG)
                listening.setblocking(False)
            except BaseException:
                listening.close()
                raise
        except (OSError, OverflowError, UnicodeError) as error:
            raise InvalidSetting(f"cannot listen on {where}: {error}") from error
        return listening

    async def stop(self, seconds_max: float = 5.0) -> None:
        """Listen no more and let requests under way finish; those that take longer are told to stop."""
        if self._uvicorn is None or self._serving is None:
            return
        self._uvicorn.config.timeout_graceful_shutdown = cast("int", seconds_max)  # any number will do
        self._uvicorn.should_exit = True
        await self._serving
        state = self._uvicorn.server_state
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=_LAST_WORDS_SECONDS)
        for connection in list(state.connections):
            transport = cast("HttpToolsProtocol", connection).transport
            if not transport.is_closing():  # one that is still sends what it has
                transport.abort()
        self._uvicorn = None


class _Uvicorn(uvicorn.Server):
    """Says when it listens, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the affair of whoever runs the process."""
        yield


class _JoiningTransport:
    """Sends the head of an answer together with the beginning of its body.

    uvicorn writes them one after the other, and each write is a system call: a large part of what a small
    answer costs.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head: bytes | None = None  # held back, at most until the end of this turn

    def write(self, data: bytes | memoryview) -> None:
        """A head is held back until its body comes; all else leaves at once, behind it."""
        head, self._head = self._head, None
        if head is None:
            if data[: len(_HEAD_BEGINS)] == _HEAD_BEGINS:
                self._head = bytes(data)
                self._loop.call_soon(self._flush)
            else:
                self._transport.write(data)
        elif len(data) <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join((head, data)))
        else:
            self._transport.write(head)
            self._transport.write(data)

    def close(self) -> None:
        """Close, when everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self, *arguments: Any, head_seconds_max: float, unread_seconds_max: float, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._head_bytes = 0  # of reads that began and ended within the head that is coming in
        self._head_seconds_max = head_seconds_max
        self._head_timer: asyncio.TimerHandle | None = None  # while a head is waited for
        self._unread_seconds_max = unread_seconds_max
        self._unread_timer: asyncio.TimerHandle | None = None  # while much of an answer waits to be read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _JoiningTransport(transport)))
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_in_head = self._in_head
        super().data_received(data)
        # Without a timer either a request is being answered, or uvicorn has just stopped its own.
        if self._head_timer is None and (self._in_head or self._is_idle):
            self._wait_for_head()
        if began_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")

    # Closing waits until everything is sent. Who does not read would keep its answer here for ever.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(
            self._unread_seconds_max, self._look_at_reader, unread_bytes
        )

    def _look_at_reader(self, unread_bytes: int) -> None:
        if self.transport.get_write_buffer_size() == unread_bytes:
            self._unread_timer = None
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _is_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_has_come()
        super().on_headers_complete()

    @property
    def _is_idle(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is None or cycle.response_complete

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds_max, self._head_is_late)

    def _head_has_come(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_idle:
            self._wait_for_head()  # the answer to the request before it comes first
        elif self._in_head:
            self.send_400_response(f"the head of the request did not arrive in {self._head_seconds_max:g} s")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """As every other failure."""
        response = failure_response(BadRequest(msg))
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % header for header in response.headers)]
        head = b"\r\n".join([*lines, b"connection: close", b"", b""])
        self.transport.write(head + cast("bytes", response.body))
        self.transport.close()


def _config(application: Asgi, limits: dict[str, float]) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return uvicorn.Config(
        cast("Any", application),
        http=cast("Any", partial(_Protocol, **limits)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
