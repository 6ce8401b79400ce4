"""From what a handler returned or raised to what goes over the wire, and from a failure back to its error."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from talweg.errors import (
    BadRequest,
    MethodNotAllowed,
    NotFound,
    NotLeader,
    TalwegError,
    Unavailable,
    error_named,
)
from talweg.http.calls import Answer, RawResponse

RETRY_AFTER_SECONDS: Final = 1

Pieces = bytes | Sequence[bytes | memoryview]
HeaderList = list[tuple[bytes, bytes]]
LeaderEndpoint = Callable[[int], str | None]

encode: Final = msgspec.json.Encoder().encode


class Leader(msgspec.Struct, frozen=True):
    """Who leads, as far as whoever was asked knows."""

    broker_id: int
    endpoint: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="failure"):
    """What every call answers when it fails. Branch on `code` and `retriable`, never on `message`."""

    code: str
    message: str
    retriable: bool  # the same request may succeed later, or elsewhere
    leader: Leader | msgspec.UnsetType = msgspec.UNSET  # with `not_leader`, when it is known


class Response(msgspec.Struct, frozen=True):
    """Status, headers and body, ready to be sent."""

    status: int
    headers: HeaderList
    body: Pieces


_SUCCESS: Final = encode(Answer())
_NOTHING: Final = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_SUCCESS))]


def json_response(answer: Answer | None) -> Response:
    """What a call answers in JSON."""
    if answer is None:
        return Response(200, _NOTHING, _SUCCESS)
    body = encode(answer)
    return Response(
        200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body
    )


def raw_response(raw: RawResponse) -> Response:
    """What a call answers in bytes of its own."""
    body = raw.body
    size = len(body) if isinstance(body, bytes) else sum(len(piece) for piece in body)
    headers = [(b"content-type", raw.media_type.encode("latin-1")), (b"content-length", b"%d" % size)]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in raw.headers]
    return Response(200, headers, body)


def failure_response(error: TalwegError, leader_endpoint: LeaderEndpoint | None = None) -> Response:
    """What a call answers when it fails."""
    leader: Leader | msgspec.UnsetType = msgspec.UNSET
    if isinstance(error, NotLeader) and error.leader is not None:
        endpoint = error.endpoint
        if endpoint is None and leader_endpoint is not None:
            endpoint = leader_endpoint(error.leader)
        leader = Leader(error.leader, endpoint)
    failure = Failure(code=error.code, message=_sayable(error), retriable=error.retriable, leader=leader)
    body = encode(failure)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.status == Unavailable.status:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode("latin-1")))
    return Response(error.status, headers, body)


def _sayable(error: TalwegError) -> str:
    """Its text. What Python makes of a file's name that is no UTF-8 cannot be said in JSON."""
    return str(error).encode("utf-8", "backslashreplace").decode("utf-8")


_OF_GATEWAYS: Final = (502, 503, 504)  # said by one that stands before servers of ours, while those are away
_decode_failure: Final = msgspec.json.Decoder(Failure).decode


def error_of(status: int, body: bytes) -> TalwegError:
    """The error that a failed answer speaks of: its class by `code`, else by what the status says."""
    try:
        failure = _decode_failure(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"answered with {status} and no reason that can be read"
        error = _by_status(status, retriable=status >= 500)(text)
        error.unexplained = status not in _OF_GATEWAYS
        return error
    kind = error_named(failure.code)
    if kind is TalwegError:
        kind = _by_status(status, retriable=failure.retriable)
    if issubclass(kind, NotLeader):
        if failure.leader is msgspec.UNSET:
            return kind(failure.message)
        return kind(failure.message, failure.leader.broker_id, failure.leader.endpoint)
    return kind(failure.message)


def _by_status(status: int, *, retriable: bool) -> type[TalwegError]:
    if retriable:
        return Unavailable
    if status == NotFound.status:
        return NotFound
    return BadRequest if 400 <= status < 500 else TalwegError
