"""What a call is: its method and path, what it takes, what it answers and how it may fail.

A server is a list of calls. Routing, validation and the OpenAPI page are all made from the same
declarations, so the page cannot say one thing and the server do another.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from talweg.errors import TalwegError

METHODS: Final = ("GET", "POST", "PUT", "DELETE")

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""An integer from 0 up that fits into 64 bits: offsets, counts and numbers that were handed out."""

_PLACE: Final = re.compile(r"\{(\w+)\}")


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call takes. The base of a call's parameters and of its JSON body.

    Among a call's parameters, those that the path names come from there, those that are annotated with
    a `Header` from that header, and all others from the query, where a list is a name given many times.
    """


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="success"):
    """What a call answers when it succeeds. The base of all answers; it says `"status": "success"`."""


class Header(msgspec.Struct, frozen=True):
    """Annotates the field of `Parameters` that comes from a header: `Annotated[int, Header("X-Y")]`."""

    name: str


class RawBody(msgspec.Struct, frozen=True):
    """A body that the handler is given as bytes, in one of these media types."""

    media_types: tuple[str, ...]
    bytes_max: int
    description: str = ""


class RawAnswer(msgspec.Struct, frozen=True):
    """An answer that is not JSON. With several media types, `Accept` chooses; the first is preferred."""

    media_types: tuple[str, ...]
    description: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # name and description of each that it carries


class RawResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler returns for a `RawAnswer`. Pieces are sent one by one, without joining them."""

    body: bytes | Sequence[bytes | memoryview]  # a memoryview counts in bytes
    media_type: str
    headers: tuple[tuple[str, str], ...] = ()


Receive = Callable[[], Awaitable[dict[str, Any]]]  # what ASGI gives an application to read with

P = TypeVar("P", bound=Parameters | None)
B = TypeVar("B", bound=Parameters | bytes | None)


class Request(Generic[P, B]):
    """What a handler is given: `Request[Its parameters, its body]`, either of them None if undeclared."""

    __slots__ = ("_receive", "body", "body_type", "headers", "media_type", "parameters", "peer")

    def __init__(
        self,
        parameters: P,
        body: B,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        peer: tuple[str, int] | None = None,
        body_type: str = "",
        media_type: str = "",
        receive: Receive | None = None,
    ) -> None:
        self.parameters = parameters
        self.body = body
        self.headers = headers  # as they came, names in lower case
        self.peer = peer  # address and port of whoever asks
        self.body_type = body_type  # of a RawBody: which of its media types came
        self.media_type = media_type  # of a RawAnswer: which of its media types to answer in
        self._receive = receive  # None: whoever asks stays

    def header(self, name: str) -> str | None:
        """The first header of that name, which may be in any case."""
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    async def wait_until_gone(self) -> None:
        """Returns when whoever asks has hung up, and will not see an answer."""
        if self._receive is None:
            await asyncio.get_running_loop().create_future()
            return
        while (await self._receive())["type"] != "http.disconnect":
            pass  # what is left of a body that the call does not take


Handler = Callable[[Any], Awaitable[Answer | RawResponse | None]]


class Call(msgspec.Struct, frozen=True):
    """A call that a server answers."""

    method: str  # one of METHODS
    path: str  # `/topics/{topic}`: each {name} is a field of `parameters`
    handler: Handler  # is given a Request, returns what `answer` says
    summary: str
    parameters: type[Parameters] | None = None
    body: type[Parameters] | RawBody | None = None
    answer: type[Answer] | RawAnswer | None = None  # None: only that it succeeded
    errors: tuple[type[TalwegError], ...] = ()  # beside those that every such call has, and no subclass
    bytes_max: int | None = None  # of a JSON body; None: the application's own limit
    # A GET that changes something must say so: HEAD, which anybody may send, is then refused.
    safe: bool = True
    tag: str = ""  # the heading under which the page shows it
    listed: bool = True  # in the schema

    def __post_init__(self) -> None:
        assert self.method in METHODS, self.method
        assert self.path.startswith("/"), self.path
        fields = msgspec.structs.fields(self.parameters) if self.parameters is not None else ()
        missing = set(self.places) - {field.name for field in fields}
        assert not missing, f"{self.path}: {missing} are no fields of the parameters"
        for given in (self.parameters, self.body):
            if isinstance(given, type):
                assert issubclass(given, Parameters), given
        assert not isinstance(self.answer, type) or issubclass(self.answer, Answer), self.answer

    @property
    def places(self) -> tuple[str, ...]:
        """The names in the path, in their order."""
        return tuple(_PLACE.findall(self.path))

    @property
    def segments(self) -> tuple[str | None, ...]:
        """The path between its slashes; None where a parameter stands."""
        parts = self.path.split("/")[1:]
        assert all(_PLACE.fullmatch(part) or "{" not in part for part in parts), self.path
        return tuple(None if _PLACE.fullmatch(part) else part for part in parts)


def header_names(parameters: type[Parameters]) -> dict[str, str]:
    """Those fields of a call's parameters that come from a header, with the header's name."""
    hints = get_type_hints(parameters, include_extras=True).items()
    annotated = ((field, get_args(hint)[1:]) for field, hint in hints if get_origin(hint) is Annotated)
    return {field: extra.name for field, extras in annotated for extra in extras if isinstance(extra, Header)}
