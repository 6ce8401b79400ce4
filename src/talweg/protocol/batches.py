"""What clients ask of a partition's leader: many messages at once, and positions."""

from typing import Annotated, Final, Literal

import msgspec

from talweg.http.calls import Answer, Header, Natural, Parameters

FRAMES: Final = "application/vnd.talweg.frames"
ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
MEDIA_TYPES: Final = (ARROW, FRAMES, NDJSON)

# With every fetch: which incarnation of the partition's group was read.
GROUP_HEADER: Final = "Talweg-Group"

FETCH_BYTES: Final = 1 << 20  # unless a reader says otherwise


class PartitionPath(Parameters, frozen=True, kw_only=True):
    """A partition of a topic."""

    topic: str
    partition: Natural


class Produce(PartitionPath, frozen=True, kw_only=True):
    """Who produces, for what is not in frames (a frame says so itself)."""

    producer_id: Annotated[Natural | None, Header("Talweg-Producer-Id")] = None
    producer_epoch: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=32767)] | None, Header("Talweg-Producer-Epoch")
    ] = None
    sequence: Annotated[Natural | None, Header("Talweg-Sequence")] = None


class Produced(Answer, frozen=True, kw_only=True):
    """Where the messages stand: `count` of them from `offset` on."""

    offset: Natural
    count: Natural


class Fetch(PartitionPath, frozen=True, kw_only=True):
    """What to read. At the end of the log, waits for the first message to come."""

    offset: Natural
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = FETCH_BYTES
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class Offsets(Parameters, frozen=True, kw_only=True):
    """Where: the first message kept, behind the last one, or the first one not older than a timestamp in
    microseconds since 1970."""

    topic: str
    at: Literal["earliest", "latest"] | Natural = "latest"


class OffsetsAnswer(Answer, frozen=True, kw_only=True):
    """An offset for each partition that this broker leads; the others are led elsewhere."""

    offsets: dict[int, Natural]
    elsewhere: list[Natural]
    # Of those partitions: which incarnation of the group it is that the offset belongs to.
    incarnations: dict[int, Natural] = msgspec.field(default_factory=dict)


class TopicPath(Parameters, frozen=True, kw_only=True):
    """A topic, by its name."""

    topic: str


class PartitionPositions(msgspec.Struct, frozen=True, kw_only=True):
    """How far consumers have read a partition, and how far there is to read."""

    start_offset: Natural  # the first message kept
    next_offset: Natural  # the first one not committed
    # By the name of a group of clients, or `#` and the number of a registered consumer: the first offset that
    # was not read. Retention may have overtaken it.
    positions: dict[str, Natural]
    # Of those of them that have a hold: up to which size of the log, in bytes, retention waits for them.
    holds: dict[str, Natural] = {}


class PositionsAnswer(Answer, frozen=True, kw_only=True):
    """For each partition that this broker leads; the others are led elsewhere."""

    partitions: dict[int, PartitionPositions]
    elsewhere: list[Natural]


class Commit(Parameters, frozen=True, kw_only=True):
    """A position: the first offset that was not read. Either the number of a registered consumer, or any
    other name that does not begin with `#`. With `keep_bytes`, retention keeps what was not read from there
    on, up to so many bytes of the partition's log; 0 ends that. That may come alone, without an offset: the
    position stays, and who has none begins with the first message that is kept."""

    consumer: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    consumer_id: Natural | None = None
    offset: Natural | None = None
    seek: bool = False  # without it a position does not go back
    keep_bytes: Natural | None = None  # null: as it was
    # Of the partition's group, as a fetch names it: an offset of another one means nothing here.
    incarnation: Natural | None = None


class AskPosition(PartitionPath, frozen=True, kw_only=True):
    """Whose position."""

    consumer: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    consumer_id: Natural | None = None
    incarnation: Natural | None = None  # of the partition's group: positions in another one are not meant


class PositionAnswer(Answer, frozen=True, kw_only=True):
    """The first offset that was not read; null if it never read here."""

    position: Natural | None
    keep_bytes: Natural = 0  # up to which size of the log retention waits for it
