"""Limits and splits: no message is left out, none is read twice, and no limit is passed."""

from hypothesis import given
from hypothesis import strategies as st

from talweg.client.partition_log import Stretch
from talweg.spark.shares import share, split

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
