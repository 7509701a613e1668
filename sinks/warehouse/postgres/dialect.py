"""One generation's tables in a PostgreSQL database."""

from sinks.warehouse.dialect import Dialect
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.definitions import PostgresDefinitions
from sinks.warehouse.postgres.reading import PostgresReader
from sinks.warehouse.postgres.storages import PostgresStorages
from sinks.warehouse.postgres.upkeep import PostgresUpkeep
from sinks.warehouse.postgres.views import WarehouseViews
from sinks.warehouse.postgres.writing import PostgresWriter
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_table import GenerationSchema


def postgres_dialect(settings: WarehouseSettings, *, views: str, schema: GenerationSchema, generation: int) -> Dialect:
    """Connects at the first call, and again after a lost connection."""

    def forget() -> None:
        """Temporary tables end with their connection."""
        writer.forget()

    connection = WarehouseConnection(settings, views=views, generation=generation, forget=forget)
    writer = PostgresWriter(connection, schema, max_open_rejections=settings.max_open_rejections)
    return Dialect(
        connection,
        WarehouseViews(connection, views, generation),
        PostgresDefinitions(connection, schema),
        PostgresStorages(connection, schema),
        writer,
        PostgresUpkeep(connection, schema),
        PostgresReader(connection, schema),
    )
