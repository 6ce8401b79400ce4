"""From what came over the wire to what a call has declared: parameters, JSON bodies, raw bodies."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_plus

import msgspec

from talweg.errors import BadRequest, BodyTooLarge, BodyTooSlow, NotAcceptable, Overloaded, UnsupportedMedia
from talweg.http.calls import Call, Parameters, RawBody, Receive, header_names

Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")

JSON: Final = "application/json"

_NAME_LENGTH_MAX: Final = 100  # of a field's name, or a value, that is repeated to whoever sent it
# How msgspec words it. Names come from outside and may hold anything, a backtick too.
_FIELD: Final = re.compile(r"^Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_PLACE: Final = re.compile(r"^(.*) - at `\$\.?(.*?)`$", re.DOTALL)


class Disconnected(Exception):
    """Whoever asked has gone away before the whole body was here."""


class BodyBudget:
    """How many bytes of large bodies may be in memory at once, for all requests together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max

    def take(self, size: int) -> None:
        """Count these in; raises Overloaded when there is no room."""
        if size > self._bytes_left:
            raise Overloaded("the bodies of other requests take all the memory that is set aside for them")
        self._bytes_left -= size

    def give_back(self, size: int) -> None:
        """They are no longer needed."""
        self._bytes_left += size


def explain(error: msgspec.ValidationError, names: dict[str, str] | None = None) -> BadRequest:
    """What is wrong with which field; `names` says what a field is called outside."""
    text = str(error)
    located = _PLACE.match(text)
    text, place = located.groups() if located else (text, "")
    field = _FIELD.match(text)
    if field:
        what, name = field.groups()
        place = f"{place}.{name[:_NAME_LENGTH_MAX]}".lstrip(".")
        text = "is missing" if what == "missing required" else "is not a field of this call"
    else:
        text = text[:1].lower() + text[1 : _NAME_LENGTH_MAX * 2]
    place = (names or {}).get(place, place)
    return BadRequest(f"{place}: {text}" if place else text)


class ParameterReader:
    """Reads a call's parameters from its path, its query and its headers."""

    def __init__(self, call: Call) -> None:
        self._type = call.parameters
        self._places = call.places
        self._headers: dict[bytes, str] = {}
        self._query: dict[str, bool] = {}  # the names in the query, and whether one may come many times
        self._names: dict[str, str] = {}
        if call.parameters is not None:
            self._names = header_names(call.parameters)
            self._headers = {name.lower().encode(): field for field, name in self._names.items()}
            for field in msgspec.structs.fields(call.parameters):
                if field.name not in self._names and field.name not in self._places:
                    self._query[field.encode_name] = _is_list(field.type)

    def read(self, values: tuple[str, ...], query: bytes, headers: Headers) -> Parameters | None:
        """The parameters; raises BadRequest with the name of the one that is wrong."""
        given: dict[str, Any] = dict(zip(self._places, values, strict=True))
        if query:
            self._read_query(query, given)
        if self._headers:
            for key, value in headers:
                field = self._headers.get(key)
                if field is not None:
                    given[field] = value.decode("latin-1")
        if self._type is None:
            return None
        try:
            return msgspec.convert(given, self._type, strict=False)
        except msgspec.ValidationError as error:
            raise explain(error, self._names) from None

    def _read_query(self, query: bytes, given: dict[str, Any]) -> None:
        try:
            for pair in query.decode("ascii").split("&"):
                name, _, value = pair.partition("=")
                if "%" in pair or "+" in pair:
                    name, value = unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")
                many = self._query.get(name)
                if many is None:
                    if pair:
                        raise BadRequest(f"{name[:_NAME_LENGTH_MAX]}: is not a parameter of this call")
                elif many:
                    given.setdefault(name, []).append(value)
                elif name in given:
                    raise BadRequest(f"{name}: is given twice")
                else:
                    given[name] = value
        except UnicodeDecodeError:
            raise BadRequest("the query is not percent-encoded UTF-8") from None


