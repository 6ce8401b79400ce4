"""Limits and splits: no message is left out, none is read twice, no limit is passed, nobody waits long."""

from hypothesis import given
from hypothesis import strategies as st

from talweg.client.partition_log import Stretch
from talweg.spark.shares import Turns, share, split

stretches = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6).map(
    lambda pairs: [Stretch("t", number, begin, begin + count) for number, (begin, count) in enumerate(pairs)]
)


def offsets(found: list[Stretch]) -> list[tuple[int, int]]:
    return sorted((each.partition, offset) for each in found for offset in range(each.begin, each.end))


@given(stretches, st.none() | st.integers(1, 40))
def test_a_split_has_the_same_messages_in_at_least_as_many_tasks(
    found: list[Stretch], tasks: int | None
) -> None:
    made = split(found, tasks)
    assert offsets(made) == offsets(found)
    assert all(len(each) > 0 for each in made)
    assert len(made) >= min(tasks or 0, len(offsets(found)))


def test_long_stretches_are_split_before_short_ones() -> None:
    made = split([Stretch("t", 0, 0, 10), Stretch("t", 1, 0, 90)], 4)
    assert [(each.partition, len(each)) for each in made] == [(0, 10), (1, 30), (1, 30), (1, 30)]


@given(st.integers(1, 1000), st.dictionaries(st.integers(0, 9), st.integers(0, 10_000)))
def test_shares_use_the_limit_and_never_more(limit: int, available: dict[int, int]) -> None:
    shares = share(limit, available)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 <= shares[name] <= available[name] for name in available)


def test_shares_are_in_proportion() -> None:
    assert share(100, {"a": 300, "b": 100}) == {"a": 75, "b": 25}
    assert share(100_000, {"a": 300, "b": 100}, {"a": 1_000, "b": 1_000}) == {"a": 75, "b": 25}


def test_a_quiet_partition_has_a_share_beside_one_that_is_far_behind() -> None:
    assert share(100, {"far behind": 10_000_000, "quiet": 5}) == {"far behind": 99, "quiet": 1}


lengths = st.sampled_from([1, 1.5, 40, 41.7, 1_000, 2_000_000.1])


@given(st.integers(1, 3_000_000), st.lists(st.tuples(st.integers(0, 10_000), lengths), max_size=10))
def test_shares_of_bytes_use_the_limit(limit: int, drawn: list[tuple[int, float]]) -> None:
    available = {name: count for name, (count, _) in enumerate(drawn)}
    long = {name: length for name, (_, length) in enumerate(drawn)}
    shares = share(limit, available, long)
    assert all(0 <= shares[name] <= available[name] for name in available)
    used = sum(count * long[name] for name, count in shares.items())
    assert used <= limit + 1e-6 or sum(shares.values()) == 1  # one message goes in any case
    room = limit - used - 1e-6
    assert all(long[name] >= room for name in available if shares[name] < available[name])


def micro_batches(limit: int, waiting: dict[str, int], lengths: dict[str, float]) -> list[dict[str, int]]:
    """What each micro-batch reads, to the end of what is there."""
    turns, made = Turns[str](), []
    while any(waiting.values()):
        shares = share(limit, turns.in_turn(waiting), lengths)
        turns.note(shares)
        made.append({name: count for name, count in sorted(shares.items()) if count})
        assert made[-1], "else Spark takes it for the end"
        waiting = {name: count - shares[name] for name, count in waiting.items()}
    return made


def test_those_that_had_nothing_come_first_in_the_next_micro_batch() -> None:
    waiting = {"a": 2, "b": 2, "c": 1}
    assert micro_batches(1, waiting, dict.fromkeys(waiting, 1)) == [
        {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1}, {"b": 1},
    ]  # fmt: skip
    assert micro_batches(25, waiting, dict.fromkeys(waiting, 10)) == [
        {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1},
    ]  # fmt: skip


def test_long_messages_and_short_ones_take_turns() -> None:
    batches = micro_batches(10, {"long": 2, "short": 30}, {"long": 20, "short": 1})
    assert batches == [{"long": 1}, {"short": 10}, {"long": 1}, {"short": 10}, {"short": 10}]


waiting = st.lists(st.integers(1, 100_000), min_size=12, max_size=12)  # in one micro-batch after another


@given(st.integers(1, 3_000), st.lists(st.tuples(lengths, waiting), min_size=1, max_size=6))
def test_nobody_waits_for_more_micro_batches_than_there_are_partitions(
    limit: int, drawn: list[tuple[float, list[int]]]
) -> None:
    turns, served = Turns[int](), []
    for batch in range(12):
        available = {name: counts[batch] for name, (_, counts) in enumerate(drawn)}
        shares = share(
            limit, turns.in_turn(available), {name: length for name, (length, _) in enumerate(drawn)}
        )
        turns.note(shares)
        served.append({name for name, count in shares.items() if count})
    for first in range(12 - len(drawn)):
        assert set.union(*served[first : first + len(drawn)]) == set(available)
