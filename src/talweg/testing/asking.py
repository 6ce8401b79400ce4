"""Asks a server one thing after another, and waits for each answer: a small client for tests and tools.

It blocks, and is for one thread. Failures come back as the errors that were raised there.
"""

import http.client
import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from talweg.errors import TalwegError, Unavailable, Unreachable
from talweg.http import error_of

Answer = dict[str, Any]


class Asker:
    """One connection to one server, made when it is needed and kept as long as it lasts."""

    def __init__(self, endpoint: str, seconds_max: float = 10.0) -> None:
        self.endpoint = endpoint
        self.seconds_max = seconds_max  # for each step of a request: connecting, sending, an answer's bytes
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, **query: object) -> Answer:
        """Ask with query parameters; those that are None are left out. Raises as `request` does."""
        return self._json("GET", _with_query(path, query))

    def post(self, path: str, **body: object) -> Answer:
        """Ask with a body in JSON; fields that are None are left out. Raises as `request` does."""
        given = {name: value for name, value in body.items() if value is not None}
        return self._json("POST", path, json.dumps(given).encode())

    def delete(self, path: str) -> Answer:
        """Remove something. Raises as `request` does."""
        return self._json("DELETE", path)

    def _json(self, method: str, target: str, body: bytes | None = None) -> Answer:
        status, content = self.request(method, target, body)
        if not 200 <= status < 300:
            raise error_of(status, content)
        try:
            answer: Answer = json.loads(content)
        except ValueError:
            raise Unavailable(f"{self.endpoint} answered what is not JSON") from None
        return answer

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        media_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send bytes as they are; the answer's status and body, whatever they are.

        Raises Unreachable when nothing was sent, Unavailable when it is not known what became of it.
        """
        fresh = self._connection is None
        connection = self._connection or self._connect()
        self._connection = None
        sent = {**(headers or {}), **({"content-type": media_type} if body is not None else {})}
        try:
            connection.request(method, target, body, sent)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            closed = not fresh and isinstance(error, http.client.RemoteDisconnected | BrokenPipeError)
            if closed and method == "GET" and "/consume" not in target:
                # The server may have read it before it closed, so only what does no harm is repeated.
                return self.request(method, target, body, media_type, headers)
            raise Unavailable(f"{method} {self.endpoint}{target}: {error!r}") from None
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        return response.status, content

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=self.seconds_max
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unreachable(f"{self.endpoint}: {error}") from None
        return connection

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def try_to_get(endpoint: str, path: str, seconds_max: float = 1.0) -> Answer | None:
    """What a server answers to a GET; None if it does not, or not with success."""
    with Asker(endpoint, seconds_max) as asker:
        try:
            return asker.get(path)
        except TalwegError:
            return None


def _with_query(path: str, query: dict[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