def _is_list(declared: Any) -> bool:
    described = msgspec.inspect.type_info(declared)
    kinds = described.types if isinstance(described, msgspec.inspect.UnionType) else (described,)
    collections = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType, msgspec.inspect.FrozenSetType)
    return any(isinstance(kind, collections) for kind in kinds)


class JsonReader(Generic[T]):
    """Decodes one type from JSON, strictly: no number for a string, no string for a number."""

    def __init__(self, type_: type[T]) -> None:
        self._decode = msgspec.json.Decoder(type_).decode

    def read(self, body: bytes) -> T:
        """The value; raises BadRequest with the name of the field that is wrong."""
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise explain(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}"[: _NAME_LENGTH_MAX * 2]) from None
        except RecursionError:
            raise BadRequest("the body is nested too deeply") from None


def check_head(headers: Headers, media_types: tuple[str, ...], bytes_max: int) -> str:
    """The media type of the body that is to come; raises UnsupportedMedia and BodyTooLarge."""
    media_type = ""
    for name, value in headers:
        if name == b"content-type":
            media_type = value.decode("latin-1")
        elif name == b"content-length" and int(value) > bytes_max:
            raise BodyTooLarge(f"the body has {int(value)} bytes; {bytes_max} are allowed")
    if media_type not in media_types:
        media_type = media_type.partition(";")[0].strip().lower()
        if media_type not in media_types:
            # Also what keeps web pages of others from writing here: a browser lets them send plain forms
            # anywhere, but asks first, and is refused, before it sends JSON.
            expected = " or ".join(media_types)
            raise UnsupportedMedia(f"Content-Type is {media_type[:100]!r}; expected {expected}")
    return media_type


def body_limit(body: type[Parameters] | RawBody, json_bytes_max: int) -> tuple[tuple[str, ...], int]:
    """Which media types a call takes, and how many bytes."""
    return (body.media_types, body.bytes_max) if isinstance(body, RawBody) else ((JSON,), json_bytes_max)


async def read_body(receive: Receive, bytes_max: int) -> tuple[bytes, bool]:
    """The first piece of the body, and whether more is to come. Small bodies have no second one."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise BodyTooLarge(f"the body has more than {bytes_max} bytes, which are allowed")
    return body, message.get("more_body", False)


async def read_rest(
    first: bytes,
    receive: Receive,
    bytes_max: int,
    *,
    budget: BodyBudget,
    taken: list[int],
    seconds_max: float,
) -> bytes:
    """A whole body that comes in pieces. What was taken of the budget is added to `taken`, in any case."""
    pieces: list[bytes] = []
    piece, more, size = first, True, 0
    try:
        async with asyncio.timeout(seconds_max):
            while True:
                budget.take(len(piece))
                taken.append(len(piece))
                pieces.append(piece)
                size += len(piece)
                if not more:
                    break
                piece, more = await read_body(receive, bytes_max - size)
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive in {seconds_max:g} s") from None
    return b"".join(pieces)


def choose_media_type(headers: Headers, offered: tuple[str, ...]) -> str:
    """The one of these that `Accept` likes best, the first among equals; raises NotAcceptable."""
    accept = ",".join(value.decode("latin-1") for name, value in headers if name == b"accept")
    if not accept.strip():
        return offered[0]
    ranges = [_media_range(text) for text in accept.split(",") if text.strip()]
    best, best_quality = "", 0.0
    for media_type in offered:
        quality = _quality(media_type, ranges)
        if quality > best_quality:
            best, best_quality = media_type, quality
    if not best:
        raise NotAcceptable(f"Accept has none of {', '.join(offered)}")
    return best


def _media_range(text: str) -> tuple[str, float]:
    media_type, *options = (part.strip() for part in text.lower().split(";"))
    quality = next((option[2:] for option in options if option.startswith("q=")), "1")
    try:
        return media_type, min(max(float(quality), 0.0), 1.0)
    except ValueError:
        return media_type, 0.0


def _quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """What the most specific range that fits says."""
    for wanted in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        fitting = [quality for name, quality in ranges if name == wanted]
        if fitting:
            return fitting[0]
    return 0.0
