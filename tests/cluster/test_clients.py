"""What the checks of the clients would catch: each must fail for a log that breaks its promise."""

import pytest

from cluster.clients import Consumer, Seen, check_log, check_log_of_consumer

GOOD = [Seen(0, 0, "a:0"), Seen(0, 1, "b:0"), Seen(1, 0, "a:1"), Seen(0, 2, "a:2")]


def consumer_that_saw(*seen: Seen, lost_answers: int = 0) -> Consumer:
    consumer = Consumer(["http://127.0.0.1:1"], "topic")
    consumer.seen = list(seen)
    consumer.lost_answers = lost_answers
    return consumer


def test_a_good_log_passes() -> None:
    check_log(GOOD)
    check_log_of_consumer(consumer_that_saw(*GOOD), GOOD)


@pytest.mark.parametrize(
    "bad",
    [
        [*GOOD, Seen(1, 1, "a:2")],  # twice
        [Seen(0, 0, "a:0"), Seen(0, 2, "a:2")],  # an offset that is missing
        [Seen(0, 0, "a:2"), Seen(0, 1, "a:0")],  # out of order
    ],
)
def test_a_bad_log_is_caught(bad: list[Seen]) -> None:
    with pytest.raises(AssertionError):
        check_log(bad)


@pytest.mark.parametrize(
    "consumer",
    [
        consumer_that_saw(*GOOD, GOOD[0]),  # given twice
        consumer_that_saw(GOOD[1], GOOD[0], *GOOD[2:]),  # a position that went back
        consumer_that_saw(*GOOD[1:]),  # one is missing, and no answer was lost
        consumer_that_saw(*GOOD[2:], lost_answers=1),  # two are missing, and only one answer was lost
        consumer_that_saw(*GOOD, Seen(1, 1, "x:9")),  # never acknowledged
    ],
)
def test_a_consumer_that_saw_something_else_is_caught(consumer: Consumer) -> None:
    with pytest.raises(AssertionError):
        check_log_of_consumer(consumer, GOOD)


def test_a_consumer_may_miss_what_answers_were_lost_of() -> None:
    check_log_of_consumer(consumer_that_saw(*GOOD[1:], lost_answers=1), GOOD)
