"""The batch API: many messages a request, of one partition that this broker leads."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from talweg.broker.stages import check_no_items
from talweg.broker.waiting import within
from talweg.errors import (
    BadRequest,
    BatchTooLarge,
    CorruptBatch,
    DamagedLog,
    Forbidden,
    GroupNotFound,
    Incomplete,
    NoQuorum,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    Overloaded,
    StorageError,
    StorageFull,
    TooManyPositions,
    TopicReplaced,
    Unavailable,
    Undecided,
)
from talweg.http import (
    Call,
    RawAnswer,
    RawBody,
    RawResponse,
    Request,
)
from talweg.protocol.batches import (
    ARROW,
    FRAMES,
    GROUP_HEADER,
    MEDIA_TYPES,
    AskPosition,
    Commit,
    Fetch,
    Offsets,
    OffsetsAnswer,
    PartitionPath,
    PositionAnswer,
    Produce,
    Produced,
)
from talweg.protocol.bundles import position_name
from talweg.protocol.transactions import TRANSACTIONS
from talweg.records import (
    MESSAGES_MAX,
    RAW_BYTES_MAX,
    STAGE_ID_MIN,
    Batch,
    Bytes,
    Kind,
    frames,
    frames_to_ipc,
    frames_to_ndjson,
    ipc_to_frame,
    ndjson_to_frame,
    read_header,
)

if TYPE_CHECKING:
    from talweg.broker.broker import Broker

INLINE_BYTES_MAX: Final = 128 << 10  # what is smaller is not worth a thread
INLINE_RAW_BYTES_MAX: Final = 4 << 20  # nor is this, decompressed
REQUEST_RAW_BYTES_MAX: Final = (
    1 << 30
)  # of all frames of a request: to check them they are decompressed, in turn

LEADER_ERRORS: Final = (GroupNotFound, NotLeader, NoQuorum, Unavailable, StorageError, DamagedLog)
WRITE_ERRORS: Final = (*LEADER_ERRORS, Overloaded, StorageFull, Undecided)


class RecordCalls:
    """Answers them for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings = broker.settings

    def calls(self) -> list[Call]:
        """What is answered here."""
        partition = "/v1/topics/{topic}/partitions/{partition}"
        return [
            Call(
                "POST",
                f"{partition}/records",
                self._produce,
                "Append messages",
                parameters=Produce,
                body=RawBody(
                    MEDIA_TYPES,
                    self._settings.body_bytes_max,
                    "An Arrow IPC stream with a `value` column (and `key`, `timestamp`, `headers`), frames, "
                    "or a JSON object a line.",
                ),
                answer=Produced,
                errors=(*WRITE_ERRORS, CorruptBatch, Incomplete, BatchTooLarge, OutOfSequence, Forbidden),
                tag="Batches",
            ),
            Call(
                "GET",
                f"{partition}/records",
                self._fetch,
                "Read messages from an offset on",
                parameters=Fetch,
                answer=RawAnswer(
                    MEDIA_TYPES,
                    "Messages from the offset on. Frames are whole: the first may begin before it. Arrow and "
                    "JSON end where the limit of an answer is reached: the next fetch goes on behind that.",
                    (
                        ("Talweg-Start-Offset", "The first offset that is kept"),
                        ("Talweg-High-Watermark", "The first offset that is not committed"),
                        (GROUP_HEADER, "The incarnation that was read: another one is another partition"),
                    ),
                ),
                errors=(*LEADER_ERRORS, OffsetOutOfRange, CorruptBatch),
                tag="Batches",
            ),
            Call(
                "GET",
                "/v1/topics/{topic}/offsets",
                self._offsets,
                "Where partitions begin and end",
                parameters=Offsets,
                answer=OffsetsAnswer,
                errors=LEADER_ERRORS,
                tag="Batches",
            ),
            Call(
                "POST",
                f"{partition}/positions",
                self._commit,
                "Commit a position, or have retention wait for one",
                parameters=PartitionPath,
                body=Commit,
                errors=(*WRITE_ERRORS, OffsetOutOfRange, TooManyPositions, TopicReplaced),
                tag="Batches",
            ),
            Call(
                "GET",
                f"{partition}/positions",
                self._position,
                "A committed position",
                parameters=AskPosition,
                answer=PositionAnswer,
                errors=(*LEADER_ERRORS, TopicReplaced),
                tag="Batches",
            ),
            Call(
                "DELETE",
                f"{partition}/positions",
                self._delete_position,
                "Forget a position, and with it what retention keeps for it",
                parameters=AskPosition,
                errors=(*WRITE_ERRORS, TopicReplaced),
                tag="Batches",
            ),
        ]

    async def _produce(self, request: Request[Produce, bytes]) -> Produced:
        place, body = request.parameters, request.body
        if place.topic == TRANSACTIONS:
            raise Forbidden(f"topic {TRANSACTIONS} belongs to Talweg itself: nobody produces to it")
        partition = self._broker.hosting.partition(place.topic, place.partition)
        if is_small(request.body_type, body):
            made = _checked_frames(request.body_type, body, place)
        else:
            made = await asyncio.to_thread(_checked_frames, request.body_type, body, place)
        appended = await within(self._settings.request_seconds_max, partition.append(made))
        return Produced(offset=appended[0].first_offset, count=sum(each.count for each in appended))

    async def _fetch(self, request: Request[Fetch, None]) -> RawResponse:
        asked, settings = request.parameters, self._settings
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        wait_seconds = min(asked.wait_ms / 1000, settings.wait_seconds_max)
        bytes_max = min(asked.max_bytes, settings.fetch_bytes_max)
        fetched = await partition.read(asked.offset, bytes_max, wait_seconds)
        body: bytes | list[bytes] = fetched.frames
        if request.media_type != FRAMES:
            encode = frames_to_ipc if request.media_type == ARROW else frames_to_ndjson
            # What is asked for is counted as it is stored: a few bytes there may be a thousand times as many.
            body = await asyncio.to_thread(
                encode, fetched.frames, from_offset=asked.offset, bytes_max=settings.fetch_bytes_max
            )
        return RawResponse(
            body=body,
            media_type=request.media_type,
            headers=(
                ("Talweg-Start-Offset", str(fetched.start_offset)),
                ("Talweg-High-Watermark", str(fetched.high_watermark)),
                (GROUP_HEADER, str(partition.group.incarnation)),
            ),
        )

    async def _offsets(self, request: Request[Offsets, None]) -> OffsetsAnswer:
        topic, at = request.parameters.topic, request.parameters.at
        partitions = self._broker.hosting.of_topic(topic)
        if not partitions:
            raise GroupNotFound(f"this broker carries no partition of topic {topic}")
        offsets: dict[int, int] = {}
        elsewhere: list[int] = []
        for partition in partitions:
            try:
                if isinstance(at, int):
                    offsets[partition.number] = await partition.offset_at(at)
                else:
                    ends = await partition.ends()
                    offsets[partition.number] = ends.start_offset if at == "earliest" else ends.next_offset
            except NotLeader:
                elsewhere.append(partition.number)
        led = (partition for partition in partitions if partition.number in offsets)
        incarnations = {partition.number: partition.group.incarnation for partition in led}
        return OffsetsAnswer(offsets=offsets, elsewhere=elsewhere, incarnations=incarnations)

    async def _commit(self, request: Request[PartitionPath, Commit]) -> None:
        place, commit = request.parameters, request.body
        partition = self._broker.hosting.partition(place.topic, place.partition)
        partition.check_incarnation(commit.incarnation)
        name = position_name(commit.consumer, commit.consumer_id)
        if commit.offset is not None:
            work = partition.commit_position(
                name, commit.offset, seek=commit.seek, keep_bytes=commit.keep_bytes
            )
        elif commit.keep_bytes is None or commit.seek:
            raise BadRequest("offset: is missing; only keep_bytes may come without it")
        else:
            work = partition.hold(name, commit.keep_bytes)
        await within(self._settings.request_seconds_max, work)

    async def _position(self, request: Request[AskPosition, None]) -> PositionAnswer:
        asked = request.parameters
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        partition.check_incarnation(asked.incarnation)
        await partition.ends()  # a leader of the past would name a position of the past
        name = position_name(asked.consumer, asked.consumer_id)
        return PositionAnswer(position=partition.position(name), keep_bytes=partition.hold_bytes(name))

    async def _delete_position(self, request: Request[AskPosition, None]) -> None:
        asked = request.parameters
        partition = self._broker.hosting.partition(asked.topic, asked.partition)
        partition.check_incarnation(asked.incarnation)
        work = partition.delete_position(position_name(asked.consumer, asked.consumer_id))
        await within(self._settings.request_seconds_max, work)


