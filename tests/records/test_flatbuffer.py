"""Looking into flatbuffers: a table by hand, and tables that lead outside their bytes."""

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talweg.errors import CorruptBatch
from talweg.records.flatbuffer import Table


def hand_made() -> bytearray:
    """A table with a number (field 0), no field 1, a table (field 2) and a vector of pairs (field 3)."""
    parts = (
        struct.pack("<I", 16),  # at 0: where the root table is
        struct.pack("<HHHHHH", 12, 20, 4, 0, 12, 16),  # at 4: its vtable
        struct.pack("<iqII", 16 - 4, 77, 44 - 28, 56 - 32),  # at 16: the way back to it, and the fields
        struct.pack("<HHH2x", 6, 8, 4),  # at 36: the inner table's vtable
        struct.pack("<ii4x", 44 - 36, 5),  # at 44: the inner table
        struct.pack("<Iqqqq", 2, 1, 2, 3, 4),  # at 56: the vector
    )
    return bytearray(b"".join(parts))


def look(data: bytes | bytearray) -> tuple[int, int, int | None, list[tuple[int, ...]]]:
    table = Table.root(memoryview(data))
    inner = table.table(2)
    return (
        table.number(0, "<q"),
        table.number(1, "<q"),
        None if inner is None else inner.number(0, "<i"),
        list(table.structs(3, "<qq")),
    )


def test_a_table_by_hand_is_read() -> None:
    assert look(hand_made()) == (77, 0, 5, [(1, 2), (3, 4)])


def test_absent_fields_are_nothing() -> None:
    table = Table.root(memoryview(hand_made()))
    assert table.number(9, "<q") == 0
    assert table.table(1) is None
    assert list(table.structs(1, "<qq")) == []
    assert table.table(9) is None


def test_a_long_vector_takes_no_memory_to_look_through() -> None:
    count = 100_000
    data = bytes(hand_made()[:56]) + struct.pack("<I", count) + bytes(16 * count)
    tracemalloc.start()
    try:
        found = sum(1 for _ in Table.root(memoryview(data)).structs(3, "<qq"))
        assert tracemalloc.get_traced_memory()[1] < len(data) // 10
    finally:
        tracemalloc.stop()
    assert found == count


def test_every_prefix_is_refused() -> None:
    made = hand_made()
    for size in range(len(made)):
        with pytest.raises(CorruptBatch, match="outside itself"):
            look(made[:size])


@given(
    st.integers(0, 14), st.integers(0, 2**32 - 1) | st.integers(2**32 - 99, 2**32 - 1) | st.integers(0, 99)
)
def test_whatever_is_written_over_it_is_refused_or_read(place: int, number: int) -> None:
    made = hand_made()
    struct.pack_into("<I", made, 4 * place, number)
    with suppress(CorruptBatch):
        look(made)


def test_a_vtable_in_front_of_the_bytes_is_refused() -> None:
    made = hand_made()
    for distance in (17, 100, 2**31 - 1, -(2**31), -200):
        struct.pack_into("<i", made, 16, distance)
        with pytest.raises(CorruptBatch, match="outside itself"):
            look(made)
