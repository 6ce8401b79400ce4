"""`/metrics`: what is counted by call, and text that Prometheus can read, whatever the names in it."""

from typing import Any

from http_demo import Demo, answers
from scraped import Scraped
from talweg.http import Application, Metric, MetricsCall, Samples, Traffic

BY_NAME = Metric("talweg_demo", "gauge", "Of a name.", ("who",))
TREACHEROUS = 'quote " backslash \\ break \n and ümläut {name="x"} 1'
# As Prometheus 2 and 3 ask.
ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
)


class Measured(Demo):
    """The demo with `/metrics`."""

    def application(self, **limits: Any) -> Application:
        traffic = Traffic()
        metrics = MetricsCall("demo", "1.2.3", traffic, lambda: [Samples(BY_NAME, [((TREACHEROUS,), 7)])])
        self.served = Application(
            (*self.calls(), *metrics.calls()), title="Demo", version="1.2.3", traffic=traffic
        )
        return self.served


def scraped(*requests: tuple[str, str] | tuple[str, str, bytes]) -> Scraped:
    reply = answers(*requests, ("GET", "/metrics"), demo=Measured())[-1]
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scraped(reply.body)


def test_requests_are_counted_by_call_and_status() -> None:
    message = b'{"topic": "a", "producer_id": 1, "message": "four"}'
    found = scraped(
        ("POST", "/produce", message),
        ("POST", "/produce", message),
        ("POST", "/produce", b"{}"),
        ("GET", "/topics/one"),
        ("GET", "/topics/two"),
        ("GET", "/topics/gone"),
        ("GET", "/nowhere/1"),
        ("GET", "/nowhere/2"),
        ("DELETE", "/produce"),
        ("GET", "/v1/topics/a/partitions/0/records"),
    )
    total = "talweg_http_requests_total"
    assert found.value(total, method="POST", path="/produce", status="2xx") == 2
    assert found.value(total, method="POST", path="/produce", status="4xx") == 1
    assert found.value(total, path="/topics/{topic}", status="2xx") == 2
    assert found.value(total, path="/topics/{topic}", status="4xx") == 1
    assert found.value(total, method="", path="", status="4xx") == 3  # whatever was asked for
    assert found.value("talweg_http_request_bytes_total", path="/produce") == 2 * len(message) + 2
    records = "/v1/topics/{topic}/partitions/{partition}/records"
    assert found.value("talweg_http_response_bytes_total", path=records) == len(b"one\ntwo\n")
    assert found.value("talweg_http_requests_under_way") == 1  # this one


def test_any_name_can_be_read_again() -> None:
    assert scraped().value("talweg_demo", who=TREACHEROUS) == 7


def test_the_process_and_who_it_is_are_there() -> None:
    found = scraped()
    assert found.value("talweg_server_info", role="demo", version="1.2.3") == 1
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert {"process_cpu_seconds_total", "process_start_time_seconds"} <= found.names


def test_a_second_look_is_made_anew() -> None:
    demo = Measured()
    first, second = (Scraped(each.body) for each in answers(*[("GET", "/metrics")] * 2, demo=demo))
    assert first.values("talweg_http_requests_total", path="/metrics") == []
    assert second.value("talweg_http_requests_total", path="/metrics") == 1


def test_it_is_declared_and_prometheus_may_have_it() -> None:
    application = Measured().application()
    assert "/metrics" in application.schema["paths"]
    from talweg.http.reading import choose_media_type

    for accept in ACCEPTS:
        assert choose_media_type([(b"accept", accept.encode())], ("text/plain",)) == "text/plain"
