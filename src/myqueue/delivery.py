"""Whether consumers got exactly what they should: every message once, each producer's tags in order.

Pure: it is given what was in the producers' logs and what came out.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from myqueue.log_file import LogLine, by_tag

_SHOWN_MAX: Final = 5  # messages that are named; of the others, how many


class Delivery(NamedTuple):
    """How one topic came to one consumer."""

    consumer: int
    topic: str
    expected: int
    received: int
    missing: Counter[str]  # sent and not received
    surplus: Counter[str]  # received and not sent, or once too often
    disordered: tuple[int, ...]  # producers of whom a later tag came before an earlier one

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be complained of."""
        return not (self.missing or self.surplus or self.disordered)

    def complaints(self) -> list[str]:
        """What is wrong, a sentence each."""
        where = f"consumer {self.consumer}, {self.topic}"
        found = [
            f"{where}: {counter.total()} {verb}: {_named(counter)}"
            for counter, verb in ((self.missing, "missing"), (self.surplus, "too many"))
            if counter
        ]
        return found + [f"{where}: tags of producer {number} out of order" for number in self.disordered]


def check(
    consumer: int, topic: str, logs: Mapping[int, Sequence[LogLine]], received: Sequence[str]
) -> Delivery:
    """Compare what a consumer got of a topic with the logs of the topic's producers, by their numbers."""
    sent = {number: [line for line in log if line.topic == topic] for number, log in logs.items()}
    expected = Counter(line.message for lines in sent.values() for line in lines)
    came = Counter(received)
    missing = expected - came
    return Delivery(
        consumer,
        topic,
        expected.total(),
        len(received),
        missing,
        came - expected,
        tuple(number for number in sent if not _is_in_order(number, sent, received, missing)),
    )


def _is_in_order(
    number: int, sent: Mapping[int, Sequence[LogLine]], received: Sequence[str], missing: Collection[str]
) -> bool:
    """Whether a producer's tags came one after the other. A message that others sent too says nothing of
    order, since nobody can tell whose it is; nor one that should have come more often."""
    others = {line.message for other, lines in sent.items() if other != number for line in lines}
    places: dict[str, deque[int]] = {}  # of each message: its tags' places, the earliest first
    for place, group in enumerate(by_tag(sent[number])):
        for line in group:
            if line.message not in others and line.message not in missing:
                places.setdefault(line.message, deque()).append(place)
    reached = 0
    for message in received:
        if places.get(message):
            # The same message may stand at several tags: the first that comes is the earliest.
            place = places[message].popleft()
            if place < reached:
                return False
            reached = place
    return True


def _named(messages: Counter[str]) -> str:
    shown = [repr(message) for message in list(messages)[:_SHOWN_MAX]]
    return ", ".join(shown) + (" and more" if len(messages) > _SHOWN_MAX else "")
