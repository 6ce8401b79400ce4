"""Batches into one local segment store, against a bare loop of write and fdatasync of the same bytes."""

import os
import time
from collections.abc import Iterator

import msgspec

from bench.results import Bound, Row, Scene, Yielded
from talweg.raft import Entry
from talweg.records import Codec, Kind, encode_values, stamp
from talweg.storage import SegmentStores, Write
from talweg.storage.files import RealFiles

ABOUT = """\
A batch is 10,000 messages of 100 random bytes, encoded and stamped beforehand; each is written and made
durable before the next. The bare loop writes the same bytes to a file of its own with os.write and
os.fdatasync. The two take turns batch by batch, so that the disk's moods fall on both."""

_MESSAGE_BYTES = 100


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured."""

    batches: int
    messages: int  # in a batch


FULL = Sizes(batches=400, messages=10_000)
QUICK = Sizes(batches=60, messages=10_000)


def run(scene: Scene, sizes: Sizes) -> Iterator[Yielded]:
    """Both speeds, and how they compare."""
    values = [os.urandom(_MESSAGE_BYTES) for _ in range(sizes.messages)]
    frame = encode_values(values, timestamp=time.time_ns() // 1000, codec=Codec.NONE)
    stores = SegmentStores(RealFiles(scene.directory / "store"))
    store = stores.open("bench", 1)
    descriptor = os.open(scene.directory / "bare", os.O_WRONLY | os.O_CREAT, 0o644)
    store_seconds = bare_seconds = 0.0
    try:
        for number in range(sizes.batches + 1):
            scene.tell(f"{len(frame) / 1e6:.1f} MB batches: {number} of {sizes.batches}")
            stamped = stamp(frame, index=number + 1, term=1, first_offset=number * sizes.messages)
            began = time.perf_counter()
            store.write(Write(entries=[Entry(number + 1, 1, Kind.RECORDS, stamped)]))
            store.sync()
            between = time.perf_counter()
            os.write(descriptor, stamped)
            os.fdatasync(descriptor)
            ended = time.perf_counter()
            if number:  # the first one opened the files
                store_seconds += between - began
                bare_seconds += ended - between
    finally:
        os.close(descriptor)
        stores.close()
    megabytes = sizes.batches * len(frame) / 1e6
    messages = sizes.batches * sizes.messages
    note = f"{messages / store_seconds / 1e6:.1f} M messages/s"
    yield Row("Segment store: write and sync of each batch", megabytes / store_seconds, "MB/s", note=note)
    yield Row("Bare os.write and os.fdatasync of the same bytes", megabytes / bare_seconds, "MB/s")
    yield Row(
        "Segment store against the bare loop", bare_seconds / store_seconds, "times", Bound(at_least=0.6)
    )
