from hypothesis import given
from hypothesis import strategies as st

from talweg.manager.turns import first_with_messages, least_written, order_of_turns


def test_the_partition_least_read_is_next_the_lowest_number_first() -> None:
    assert order_of_turns({0: 3, 1: 2, 2: 2, 3: 5}) == [1, 2, 0, 3]


def test_partitions_with_nothing_left_are_passed_over() -> None:
    positions, ends = {0: 2, 1: 2, 2: 3}, {0: 2, 1: 2, 2: 4}
    assert first_with_messages(order_of_turns(positions), positions, ends) == 2
    assert first_with_messages(order_of_turns(positions), positions, positions) is None


def test_round_robin_begins_where_least_was_written() -> None:
    assert least_written([3, 2, 2, 4]) == 1
    assert least_written([0, 0, 0]) == 0


def test_a_partition_that_does_not_answer_is_not_where_round_robin_begins() -> None:
    assert least_written([None, 7, 8]) == 1
    assert least_written([None, None]) == 0


@given(partitions=st.integers(1, 7), messages=st.integers(0, 40), before=st.integers(0, 20))
def test_what_is_written_in_turn_is_read_in_that_order(partitions: int, messages: int, before: int) -> None:
    """A producer that begins anywhere in a turn, a consumer that follows by positions alone."""
    written: list[list[int]] = [[] for _ in range(partitions)]
    turn = 0
    for number in range(before + messages):
        if number == before:  # another primary begins
            turn = least_written([len(each) for each in written])
        written[turn].append(number)
        turn = (turn + 1) % partitions
    positions = dict.fromkeys(range(partitions), 0)
    ends = {partition: len(each) for partition, each in enumerate(written)}
    read = []
    while (partition := first_with_messages(order_of_turns(positions), positions, ends)) is not None:
        read.append(written[partition][positions[partition]])
        positions[partition] += 1
    assert read == list(range(before + messages))
