"""The columns of a DataFrame over topics, and record batches of exactly those that a query asked for."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from talweg.client.partition_log import ROWS
from talweg.errors import InvalidSetting

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

# Kafka's names, in Kafka's order.
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": _HEADERS,
}
_NULLABLE: Final = frozenset({"key", "value", "headers.value"})
_PLACE: Final = frozenset({"topic", "partition"})  # not stored with messages


def whole_schema(*, headers: bool) -> StructType:
    """Every column; `headers` only on request, as with Kafka."""
    # Unless it is told that none is null, Spark looks at every row of a column: a sixth of a read.
    return StructType(
        [
            StructField(name, kind, nullable=name in _NULLABLE)
            for name, kind in TYPES.items()
            if headers or name != "headers"
        ]
    )


def check_schema(schema: StructType) -> None:
    """Raise InvalidSetting unless it names columns of ours, with their types."""
    if not schema.fields:
        raise InvalidSetting("schema: it has no columns")
    for field in schema.fields:
        kind = TYPES.get(field.name)
        if kind is None:
            raise InvalidSetting(f"schema: column {field.name} is unknown, expected {', '.join(TYPES)}")
        if schema.fieldNames().count(field.name) > 1:
            raise InvalidSetting(f"schema: column {field.name} is there twice")
        if field.dataType.simpleString() != kind.simpleString():
            raise InvalidSetting(
                f"schema: column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}; "
                "cast it in the query"
            )
        for name in _promised(field) & _NULLABLE:
            raise InvalidSetting(f"schema: column {name} may be null; leave out NOT NULL")


def _promised(field: StructField) -> set[str]:
    """What of a column the schema says is never null."""
    promised = set() if field.nullable else {field.name}
    if isinstance(field.dataType, ArrayType):
        pair = field.dataType.elementType
        assert isinstance(pair, StructType), "as the type of headers was compared"
        promised |= {f"{field.name}.{each.name}" for each in pair if not each.nullable}
    return promised


class Shape:
    """Makes what was read into what Spark was promised, for one partition. Lives in one task."""

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        names = schema.fieldNames()
        # Without any of them the messages are still to be counted.
        self.stored: list[str] = [name for name in names if name not in _PLACE] or ["offset"]
        # Spark refuses dictionaries, so they are written out; but once for all batches.
        self._places: dict[str, Any] = {
            "topic": pa.repeat(pa.scalar(topic, pa.string()), ROWS if "topic" in names else 0),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), ROWS if "partition" in names else 0),
        }

    def batch(self, stored: Any) -> Any:
        """A record batch of the stored columns as one of all columns, in order."""
        arrays = []
        for field in self._schema:
            array = self._place(field.name, len(stored)) if field.name in _PLACE else stored[field.name]
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _place(self, name: str, rows: int) -> Any:
        if rows > len(self._places[name]):
            self._places[name] = pa.repeat(self._places[name][0], rows)
        return self._places[name].slice(0, rows)
