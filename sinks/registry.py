"""A sink's settings -> the sink: the one file that knows them all. Importing it loads no client library."""

from typing import Annotated, assert_never

from pydantic import Field

from sinks.opensearch_sink import OpenSearchSettings, OpenSearchSink
from sinks.redis_sink import RedisSettings, RedisSink
from sinks.sink import Sink
from sinks.warehouse_sink import WarehouseSettings, WarehouseSink

SinkSettings = Annotated[OpenSearchSettings | RedisSettings | WarehouseSettings, Field(discriminator="type")]
"""Settings of any sink; ``type`` says which."""


def open_sink(name: str, settings: SinkSettings, generation: int) -> Sink:
    """The sink of these settings, bound to one generation. It connects when it is first used."""
    match settings:
        case OpenSearchSettings():
            return OpenSearchSink(name, settings, generation)
        case RedisSettings():
            return RedisSink(name, settings, generation)
        case WarehouseSettings():
            return WarehouseSink(name, settings, generation)
        case _:
            assert_never(settings)
