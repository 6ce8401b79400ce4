"""Asks other servers of the cluster: connections that are kept, deadlines on everything, errors as errors.

Small because it may be: it speaks to servers of ours, which know HTTP/1.1 and redirect nobody.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar, cast

import msgspec

from talweg.errors import Unavailable
from talweg.http.answering import encode, error_of
from talweg.http.connection import HttpResponse
from talweg.http.pool import Pool

A = TypeVar("A")

_NO_HEADERS: Final[Mapping[str, str]] = {}


class HttpClient:
    """Keeps connections to every endpoint that was asked. Lives in one event loop."""

    def __init__(
        self,
        *,
        connections_max: int = 64,  # to one endpoint; who comes when all are in use waits
        waiting_max: int = 10_000,  # for a connection to one endpoint; more are refused
        connect_seconds_max: float = 2.0,
        # Less than the 75 seconds of our servers: we close first, and nothing is sent into a closing door.
        idle_seconds_max: float = 30.0,
        answer_bytes_max: int = 64 << 20,
    ) -> None:
        self._connections_max = connections_max
        self._waiting_max = waiting_max
        self._connect_seconds_max = connect_seconds_max
        self._idle_seconds_max = idle_seconds_max
        self._answer_bytes_max = answer_bytes_max
        self._pools: dict[str, Pool] = {}  # by endpoint; as many as there ever were
        self._decoders: dict[type, msgspec.json.Decoder[object]] = {}
        self._closed = False

    async def call(
        self,
        endpoint: str,
        method: str,
        target: str,
        answer: type[A],
        body: msgspec.Struct | None = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        seconds_max: float,
    ) -> A:
        """Ask for something in JSON. A failure is raised as the error that its code names.

        `target` is the path with the query. Raises Unreachable when nothing was sent, and Unavailable
        when it is not known whether the request was carried out.
        """
        response = await self.request(
            endpoint,
            method,
            target,
            None if body is None else encode(body),
            media_type="application/json",
            headers=headers,
            seconds_max=seconds_max,
        )
        decoder = self._decoders.get(answer)
        if decoder is None:
            decoder = self._decoders[answer] = msgspec.json.Decoder(answer)
        try:
            return cast("A", decoder.decode(response.body))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            senseless = Unavailable(f"{endpoint} answered what is not understood: {error}")
            senseless.unexplained = True
            raise senseless from None

    async def request(
        self,
        endpoint: str,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        media_type: str = "application/octet-stream",
        headers: Mapping[str, str] = _NO_HEADERS,
        seconds_max: float,
    ) -> HttpResponse:
        """Ask for anything; the answer of a call that succeeded. Raises as `call` does."""
        deadline = asyncio.get_running_loop().time() + seconds_max
        pool = self._pools.get(endpoint)
        if pool is None:
            if self._closed:
                raise Unavailable("the client is closed")
            pool = self._pools[endpoint] = Pool(
                endpoint,
                connections_max=self._connections_max,
                waiting_max=self._waiting_max,
                connect_seconds_max=self._connect_seconds_max,
                idle_seconds_max=self._idle_seconds_max,
                answer_bytes_max=self._answer_bytes_max,
            )
        if body is not None:
            headers = {**headers, "content-type": media_type}
        head = _head(pool.host, method, target, body, headers)
        connection = await pool.take(deadline)
        try:
            response = await connection.exchange(head, body or b"", deadline)
        except Unavailable as error:
            raise type(error)(f"{method} {endpoint}{target}: {error}") from None
        finally:
            pool.give_back(connection)
        if not 200 <= response.status < 300:
            raise error_of(response.status, response.body)
        return response

    async def close(self) -> None:
        """Close every connection; what is under way fails with Unavailable."""
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        await asyncio.sleep(0)  # lets the transports say that they are lost


def _head(host: str, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    if body is not None or method != "GET":
        lines.append(f"content-length: {len(body or b'')}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    # Whoever builds a target quotes what is in it: a space or a line's end would be another request.
    assert target.startswith("/") and target.isprintable() and " " not in target, target
    assert all(line.isprintable() for line in lines), lines
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
