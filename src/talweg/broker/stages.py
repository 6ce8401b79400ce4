"""What is staged in the partitions of this broker: what the calls mean, over one partition. Knows no HTTP."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Final

from talweg.broker.partition import Partition
from talweg.errors import BadRequest, OffsetOutOfRange, StorageError
from talweg.records import STAGE_ID_MIN, Bytes, peek
from talweg.replication.staging import Item, Publication, encode_discard, encode_item

_PUBLISH_BYTES: Final = 4 << 20  # read and proposed in one turn


def check_items(frames: Sequence[Bytes], stage: int) -> None:
    """Raise BadRequest unless these frames say that they are items of that stage."""
    for frame in frames:
        _, epoch, _, _, producer_id, number = peek(frame)
        if producer_id != stage or epoch != -1 or number < 0:
            raise BadRequest(
                f"a frame of stage {stage} has that as its producer id, epoch -1 and its number in the stage "
                f"as its sequence, not {producer_id}, {epoch} and {number}"
            )


def check_no_items(frames: Sequence[Bytes]) -> None:
    """Raise BadRequest if one of these frames would pass for what is published of a stage."""
    if any(peek(frame)[4] >= STAGE_ID_MIN for frame in frames):
        raise BadRequest(f"producer ids from {STAGE_ID_MIN} on belong to stages")


async def stage_items(partition: Partition, transaction: str, frames: Sequence[Bytes]) -> int:
    """Stage frames; returns how many batches the stage holds up to the last of them, once a majority has
    them on disk."""
    now_us = time.time_ns() // 1000
    await partition.group.append([encode_item(transaction, frame, now_us) for frame in frames])
    return max(peek(frame)[5] for frame in frames) + 1


async def publish(partition: Partition, stage: int, seconds_max: float = math.inf) -> Publication:
    """Publish all of a stage, or what is left of it; raises StageNotFound and StageExpired. When that takes
    longer, something of it is left."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds_max
    await partition.confirm()  # a leader of the past does not know what was staged, or published, since
    while items := partition.serving().state.staging.waiting_items(stage, _PUBLISH_BYTES):
        frames = await _read(partition, stage, items)
        if frames is not None:
            # Whoever else publishes it at the same time does no harm: each item is let in once.
            await partition.group.append(frames)
        if clock() >= deadline:
            break  # only now: each answer tells of something that it had not told before
    return partition.serving().state.staging.publication(stage)


async def _read(partition: Partition, stage: int, items: list[Item]) -> list[bytes] | None:
    """The frames; None if another was quicker, and retention has taken them already."""
    try:
        return await asyncio.to_thread(partition.serving().read_staged, items)
    except OffsetOutOfRange as error:
        left = partition.serving().state.staging.waiting_items(stage, 1)
        if left and left[0] == items[0]:
            raise StorageError(f"what is staged in {partition.name} cannot be read: {error}") from error
        return None


async def discard(partition: Partition, stage: int) -> None:
    """Discard a stage that can no longer be decided on. One that is not there is as good as discarded."""
    partition.serving()
    await partition.group.append([encode_discard([stage])])
