"""Connections that are kept, for any number of threads: each is used by one at a time, then by the next.

A pool and not one for each thread, because a thread that ends would leave its connection open.
"""

import http.client
import json
import os
import socket
import threading
import time
from typing import Any, Final

from talweg.errors import BadRequest, NotFound, NotLeader, TalwegError, Unavailable, Unreachable, error_named

Answer = dict[str, Any]

_CONNECT_SECONDS_MAX: Final = 3.0
# Less than the 75 seconds of our servers: we close first, and nothing is sent into a closing door.
_IDLE_SECONDS_MAX: Final = 30.0
_IDLE_MAX: Final = 64  # connections that nobody uses, to one endpoint
_ANSWER_BYTES_MAX: Final = 64 << 20
_OF_GATEWAYS: Final = (502, 503, 504)  # said by one that stands before servers of ours, while those are away


class Connections:
    """Asks servers for JSON. Safe to use from many threads of the process that made it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, http.client.HTTPConnection]]] = {}  # the latest used last
        self._closed = False

    def ask(
        self, endpoint: str, method: str, target: str, body: dict[str, object] | None, seconds_max: float
    ) -> Answer:
        """What `endpoint` (HOST:PORT) answers; a failure is raised as the error that its code names.

        Raises Unreachable when nothing was sent, and Unavailable when no answer came: it may have been done.
        """
        if os.getpid() != self._process:
            # Two processes would read each other's answers; and of two messages with the same producer's
            # number and sequence, the second would be taken for a copy of the first, and answered for.
            raise RuntimeError("it was made before a fork: make one in each process")
        status, content = self._exchange(endpoint, method, target, body, seconds_max)
        if not 200 <= status < 300:
            raise error_of(status, content)
        answer = _object_in(content)
        if answer is None:
            raise _unexplained(Unavailable(f"{endpoint} answered what is not JSON: is it a manager?"))
        return answer

    def face(self, endpoint: str, seconds_max: float) -> Answer:
        """What a server says of itself; nothing if it is none of ours. Raises Unavailable if it is mute."""
        status, content = self._exchange(endpoint, "GET", "/", None, seconds_max)
        if status >= 500:
            raise error_of(status, content)
        return _object_in(content) or {} if 200 <= status < 300 else {}

    def _exchange(
        self, endpoint: str, method: str, target: str, body: dict[str, object] | None, seconds_max: float
    ) -> tuple[int, bytes]:
        connection = self._take(endpoint) or _connect(endpoint, min(seconds_max, _CONNECT_SECONDS_MAX))
        try:
            connection.sock.settimeout(seconds_max)
            if body is None:
                connection.request(method, target)
            else:
                content = json.dumps(body).encode()
                connection.request(method, target, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unavailable(f"{endpoint} gave no answer to {method} {target}: {error!r}") from None
        except BaseException:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            response.close()
            connection.close()
        else:
            self._give_back(endpoint, connection)
        if len(answer) > _ANSWER_BYTES_MAX:
            raise BadRequest(f"{endpoint} answered more than {_ANSWER_BYTES_MAX} bytes")
        return response.status, answer

    def _take(self, endpoint: str) -> http.client.HTTPConnection | None:
        """One that was kept and is still open."""
        while True:
            with self._lock:
                if self._closed:
                    raise RuntimeError("it is closed: make another one")
                idle = self._idle.get(endpoint)
                if not idle:
                    return None
                since, connection = idle.pop()
            if time.monotonic() - since < _IDLE_SECONDS_MAX and _is_open(connection.sock):
                return connection
            connection.close()

    def _give_back(self, endpoint: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(endpoint, [])
            if not self._closed and len(idle) < _IDLE_MAX:
                idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close what is kept; what is in use is closed by whoever uses it."""
        with self._lock:
            self._closed = True
            kept, self._idle = self._idle, {}
        for idle in kept.values():
            for _, connection in idle:
                connection.close()


def _connect(endpoint: str, seconds_max: float) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(endpoint, timeout=seconds_max)
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        raise Unreachable(f"{endpoint}: {error.strerror or error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _is_open(kept: socket.socket) -> bool:
    """Whether nothing has arrived: an end or stray bytes mean that it cannot be used again."""
    kept.setblocking(False)
    try:
        kept.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _object_in(content: bytes) -> Answer | None:
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def error_of(status: int, content: bytes) -> TalwegError:
    """The error that a failed answer speaks of."""
    try:
        failure = json.loads(content)
        code, message = str(failure["code"]), str(failure["message"])
    except (ValueError, TypeError, KeyError):
        # A page of a gateway, or of somebody else's server.
        by_status = Unavailable if status >= 500 else NotFound if status == NotFound.status else BadRequest
        error = by_status(f"answered with {status} and no reason that can be read")
        return error if status in _OF_GATEWAYS else _unexplained(error)
    kind = error_named(code)
    if kind is TalwegError and failure.get("retriable"):
        kind = Unavailable
    if issubclass(kind, NotLeader):
        leader = failure.get("leader") or {}
        return kind(message, leader.get("broker_id"), leader.get("endpoint"))
    return kind(message)


def _unexplained(error: TalwegError) -> TalwegError:
    error.unexplained = True
    return error
