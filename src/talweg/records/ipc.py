"""Arrow IPC streams: what other programs send and read instead of frames.

A stream from outside is not trusted. Its schema is checked first; then each message is looked into for
what it would become in memory, because Arrow allocates what a compressed buffer says of itself before
it finds out (a terabyte, if that is what is written there); then it is read, and validated in full,
because Arrow reads offsets that lie without complaint.

Only IPC *streams* are read, not IPC files, and none with dictionaries: each of many small batches may
refer to one large dictionary, or lengthen it a little, and all of it is validated or copied every time.
"""

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from talweg.errors import BatchTooLarge, CorruptBatch
from talweg.records.batch import Batch
from talweg.records.columns import SCHEMA, check_schema, data_bytes_of, is_view, picked
from talweg.records.compression import RAW_BYTES_MAX
from talweg.records.encoding import encode_arrow
from talweg.records.flatbuffer import Table
from talweg.records.header import Bytes, Codec, check_count

_RECORD_BATCHES_MAX: Final = 10_000  # in a stream: each takes 2 KB in memory, whatever it holds

# Numbers of fields in Arrow's format/Message.fbs.
_MESSAGE_HEADER: Final = 2
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3

# About, and no less:
_SCHEMA_BYTES: Final = 1 << 9  # of a stream, in front of its first record batch
_METADATA_BYTES: Final = 1 << 10  # of a record batch, beside its buffers; and of the stream's end

_UNCOMPRESSED: Final = -1  # written before a buffer that is raw although its message is compressed


def frames_to_ipc(
    frames: Iterable[Bytes],
    *,
    columns: Sequence[str] | None = None,
    from_offset: int = 0,
    raw_bytes_max: int = RAW_BYTES_MAX,
    bytes_max: int = sys.maxsize,
) -> bytes:
    """One stream of RECORDS frames: the schema, then a record batch for each, without earlier offsets.

    `raw_bytes_max` is for each frame, `bytes_max` for the stream: it ends with the last message that fits,
    perhaps in the middle of a frame, but holds one at least. Whoever reads goes on behind that.
    """
    names = picked(columns)
    written = False
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([SCHEMA.field(name) for name in names])) as writer:
        for frame in frames:
            # The schema is not there before the first batch is.
            room = bytes_max - (sink.tell() or _SCHEMA_BYTES) - _METADATA_BYTES
            if written and room <= 0:
                break
            batch = Batch.from_frame(frame, raw_bytes_max=raw_bytes_max)
            begin = min(max(from_offset - batch.header.first_offset, 0), len(batch))
            end = begin + batch.fitting(begin, room)
            if not written:
                end = min(max(end, begin + 1), len(batch))
            if begin < end:
                writer.write_batch(batch.to_arrow(names, begin=begin, end=end))
                written = True
            if end < len(batch):
                break
    made: bytes = sink.getvalue().to_pybytes()
    return made


def ipc_to_frame(
    data: Bytes,
    *,
    timestamp: int,
    codec: Codec = Codec.LZ4,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    bytes_max: int = RAW_BYTES_MAX,
) -> bytes:
    """One frame of all the messages of a stream from outside. The arguments are those of `encode_arrow`."""
    batches = ipc_to_batches(data, bytes_max=bytes_max)
    if not batches:
        raise CorruptBatch("no messages: a batch holds at least one")
    return encode_arrow(
        pa.Table.from_batches(batches),
        timestamp=timestamp,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


def ipc_to_batches(data: Bytes, *, bytes_max: int = RAW_BYTES_MAX) -> list[Any]:
    """The record batches of a stream from outside, checked in full and fit for `encode_arrow`.

    `bytes_max` limits the stream as it comes, and what it becomes once decompressed.
    """
    if len(data) > bytes_max:
        raise BatchTooLarge(f"a stream of {len(data)} bytes, at most {bytes_max} are accepted")
    buffer = pa.py_buffer(data)
    try:
        _check_messages(buffer, bytes_max)
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.ipc.open_stream(buffer, options=options) as reader:
            batches = [*reader]
        _check_batches(batches, bytes_max)
    except MemoryError:
        raise  # ours to answer for: the sizes have been found acceptable
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"not an Arrow IPC stream that can be read: {error}") from None
    return batches


def _check_batches(batches: list[Any], bytes_max: int) -> None:
    """Validate in full; but before that, refuse rows that take no bytes until they are written out, and views
    that would be looked through again and again."""
    rows = 0
    for batch in batches:
        batch.validate()
        rows += batch.num_rows
        check_count(rows)
        views = [column for column in batch.columns if is_view(column.type)]
        bytes_max -= sum(map(data_bytes_of, views))
        if bytes_max < 0:
            raise BatchTooLarge("a stream whose views stand for more bytes than are accepted")
        batch.validate(full=True)


def _check_messages(buffer: Any, bytes_max: int) -> None:
    """Walk over the messages without reading them: known columns only, and nothing over the limit."""
    source = pa.BufferReader(buffer)
    reader = pa.ipc.MessageReader.open_stream(source)
    bytes_left, batches = bytes_max, 0
    try:
        message = reader.read_next_message()
        if message.type != "schema":
            raise CorruptBatch(f"the stream begins with a message of type {message.type}, expected schema")
        check_schema(pa.ipc.read_schema(message), dictionaries=False)
        while True:
            message = reader.read_next_message()
            if message.type != "record batch":
                raise CorruptBatch(f"the stream has a message of type {message.type} after its schema")
            batches += 1
            if batches > _RECORD_BATCHES_MAX:
                raise BatchTooLarge(f"a stream of more than {_RECORD_BATCHES_MAX} record batches")
            bytes_left -= _bytes_in_memory(message)
            if bytes_left < 0:
                raise BatchTooLarge(f"a stream that decompresses to more than {bytes_max} bytes")
    except StopIteration:
        if source.tell() != buffer.size:
            raise CorruptBatch(f"{buffer.size - source.tell()} bytes follow the stream") from None


def _bytes_in_memory(message: Any) -> int:
    """What a record batch will take once its buffers are decompressed."""
    body = memoryview(message.body).cast("B")
    batch = Table.root(memoryview(message.metadata).cast("B")).table(_MESSAGE_HEADER)
    if batch is None:
        raise CorruptBatch("a record batch without its content")
    compressed = batch.table(_BATCH_COMPRESSION) is not None
    raw_bytes = 0
    for begin, stored_bytes in batch.structs(_BATCH_BUFFERS, "<qq"):
        # Not every release of Arrow minds a buffer that ends outside its message.
        if min(begin, stored_bytes) < 0 or begin + stored_bytes > len(body):
            raise CorruptBatch("a buffer lies outside its message")
        raw_bytes += _announced(body, begin, stored_bytes) if compressed and stored_bytes else stored_bytes
    return raw_bytes


def _announced(body: memoryview, begin: int, stored_bytes: int) -> int:
    """How long a compressed buffer says it will be: the number in front of it."""
    if stored_bytes < 8:
        raise CorruptBatch("a compressed buffer without its length")
    announced: int = struct.unpack_from("<q", body, begin)[0]
    if announced < _UNCOMPRESSED:
        raise CorruptBatch(f"a compressed buffer announces {announced} bytes")
    return stored_bytes if announced == _UNCOMPRESSED else announced
