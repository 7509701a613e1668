"""The generations and coordination records beside a sink that a test has made: of the same writer and connection."""

from sinks.contract import Generations
from sinks.opensearch.generations import OpenSearchGenerations
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.generations import RedisGenerations
from sinks.redis.sink import RedisSink
from sinks.warehouse.generations import WarehouseGenerations
from sinks.warehouse.sink import WarehouseSink


def generations_of(sink: OpenSearchSink | RedisSink | WarehouseSink) -> Generations:
    """The generations of a sink, with the fence that it has claimed."""
    match sink:
        case OpenSearchSink():
            return OpenSearchGenerations(sink._indexes)
        case RedisSink():
            return RedisGenerations(sink._tables)
        case WarehouseSink():
            return WarehouseGenerations(sink._tables)
