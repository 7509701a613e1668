"""Sinks of single stores that expose their parts, and the generations beside them, on the same connection."""

from sinks.contract import Generations
from sinks.delta.generations import DeltaGenerations
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import DeltaSink
from sinks.delta.tables import DeltaTables
from sinks.opensearch.generations import OpenSearchGenerations
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.generations import RedisGenerations
from sinks.redis.sink import RedisSink
from sinks.redis.tables import RedisTables
from sinks.warehouse.generations import WarehouseGenerations
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables


class OpenSearchParts(OpenSearchSink):
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        super().__init__(indexes)
        self.indexes = indexes


class RedisParts(RedisSink):
    def __init__(self, tables: RedisTables) -> None:
        super().__init__(tables)
        self.tables = tables


class WarehouseParts(WarehouseSink):
    def __init__(self, tables: WarehouseTables) -> None:
        super().__init__(tables)
        self.tables = tables


class DeltaParts(DeltaSink):
    def __init__(self, tables: DeltaTables, settings: DeltaSettings) -> None:
        super().__init__(tables, settings)
        self.tables, self.settings = tables, settings


def generations_of(sink: OpenSearchParts | RedisParts | WarehouseParts | DeltaParts) -> Generations:
    """The generations of a sink, with the fence that it has claimed."""
    match sink:
        case OpenSearchParts():
            return OpenSearchGenerations(sink.indexes)
        case RedisParts():
            return RedisGenerations(sink.tables)
        case WarehouseParts():
            return WarehouseGenerations(sink.tables)
        case DeltaParts():
            return DeltaGenerations(sink.tables, sink.settings)
