"""What a setting may be: how each kind is read from a text or from TOML, and how it is shown again."""

import ipaddress
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_WORDS: Final = {
    "true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


class Kind(NamedTuple):
    """What a setting may be: in words, how it is read, and how it is shown again."""

    expected: str
    read: Callable[[Any], Any]  # from a text, or from what TOML has for it; raises ValueError
    show: Callable[[Any], str] = str
    secret: bool = False  # may hold a password: not to be repeated


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError
    return value.strip()


def _within(value: Any, low: float, high: float) -> Any:
    if not low <= value <= high:
        raise ValueError
    return value


def whole(low: int, high: int) -> Kind:
    """A whole number, both ends included."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        if isinstance(value, str) and not re.fullmatch(r"\d{1,20}", value.strip(), re.ASCII):
            raise ValueError
        return int(_within(int(value), low, high))

    return Kind(f"a whole number from {low} to {high}", read)


def duration(low: str, high: str) -> Kind:
    """A time with its unit, as seconds; both ends included."""

    def seconds(value: Any) -> float:
        amount = _AMOUNT.fullmatch(_text(value))
        if amount is None or amount[2].lower() not in _SECONDS:
            raise ValueError
        return round(float(amount[1]) * _SECONDS[amount[2].lower()], 6)

    bounds = seconds(low), seconds(high)
    expected = f"a time with its unit from {low} to {high}, such as 500ms, 10s, 5m, 12h or 7d"
    return Kind(expected, lambda value: _within(seconds(value), *bounds), _show_seconds)


def size(low: str, high: str) -> Kind:
    """A number of bytes; both ends included."""

    def count(value: Any) -> int:
        amount = _AMOUNT.fullmatch(str(value) if type(value) is int else _text(value))
        if amount is None or amount[2].lower() not in _BYTES:
            raise ValueError
        bytes_ = float(amount[1]) * _BYTES[amount[2].lower()]
        if not bytes_.is_integer():
            raise ValueError
        return int(bytes_)

    bounds = count(low), count(high)
    expected = f"a size from {low} to {high}, such as 65536, 64 KiB or 10 MB"
    return Kind(expected, lambda value: _within(count(value), *bounds), _show_bytes)


def _show_seconds(seconds: float) -> str:
    for unit in ("d", "h", "m", "s", "ms"):
        amount = round(seconds / _SECONDS[unit], 6)
        if amount >= 1 and amount.is_integer():
            return f"{amount:.0f}{unit}"
    return f"{seconds:g}s"


def _show_bytes(count: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _BYTES[unit.lower()] == 0:
            return f"{count // _BYTES[unit.lower()]} {unit}"
    return str(count)


def or_none(word: str, kind: Kind) -> Kind:
    """The same, or a word that stands for None."""

    def read(value: Any) -> Any:
        return None if value == word else kind.read(value)

    expected = f"{kind.expected}, or {word}"
    return Kind(expected, read, lambda value: word if value is None else kind.show(value))


def choice(*words: str) -> Kind:
    """One of these words."""

    def read(value: Any) -> str:
        word = _text(value).lower()
        if word not in words:
            raise ValueError
        return word

    return Kind(" or ".join(words), read)


def _read_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word not in _WORDS:
        raise ValueError
    return _WORDS[word]


def _read_endpoint(value: Any) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{parts.port or 80}"


def _read_host_and_port(value: Any) -> str:
    parts = urlsplit(f"//{_text(value)}")
    if not parts.hostname or not parts.port or parts.path or parts.query or "@" in parts.netloc:
        raise ValueError
    return parts.netloc


def _read_host(value: Any) -> str:
    host = _text(value)
    if not re.fullmatch(r"[\w.:%-]+", host, re.ASCII):
        raise ValueError
    return host


def many(expected: str, read: Callable[[Any], str]) -> Kind:
    """Several of them: a text with commas, or a list."""

    def read_all(value: Any) -> tuple[str, ...]:
        parts = (
            value if isinstance(value, list) else [part for part in _text(value).split(",") if part.strip()]
        )
        if not parts:
            raise ValueError
        return tuple(dict.fromkeys(read(part) for part in parts))

    return Kind(expected, read_all, ",".join)


def location(expected: str, families: tuple[str, ...], *, directories: bool = False) -> Kind:
    """A URL of one of these families, or, if it may be, a directory."""

    def read(value: Any) -> str:
        url = _text(value)
        scheme, separator, _ = url.partition("://")
        if not separator and directories and ":" not in url:
            return url
        if not separator or scheme.partition("+")[0] not in families:
            raise ValueError
        return url

    return Kind(expected, read, secret=True)


_SQL: Final = ("sqlite", "postgresql", "mysql", "mariadb")
HOST: Final = Kind("an address or a host's name", _read_host)
PORT: Final = whole(0, 65535)
ENDPOINT: Final = Kind("http://HOST:PORT", _read_endpoint)
ENDPOINTS: Final = many("one or more http://HOST:PORT, with commas between them", _read_endpoint)
HOST_AND_PORT: Final = Kind("HOST:PORT", _read_host_and_port)
NETWORKS: Final = many(
    "one or more networks such as 10.0.0.0/8, with commas between them",
    lambda value: str(ipaddress.ip_network(_text(value))),
)
DIRECTORY: Final = Kind("a directory", _text)
SWITCH: Final = Kind("true or false", _read_switch, lambda value: str(value).lower())
STORAGE: Final = location(
    "a directory, segments:///directory, memory://, sqlite:///file, postgresql+psycopg://user@host/database "
    "or mysql+pymysql://user@host/database",
    ("segments", "memory", *_SQL),
    directories=True,
)
METADATA: Final = location(
    "sqlite:///file, postgresql+psycopg://user@host/database, mysql+pymysql://user@host/database, "
    "redis://host:port or redis+cluster://host:port",
    (*_SQL, "redis", "rediss"),
)
