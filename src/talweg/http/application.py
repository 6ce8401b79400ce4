"""The calls of a server as one ASGI application.

A plain callable of our own: what each call needs is compiled when the application is made, and a
request costs a look-up, a decoder and an encoder.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from talweg.errors import Internal, MethodNotAllowed, Overloaded, TalwegError, Unavailable
from talweg.http import reading
from talweg.http.answering import (
    LeaderEndpoint,
    Response,
    failure_response,
    json_response,
    raw_response,
)
from talweg.http.calls import Call, Parameters, RawAnswer, RawBody, RawResponse, Receive, Request
from talweg.http.docs import docs_calls
from talweg.http.openapi import declared_errors, openapi
from talweg.http.reading import BodyBudget, JsonReader, ParameterReader
from talweg.http.routing import Router
from talweg.http.traffic import Traffic

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("talweg.http")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps an application's memory bounded, whatever comes."""

    json_bytes_max: int = 1 << 20  # of a body in JSON
    requests_max: int = 10_000  # under way at once; more are refused with Overloaded
    # Of all bodies under way that came in more than one piece. (One is what one read brings: 256 KiB.)
    bodies_bytes_max: int = 256 << 20
    body_seconds_max: float = 30.0  # for all of a body to arrive


class _Route:
    """A call, with everything that can be prepared before the first request."""

    __slots__ = (
        "answer_type", "body", "bytes_max", "call", "declared", "handler", "json", "media_types", "offered",
        "parameters", "traffic",
    )  # fmt: skip

    def __init__(self, call: Call, limits: Limits, traffic: Traffic) -> None:
        self.call = call
        self.traffic = traffic.of(call.method, call.path)
        self.handler = call.handler
        self.declared = frozenset(declared_errors(call))
        self.parameters = ParameterReader(call)
        self.body = call.body
        self.media_types: tuple[str, ...] = ()
        self.bytes_max = 0
        self.json: JsonReader[Parameters] | None = None
        if call.body is not None:
            json_bytes_max = limits.json_bytes_max if call.bytes_max is None else call.bytes_max
            self.media_types, self.bytes_max = reading.body_limit(call.body, json_bytes_max)
            self.json = None if isinstance(call.body, RawBody) else JsonReader(call.body)
        raw = call.answer if isinstance(call.answer, RawAnswer) else None
        self.offered = raw.media_types if raw is not None else ()
        self.answer_type: type[Any] = RawResponse if raw else call.answer or type(None)  # type: ignore[assignment]


class Application:
    """Answers calls, and shows them at `/openapi.json` and `/docs`. `leader_endpoint` completes NotLeader;
    what is asked and answered is counted in `traffic`."""

    def __init__(
        self,
        calls: Iterable[Call],
        *,
        title: str,
        version: str,
        limits: Limits | None = None,
        leader_endpoint: LeaderEndpoint | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.limits = limits or Limits()
        calls = tuple(calls)
        self.schema = openapi(calls, title, version)
        self.traffic = traffic or Traffic()
        self._budget = BodyBudget(self.limits.bodies_bytes_max)
        self._leader_endpoint = leader_endpoint
        self._router: Router[_Route] = Router()
        for call in (*calls, *docs_calls(self.schema)):
            route = _Route(call, self.limits, self.traffic)
            self._router.add(call.method, call.segments, route)
            if call.method == "GET" and call.safe:
                self._router.add("HEAD", call.segments, route)

    @property
    def requests_under_way(self) -> int:
        """How many wait for their answer now."""
        return self.traffic.under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            return
        self.traffic.under_way += 1
        taken: list[int] = []  # of the budget for bodies
        try:
            response = await self._respond(scope, receive, taken)
        except reading.Disconnected:
            return
        finally:
            self.traffic.under_way -= 1
            if taken:
                self._budget.give_back(sum(taken))
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        body = response.body
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": body})
            return
        for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async def _respond(self, scope: Scope, receive: Receive, taken: list[int]) -> Response:
        route: _Route | None = None
        counted = self.traffic.unmatched
        try:
            if self.traffic.under_way > self.limits.requests_max:
                raise Overloaded("too many requests are under way")
            route, values = self._router.find(scope["method"], scope["raw_path"])
            counted = route.traffic
            request = await self._read(route, values, scope, receive, taken)
            answer = await route.handler(request)
            assert isinstance(answer, route.answer_type), f"{route.handler} answered with {type(answer)}"
            response = raw_response(answer) if isinstance(answer, RawResponse) else json_response(answer)
        except TalwegError as error:
            response = self._failed(error, route, scope)
        except asyncio.CancelledError:
            # Only a server that stops does this, and nobody waits for this task: any answer is better.
            response = failure_response(Unavailable("the server is stopping"))
        except reading.Disconnected:
            raise
        except Exception:  # noqa: BLE001 - logged below, whatever it is
            _log.exception("%s %r failed", scope["method"], scope["raw_path"])
            response = failure_response(Internal("an internal error; the server's log has more"))
        counted.answers[response.status // 100] += 1
        body = response.body
        counted.bytes_out += len(body) if isinstance(body, bytes) else sum(map(len, body))
        return response

    async def _read(
        self, route: _Route, values: tuple[str, ...], scope: Scope, receive: Receive, taken: list[int]
    ) -> Request[Any, Any]:
        headers = scope["headers"]
        parameters = route.parameters.read(values, scope["query_string"], headers)
        media_type = reading.choose_media_type(headers, route.offered) if route.offered else ""
        body: Any = None
        body_type = ""
        if route.media_types:
            body_type = reading.check_head(headers, route.media_types, route.bytes_max)
            body, more = await reading.read_body(receive, route.bytes_max)
            if more:
                body = await reading.read_rest(
                    body,
                    receive,
                    route.bytes_max,
                    budget=self._budget,
                    taken=taken,
                    seconds_max=self.limits.body_seconds_max,
                )
            route.traffic.bytes_in += len(body)
            if route.json is not None:
                body = route.json.read(body)
        return Request(
            parameters,
            body,
            headers=headers,
            peer=scope.get("client"),
            body_type=body_type,
            media_type=media_type,
            receive=receive,
        )

    def _failed(self, error: TalwegError, route: _Route | None, scope: Scope) -> Response:
        if isinstance(error, MethodNotAllowed) and scope["method"] == "OPTIONS":
            return Response(204, [(b"allow", ", ".join(error.allowed).encode())], b"")
        if route is not None and type(error) not in route.declared:
            _log.error("%s failed with %s, which it does not declare", route.call.path, error.code)
        if error.status >= 500 and not error.retriable:
            _log.error("%s %r failed", scope["method"], scope["raw_path"], exc_info=error)
        return failure_response(error, self._leader_endpoint)
