"""The data source itself: what Spark asks when a DataFrame is declared."""

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from talweg.spark.columns import check_schema, whole_schema
from talweg.spark.options import Given, read_options, write_options
from talweg.spark.reader import PushingReader, TalwegReader
from talweg.spark.stream_reader import TalwegStreamReader
from talweg.spark.writer import TalwegStreamWriter, TalwegWriter


class TalwegSource(DataSource):
    """`format("talweg")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = Given(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "talweg"

    def schema(self) -> StructType:
        """All columns. A query that names its own with `.schema(...)` gets those, and no others are read."""
        return whole_schema(headers=self._given.flag("includeHeaders", False))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query."""
        check_schema(schema)
        options = read_options(self._given, streaming=False)
        return (PushingReader if options.filter_pushdown else TalwegReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Of a streaming query."""
        check_schema(schema)
        return TalwegStreamReader(read_options(self._given, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch query."""
        return TalwegWriter(write_options(self._given, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Of a streaming query. In complete mode each batch is all rows so far, and is added as such."""
        return TalwegStreamWriter(write_options(self._given, streaming=True), schema)
