"""Servers that ask servers: connections kept and given up, deadlines, and errors that come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from http_demo import (
    ARROW,
    NDJSON,
    Demo,
    Named,
    Produce,
    Produced,
    wait_until,
    with_server,
)
from talweg.errors import (
    BadRequest,
    BadTopicName,
    Internal,
    InvalidSetting,
    NoQuorum,
    NotFound,
    NotLeader,
    Overloaded,
    TalwegError,
    TopicNotFound,
    Unavailable,
    Unreachable,
)
from talweg.http import Answer, HttpClient, Server, error_of
from talweg.http.connection import Connection
from talweg.http.pool import Pool

MESSAGE = Produce(topic="a", producer_id=1, message="four")
RECORDS = "/v1/topics/a/partitions/3/records"


def endpoint_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def with_client(test: Callable[[Demo, str, HttpClient], Awaitable[None]], **settings: float) -> None:
    async def run(demo: Demo, server: Server) -> None:
        client = HttpClient(**settings)  # type: ignore[arg-type]
        try:
            await test(demo, endpoint_of(server), client)
        finally:
            await client.close()

    with_server(run)


class Listener:
    """Takes connections and does with them what a test says."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.connections = 0
        self.closed = 0
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b'{"status":"success"}'
        self.closes = False

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(self.answer)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.take, "127.0.0.1", 0)
    listener.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield listener


def with_listener(test: Callable[[Listener, HttpClient], Awaitable[None]], **settings: float) -> None:
    async def run() -> None:
        client = HttpClient(**settings)  # type: ignore[arg-type]
        async with listening() as listener:
            try:
                await test(listener, client)
            finally:
                await client.close()

    uvloop.run(run())


async def ask(client: HttpClient, endpoint: str, target: str = "/", seconds_max: float = 10.0) -> Answer:
    return await client.call(endpoint, "GET", target, Answer, seconds_max=seconds_max)


def test_a_call_is_answered_with_the_type_that_was_asked_for() -> None:
    async def test(_: Demo, endpoint: str, client: HttpClient) -> None:
        produced = await client.call(endpoint, "POST", "/produce", Produced, MESSAGE, seconds_max=10)
        assert produced == Produced(partition=0, offset=4)
        assert await client.call(endpoint, "GET", "/topics/a", Named, seconds_max=10) == Named(topic="a")

    with_client(test)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 100_000])
def test_bytes_go_both_ways(size: int) -> None:
    async def test(_: Demo, endpoint: str, client: HttpClient) -> None:
        headers = {"Talweg-Producer-Id": "9"}
        response = await client.request(
            endpoint, "POST", RECORDS, bytes(size), media_type=ARROW, headers=headers, seconds_max=10
        )
        assert b'"body_bytes":%d,' % size in response.body
        assert b'"producer_id":9' in response.body
        response = await client.request(endpoint, "GET", RECORDS, headers={"Accept": NDJSON}, seconds_max=10)
        assert (response.status, response.body) == (200, b"one\ntwo\n")
        assert response.headers["talweg-high-watermark"] == "2"
        assert response.headers["content-type"] == NDJSON

    with_client(test)


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        ("/topics/gone", TopicNotFound, "there is no topic gone"),
        ("/topics/%00", BadTopicName, "a topic cannot be called"),
        ("/topics?limit=x", BadRequest, "limit: expected"),
    ],
)
def test_a_failure_comes_back_as_the_error_it_was(target: str, kind: type[TalwegError], said: str) -> None:
    async def test(_: Demo, endpoint: str, client: HttpClient) -> None:
        with pytest.raises(kind, match=said) as failed:
            await ask(client, endpoint, target)
        assert type(failed.value) is kind

    with_client(test)


def test_not_leader_comes_back_with_the_leader() -> None:
    async def test(_: Demo, endpoint: str, client: HttpClient) -> None:
        for how, leader, url in [("leader", 2, "http://127.0.0.1:2"), ("unknown_leader", None, None)]:
            with pytest.raises(NotLeader) as failed:
                await client.call(endpoint, "POST", f"/fail?how={how}", Answer, seconds_max=10)
            assert (failed.value.leader, failed.value.endpoint) == (leader, url)
        with pytest.raises(NoQuorum) as refused:
            await client.call(endpoint, "POST", "/fail?how=quorum", Answer, seconds_max=10)
        assert refused.value.retriable

    with_client(test)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, b'{"status":"failure","code":"internal","message":"m","retriable":false}', Internal),
        (418, b'{"status":"failure","code":"of_tomorrow","message":"m","retriable":false}', BadRequest),
        (404, b'{"status":"failure","code":"of_tomorrow","message":"m","retriable":false}', NotFound),
        (409, b'{"status":"failure","code":"of_tomorrow","message":"m","retriable":true}', Unavailable),
        (500, b'{"status":"failure","code":"of_tomorrow","message":"m","retriable":false}', TalwegError),
        (502, b"<html>Bad Gateway</html>", Unavailable),
        (404, b"", NotFound),
        (400, b'{"code": 1}', BadRequest),
    ],
)
def test_a_failure_that_is_not_known_is_taken_by_its_status(
    status: int, body: bytes, kind: type[TalwegError]
) -> None:
    assert type(error_of(status, body)) is kind


