"""A small server of calls of every sort, and ways to talk to it without knowing its code."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import uvloop

from talweg.errors import BadTopicName, NoQuorum, NotLeader, StorageError, TopicNotFound
from talweg.http import (
    Answer,
    Application,
    Call,
    Header,
    Limits,
    Natural,
    Parameters,
    RawAnswer,
    RawBody,
    RawResponse,
    Request,
    Server,
)
from talweg.http.server import HEAD_SECONDS_MAX

ARROW, NDJSON = "application/vnd.apache.arrow.stream", "application/x-ndjson"
BODY_BYTES_MAX = 100_000
WAIT_SECONDS = 20.0


class TopicPath(Parameters, frozen=True, kw_only=True):
    topic: str


class PartitionPath(TopicPath, frozen=True, kw_only=True):
    partition: Natural


class Produce(Parameters, frozen=True, kw_only=True):
    """One message."""

    topic: str
    producer_id: Natural
    message: str
    partition: Natural | None = None


class Produced(Answer, frozen=True, kw_only=True):
    """Where the message went."""

    partition: Natural
    offset: Natural


class Listing(Parameters, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="how many at most")] = 10
    start: Literal["earliest", "latest"] | int = "earliest"
    topics: tuple[str, ...] = ()


class Listed(Answer, frozen=True, kw_only=True):
    topics: list[str]
    limit: int
    start: str | int
    sizes: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class Named(Answer, frozen=True, kw_only=True):
    topic: str


class Append(PartitionPath, frozen=True, kw_only=True):
    producer_id: Annotated[Natural | None, Header("Talweg-Producer-Id")] = None


class Appended(Answer, frozen=True, kw_only=True):
    body_bytes: int
    body_type: str
    producer_id: int | None
    topic: str
    partition: int


class Failing(Parameters, frozen=True, kw_only=True):
    how: Literal[
        "leader", "unknown_leader", "quorum", "storage", "file_name", "mistake", "wrong_answer", "undeclared"
    ]


class Demo:
    """The handlers, and what they were given."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.takes = 0
        self.waiting = 0  # requests inside `wait`
        self.go_on = asyncio.Event()
        self.served: Application | None = None

    async def produce(self, request: Request[None, Produce]) -> Produced:
        return Produced(partition=request.body.partition or 0, offset=len(request.body.message))

    async def list_topics(self, request: Request[Listing, None]) -> Listed:
        asked = request.parameters
        return Listed(topics=list(asked.topics), limit=asked.limit, start=asked.start)

    async def show_topic(self, request: Request[TopicPath, None]) -> Named:
        topic = request.parameters.topic
        self.topics.append(topic)
        if not topic.isascii() or not topic.replace("-", "").isalnum():
            raise BadTopicName(f"a topic cannot be called {topic!r}")
        if topic == "gone":
            raise TopicNotFound(f"there is no topic {topic}")
        return Named(topic=topic)

    async def append(self, request: Request[Append, bytes]) -> Appended:
        place = request.parameters
        return Appended(
            body_bytes=len(request.body),
            body_type=request.body_type,
            producer_id=place.producer_id,
            topic=place.topic,
            partition=place.partition,
        )

    async def fetch(self, request: Request[PartitionPath, None]) -> RawResponse:
        pieces = [b"one\n", memoryview(b"two\n")]
        return RawResponse(
            body=pieces, media_type=request.media_type, headers=(("Talweg-High-Watermark", "2"),)
        )

    async def take(self, _: Request[None, None]) -> None:
        self.takes += 1

    async def fail(self, request: Request[Failing, None]) -> None:
        match request.parameters.how:
            case "leader":
                raise NotLeader("broker 2 leads", 2)
            case "unknown_leader":
                raise NotLeader("an election is under way")
            case "quorum":
                raise NoQuorum("two of three brokers do not answer")
            case "storage":
                raise StorageError("the disk said no")
            case "file_name":
                raise NoQuorum("no space for \udcff.log")  # as Python has a name that is no UTF-8
            case "mistake":
                raise KeyError("a secret")
            case "undeclared":
                raise TopicNotFound("nobody said that this may happen")
            case _:
                return Named(topic="not what was declared")  # type: ignore[return-value]

    async def wait(self, _: Request[None, None]) -> None:
        self.waiting += 1
        try:
            await self.go_on.wait()
        finally:
            self.waiting -= 1

    def calls(self) -> list[Call]:
        body = RawBody((ARROW, NDJSON), BODY_BYTES_MAX, "many messages")
        records = RawAnswer(
            (ARROW, NDJSON), "messages", (("Talweg-High-Watermark", "the first offset to come"),)
        )
        failures = (NotLeader, NoQuorum, StorageError)
        path = "/v1/topics/{topic}/partitions/{partition}/records"
        return [
            Call(
                "POST",
                "/produce",
                self.produce,
                "Write a message",
                body=Produce,
                answer=Produced,
                tag="plain",
            ),
            Call("GET", "/topics", self.list_topics, "List topics", parameters=Listing, answer=Listed),
            Call(
                "GET",
                "/topics/{topic}",
                self.show_topic,
                "Show a topic",
                parameters=TopicPath,
                answer=Named,
                errors=(TopicNotFound, BadTopicName),
            ),
            Call("POST", path, self.append, "Write messages", parameters=Append, body=body, answer=Appended),
            Call("GET", path, self.fetch, "Read messages", parameters=PartitionPath, answer=records),
            Call("GET", "/take", self.take, "Take a message", safe=False),
            Call("POST", "/fail", self.fail, "Fail", parameters=Failing, errors=failures, listed=False),
            Call("GET", "/wait", self.wait, "Wait", listed=False),
        ]

    def application(self, **limits: Any) -> Application:
        self.served = Application(
            self.calls(),
            title="Demo <1>",
            version="1.2.3",
            limits=Limits(**limits),
            leader_endpoint={2: "http://127.0.0.1:2"}.get,
        )
        return self.served

    @property
    def requests_under_way(self) -> int:
        assert self.served is not None
        return self.served.requests_under_way


