"""A broker that keeps everything in memory and fails as it is told, at moments that a real one cannot be
brought to: an answer that is lost after the work was done, a look between two messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from talweg.errors import Unavailable, Undecided
from talweg.http import (
    Answer,
    Application,
    Call,
    HttpClient,
    RawAnswer,
    RawBody,
    RawResponse,
    Request,
    Server,
)
from talweg.protocol.bundles import (
    MSGPACK,
    Append,
    AskEnd,
    Empty,
    Ends,
    Moved,
    Outcome,
    StartAt,
    Started,
    Take,
    Taken,
    Written,
    decode_appends,
    decode_ask_ends,
    decode_starts,
    decode_takes,
    encode,
    failed,
)
from talweg.protocol.control import (
    AddBroker,
    BrokerAdded,
    BrokerFace,
    GroupReport,
    Heartbeat,
    HeartbeatAnswer,
)
from talweg.records import Batch

# Called with the sort of bundle and what was asked; what it raises becomes the outcome of the part, or, if it
# returns an outcome, that is it.
Fault = Callable[[str, Any], Outcome | None]


class FakeBroker:
    """Leads everything that it is told to carry, unless `leads` says otherwise."""

    def __init__(self, manager: str, incarnation: str = "fake") -> None:
        self.manager = manager
        self.incarnation = incarnation
        self.broker_id = -1
        self.leads = True
        self.term = 1
        self.logs: dict[int, list[tuple[bytes, int]]] = {}  # by group: values and sequences
        self.positions: dict[tuple[int, str], int] = {}
        self.tokens: dict[tuple[int, str], int] = {}
        self.bundles: list[tuple[str, list[Any]]] = []  # all that came
        self.before: Fault = lambda sort, part: None  # instead of the work
        self.after: Fault = lambda sort, part: None  # when it is done
        self.hold: Callable[[str], Awaitable[None]] | None = None  # before a bundle is looked at
        self._client = HttpClient()
        self._server = Server(self._application())
        self._beating: asyncio.Task[None] | None = None
        self.endpoint = ""

    async def start(self) -> None:
        port = await self._server.start()
        self.endpoint = f"http://127.0.0.1:{port}"
        added = await self._client.call(
            self.manager,
            "POST",
            "/admin/broker/add",
            BrokerAdded,
            AddBroker(endpoint=self.endpoint, incarnation=self.incarnation, peer_endpoint="127.0.0.1:1"),
            seconds_max=10.0,
        )
        self.broker_id = added.broker_id
        self._beating = asyncio.create_task(self._beat_for_ever())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._server.stop(0.1)
        await self._client.close()

    async def beat(self) -> None:
        groups = tuple(self.logs)
        leads = [
            GroupReport(group=group, term=self.term, voters=(self.broker_id,))
            for group in groups
            if self.leads
        ]
        answer = await self._client.call(
            self.manager,
            "POST",
            "/broker/heartbeat",
            HeartbeatAnswer,
            Heartbeat(
                broker_id=self.broker_id, incarnation=self.incarnation, carries=groups, leads=tuple(leads)
            ),
            seconds_max=10.0,
        )
        for assignment in answer.assignments or ():
            self.logs.setdefault(assignment.group, [])

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            await self.beat()

    # What it answers

    def _application(self) -> Application:
        bundle = RawBody((MSGPACK,), 1 << 24)
        answer = RawAnswer((MSGPACK,))
        return Application(
            [
                Call("GET", "/", self._face, "", answer=BrokerFace),
                Call("POST", "/nudge", self._nudge, "", answer=Answer),
                *(
                    Call("POST", f"/bundle/{name}", handler, "", body=bundle, answer=answer)
                    for name, handler in (
                        ("append", self._handler("append", decode_appends, self._append)),
                        ("take", self._handler("take", decode_takes, self._take)),
                        ("ends", self._handler("ends", lambda b: decode_ask_ends(b).groups, self._ends)),
                        ("start", self._handler("start", decode_starts, self._start)),
                    )
                ),
            ],
            title="Fake broker",
            version="0",
        )

    async def _face(self, request: Request[None, None]) -> BrokerFace:
        return BrokerFace(
            role="broker",
            version="0",
            healthy=True,
            incarnation=self.incarnation,
            peer_endpoint="127.0.0.1:1",
        )

    async def _nudge(self, request: Request[None, None]) -> Answer:
        await self.beat()
        return Answer()

    def _handler(
        self, sort: str, decode: Callable[[bytes], list[Any]], work: Callable[[Any], Outcome]
    ) -> Callable[[Request[None, bytes]], Awaitable[RawResponse]]:
        async def handle(request: Request[None, bytes]) -> RawResponse:
            parts = decode(request.body)
            self.bundles.append((sort, parts))
            if self.hold is not None:
                await self.hold(sort)
            outcomes = [self.before(sort, part) or self._after(sort, part, work(part)) for part in parts]
            return RawResponse(body=encode(outcomes), media_type=MSGPACK)

        return handle

    def _after(self, sort: str, part: Any, outcome: Outcome) -> Outcome:
        return self.after(sort, part) or outcome

    def _append(self, append: Append) -> Outcome:
        batch = Batch.from_frame(append.frame)
        log = self.logs[append.group]
        sequence = batch.header.sequence
        for offset, (_, known) in enumerate(log):
            if known == sequence != -1:
                return Written(offset)
        value = batch.message(0).value
        assert value is not None
        log.append((value, sequence))
        return Written(len(log) - 1)

    def _take(self, take: Take) -> Outcome:
        place = take.group, take.consumer
        position = self.positions.get(place, 0)
        if self.tokens.get(place) == take.token:
            return self._taken(take.group, position - 1)
        if take.position not in (None, position):
            return Moved(position)
        if position >= len(self.logs[take.group]):
            return Empty(position)
        self.positions[place] = position + 1
        self.tokens[place] = take.token
        return self._taken(take.group, position)

    def _taken(self, group: int, offset: int) -> Taken:
        return Taken(offset, 0, self.logs[group][offset][0], None, -1)

    def _ends(self, ask: AskEnd) -> Outcome:
        end = len(self.logs[ask.group])
        return Ends(0, end, self.positions.get((ask.group, ask.consumer or ""), 0))

    def _start(self, start: StartAt) -> Outcome:
        position = len(self.logs[start.group]) if start.start == "latest" else 0
        self.positions[start.group, start.consumer] = position
        return Started(position)


class Once:
    """A fault that happens at the first part of a sort, or at the first few."""

    def __init__(self, sort: str, outcome: Outcome, times: int = 1) -> None:
        self.sort = sort
        self.outcome = outcome
        self.left = times

    def __call__(self, sort: str, part: Any) -> Outcome | None:
        if sort != self.sort or not self.left:
            return None
        self.left -= 1
        return self.outcome


LOST = failed(Undecided("the answer was lost"))
DOWN = failed(Unavailable("it broke down"))
