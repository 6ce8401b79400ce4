"""What may be written: the columns of a DataFrame, checked once; its rows, apart by topic and partition."""

from collections.abc import Iterator
from typing import Any, Final

import numpy
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from talweg.errors import InvalidSetting

_BYTES: Final = ("binary", "string")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
# Column, and the types that it may have. `offset` is what a reader gives: the leader makes new ones.
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),  # one without a zone would be a moment in the session's, which nobody tells
    "headers": (_HEADERS,),
    "offset": ("bigint",),
}
_MESSAGE: Final = ("key", "value", "timestamp", "headers")  # what a message consists of


def check_rows(schema: StructType, topic: str | None) -> None:
    """Raise InvalidSetting unless these columns can be written."""
    for field in schema.fields:
        kinds = _TYPES.get(field.name)
        if kinds is None:
            raise InvalidSetting(
                f"column {field.name} cannot be written: expected value, and key, topic, partition, "
                "timestamp or headers; put the rest into value, for instance with to_json(struct(*))"
            )
        if field.dataType.simpleString() not in kinds:
            raise InvalidSetting(
                f"column {field.name} is {field.dataType.simpleString()}, expected {' or '.join(kinds)}; "
                "cast it in the query"
            )
        if schema.fieldNames().count(field.name) > 1:
            raise InvalidSetting(f"column {field.name} is there twice")
    if "value" not in schema.fieldNames():
        raise InvalidSetting("column value is needed: it is the message")
    if topic is None and "topic" not in schema.fieldNames():
        raise InvalidSetting("option topic, or a column topic, is needed: where to write")


def apart(batch: Any, topic: str | None) -> Iterator[tuple[str, int | None, Any]]:
    """Rows by topic (the option's, or the column's) and partition (None: by key, or in turn), in order."""
    names = batch.schema.names
    columns = batch.select([name for name in _MESSAGE if name in names])
    if not batch.num_rows:
        return
    for name, rows in [(topic, None)] if topic is not None else _by(batch.column("topic")):
        if name is None:
            raise InvalidSetting("column topic is null in a row, and there is no option topic")
        some = columns if rows is None else columns.filter(rows)
        if "partition" not in names:
            yield name, None, some
            continue
        partitions = batch.column("partition")
        for partition, chosen in _by(partitions if rows is None else partitions.filter(rows)):
            yield name, partition, some if chosen is None else some.filter(chosen)


def _by(column: Any) -> list[tuple[Any, Any]]:
    """Each value of a column, and which rows have it (None: all)."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if len(values) == 1 and not encoded.null_count:
        return [(values[0], None)]
    indices = numpy.asarray(pc.fill_null(encoded.indices, -1))
    made = [(value, pa.array(indices == place)) for place, value in enumerate(values)]
    if encoded.null_count:
        made.append((None, pa.array(indices == -1)))
    return made
