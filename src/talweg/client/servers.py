"""Where a client begins: the addresses of one or more managers (or of a gateway), as people write them."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from talweg.errors import InvalidSetting

VARIABLE: Final = "TALWEG_URL"
DEFAULT: Final = "http://127.0.0.1:8000"

Servers = str | Sequence[str] | None
"""Addresses of managers: a text, with commas between several, or a list; None: what TALWEG_URL says."""


def read_servers(given: Servers, setting: str = "servers") -> tuple[str, ...]:
    """URLs from a text with commas, a list, or, of nothing, from TALWEG_URL.

    Raises InvalidSetting, which names the setting that they were given by.
    """
    if given is None:
        given = os.environ.get(VARIABLE) or DEFAULT
    parts = given.split(",") if isinstance(given, str) else _parts(given)
    if strange := [part for part in parts if not isinstance(part, str)]:
        raise _is_none(strange[0], setting)
    urls = dict.fromkeys(_url(part.strip(), setting) for part in parts if part.strip())
    if not urls:
        raise InvalidSetting(f"{setting}: expected at least one address, http://HOST:PORT or HOST:PORT")
    return tuple(urls)


def _parts(given: Any) -> list[Any]:
    """What is given as many, one by one. Not bytes: those are many numbers."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]


def _is_none(part: object, setting: str) -> InvalidSetting:
    return InvalidSetting(f"{setting}: {part!r} is not an address; expected http://HOST:PORT or HOST:PORT")


def _url(part: str, setting: str) -> str:
    url = part if "://" in part else f"http://{part}"
    try:
        parts = urlsplit(url)
        right = parts.scheme == "http" and bool(parts.hostname) and parts.path in ("", "/")
        port = parts.port
    except ValueError:
        right, port = False, None
    if not right or parts.query or parts.fragment or parts.username:
        raise _is_none(part, setting)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"http://{host}:{port or 80}"
