"""Messages on standard output: what `talweg topic consume` and `talweg tail` do."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from talweg.cli.offsets import Range
from talweg.cli.output import check_reader
from talweg.cli.printing import Format, print_messages
from talweg.cli.reading import LOOK_SECONDS, Reading, Span, reader, spans_of
from talweg.client.admin import Admin
from talweg.client.consumer import Consumer
from talweg.client.message import Message
from talweg.errors import BadRequest

LAST_MAX: Final = 100_000  # of the last messages of several partitions, which are put in order in memory
_PRINTED_MAX: Final = 1_000  # messages of a group at once


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be printed, and how."""

    topic: str
    wanted: Range
    partitions: Sequence[int] | None = None  # None: all
    follow: bool = False
    limit: int | None = None
    form: Format = "text"
    verbose: bool = False
    servers: str | None = None
    timeout: float


def print_range(wish: Wish, admin: Admin) -> None:
    """Print a range of a topic; of the last messages of several partitions, in the order of their time."""
    printed = 0
    for messages in _lists(wish, admin):
        left = None if wish.limit is None else wish.limit - printed
        print_messages(islice(messages, left), wish.form, verbose=wish.verbose)
        printed += len(messages)
        if wish.limit is not None and printed >= wish.limit:
            return


def _lists(wish: Wish, admin: Admin) -> Iterator[list[Message]]:
    spans = spans_of(admin, wish.topic, wish.wanted, wish.partitions, follow=wish.follow)
    last = wish.wanted.last_count
    if last is None or len(spans) == 1:
        yield from _read(wish, admin, spans)
        return
    if last > LAST_MAX:
        raise BadRequest(
            f"-{last}: at most the last {LAST_MAX} of several partitions; name one: --partition 0"
        )
    ends = admin.offsets(wish.topic, "latest") if wish.follow else {}
    until_now = {
        number: Span(span.first_offset, ends[number]) if wish.follow else span
        for number, span in spans.items()
    }
    found = [message for messages in _read(wish, admin, until_now) for message in messages]
    found.sort(key=lambda message: (message.timestamp, message.partition, message.offset))
    if last and found:
        yield found[-last:]
    if wish.follow:
        yield from _read(
            wish, admin, {number: Span(end, None) for number, end in ends.items() if number in spans}
        )


def _read(wish: Wish, admin: Admin, spans: dict[int, Span]) -> Iterator[list[Message]]:
    open_consumer = reader(wish.topic, wish.servers, wish.timeout)
    for batch in Reading(admin, wish.topic, spans).batches(open_consumer, idle=check_reader):
        yield batch.messages()


def print_group(wish: Wish, group: str) -> None:
    """Print what a group has not read yet, and commit what was printed."""
    with Consumer(
        wish.topic,
        servers=wish.servers,
        group=group,
        partitions=wish.partitions or None,
        # Who follows prints one at a time, and what is printed is finished. Of many, we say so ourselves.
        enable_auto_commit=wish.follow,
        api_timeout_ms=round(wish.timeout * 1000),
    ) as consumer:
        if wish.follow:
            for message in islice(_as_they_come(consumer), wish.limit):
                print_messages([message], wish.form, verbose=wish.verbose)
            return
        messages = islice(consumer.read_to_end(), wish.limit)
        while some := list(islice(messages, _PRINTED_MAX)):
            print_messages(some, wish.form, verbose=wish.verbose)
            consumer.commit()
        consumer.commit()  # also where there was nothing: the group is known from now on


def _as_they_come(consumer: Consumer) -> Iterator[Message]:
    """For ever, or until whoever reads us has gone."""
    while True:
        yield from consumer.messages(LOOK_SECONDS)
        check_reader()
