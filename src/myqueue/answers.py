"""What managers answer, as values."""

import base64
from typing import Any, NamedTuple


class Message(NamedTuple):
    """A message that was consumed."""

    topic: str
    text: str | None  # None if the value is none, or is no UTF-8
    value: bytes | None
    partition: int
    offset: int
    timestamp: int  # microseconds since 1970
    producer_id: int | None  # None if nobody registered wrote it


class Produced(NamedTuple):
    """Where a message is: on disk on a majority of the partition's replicas."""

    partition: int
    offset: int


class Partition(NamedTuple):
    """A partition of a topic. What its leader would say is None while nobody leads."""

    id: int
    leader: int | None
    replicas: tuple[int, ...]  # brokers
    size: int | None  # messages that are kept


def message_of(topic: str, answer: dict[str, Any]) -> Message:
    """The message in the answer of a consume."""
    text = answer["message"]
    value = text.encode() if text is not None else None
    if "message_base64" in answer:
        value = base64.b64decode(answer["message_base64"])
    return Message(
        topic,
        text,
        value,
        answer["partition"],
        answer["offset"],
        answer["timestamp"],
        answer["producer_id"],
    )


def partition_of(answer: dict[str, Any]) -> Partition:
    """One of the partitions in the answer of a list."""
    return Partition(answer["id"], answer["leader"], tuple(answer["replicas"]), answer["size"])
