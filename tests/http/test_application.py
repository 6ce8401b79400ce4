"""What is declared is what happens: routing, validation, answers and failures."""

import logging

import pytest

from http_demo import Demo, answer, answers
from talweg.http import Application, Call


def test_a_call_answers_with_success_and_its_fields() -> None:
    reply = answer("POST", "/produce", b'{"topic": "a", "producer_id": 1, "message": "four"}')
    assert reply.status == 200
    assert reply.json == {"status": "success", "partition": 0, "offset": 4}
    assert reply.headers == {"content-type": "application/json", "content-length": str(len(reply.body))}


def test_a_call_that_answers_nothing_says_that_it_succeeded() -> None:
    assert answer("GET", "/take").body == b'{"status":"success"}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"topic": "a", "producer_id": 1}', "message: is missing"),
        (b'{"topic": "a", "producer_id": "1", "message": "m"}', "producer_id: expected `int`, got `str`"),
        (b'{"topic": 1, "producer_id": 1, "message": "m"}', "topic: expected `str`, got `int`"),
        (b'{"topic": "a", "producer_id": 1.5, "message": "m"}', "producer_id: expected `int`, got `float`"),
        (b'{"topic": "a", "producer_id": -1, "message": "m"}', "producer_id: expected `int` >= 0"),
        (
            b'{"topic": "a", "producer_id": 1, "message": "m", "mesage": 1}',
            "mesage: is not a field of this call",
        ),
        (
            b'{"topic": "a", "producer_id": 1, "message": "m", "`$.x`": 1}',
            "`$.x`: is not a field of this call",
        ),
        (b"[]", "expected `object`, got `array`"),
        (b"", "the body is not JSON: Input data was truncated"),
        (b"{'topic'}", "the body is not JSON: JSON is malformed: object keys must be strings (byte 1)"),
        (b'{"topic": "\xff"}', "the body is not JSON: 'utf-8' codec can't decode byte 0xff in position 0"),
        (b'{"topic": ' + b"[" * 200_000, "topic: expected `str`, got `array`"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_the_fields_name(body: bytes, said: str) -> None:
    status, code, message = answer("POST", "/produce", body).failure
    assert (status, code) == (400, "bad_request")
    assert message.startswith(said)


def test_a_field_with_an_endless_name_is_not_repeated_whole() -> None:
    assert len(answer("POST", "/produce", b'{"%s": 1}' % (b"x" * 100_000)).body) < 300


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        ("", {"limit": 10, "start": "earliest", "topics": []}),
        ("limit=7&start=latest", {"limit": 7, "start": "latest", "topics": []}),
        ("start=1700000000000000", {"limit": 10, "start": 1_700_000_000_000_000, "topics": []}),
        (
            "topics=a&topics=b%20c&topics=d+e",
            {"limit": 10, "start": "earliest", "topics": ["a", "b c", "d e"]},
        ),
        ("topics=%25zz", {"limit": 10, "start": "earliest", "topics": ["%zz"]}),
        ("&limit=1&", {"limit": 1, "start": "earliest", "topics": []}),
    ],
)
def test_a_query_is_read_by_the_types_of_its_fields(query: str, taken: dict[str, object]) -> None:
    assert answer("GET", f"/topics?{query}").json == {"status": "success", **taken}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/topics?limit=ten", "limit: expected `int`, got `str`"),
        ("/topics?limit=101", "limit: expected `int` <= 100"),
        ("/topics?limit=", "limit: expected `int`, got `str`"),
        ("/topics?limit=1&limit=2", "limit: is given twice"),
        ("/topics?start=soon", "start: invalid enum value 'soon'"),
        ("/topics?other=1", "other: is not a parameter of this call"),
        ("/topics/a?topic=b", "topic: is not a parameter of this call"),
        ("/take?wait_ms=1", "wait_ms: is not a parameter of this call"),
        ("/topics?topics=%ff", "the query is not percent-encoded UTF-8"),
        ("/v1/topics/a/partitions/one/records", "partition: expected `int`, got `str`"),
        ("/v1/topics/a/partitions/-1/records", "partition: expected `int` >= 0"),
        ("/topics/%ff", "the path is not percent-encoded UTF-8"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_with_its_name(target: str, said: str) -> None:
    assert answer("GET", target).failure == (400, "bad_request", said)


@pytest.mark.parametrize(
    ("segment", "topic"),
    [
        ("a%2Fb", "a/b"),
        ("%2e%2e", ".."),
        ("..", ".."),
        ("a%252Fb", "a%2Fb"),  # decoded once, not twice
        ("a%00%0a", "a\x00\n"),
        ("%zz", "%zz"),
        ("%C3%A9", "é"),
        ("a%20b+c", "a b+c"),
        ("", ""),
    ],
)
def test_a_name_in_the_path_reaches_the_handler_as_it_was_meant(segment: str, topic: str) -> None:
    demo = Demo()
    reply = answer("GET", f"/topics/{segment}", demo=demo)
    assert demo.topics == [topic]
    assert reply.failure[:2] == (400, "bad_topic_name")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/produce/", "/topics/a/b", "/topics//", "//", "/v1", "/docs/../openapi.json", "/a" * 9_000],
)
def test_an_unknown_path_is_not_found(path: str) -> None:
    status, code, _ = answer("GET", path).failure
    assert (status, code) == (404, "path_not_found")


