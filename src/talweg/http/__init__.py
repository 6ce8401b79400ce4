"""Declared calls as an HTTP server, and a client for servers that talk to servers.

Call, Parameters, Answer     what a call takes and answers; RawBody and RawAnswer when it is not JSON
Request, RawResponse         what a handler is given, and returns when its answer is not JSON
Application, Limits          the calls as an ASGI application, with `/openapi.json` and `/docs`
Server                       serves an application on a port
Traffic, MetricsCall         what was asked and answered, counted; `/metrics`, made of that and of Samples
HttpClient                   asks other servers; a failure comes back as the error that was raised there
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from talweg.http.answering import Failure, Leader, error_of
from talweg.http.calls import (
    Answer,
    Call,
    Header,
    Natural,
    Parameters,
    RawAnswer,
    RawBody,
    RawResponse,
    Request,
)
from talweg.http.client import HttpClient
from talweg.http.connection import HttpResponse

if TYPE_CHECKING:
    from talweg.http.application import Application, Limits
    from talweg.http.metrics import Metric, MetricsCall, Samples, single
    from talweg.http.openapi import openapi
    from talweg.http.server import Server
    from talweg.http.traffic import Traffic

__all__ = [
    "Answer",
    "Application",
    "Call",
    "Failure",
    "Header",
    "HttpClient",
    "HttpResponse",
    "Leader",
    "Limits",
    "Metric",
    "MetricsCall",
    "Natural",
    "Parameters",
    "RawAnswer",
    "RawBody",
    "RawResponse",
    "Request",
    "Samples",
    "Server",
    "Traffic",
    "error_of",
    "openapi",
    "single",
]

# Loaded when they are first asked for: a client has no use for a server, and would wait for it to load.
_SERVING = {
    "Application": "talweg.http.application",
    "Limits": "talweg.http.application",
    "Metric": "talweg.http.metrics",
    "MetricsCall": "talweg.http.metrics",
    "Samples": "talweg.http.metrics",
    "Server": "talweg.http.server",
    "Traffic": "talweg.http.traffic",
    "openapi": "talweg.http.openapi",
    "single": "talweg.http.metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _SERVING:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_SERVING[name]), name)
