"""Batches of messages: to and from bytes, Arrow, Arrow IPC streams and NDJSON. Pure: no I/O, no clock.

A batch travels and is stored as a *frame*: a small header that brokers read, and a body of Arrow buffers
that they do not. The byte layout of frames is at the top of `records.header`, that of bodies at the top
of `records.body`.

    encode_values, encode_arrow   messages into a frame
    stamp                         the leader gives a frame its place in the log
    identified                    a producer says who sends a frame
    read_header, check_body       what brokers and stores do with it
    frames                        takes frames that follow one another apart
    Batch                         a frame as Arrow, as values, as messages
    frames_to_ipc, ipc_to_frame   the public wire: an Arrow IPC stream
    frames_to_ndjson, ndjson_to_frame   the public wire: a JSON object a line

Bytes from outside raise CorruptBatch when they are wrong, Incomplete when their end is missing, and
BatchTooLarge before they take more memory than they were allowed.
"""

from talweg.records.batch import Batch, Message
from talweg.records.columns import HEADERS_MAX, SCHEMA
from talweg.records.compression import RAW_BYTES_MAX
from talweg.records.encoding import encode_arrow, encode_values
from talweg.records.frame import check_body, encode_frame, frames, identified, stamp
from talweg.records.header import (
    HEADER_BYTES,
    MESSAGES_MAX,
    STAGE_ID_MIN,
    Bytes,
    Codec,
    Header,
    Kind,
    read_header,
)
from talweg.records.ipc import frames_to_ipc, ipc_to_batches, ipc_to_frame
from talweg.records.ndjson import frames_to_ndjson, ndjson_to_frame
from talweg.records.run import Note, checked_run, notes_of, peek, peek_stamp

__all__ = [
    "HEADERS_MAX",
    "HEADER_BYTES",
    "MESSAGES_MAX",
    "RAW_BYTES_MAX",
    "SCHEMA",
    "STAGE_ID_MIN",
    "Batch",
    "Bytes",
    "Codec",
    "Header",
    "Kind",
    "Message",
    "Note",
    "check_body",
    "checked_run",
    "encode_arrow",
    "encode_frame",
    "encode_values",
    "frames",
    "frames_to_ipc",
    "frames_to_ndjson",
    "identified",
    "ipc_to_batches",
    "ipc_to_frame",
    "ndjson_to_frame",
    "notes_of",
    "peek",
    "peek_stamp",
    "read_header",
    "stamp",
]
