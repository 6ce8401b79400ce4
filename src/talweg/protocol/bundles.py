"""Between a manager and a broker, in MessagePack: many single messages at once.

The outcome of each is its own, and stands in the place of what was asked.
"""

from typing import Final, Literal

import msgspec

from talweg.errors import BadRequest, NotLeader, TalwegError, error_named

MSGPACK: Final = "application/msgpack"


class Append(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A frame, not yet stamped, for a group."""

    group: int
    frame: bytes


class Take(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next message of a partition, for a consumer that is thought to be at `position`."""

    group: int
    consumer: str
    position: int | None  # the offset it is to be given; None: wherever it is
    token: int  # of this attempt and its repetitions: the same take is answered alike again


class AskEnds(msgspec.Struct, frozen=True, array_like=True):
    """Where partitions begin and end. Waits until one of them ends beyond what is named, or for so long."""

    groups: list["AskEnd"]
    wait_ms: int = 0


class AskEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of them, with a consumer's position if one is named."""

    group: int
    consumer: str | None = None
    beyond: int = -1  # -1: do not wait


class StartAt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a new consumer begins: a position is written, so that it is settled once and for all."""

    group: int
    consumer: str
    start: Literal["earliest", "latest"] | int  # an int is a timestamp in microseconds


class Failed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """It was not done, or, with a code that says so, perhaps it was."""

    code: str
    message: str
    leader: int | None = None  # with `not_leader`: who leads, if it is known


class Written(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """It is on disk on a majority."""

    offset: int


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A message, and the consumer's position behind it is replicated."""

    offset: int
    timestamp: int  # microseconds since 1970
    value: bytes | None
    key: bytes | None
    producer_id: int  # -1: none


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """The consumer is not where it was thought to be. Nothing was taken."""

    position: int


class Empty(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The consumer has read everything. Nothing was taken."""

    position: int


class Ends(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Where a partition begins and ends now, as its leader knows it."""

    start_offset: int  # the first message kept
    next_offset: int  # the first one not committed
    position: int  # of the consumer: the first one it has not read; `start_offset` without a consumer


class Started(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The consumer is here."""

    position: int


Outcome = Failed | Written | Taken | Moved | Empty | Ends | Started

encode = msgspec.msgpack.Encoder().encode
decode_appends = msgspec.msgpack.Decoder(list[Append]).decode
decode_takes = msgspec.msgpack.Decoder(list[Take]).decode
decode_ask_ends = msgspec.msgpack.Decoder(AskEnds).decode
decode_starts = msgspec.msgpack.Decoder(list[StartAt]).decode
decode_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode


def consumer_name(number: int) -> str:
    """What the position of a registered consumer is filed under. Other names never begin like this."""
    return f"#{number}"


def position_name(consumer: str | None, consumer_id: int | None) -> str:
    """What a position is filed under: of a registered consumer, or of any other name. Raises BadRequest."""
    if (consumer is None) == (consumer_id is None):
        raise BadRequest("either consumer or consumer_id says whose position it is")
    if consumer is None:
        assert consumer_id is not None
        return consumer_name(consumer_id)
    if consumer.startswith("#"):
        raise BadRequest("consumer: names do not begin with #; a registered consumer has a consumer_id")
    return consumer


def failed(error: TalwegError) -> Failed:
    """An error as the outcome of a part of a bundle."""
    leader = error.leader if isinstance(error, NotLeader) else None
    return Failed(error.code, str(error), leader)


def error_of_failed(outcome: Failed) -> TalwegError:
    """The error that it was."""
    kind = error_named(outcome.code)
    if issubclass(kind, NotLeader):
        return kind(outcome.message, outcome.leader)
    return kind(outcome.message)
