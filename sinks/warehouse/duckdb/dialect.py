"""One generation's tables in a DuckDB file: written from Arrow and read into it.

**One process at a time.** DuckDB locks its file while it is open, so it is open only during a transaction. Jobs'
workers, commands and readers take turns, and wait for each other for up to ``lock_timeout_s``. Rows are prepared before
the file is opened. All of these have to run on one machine, with a file system that supports locks.
"""

import re
from collections.abc import Collection

from cdc.model.errors import ConfigurationError
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Dialect, Storage
from sinks.warehouse.duckdb.connection import DuckDbConnection
from sinks.warehouse.duckdb.definitions import DuckDbDefinitions
from sinks.warehouse.duckdb.reading import DuckDbReader
from sinks.warehouse.duckdb.upkeep import DuckDbUpkeep
from sinks.warehouse.duckdb.views import DuckDbViews
from sinks.warehouse.duckdb.writing import DuckDbWriter
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_table import GenerationSchema


def duckdb_dialect(
    name: str, settings: WarehouseSettings, *, views: str, schema: GenerationSchema, generation: int
) -> Dialect:
    """Attaches the file for each transaction. Raises ConfigurationError for an impossible file name."""
    _check_schemas(settings, views)
    connection = DuckDbConnection(settings, views=views, generation=generation)
    return Dialect(
        connection,
        DuckDbViews(connection, views),
        DuckDbDefinitions(connection, schema),
        DuckDbStorages(connection, schema),
        DuckDbWriter(connection, schema),
        DuckDbUpkeep(connection, schema),
        DuckDbReader(connection, schema, WarehouseBookkeeping(connection, name, generation)),
    )


class DuckDbStorages:
    """Knows only which relations exist: a file has no lasting numbers, and nobody else writes to it."""

    def __init__(self, connection: DuckDbConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def of(self, relations: Collection[str]) -> dict[str, Storage]:
        return {
            relation: Storage() for relation in relations if self._connection.has_relation(self._schema.name, relation)
        }

    def keeps_rows(self, relation: str) -> bool:
        return True  # without numbers, every relation counts as keeping its file

    def of_bookkeeping(self) -> Storage:
        return Storage()


def _check_schemas(settings: WarehouseSettings, views: str) -> None:
    """Raise ConfigurationError if one of our schemas has the name by which DuckDB knows the file."""
    stem = settings.file.stem.lower()
    if stem in (views, "lockstep") or re.fullmatch(rf"{re.escape(views)}_g\d+", stem):
        raise ConfigurationError(
            f"the warehouse's file has the name of a schema in it, {stem!r}: DuckDB couldn't distinguish them",
            hint="give the file another name, or set schema of this sink",
        )