class Reply:
    """An answer, taken apart."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def failure(self) -> tuple[int, str, str]:
        """Status, code and message of a failure."""
        assert self.json["status"] == "failure"
        assert self.headers["content-type"] == "application/json"
        return self.status, self.json["code"], self.json["message"]


class Wire:
    """A connection that sends what it is told, byte by byte if need be."""

    opened: ClassVar[list["Wire"]] = []  # closed when the test has ended, however it did

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> "Wire":
        wire = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
        cls.opened.append(wire)
        return wire

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: demo"]
        if body is not None:
            headers = {"content_type": "application/json", "content_length": str(len(body))} | headers
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def reply(self, *, head_only: bool = False) -> Reply:
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
            }
            size = 0 if head_only else int(headers.get("content-length", "0"))
            return Reply(int(head[0].split()[1]), headers, await self.reader.readexactly(size))

    async def at_end(self) -> bool:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.reader.read(1) == b""

    def close(self) -> None:
        self.writer.close()


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited {WAIT_SECONDS} s for {condition}"
        await asyncio.sleep(0.005)


def with_server(
    test: Callable[[Demo, Server], Awaitable[None]],
    *,
    head_seconds_max: float = HEAD_SECONDS_MAX,
    **limits: Any,
) -> None:
    """Runs a test against a demo on a free port, on the event loop that real processes use."""

    async def run() -> None:
        demo = Demo()
        server = Server(demo.application(**limits), head_seconds_max=head_seconds_max)
        await server.start()
        try:
            await test(demo, server)
        finally:
            demo.go_on.set()
            while Wire.opened:
                Wire.opened.pop().close()
            await server.stop()

    uvloop.run(run())


def answers(
    *requests: tuple[str, str] | tuple[str, str, bytes], demo: Demo | None = None, **limits: Any
) -> list[Reply]:
    """What a demo answers to these (method, target, body), without a network."""

    async def ask(application: Application, method: str, target: str, body: bytes | None = None) -> Reply:
        path, _, query = target.partition("?")
        headers = [] if body is None else [(b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        await application(scope, receive, send)
        start, *pieces = sent
        headers_back = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(
            start["status"], headers_back, b"".join(bytes(piece.get("body", b"")) for piece in pieces)
        )

    async def run() -> list[Reply]:
        application = (demo or Demo()).application(**limits)
        return [await ask(application, *request) for request in requests]

    return asyncio.run(run())


def answer(method: str, target: str, body: bytes | None = None, **options: Any) -> Reply:
    """The answer to one request."""
    return answers((method, target) if body is None else (method, target, body), **options)[0]
