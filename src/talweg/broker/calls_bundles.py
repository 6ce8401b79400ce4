"""Many single messages at once, for managers. The outcome of each stands in its place."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from talweg.broker.stages import check_no_items
from talweg.broker.waiting import within
from talweg.errors import BadRequest, CorruptBatch, TalwegError, Unavailable
from talweg.http import Call, RawAnswer, RawBody, RawResponse, Request
from talweg.protocol.bundles import (
    MSGPACK,
    Append,
    AskEnd,
    Ends,
    Outcome,
    StartAt,
    Started,
    Take,
    Written,
    decode_appends,
    decode_ask_ends,
    decode_starts,
    decode_takes,
    encode,
    failed,
)
from talweg.records import MESSAGES_MAX, RAW_BYTES_MAX, Batch, Kind, peek, read_header
from talweg.replication.proposals import Outcome as AppendOutcome

if TYPE_CHECKING:
    from talweg.broker.broker import Broker

PARTS_MAX: Final = 10_000  # of one bundle
_RAW_BYTES_MAX: Final = 64 << 20  # of a bundle's messages decompressed, beyond what they are on the wire

T = TypeVar("T")


class BundleCalls:
    """Answers them for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._seconds_max = broker.settings.request_seconds_max

    def calls(self) -> list[Call]:
        """What is answered here."""
        return [
            self._call("append", self._append, "Append single messages to their partitions"),
            self._call("take", self._take, "The next message for each of these consumers"),
            self._call("ends", self._ends, "Where partitions begin and end"),
            self._call("start", self._start, "Settle where new consumers begin"),
        ]

    def _call(
        self, name: str, handler: Callable[[Request[None, bytes]], Awaitable[RawResponse]], summary: str
    ) -> Call:
        return Call(
            "POST",
            f"/bundle/{name}",
            handler,
            summary,
            body=RawBody((MSGPACK,), self._broker.settings.body_bytes_max, "See talweg.protocol."),
            answer=RawAnswer((MSGPACK,), "A list with an outcome for each that was asked for."),
            errors=(Unavailable,),
            tag="Between servers",
        )

    async def _append(self, request: Request[None, bytes]) -> RawResponse:
        appends = _decoded(decode_appends, request.body)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(len(appends), loop.create_future())
        # Managers do not compress single messages, so theirs become no more than they are.
        room = _RAW_BYTES_MAX + len(request.body)
        for place, append in enumerate(appends):
            room -= self._append_one(append, place, waiting, room)
        try:
            await within(self._seconds_max, asyncio.shield(waiting.done))
        except TalwegError as error:
            waiting.give_up(error)
        return _answer(waiting.outcomes)

    def _append_one(self, append: Append, place: int, waiting: "_Waiting", room: int) -> int:
        """Begin; what it takes of the room for messages once they are decompressed."""

        # With callbacks, not tasks: this is where every single message of the plain API passes.
        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, TalwegError):
                waiting.settle(place, failed(outcome))
            else:
                waiting.settle(place, Written(outcome[0].first_offset))

        try:
            raw_bytes = _check(append.frame, room)
            group = self._broker.hosting.group(append.group).group
        except TalwegError as error:
            waiting.settle(place, failed(error))
            return _raw_bytes_of(append.frame, room)
        group.append_with_callback([append.frame], done)
        return raw_bytes

    async def _take(self, request: Request[None, bytes]) -> RawResponse:
        takes = _decoded(decode_takes, request.body)
        return _answer(await self._each(self._take_one(take) for take in takes))

    async def _take_one(self, take: Take) -> Outcome:
        partition = self._broker.hosting.group(take.group)
        return await partition.take(take.consumer, take.position, take.token)

    async def _ends(self, request: Request[None, bytes]) -> RawResponse:
        asked = _decoded(decode_ask_ends, request.body)
        if asked.wait_ms > 0:
            seconds = min(asked.wait_ms / 1000, self._broker.settings.wait_seconds_max)
            await self._wait_for_any(asked.groups, seconds)
        return _answer(await self._each(self._ends_of(ask) for ask in asked.groups))

    async def _ends_of(self, ask: AskEnd) -> Ends:
        return await self._broker.hosting.group(ask.group).ends(ask.consumer)

    async def _wait_for_any(self, groups: list[AskEnd], seconds: float) -> None:
        waits = []
        for ask in groups:
            if ask.beyond < 0:
                continue
            partition = self._broker.hosting.partitions.get(ask.group)
            if partition is None or not partition.group.leads:
                return  # what is no longer so is answered at once
            waits.append(asyncio.ensure_future(partition.group.wait_for_offset(ask.beyond, seconds)))
        if waits:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _start(self, request: Request[None, bytes]) -> RawResponse:
        starts = _decoded(decode_starts, request.body)
        return _answer(await self._each(self._start_one(start) for start in starts))

    async def _start_one(self, start: StartAt) -> Started:
        partition = self._broker.hosting.group(start.group)
        return Started(await partition.start(start.consumer, start.start))

    async def _each(self, coroutines: Iterable[Coroutine[None, None, Outcome]]) -> list[Outcome]:
        outcomes = await asyncio.gather(*(self._outcome(each) for each in coroutines))
        return list(outcomes)

    async def _outcome(self, awaited: Awaitable[Outcome]) -> Outcome:
        try:
            return await within(self._seconds_max, awaited)
        except TalwegError as error:
            return failed(error)


class _Waiting:
    """The outcomes of a bundle, as they come."""

    def __init__(self, count: int, done: asyncio.Future[None]) -> None:
        self.outcomes: list[Outcome | None] = [None] * count
        self.done = done  # when there is one for each
        self._left = count
        if count == 0:
            done.set_result(None)

    def settle(self, place: int, outcome: Outcome) -> None:
        """One of them."""
        if self.outcomes[place] is None:
            self.outcomes[place] = outcome
            self._left -= 1
            if self._left == 0 and not self.done.done():
                self.done.set_result(None)

    def give_up(self, error: TalwegError) -> None:
        """All that have none yet."""
        for place, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.settle(place, failed(error))


def _check(frame: bytes, raw_bytes_max: int) -> int:
    """Raises what is wrong with it; how long it is, decompressed."""
    if peek(frame)[0] != Kind.RECORDS:
        raise CorruptBatch("only records can be appended")
    check_no_items([frame])
    raw_bytes_max = min(raw_bytes_max, RAW_BYTES_MAX)
    return Batch.from_frame(frame, raw_bytes_max=raw_bytes_max, messages_max=MESSAGES_MAX).header.raw_bytes


def _raw_bytes_of(refused: bytes, raw_bytes_max: int) -> int:
    """How much of a frame was perhaps decompressed before it was refused."""
    try:
        raw_bytes = read_header(refused).raw_bytes
    except CorruptBatch:
        return 0
    return raw_bytes if raw_bytes <= raw_bytes_max else 0


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        decoded = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the bundle cannot be read: {error}") from None
    parts = decoded if isinstance(decoded, list) else getattr(decoded, "groups", [])
    if len(parts) > PARTS_MAX:
        raise BadRequest(f"a bundle of {len(parts)}, at most {PARTS_MAX} are taken")
    return decoded


def _answer(outcomes: object) -> RawResponse:
    return RawResponse(body=encode(outcomes), media_type=MSGPACK)