def test_every_error_comes_back_as_itself() -> None:
    kinds = [TalwegError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        body = b'{"status":"failure","code":"%s","message":"m","retriable":false}' % kind.code.encode()
        assert type(error_of(kind.status, body)) is kind
    assert len(kinds) > 30


def test_a_connection_is_used_again() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        for _ in range(5):
            await ask(client, listener.endpoint)
        assert listener.connections == 1
        await asyncio.gather(*(ask(client, listener.endpoint) for _ in range(50)))
        assert listener.connections <= 4

    with_listener(test, connections_max=4)


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        listener.answer = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: close\r\n\r\n" + b'{"status":"success"}'
        )
        listener.closes = True
        for number in range(1, 4):
            await ask(client, listener.endpoint)
            assert listener.connections == number

    with_listener(test)


def test_an_answer_that_nobody_asked_for_is_nobodys() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        listener.answer += b"HTTP/1.1 500 "
        for number in range(1, 4):
            await ask(client, listener.endpoint)
            assert listener.connections == number

    with_listener(test)


def test_connections_that_nobody_uses_are_closed() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        await asyncio.gather(ask(client, listener.endpoint), ask(client, listener.endpoint))
        assert (listener.connections, listener.closed) == (2, 0)
        moment = asyncio.get_running_loop().time()
        await wait_until(lambda: asyncio.get_running_loop().time() > moment + 0.05)
        await ask(client, listener.endpoint)
        await wait_until(lambda: listener.closed == 2)
        assert listener.connections == 3

    with_listener(test, idle_seconds_max=0.05)


def test_connections_that_are_not_needed_any_more_are_closed_while_others_are_used() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        await asyncio.gather(ask(client, listener.endpoint), ask(client, listener.endpoint))
        async with asyncio.timeout(20):
            while listener.closed == 0:
                await ask(client, listener.endpoint)
        assert listener.connections - listener.closed == 1

    with_listener(test, idle_seconds_max=0.3)


def test_a_request_that_is_given_up_closes_its_connection() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        listener.answer = b""
        asking = asyncio.ensure_future(ask(client, listener.endpoint))
        await wait_until(lambda: listener.connections == 1)
        asking.cancel()
        await wait_until(lambda: listener.closed == 1)

    with_listener(test)


