"""Messages from the command line, or from the lines of standard input, into a topic."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from talweg.cli.admin import open_admin
from talweg.cli.complaints import Failed, failed
from talweg.cli.output import counted, print_json, print_lines
from talweg.cli.sending import Sent, ensure_topic, open_producer
from talweg.client.delivery import Delivery
from talweg.errors import BadRequest, TalwegError

LINE_BYTES_MAX: Final = 8 << 20


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages go, and what each of them has besides its value."""

    topic: str
    key: str | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    as_json: bool


def read_headers(given: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as people write them, NAME=VALUE; raises BadRequest."""
    pairs: list[tuple[str, bytes | None]] = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadRequest(f"--header {text!r}: expected NAME=VALUE")
        pairs.append((name, as_given(value)))
    return tuple(pairs)


def as_given(text: str) -> bytes:
    """An argument's bytes, which need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def send_messages(
    wish: Sending, messages: Sequence[str] | None, servers: str | None, timeout: float, *, create: bool
) -> None:
    """Send them, wait for them, and say where they are."""
    with open_admin(servers, timeout) as admin:
        ensure_topic(admin, wish.topic, wish.partition, create=create)
    values = map(as_given, messages) if messages else _lines()
    sent = Sent(_print_place if wish.as_json else None)
    try:
        with open_producer(servers, timeout) as producer:
            for value in values:
                sent.add(
                    producer.send(
                        wish.topic,
                        value,
                        key=None if wish.key is None else as_given(wish.key),
                        partition=wish.partition,
                        headers=wish.headers or None,
                    )
                )
        sent.finish()
    except (Failed, TalwegError) as error:
        raise failed(error, f"{sent.arrived()} messages were sent") from None
    except KeyboardInterrupt:
        raise sent.interrupted() from None
    if not wish.as_json:
        print_lines([f"{counted(sent.arrived(), 'message')} sent to {wish.topic}"])


def _print_place(delivery: Delivery) -> None:
    print_json(delivery.result())


def _lines() -> Iterator[bytes]:
    """Of standard input, without their ends."""
    number = 0
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX + 3):
        number += 1
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(content) > LINE_BYTES_MAX:
            raise Failed(f"standard input: line {number}: longer than {LINE_BYTES_MAX} bytes")
        yield content
