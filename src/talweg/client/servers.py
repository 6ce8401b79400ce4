"""Where a client begins: the addresses of one or more managers (or of a gateway), as people write them."""

import os
from collections.abc import Sequence
from typing import Final
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
    parts = given.split(",") if isinstance(given, str) else list(given)
    urls = dict.fromkeys(_url(part.strip(), setting) for part in parts if part.strip())
    if not urls:
        raise InvalidSetting(f"{setting}: expected at least one address, http://HOST:PORT or HOST:PORT")
    return tuple(urls)


def _url(part: str, setting: str) -> str:
    url = part if "://" in part else f"http://{part}"
    try:
        parts = urlsplit(url)
        right = parts.scheme == "http" and bool(parts.hostname) and parts.path in ("", "/")
        port = parts.port
    except ValueError:
        right, port = False, None
    if not right or parts.query or parts.fragment or parts.username:
        raise InvalidSetting(f"{setting}: {part!r} is not an address; expected http://HOST:PORT or HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"http://{host}:{port or 80}"
