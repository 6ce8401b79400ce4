"""The connections to one endpoint: those in use, those that are kept, and those who wait for one."""

import asyncio
from collections import deque
from urllib.parse import urlsplit

from talweg.errors import InvalidSetting, Overloaded, Unavailable, Unreachable
from talweg.http.connection import Connection


class Pool:
    """Hands out connections, the one last used first, and opens new ones up to a limit."""

    def __init__(
        self,
        endpoint: str,
        *,
        connections_max: int,
        waiting_max: int,
        connect_seconds_max: float,
        idle_seconds_max: float,
        answer_bytes_max: int,
    ) -> None:
        self.endpoint = endpoint
        self._address, self._port, self.host = _parse(endpoint)
        self._connections_max = connections_max
        self._waiting_max = waiting_max
        self._connect_seconds_max = connect_seconds_max
        self._idle_seconds_max = idle_seconds_max
        self._answer_bytes_max = answer_bytes_max
        self._open: set[Connection] = set()  # in use or kept
        self._opening = 0  # len(_open) + _opening <= _connections_max
        self._kept: deque[Connection] = deque()  # the one last used is the last
        # Those who wait, in order. One is given a connection, or None: the right to open one.
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._closed = False

    async def take(self, deadline: float) -> Connection:
        """A free connection. Raises Unreachable and, when too many wait already, Overloaded."""
        connection = self._take_kept()
        if connection is not None:
            return connection
        if len(self._open) + self._opening >= self._connections_max:
            connection = await self._wait(deadline)
            if connection is not None:
                return connection
        else:
            self._opening += 1
        return await self._connect(deadline)

    def give_back(self, connection: Connection) -> None:
        """It is no longer needed; it is kept if another request may be sent on it."""
        if self._closed or not connection.free or connection.lost:
            connection.abort()
            self._open.discard(connection)
            self._let_open()
            return
        if not self._hand_over(connection):
            now = asyncio.get_running_loop().time()
            connection.used_at = now
            self._kept.append(connection)
            while now - self._kept[0].used_at > self._idle_seconds_max:
                self._drop(self._kept.popleft())

    def close(self) -> None:
        """Close all of them. Who waits is told."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(Unavailable("the client is closed"))
        for connection in list(self._open):
            self._drop(connection)

    def _take_kept(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._kept:
            connection = self._kept.pop()
            if not connection.lost and now - connection.used_at <= self._idle_seconds_max:
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.abort()

    async def _wait(self, deadline: float) -> Connection | None:
        if len(self._waiting) >= self._waiting_max:
            raise Overloaded(f"{self._waiting_max} requests wait for a connection to {self.endpoint} already")
        waiting: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._pass_on(waiting.result())  # it came at the very moment at which we gave up
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
            if isinstance(error, TimeoutError):
                raise Unreachable(f"no connection to {self.endpoint} became free in time") from None
            raise

    def _pass_on(self, given: Connection | None) -> None:
        if given is not None:
            self.give_back(given)
        else:
            self._opening -= 1
            self._let_open()

    def _hand_over(self, connection: Connection | None) -> bool:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False

    def _let_open(self) -> None:
        """There is room for one more connection: whoever waits longest may open it."""
        if len(self._open) + self._opening < self._connections_max and self._hand_over(None):
            self._opening += 1

    async def _connect(self, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + self._connect_seconds_max)):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._answer_bytes_max), self._address, self._port
                )
        except TimeoutError:
            raise Unreachable(f"{self.endpoint} did not take a connection in time") from None
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{self.endpoint} cannot be reached: {error}") from None
        else:
            if self._closed:
                connection.abort()
                raise Unavailable("the client is closed")
            self._open.add(connection)
            return connection
        finally:
            self._opening -= 1
            self._let_open()


def _parse(endpoint: str) -> tuple[str, int, str]:
    """Address, port and what the Host header says."""
    try:
        parts = urlsplit(endpoint)
        address, port = parts.hostname, parts.port
    except ValueError:
        address, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or not address or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidSetting(f"the endpoint {endpoint!r}: expected http://HOST:PORT")
    return address, 80 if port is None else port, parts.netloc.rpartition("@")[2]