def test_a_connection_given_to_one_who_gave_up_goes_to_the_next() -> None:
    async def test(listener: Listener, _: HttpClient) -> None:
        pool = Pool(
            listener.endpoint,
            connections_max=1,
            waiting_max=10,
            connect_seconds_max=10,
            idle_seconds_max=10,
            answer_bytes_max=1_000,
        )
        deadline = asyncio.get_running_loop().time() + 20
        connection = await pool.take(deadline)
        waiting = [asyncio.ensure_future(pool.take(deadline)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.give_back(connection)
        waiting[0].cancel()
        assert await waiting[1] is connection
        connection.abort()
        waiting = [asyncio.ensure_future(pool.take(deadline)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.give_back(connection)  # the right to open one, this time
        waiting[0].cancel()
        assert (await waiting[1]).free
        pool.close()

    with_listener(test)


def test_a_connection_lost_before_it_was_used_is_unreachable() -> None:
    async def test(listener: Listener, _: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(1_000)
        with pytest.raises(Unreachable, match="before anything was sent"):
            await connection.exchange(b"", b"", loop.time() + 20)

    with_listener(test)


def test_a_server_that_was_restarted_is_found_again() -> None:
    async def test() -> None:
        client = HttpClient()
        server = Server(Demo().application())
        await server.start()
        await ask(client, endpoint_of(server), "/topics/a")
        await server.stop()
        with pytest.raises(Unreachable):
            await ask(client, endpoint_of(server), "/topics/a")
        again = Server(Demo().application(), port=server.port)
        await again.start()
        await ask(client, endpoint_of(server), "/topics/a")
        await client.close()
        await again.stop()

    uvloop.run(test())


def test_nobody_there_is_unreachable() -> None:
    async def test(_: Listener, client: HttpClient) -> None:
        async with listening() as gone:
            pass
        for endpoint in [gone.endpoint, "http://" + "no.such.host.invalid:1"]:
            with pytest.raises(Unreachable, match=endpoint):
                await ask(client, endpoint)

    with_listener(test)


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:80", "https://a:1", "http://", "http://a:x", "http://a/b", ""]
)
def test_an_endpoint_that_is_none_is_a_wrong_setting(endpoint: str) -> None:
    async def test(_: Listener, client: HttpClient) -> None:
        with pytest.raises(InvalidSetting, match="expected http://HOST:PORT"):
            await ask(client, endpoint)

    with_listener(test)


def test_no_answer_in_time_is_unavailable_and_the_connection_is_not_used_again() -> None:
    async def test(demo: Demo, endpoint: str, client: HttpClient) -> None:
        with pytest.raises(Unavailable, match="no answer came in time") as failed:
            async with asyncio.timeout(20):  # long after the deadline, but not for ever
                await ask(client, endpoint, "/wait", seconds_max=0.1)
        assert not isinstance(failed.value, Unreachable)  # it may have been carried out
        demo.go_on.set()
        assert await client.call(endpoint, "GET", "/topics/a", Named, seconds_max=10) == Named(topic="a")

    with_client(test, connections_max=1)


def test_whoever_waits_for_a_connection_gets_it_in_turn_or_gives_up() -> None:
    async def test(demo: Demo, endpoint: str, client: HttpClient) -> None:
        holding = asyncio.ensure_future(ask(client, endpoint, "/wait"))
        await wait_until(lambda: demo.waiting == 1)
        impatient = asyncio.ensure_future(ask(client, endpoint, "/topics/a", seconds_max=0.05))
        patient = [asyncio.ensure_future(ask(client, endpoint, f"/topics/{number}")) for number in range(2)]
        with pytest.raises(Unreachable, match="became free in time"):
            await impatient
        full = asyncio.ensure_future(ask(client, endpoint, "/topics/b"))
        with pytest.raises(Overloaded):
            await asyncio.gather(full, ask(client, endpoint, "/topics/c"))
        demo.go_on.set()
        await asyncio.gather(holding, *patient, full)
        assert demo.topics[:2] == ["0", "1"]

    with_client(test, connections_max=1, waiting_max=3)


def test_a_cancelled_request_leaves_room_for_the_next() -> None:
    async def test(demo: Demo, endpoint: str, client: HttpClient) -> None:
        for _ in range(3):
            holding = asyncio.ensure_future(ask(client, endpoint, "/wait"))
            await wait_until(lambda: demo.waiting > 0)
            waiting = asyncio.ensure_future(ask(client, endpoint, "/topics/a"))
            given_up = asyncio.ensure_future(ask(client, endpoint, "/topics/b"))
            await asyncio.sleep(0)
            given_up.cancel()
            holding.cancel()
            await waiting
            with pytest.raises(asyncio.CancelledError):
                await holding
            demo.go_on.set()
            await wait_until(lambda: demo.waiting == 0)
            demo.go_on.clear()

    with_client(test, connections_max=1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SMTP ready\r\n\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(5_000), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "what is not understood"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff", "what is not understood"),
    ],
)
def test_an_answer_that_is_none_is_unavailable(answer: bytes, said: str) -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        listener.answer = answer
        with pytest.raises(Unavailable, match=said):
            await ask(client, listener.endpoint)

    with_listener(test, answer_bytes_max=1_000)


def test_a_connection_lost_before_the_answer_is_unavailable_at_once() -> None:
    async def test(listener: Listener, client: HttpClient) -> None:
        listener.answer, listener.closes = b"HTTP/1.1 200 OK\r\nContent-Le", True
        with pytest.raises(Unavailable, match="was closed before the answer came") as failed:
            await ask(client, listener.endpoint, seconds_max=60)
        assert type(failed.value) is Unavailable

    with_listener(test)


def test_a_closed_client_ends_what_is_under_way() -> None:
    async def test(demo: Demo, endpoint: str, client: HttpClient) -> None:
        under_way = asyncio.ensure_future(ask(client, endpoint, "/wait"))
        await wait_until(lambda: demo.waiting == 1)
        waiting = asyncio.ensure_future(ask(client, endpoint, "/topics/a"))
        await asyncio.sleep(0)
        await client.close()
        for request in (under_way, waiting):
            with pytest.raises(Unavailable):
                await request

    with_client(test, connections_max=1)


def test_a_client_that_is_closed_while_it_connects_asks_nobody() -> None:
    async def test(demo: Demo, endpoint: str, client: HttpClient) -> None:
        connecting = asyncio.ensure_future(ask(client, endpoint, "/topics/a"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Unavailable, match="the client is closed"):
            await connecting
        with pytest.raises(Unavailable, match="the client is closed"):
            await ask(client, endpoint, "/topics/a")
        assert demo.topics == []

    with_client(test)


def test_many_at_once_share_the_connections() -> None:
    async def test(_: Demo, endpoint: str, client: HttpClient) -> None:
        asked = [
            client.call(endpoint, "POST", "/produce", Produced, MESSAGE, seconds_max=20) for _ in range(300)
        ]
        assert {produced.offset for produced in await asyncio.gather(*asked)} == {4}

    with_client(test, connections_max=8)


def test_a_target_that_was_not_quoted_is_our_mistake() -> None:
    async def test(_: Listener, client: HttpClient) -> None:
        for target in ["/a b", "/a\r\nX: y", "a"]:
            with pytest.raises(AssertionError):
                await ask(client, "http://127.0.0.1:1", target)

    with_listener(test)
