"""`/metrics`: what a server is doing, as the text that Prometheus reads.

Nothing is kept up for it. A look at the server's state, taken in its event loop when somebody asks, gives
values; a thread makes the text of them, since that takes a while where there are many partitions.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from talweg.http.calls import Call, RawAnswer, RawResponse, Request
from talweg.http.traffic import UNMATCHED, Traffic

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector, CollectorRegistry

MEDIA_TYPE: Final = "text/plain"
_CONTENT_TYPE: Final = f"{MEDIA_TYPE}; version=0.0.4; charset=utf-8"


class Metric(msgspec.Struct, frozen=True):
    """What can be known of a server: a number, or one for each set of labels."""

    name: str  # of a counter it ends in _total
    kind: Literal["gauge", "counter"]
    meaning: str  # one sentence
    labels: tuple[str, ...] = ()


class Samples(msgspec.Struct, frozen=True):
    """A metric, and its values at one moment."""

    metric: Metric
    values: list[tuple[tuple[str, ...], float]]  # the labels' values, in their order, and the number


Look = Callable[[], list[Samples]]
"""What a server says of itself. Called in its event loop, so it must not wait for anything."""

INFO: Final = Metric(
    "talweg_server_info", "gauge", "Always 1; the labels say who answers.", ("role", "version")
)
_OF_CALL: Final = ("method", "path")
REQUESTS: Final = Metric(
    "talweg_http_requests_total",
    "counter",
    "Requests that were answered, by the first digit of the status.",
    (*_OF_CALL, "status"),
)
REQUEST_BYTES: Final = Metric(
    "talweg_http_request_bytes_total", "counter", "Bytes of requests' bodies that were read.", _OF_CALL
)
RESPONSE_BYTES: Final = Metric(
    "talweg_http_response_bytes_total", "counter", "Bytes of answers' bodies.", _OF_CALL
)
UNDER_WAY: Final = Metric("talweg_http_requests_under_way", "gauge", "Requests that wait for their answer.")
HTTP_METRICS: Final = (INFO, REQUESTS, REQUEST_BYTES, RESPONSE_BYTES, UNDER_WAY)


def single(metric: Metric, value: float) -> Samples:
    """A metric without labels."""
    return Samples(metric, [((), value)])


class MetricsCall:
    """Answers `/metrics` of one server, from a registry of its own."""

    def __init__(self, role: str, version: str, traffic: Traffic, look: Look) -> None:
        self._role = role
        self._version = version
        self._traffic = traffic
        self._look = look
        self._one_at_a_time = asyncio.Lock()  # however many ask: the text of a large server is work
        self._collector = _Collector()
        self._registry: CollectorRegistry | None = None

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [
            Call(
                "GET",
                "/metrics",
                self._metrics,
                "What this server is doing, for Prometheus",
                answer=RawAnswer((MEDIA_TYPE,), "Metrics in the text format of Prometheus, version 0.0.4."),
                tag="Metrics",
            )
        ]

    async def _metrics(self, request: Request[None, None]) -> RawResponse:
        async with self._one_at_a_time:
            samples = [Samples(INFO, [((self._role, self._version), 1)])]
            samples += self._look()
            samples += _of_traffic(self._traffic)
            text = await asyncio.to_thread(self._text, samples)
        return RawResponse(body=text, media_type=_CONTENT_TYPE)

    def _text(self, samples: list[Samples]) -> bytes:
        # Loaded when it is first wanted: servers start sooner, and most tests never ask.
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        if self._registry is None:
            self._registry = _registry(self._collector)
        self._collector.samples = samples
        return generate_latest(self._registry)


class _Collector:
    """Hands the values of the last look to the library."""

    def __init__(self) -> None:
        self.samples: Iterable[Samples] = ()

    def collect(self) -> Iterator["Family"]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        for each in self.samples:
            kind = CounterMetricFamily if each.metric.kind == "counter" else GaugeMetricFamily
            family = kind(each.metric.name, each.metric.meaning, labels=each.metric.labels)
            for labels, value in each.values:
                family.add_metric(labels, value)
            yield family


def _registry(collector: "Collector") -> "CollectorRegistry":
    from prometheus_client.process_collector import ProcessCollector  # noqa: PLC0415
    from prometheus_client.registry import CollectorRegistry  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _of_traffic(traffic: Traffic) -> list[Samples]:
    requests, taken, given = Samples(REQUESTS, []), Samples(REQUEST_BYTES, []), Samples(RESPONSE_BYTES, [])
    for call, counted in traffic.by_call.items():
        for digit, count in enumerate(counted.answers):
            if count:
                requests.values.append(((*call, f"{digit}xx"), count))
        if call != UNMATCHED and any(counted.answers):
            taken.values.append((call, counted.bytes_in))
            given.values.append((call, counted.bytes_out))
    return [requests, taken, given, single(UNDER_WAY, traffic.under_way)]
