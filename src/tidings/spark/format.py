"""The format "tidings" of Spark: what `spark.read`, `spark.readStream` and their counterparts find by its name."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidings.spark.options import ReadOptions
from tidings.spark.sink import stream_writer, writer
from tidings.spark.source import BatchReader, StreamReader, schema_of


class TidingsFormat(DataSource):
    """Registers itself on installation (pyspark_tidings); ``spark.dataSource.register(TidingsFormat)`` does it, too."""

    @classmethod
    def name(cls) -> str:
        return "tidings"

    def schema(self) -> StructType:
        """The columns that every event has, then the declared attributes of the streams."""
        return schema_of(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(ReadOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(ReadOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self.options, schema, overwrite)
