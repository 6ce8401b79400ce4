"""How metadata is written down in Redis: each value's kind and field, and a change as a script takes it."""

from typing import Any, Final

import msgspec

from talweg.metadata.model import (
    Assignment,
    Broker,
    Consumer,
    Lease,
    Producer,
    RemovedTopic,
    Topic,
)

Record = Topic | Assignment | Broker | Producer | Consumer | RemovedTopic

# What `changes` tells of: the kind of record, its name there, and its type.
FOLLOWED: Final[dict[str, tuple[str, type[Record]]]] = {
    "topic": ("topics", Topic),
    "assignment": ("assignments", Assignment),
    "broker": ("brokers", Broker),
    "producer": ("producers", Producer),
    "consumer": ("consumers", Consumer),
    "removed": ("removed", RemovedTopic),
}
ABSENT: Final = -1  # in a check: there must be no such record
_KINDS: Final = {record_type: kind for kind, (_, record_type) in FOLLOWED.items()}


class Plan(msgspec.Struct):
    """A change, as the script COMMIT takes it."""

    checks: list[tuple[str, str, int]] = []  # kind, field, and its version, or ABSENT, or 0 for any
    puts: list[tuple[str, str, str, int, int]] = []
    drops: list[tuple[str, str]] = []
    clients_of: int = -1  # a topic's incarnation: its producers and consumers are dropped
    names: list[tuple[str, str]] = []

    def put(self, record: Record) -> None:
        """Write a record, new or not."""
        kind = _KINDS[type(record)]
        client_of = getattr(record, "topic_incarnation", -1)
        heard_us = getattr(record, "last_heartbeat_us", -1)
        self.puts.append((kind, field_of(record), msgspec.json.encode(record).decode(), client_of, heard_us))


class Refused(Exception):
    """A check of a plan failed: the first that did, counted from 0. Nothing was written."""

    def __init__(self, check: int) -> None:
        super().__init__(check)
        self.check = check


def field_of(record: Record) -> str:
    """Under what a record is filed among those of its kind."""
    match record:
        case Topic():
            return record.name
        case Assignment():
            return f"{record.topic}/{record.partition}"
        case RemovedTopic():
            return str(record.incarnation)
        case _:
            return str(record.id)


def version_of(record: Assignment | Broker) -> int:
    """The version to check for. 0 would ask only whether it is there; 1 is nobody's version."""
    return record.version or 1


def record_of(record_type: type[Any], value: bytes, version: bytes, heard_us: bytes) -> Any:
    """A record from its JSON; version and heartbeat are kept beside it."""
    record = msgspec.json.decode(value, type=record_type)
    beside = {"version": int(version), "last_heartbeat_us": int(heard_us)}
    known = {name: number for name, number in beside.items() if name in record_type.__struct_fields__}
    return msgspec.structs.replace(record, **known)


def texts(answer: Any) -> dict[str, str]:
    """A hash as HGETALL answers it, itself or within a script."""
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    return {field.decode(): value.decode() for field, value in pairs}


def lease_of(state: dict[str, str]) -> Lease | None:
    """The lease in the hash `state`."""
    if "holder" not in state:
        return None
    return Lease(
        holder=state["holder"],
        endpoint=state["endpoint"],
        epoch=int(state["epoch"]),
        expires_us=int(state["expires_us"]),
    )
