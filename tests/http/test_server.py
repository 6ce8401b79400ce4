"""The server on a real port: bodies of all sizes and speeds, odd requests, and how it stops."""

import asyncio
import signal
import socket
from typing import Any, cast

import pytest
import uvloop

from http_demo import ARROW, BODY_BYTES_MAX, NDJSON, Demo, Wire, wait_until, with_server
from talweg.errors import InvalidSetting
from talweg.http import Server
from talweg.http.server import HEAD_BYTES_MAX, _JoiningTransport

LARGE = 48 << 20  # bytes: more than the system takes of one connection
RECORDS = "/v1/topics/a/partitions/3/records"


def test_requests_follow_each_other_on_one_connection() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        for message in ["one", "three", "four"]:
            body = b'{"topic": "a", "producer_id": 1, "message": "%s"}' % message.encode()
            wire.ask("POST", "/produce", body)
            assert (await wire.reply()).json["offset"] == len(message)

    with_server(test)


def test_a_raw_body_arrives_whole_however_it_is_cut() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        for size in [0, 1, 70_000, BODY_BYTES_MAX]:
            headers = {"content_type": f"{NDJSON}; charset=utf-8", "talweg_producer_id": "17"}
            wire.ask("POST", RECORDS, bytes(size), **headers)
            taken = (await wire.reply()).json
            assert (taken["body_bytes"], taken["body_type"], taken["producer_id"]) == (size, NDJSON, 17)
            assert (taken["topic"], taken["partition"]) == ("a", 3)
        wire.send(f"POST {RECORDS} HTTP/1.1\r\nHost: a\r\nContent-Type: {ARROW}\r\n".encode())
        wire.send(b"Transfer-Encoding: chunked\r\n\r\n" + b"5\r\nabcde\r\n" * 1_000)
        await asyncio.sleep(0)
        wire.send(b"5\r\nabcde\r\n" * 1_000 + b"0\r\n\r\n")
        assert (await wire.reply()).json["body_bytes"] == 10_000

    with_server(test)


def test_a_header_that_is_wrong_is_refused_by_its_own_name() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("POST", RECORDS, b"", content_type=ARROW, talweg_producer_id="me")
        status, code, message = (await wire.reply()).failure
        assert (status, code) == (400, "bad_request")
        assert message.startswith("Talweg-Producer-Id: expected `int | null`")

    with_server(test)


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("POST", RECORDS, b"", content_type=ARROW, content_length=str(BODY_BYTES_MAX + 1))
        assert (await wire.reply()).failure[:2] == (413, "body_too_large")
        wire.close()
        wire = await Wire.open(server.port)
        wire.ask("POST", "/produce", b"", content_length="1001")
        assert (await wire.reply()).failure[:2] == (413, "body_too_large")

    with_server(test, json_bytes_max=1_000)


def test_a_body_over_the_limit_is_refused_while_it_comes_without_saying_its_size() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.send(f"POST {RECORDS} HTTP/1.1\r\nHost: a\r\nContent-Type: {ARROW}\r\n".encode())
        wire.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(BODY_BYTES_MAX // 5_000 + 1):
            wire.send(b"1388\r\n" + bytes(5_000) + b"\r\n")  # and no end
        assert (await wire.reply()).failure[:2] == (413, "body_too_large")

    with_server(test)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("POST", RECORDS, b"abc", content_type=ARROW, content_length="100")
        assert (await wire.reply()).failure[:2] == (408, "body_too_slow")

    with_server(test, body_seconds_max=0.05)


def test_large_bodies_share_a_budget_and_give_it_back() -> None:
    async def test(demo: Demo, server: Server) -> None:
        wires = [await Wire.open(server.port) for _ in range(2)]
        replies = {}
        for wire in wires:
            wire.ask("POST", RECORDS, b"x", content_type=ARROW, content_length="45002")
            wire.send(bytes(45_000))  # one byte is still to come, so both are in memory
            replies[asyncio.ensure_future(wire.reply())] = wire
        (refused,), (kept,) = await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().failure[:2] == (503, "overloaded")
        wire = replies[kept]
        wire.send(b"x")
        assert (await kept).json["body_bytes"] == 45_002
        wire.ask("POST", RECORDS, b"x", content_type=ARROW, content_length="45002")
        await wait_until(lambda: demo.requests_under_way == 1)
        wire.send(bytes(45_001))
        assert (await wire.reply()).status == 200

    with_server(test, bodies_bytes_max=60_000)


def test_whoever_goes_away_while_sending_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def test(demo: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("POST", RECORDS, b"abc", content_type=ARROW, content_length="100")
        wire.close()
        wire = await Wire.open(server.port)
        wire.ask("GET", "/topics")
        assert (await wire.reply()).status == 200

    with_server(test)
    assert caplog.records == []


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_must_be_called_json(media_type: str) -> None:
    # A web page elsewhere may make a browser send these without asking.
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("POST", "/produce", b"{}", content_type=media_type)
        assert (await wire.reply()).failure[:2] == (415, "unsupported_media")

    with_server(test)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, ARROW),
        ("*/*", ARROW),
        (NDJSON, NDJSON),
        (f"{NDJSON};q=0.5, {ARROW};q=0.4", NDJSON),
        (f"text/html, {NDJSON};q=0.1", NDJSON),
        ("application/*;q=0.9, */*;q=0.1", ARROW),
        (f"{ARROW};q=0, */*", NDJSON),
        ("text/html", None),
        (f"{ARROW};q=high", None),
    ],
)
def test_accept_chooses_among_media_types(accept: str | None, chosen: str | None) -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("GET", RECORDS, **({"accept": accept} if accept is not None else {}))
        reply = await wire.reply()
        if chosen is None:
            assert reply.failure[:2] == (406, "not_acceptable")
        else:
            assert (reply.status, reply.headers["content-type"], reply.body) == (200, chosen, b"one\ntwo\n")
            assert reply.headers["talweg-high-watermark"] == "2"

    with_server(test)