def test_a_path_may_be_percent_encoded_where_it_need_not() -> None:
    assert answer("GET", "/%74opics").status == 200
    assert answer("GET", "/%74opics/a").json["topic"] == "a"
    assert answer("GET", "/topics%2Fa").status == 404


def test_a_wrong_method_is_told_the_right_ones() -> None:
    for target, allowed in [
        ("/topics", "GET, HEAD, OPTIONS"),
        ("/topics/a", "GET, HEAD, OPTIONS"),
        ("/produce", "POST, OPTIONS"),
    ]:
        reply = answer("DELETE", target)
        assert reply.failure[:2] == (405, "method_not_allowed")
        assert reply.headers["allow"] == allowed
        options = answer("OPTIONS", target)
        assert (options.status, options.body, options.headers) == (204, b"", {"allow": allowed})


def test_a_get_that_changes_something_is_not_open_to_head() -> None:
    demo = Demo()
    head, get = answers(("HEAD", "/take"), ("GET", "/take"), demo=demo)
    assert (head.status, get.status, demo.takes) == (405, 200, 1)
    assert answer("HEAD", "/topics").status == 200


def test_errors_have_their_status_code_and_whether_to_try_again() -> None:
    reply = answer("GET", "/topics/gone")
    assert reply.failure == (404, "topic_not_found", "there is no topic gone")
    assert reply.json["retriable"] is False
    assert "retry-after" not in reply.headers
    reply = answer("POST", "/fail?how=quorum")
    assert reply.failure[:2] == (503, "no_quorum")
    assert reply.json["retriable"] is True
    assert reply.headers["retry-after"] == "1"


def test_not_leader_names_the_leader_when_it_is_known() -> None:
    known, unknown = answers(("POST", "/fail?how=leader"), ("POST", "/fail?how=unknown_leader"))
    assert known.failure[:2] == unknown.failure[:2] == (421, "not_leader")
    assert known.json["leader"] == {"broker_id": 2, "endpoint": "http://127.0.0.1:2"}
    assert "leader" not in unknown.json


@pytest.mark.parametrize("how", ["mistake", "wrong_answer"])
def test_a_mistake_of_ours_is_logged_once_and_tells_nothing(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = answer("POST", f"/fail?how={how}")
    assert reply.failure == (500, "internal", "an internal error; the server's log has more")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_a_failing_disk_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert answer("POST", "/fail?how=storage").failure == (500, "storage_error", "the disk said no")
    assert len(caplog.records) == 1


def test_a_message_that_cannot_be_said_in_json_is_said_all_the_same() -> None:
    assert answer("POST", "/fail?how=file_name").failure[2] == r"no space for \udcff.log"


def test_an_error_that_was_not_declared_is_told_and_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    assert answer("POST", "/fail?how=undeclared").failure[:2] == (404, "topic_not_found")
    assert [record.getMessage() for record in caplog.records] == [
        "/fail failed with topic_not_found, which it does not declare"
    ]


def test_too_many_requests_at_once_are_refused() -> None:
    reply = answer("GET", "/topics", requests_max=0)
    assert reply.failure[:2] == (503, "overloaded")
    assert reply.headers["retry-after"] == "1"


def test_a_call_whose_path_names_what_it_does_not_take_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match="topic"):
        Call("GET", "/topics/{topic}", Demo.take, "No parameters")


def test_two_calls_at_one_place_cannot_be_declared() -> None:
    calls = [Call("GET", "/take", Demo.take, "One"), Call("GET", "/take", Demo.take, "Two")]
    with pytest.raises(AssertionError, match="twice"):
        Application(calls, title="Twice", version="1")
