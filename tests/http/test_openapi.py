"""The schema says what the calls do, and nothing else."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import uvloop

from http_demo import ARROW, NDJSON, Demo, answer
from schema_check import check_schema
from talweg.errors import TopicNotFound
from talweg.http import Application, Call, Request, Server


@pytest.fixture(scope="module")
def schema() -> Any:
    return answer("GET", "/openapi.json").json


def test_the_schema_is_the_one_that_is_served(schema: Any) -> None:
    assert schema["openapi"] == "3.1.0"
    assert schema["info"] == {"title": "Demo <1>", "version": "1.2.3"}
    assert schema == msgspec.json.decode(msgspec.json.encode(Demo().application().schema))


def test_listed_calls_are_in_it_and_others_are_not(schema: Any) -> None:
    calls = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    records = "/v1/topics/{topic}/partitions/{partition}/records"
    assert calls == {
        "POST /produce",
        "GET /topics",
        "GET /topics/{topic}",
        f"POST {records}",
        f"GET {records}",
        "GET /take",
    }


def test_parameters_say_where_they_come_from_and_what_they_may_be(schema: Any) -> None:
    listing = {shown["name"]: shown for shown in schema["paths"]["/topics"]["get"]["parameters"]}
    assert listing["limit"] == {
        "name": "limit",
        "in": "query",
        "description": "how many at most",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
    }
    path = schema["paths"]["/v1/topics/{topic}/partitions/{partition}/records"]
    append = {(shown["in"], shown["name"], shown.get("required")) for shown in path["post"]["parameters"]}
    assert append == {
        ("path", "topic", True),
        ("path", "partition", True),
        ("header", "Talweg-Producer-Id", None),
    }


def test_bodies_and_answers_have_their_types(schema: Any) -> None:
    produce = schema["paths"]["/produce"]["post"]
    body = produce["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Produce"}
    described = schema["components"]["schemas"]["Produce"]
    assert described["required"] == ["topic", "producer_id", "message"]
    assert described["additionalProperties"] is False
    assert schema["components"]["schemas"]["Produced"]["required"] == ["status", "partition", "offset"]
    records = schema["paths"]["/v1/topics/{topic}/partitions/{partition}/records"]
    assert list(records["post"]["requestBody"]["content"]) == [ARROW, NDJSON]
    assert list(records["get"]["responses"]["200"]["content"]) == [ARROW, NDJSON]
    assert list(records["get"]["responses"]["200"]["headers"]) == ["Talweg-High-Watermark"]


def test_a_calls_parameters_are_no_component(schema: Any) -> None:
    assert "Listing" not in schema["components"]["schemas"]
    assert "Produce" in schema["components"]["schemas"]


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("get", "/take", ["200", "400", "500", "503"]),
        ("get", "/topics/{topic}", ["200", "400", "404", "500", "503"]),
        ("post", "/produce", ["200", "400", "408", "413", "415", "500", "503"]),
        ("get", "/v1/topics/{topic}/partitions/{partition}/records", ["200", "400", "406", "500", "503"]),
    ],
)
def test_every_status_that_a_call_may_give_is_there(
    schema: Any, method: str, path: str, statuses: list[str]
) -> None:
    assert list(schema["paths"][path][method]["responses"]) == statuses


def test_a_failure_lists_its_codes(schema: Any) -> None:
    responses = schema["paths"]["/topics/{topic}"]["get"]["responses"]
    reference, codes = responses["400"]["content"]["application/json"]["schema"]["allOf"]
    assert reference == {"$ref": "#/components/schemas/Failure"}
    assert codes["properties"]["code"]["enum"] == ["bad_request", "bad_topic_name"]
    assert "`topic_not_found`: No topic of that name." in responses["404"]["description"]
    assert "Retry-After" in responses["503"]["headers"]


def serve(application: Application, use: Callable[[str], None]) -> None:
    """Serves an application in a thread while it is used."""
    ready, done = threading.Event(), threading.Event()
    server = Server(application)

    async def run() -> None:
        await server.start()
        ready.set()
        await asyncio.to_thread(done.wait)
        await server.stop()

    thread = threading.Thread(target=uvloop.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(20)
        use(f"http://127.0.0.1:{server.port}")
    finally:
        done.set()
        thread.join(20)


def test_the_schema_is_true() -> None:
    serve(Demo().application(), check_schema)


def test_a_schema_that_lies_is_found_out() -> None:
    async def fail(_: Request[None, None]) -> None:
        raise TopicNotFound("nobody said that this may happen")

    application = Application([Call("GET", "/a", fail, "Fail")], title="Liar", version="1")
    with pytest.raises(AssertionError, match="Undocumented status code"):
        serve(application, check_schema)