def test_head_has_the_headers_of_get_and_no_body() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("HEAD", "/topics")
        head = await wire.reply(head_only=True)
        wire.ask("GET", "/topics")
        get = await wire.reply()
        assert head.status == 200
        assert head.headers["content-length"] == str(len(get.body)) == get.headers["content-length"]
        wire.ask("OPTIONS", "/topics")
        assert (await wire.reply()).status == 204
        wire.ask("GET", "/topics")
        assert (await wire.reply()).status == 200

    with_server(test)


@pytest.mark.parametrize(
    "request_line",
    [
        b"nonsense\r\n\r\n",
        b"GET /topics\x00 HTTP/1.1\r\n\r\n",
        b"GET /topics/\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"BREW /topics HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /produce HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /produce HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_json_too(request_line: bytes) -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.send(request_line)
        reply = await wire.reply()
        assert reply.failure[:2] == (400, "bad_request")
        assert reply.headers["connection"] == "close"
        assert await wire.at_end()

    with_server(test)


def test_names_with_slashes_and_control_characters_are_refused_over_the_wire() -> None:
    async def test(demo: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        for name in ["a%2Fb", "a%00b", "%0d%0aX-Injected:%201", "..", "%2e%2e%2f", "a%25b"]:
            wire.ask("GET", f"/topics/{name}")
            reply = await wire.reply()
            assert reply.failure[:2] == (400, "bad_topic_name")
            assert "x-injected" not in reply.headers
        assert demo.topics == ["a/b", "a\0b", "\r\nX-Injected: 1", "..", "../", "a%b"]

    with_server(test)


def test_a_head_without_end_is_cut() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.send(b"GET /topics HTTP/1.1\r\n")
        for number in range(HEAD_BYTES_MAX // 1_000 + 2):
            wire.send(b"X-%d: %s\r\n" % (number, b"x" * 1_000))
            await asyncio.sleep(0.001)  # so that they come one by one
        status, _, message = (await wire.reply()).failure
        assert status == 400
        assert "the head of the request" in message

    with_server(test)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /top", b"GET /topics HTTP/1.1\r\nHost: demo\r\n"])
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_head_that_does_not_come_is_not_waited_for_for_ever(sent: bytes, asked_before: bool) -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        if asked_before:
            wire.ask("GET", "/topics")
            assert (await wire.reply()).status == 200
            wire.send(b"\r\n")  # what ends the time that a connection may rest between two requests
        wire.send(sent)
        if b"GET" in sent:
            status, _, message = (await wire.reply()).failure
            assert status == 400
            assert "did not arrive in 0.2 s" in message
        assert await wire.at_end()

    with_server(test, head_seconds_max=0.2)


def test_an_answer_that_takes_long_is_not_cut_off_by_half_of_the_next_head() -> None:
    async def test(demo: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("GET", "/wait")
        await wait_until(lambda: demo.waiting == 1)
        wire.send(b"GET /top")
        await asyncio.sleep(0.3)  # longer than a head may take
        demo.go_on.set()
        assert (await wire.reply()).status == 200
        assert (await wire.reply()).failure[0] == 400
        assert await wire.at_end()

    with_server(test, head_seconds_max=0.1)


async def large(_: dict[str, Any], __: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]}
    )
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def read_slowly(server: Server, slow: socket.socket, idle: socket.socket) -> None:
    """Both ask for something large; one reads it, the other nothing, and is cut off."""
    loop = asyncio.get_running_loop()
    for asking in (slow, idle):
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        asking.setblocking(False)
        await loop.sock_connect(asking, ("127.0.0.1", server.port))
        await loop.sock_sendall(asking, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert server._uvicorn is not None
    connections = server._uvicorn.server_state.connections
    await wait_until(lambda: len(connections) == 2)
    read_bytes, began = 0, loop.time()

    async def read(size_bytes: int) -> int:
        data = await loop.sock_recv(slow, size_bytes)
        assert data, "it was cut off"
        return len(data)

    while len(connections) == 2 or loop.time() - began < 1.5:  # longer than nothing may be read
        assert read_bytes < LARGE, "nobody was cut off"
        read_bytes += await read(64 << 10)
        await asyncio.sleep(0.005)
    assert len(connections) == 1
    while read_bytes < LARGE:
        read_bytes += await read(1 << 20)


def test_an_answer_that_nobody_reads_is_not_kept_for_ever_and_one_read_slowly_is() -> None:
    async def test() -> None:
        server = Server(large, unread_seconds_max=1.0)
        await server.start()
        with socket.socket() as slow, socket.socket() as idle:
            try:
                await read_slowly(server, slow, idle)
            finally:
                await server.stop(0.1)

    uvloop.run(test())


def test_a_large_body_does_not_count_as_head() -> None:
    async def test(_: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        for _ in range(4):
            wire.ask("POST", RECORDS, bytes(BODY_BYTES_MAX), content_type=ARROW)
            assert (await wire.reply()).status == 200

    with_server(test)


def test_requests_under_way_finish_when_the_server_stops() -> None:
    async def test(demo: Demo, server: Server) -> None:
        wire, idle = await Wire.open(server.port), await Wire.open(server.port)
        wire.ask("GET", "/wait")
        await wait_until(lambda: demo.waiting == 1)
        stopping = asyncio.ensure_future(server.stop())
        assert await idle.at_end()
        with pytest.raises(ConnectionRefusedError):
            await Wire.open(server.port)
        demo.go_on.set()
        reply = await wire.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        await stopping

    with_server(test)


def test_a_request_that_takes_too_long_is_told_that_the_server_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(demo: Demo, server: Server) -> None:
        wire = await Wire.open(server.port)
        wire.ask("GET", "/wait")
        await wait_until(lambda: demo.waiting == 1)
        stopping = asyncio.ensure_future(server.stop(seconds_max=0.05))
        assert (await wire.reply()).failure == (503, "unavailable", "the server is stopping")
        await stopping
        assert demo.waiting == 0

    with_server(test)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    async def test() -> None:
        server = Server(Demo().application())
        await server.stop()
        await server.start()
        await server.stop()
        await server.stop()

    uvloop.run(test())


def test_a_server_leaves_signals_to_whoever_runs_the_process() -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def test() -> None:
        before = handlers()
        server = Server(Demo().application())
        await server.start()
        try:
            assert handlers() == before
        finally:
            await server.stop()

    uvloop.run(test())


def test_an_address_that_cannot_be_listened_on_is_a_wrong_setting() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(InvalidSetting, match=f"cannot listen on 127.0.0.1:{port}"):
                await Server(Demo().application(), "127.0.0.1", port).start()
        with pytest.raises(InvalidSetting, match=r"cannot listen on no\.such\.host\.invalid:0"):
            await Server(Demo().application(), "no.such.host.invalid").start()

    uvloop.run(test())


class Written:
    """A transport that keeps what each write was given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def test_a_head_leaves_with_its_body_and_alone_if_none_comes() -> None:
    async def test() -> None:
        written = Written()
        transport = _JoiningTransport(cast("asyncio.Transport", written))
        head, large = b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20)
        transport.write(head)
        transport.write(b"body")
        transport.write(b"more")
        assert written.writes == [head + b"body", b"more"]
        written.writes.clear()
        transport.write(head)
        transport.write(large)
        assert written.writes == [head, large]  # what is large is not copied
        written.writes.clear()
        transport.write(head)
        await asyncio.sleep(0)
        assert written.writes == [head]
        transport.write(head)
        transport.close()
        assert written.writes == [head, head]
        assert written.closed

    asyncio.run(test())