def _checked_frames(media_type: str, body: bytes, produce: Produce) -> Sequence[Bytes]:
    """The body as frames. Whatever is taken here can be read by every reader for ever."""
    if media_type != FRAMES:
        if produce.producer_id is not None and produce.producer_id >= STAGE_ID_MIN:
            raise BadRequest(f"Talweg-Producer-Id: those from {STAGE_ID_MIN} on belong to stages")
        encode = ipc_to_frame if media_type == ARROW else ndjson_to_frame
        return [
            encode(
                body,
                timestamp=time.time_ns() // 1000,
                producer_id=-1 if produce.producer_id is None else produce.producer_id,
                producer_epoch=-1 if produce.producer_epoch is None else produce.producer_epoch,
                sequence=-1 if produce.sequence is None else produce.sequence,
            )
        ]
    made = records_in(body)
    check_no_items(made)
    return made


def is_small(media_type: str, body: bytes) -> bool:
    """Whether a body is taken apart before a thread would have begun with it. Raises CorruptBatch."""
    if len(body) > INLINE_BYTES_MAX:
        return False
    if media_type == FRAMES:
        return _raw_bytes_in(body) <= INLINE_RAW_BYTES_MAX
    return media_type != ARROW  # whose buffers may be compressed, and do not say so in front


def _raw_bytes_in(body: bytes) -> int:
    """What the frames of a body become when they are decompressed, as they say."""
    view, position, raw_bytes = memoryview(body), 0, 0
    while position < len(view):
        header = read_header(view, position)
        raw_bytes += header.raw_bytes
        position += header.frame_bytes
    return raw_bytes


def records_in(body: bytes) -> list[memoryview]:
    """The frames of records that a body consists of, checked; raises CorruptBatch for all others.

    Views of the body: they are copied once, when the leader stamps them.
    """
    raw_bytes = _raw_bytes_in(body)
    if raw_bytes > REQUEST_RAW_BYTES_MAX:
        raise BatchTooLarge(
            f"a request whose batches decompress to {raw_bytes} bytes, at most {REQUEST_RAW_BYTES_MAX} are "
            "accepted: send them in several requests"
        )
    made = []
    for header, frame in frames(body, bytes_max=RAW_BYTES_MAX):
        if header.kind is not Kind.RECORDS:
            raise CorruptBatch(f"a frame of {header.kind.name.lower()} cannot be produced, only records")
        Batch.from_frame(frame, messages_max=MESSAGES_MAX)
        made.append(frame)
    if not made:
        raise CorruptBatch("no messages: a batch holds at least one")
    return made
