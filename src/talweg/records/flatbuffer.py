"""The little of the flatbuffers format that is needed to look into an Arrow IPC message before Arrow does.

pyarrow does not say whether a message's buffers are compressed, nor how long they claim to become. A
table is a position; its fields are found through its vtable; an absent field has position None. Every
read is checked: whatever leads outside the bytes raises CorruptBatch.
"""

import struct
from collections.abc import Iterator

from talweg.errors import CorruptBatch


class Table:
    """A table in a flatbuffer. Fields go by their number in the schema, from 0."""

    __slots__ = ("_data", "_position", "_vtable", "_vtable_bytes")

    def __init__(self, data: memoryview, position: int) -> None:
        """The table at `position` of a flatbuffer."""
        self._data = data
        self._position = position
        self._vtable = position - _number(data, "<i", position)
        self._vtable_bytes = _number(data, "<H", self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> "Table":
        """The table that the whole flatbuffer is about."""
        return cls(data, _number(data, "<I", 0))

    def _field(self, field: int) -> int | None:
        place = 4 + 2 * field
        if place + 2 > self._vtable_bytes:
            return None
        distance = _number(self._data, "<H", self._vtable + place)
        return self._position + distance if distance else None

    def number(self, field: int, layout: str) -> int:
        """A number, as `struct` would describe it; 0 when it is absent."""
        position = self._field(field)
        return 0 if position is None else _number(self._data, layout, position)

    def table(self, field: int) -> "Table | None":
        """A table that this one refers to."""
        position = self._field(field)
        if position is None:
            return None
        return Table(self._data, position + _number(self._data, "<I", position))

    def structs(self, field: int, layout: str) -> Iterator[tuple[int, ...]]:
        """A vector of structs, as `struct` would describe one; empty when it is absent.

        One at a time: a tuple takes ten times the bytes that it is made of.
        """
        position = self._field(field)
        if position is None:
            return iter(())
        position += _number(self._data, "<I", position)
        end = position + 4 + _number(self._data, "<I", position) * struct.calcsize(layout)
        if end > len(self._data):
            raise CorruptBatch("a message of the stream refers to bytes outside itself")
        return struct.iter_unpack(layout, self._data[position + 4 : end])


def _number(data: memoryview, layout: str, position: int) -> int:
    # A negative position would count from the end.
    if not 0 <= position <= len(data) - struct.calcsize(layout):
        raise CorruptBatch("a message of the stream refers to bytes outside itself")
    number: int = struct.unpack_from(layout, data, position)[0]
    return number
