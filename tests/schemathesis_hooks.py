"""Loaded by Schemathesis: how to send and read bodies that are not JSON. See schema_check.py."""

from typing import Any

import schemathesis


def _as_bytes(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")


def _as_text(_: Any, response: Any) -> str:
    return str(response.content.decode("latin-1"))


for media_type in (
    "application/vnd.apache.arrow.stream",
    "application/vnd.talweg.frames",
    "application/x-ndjson",
    "application/msgpack",
    "application/octet-stream",
):
    schemathesis.serializer(media_type)(_as_bytes)
    schemathesis.deserializer(media_type)(_as_text)
