"""One connection to a server: a request, its answer, and then the next. HTTP/1.1 without pipelining."""

import asyncio
from typing import Final, cast

import httptools
import msgspec

from talweg.errors import Unavailable, Unreachable

Headers = dict[str, str]

_SENT_AT_ONCE: Final = 64 << 10  # a body up to this size is copied behind its head, for one write


class HttpResponse(msgspec.Struct, frozen=True):
    """What came back. Names of headers are in lower case; of a repeated one, the last counts."""

    status: int
    headers: Headers
    body: bytes


class Connection(asyncio.Protocol):
    """The client's end. `free` when the next request may be sent on it."""

    def __init__(self, answer_bytes_max: int) -> None:
        self.free = False
        self.used_at = 0.0  # by the event loop's clock: when it became free
        self._answer_bytes_max = answer_bytes_max
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._headers: Headers = {}
        self._pieces: list[bytes] = []
        self._body_bytes = 0

    async def exchange(self, head: bytes, body: bytes, deadline: float) -> HttpResponse:
        """Send a request and wait for its answer, up to a moment of the event loop's clock.

        Raises Unreachable when nothing was sent, and Unavailable when no answer comes. Then, and when the
        caller is cancelled, it does not become free again, because the answer may still be under way:
        whoever holds it is to abort it.
        """
        if self.lost:  # in the moment between being handed out and being used
            raise Unreachable("the connection was closed before anything was sent")
        assert self.free and self._transport is not None, "one request at a time"
        loop = asyncio.get_running_loop()
        self.free = False
        waiting: asyncio.Future[HttpResponse] = loop.create_future()
        self._waiting = waiting
        if len(body) <= _SENT_AT_ONCE:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])
        timer = loop.call_at(deadline, self._give_up, "no answer came in time")
        try:
            return await waiting
        finally:
            timer.cancel()

    @property
    def lost(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        """Close it now."""
        self.free = False
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Unavailable(why))
        self._waiting = None
        self.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is none by its class
        self.free = True

    def data_received(self, data: bytes) -> None:
        """Some of an answer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._give_up(f"the answer is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """It is closed, by whomever."""
        self._give_up("the connection was closed before the answer came")
        self._transport = None

    # What the parser calls

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._waiting is None:
            self.abort()  # to nothing that was asked; the next one would be taken for another's
        self._headers = {}
        self._pieces = []
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, whole."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(piece)
        if self._body_bytes > self._answer_bytes_max:
            self._give_up(f"the answer has more than {self._answer_bytes_max} bytes, which are allowed")
            return
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._parser.should_keep_alive():
            self.free = True
        waiting.set_result(HttpResponse(self._parser.get_status_code(), self._headers, body))
