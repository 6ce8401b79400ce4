"""Many messages at once that are accepted in part: nobody has to guess which."""

import asyncio
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from talweg.client.columns import cut
from talweg.client.delivery import Fate
from talweg.client.portions import Portions, halfway
from talweg.errors import NotLeader, Overloaded, Unavailable
from talweg.records import MESSAGES_MAX

PARTITIONS = 3


class Accepted(Fate):
    """A batch that was accepted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("t", 0, loop, told=True)

    @property
    def count(self) -> int:
        return 1

    def timestamp_of(self, index: int) -> int:
        return 0


def rows(begin: int, end: int) -> Any:
    """Every fifth one has no key."""
    return pa.record_batch(
        {
            "value": pa.array([b"%d" % number for number in range(begin, end)], pa.binary()),
            "key": pa.array([b"%d" % (n % 7) if n % 5 else None for n in range(begin, end)], pa.binary()),
        }
    )


def take(portions: Portions, count: int, taken: dict[int | None, list[bytes]]) -> None:
    loop = asyncio.new_event_loop()
    for _ in range(count):
        if not portions.left:
            break
        place, piece, _ = portions.next(PARTITIONS if portions.keyed else 0)
        taken[place] += piece.column("value").to_pylist()
        portions.accepted(Accepted(loop))
    loop.close()


@pytest.mark.parametrize("accepted", range(0, 40, 3))
def test_what_was_accepted_and_the_rest_are_all_of_it_in_order(accepted: int) -> None:
    keyless = rows(800, 900).drop_columns(["key"])
    taken: dict[int | None, list[bytes]] = defaultdict(list)
    portions = Portions([rows(0, 500), rows(500, 800), keyless], None, 1000)
    take(portions, accepted, taken)
    error = portions.halfway(Overloaded("the buffer is full"))
    assert error.accepted == sum(map(len, taken.values()))
    assert f"the buffer is full; {error.accepted} of 900 messages were accepted" in str(error)
    if error.rest is not None:
        take(Portions(error.rest.to_batches(), None, 1000), 1000, taken)
    for place, values in taken.items():
        numbers = [int(value) for value in values]
        assert place is None or {crc32c(b"%d" % (n % 7)) % PARTITIONS for n in numbers} == {place}
        assert numbers == sorted(numbers)
    assert sorted(int(value) for values in taken.values() for value in values) == list(range(900))


def test_no_piece_has_more_messages_than_a_batch_may_hold() -> None:
    count = 2 * MESSAGES_MAX + 10
    nothing = pa.record_batch({"value": pa.nulls(count, pa.binary())})
    pieces = [piece.num_rows for piece, _ in cut(nothing, 32 << 20)]
    assert sum(pieces) == count
    assert max(pieces) <= MESSAGES_MAX


def test_an_error_that_is_raised_for_everybody_stays_as_it_is() -> None:
    closed = Unavailable("the producer cannot be used: it is closed")
    told = halfway(closed, 2, [rows(0, 3)])
    assert (told.accepted, told.rest.num_rows) == (2, 3)
    assert (closed.accepted, closed.rest, str(closed)) == (None, None, closed.args[0])
    assert "accepted" not in str(closed)
    elsewhere = halfway(NotLeader("not here", leader=3), 1, [])
    assert (elsewhere.leader, elsewhere.accepted, elsewhere.rest) == (3, 1, None)
