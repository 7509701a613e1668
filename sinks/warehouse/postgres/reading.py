"""Reads rows from a PostgreSQL database, by COPY and in the server's text form."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from cdc.model.event import JsonValue
from cdc.model.table import Table
from cdc.protocol.copy_text import split_row
from sinks.contract import StoredRow
from sinks.warehouse.names import TAG_COLUMN
from sinks.warehouse.postgres.connection import WarehouseConnection, lines_of
from sinks.warehouse.postgres.tables import rows_by_key_sql, stored_row, value_text
from sinks.warehouse.reader_views import live_rows_sql
from sinks.warehouse.stored_table import GenerationSchema


class PostgresReader:
    """Scans use a connection of their own."""

    def __init__(self, connection: WarehouseConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]:
        stored = stored_row(table)
        names = [column.name for column in table.columns]
        selection = live_rows_sql(self._schema.qualified(relation), table, [TAG_COLUMN, *names])
        # A connection of its own: the caller may be slow, or apply a batch between two rows.
        with self._connection.translated(), self._connection.open() as connection, connection.begin():
            connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0; set local lock_timeout = 0")
            driver: Any = connection.connection.driver_connection
            # COPY prints values as they were read; a cast to text would print a boolean otherwise.
            with driver.cursor() as cursor, cursor.copy(f"copy ({selection}) to stdout") as copy:
                for line in lines_of(copy):
                    yield stored(cast("tuple[bytes | None, ...]", split_row(line)))

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        texts = list(dict.fromkeys(tuple(value_text(key[name]) for name in table.key) for key in keys))
        if not texts:
            return
        query = rows_by_key_sql(self._schema.qualified(relation), table)
        with self._connection.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute(query, [list(column) for column in zip(*texts, strict=True)])
                # The server's own texts, the same as COPY's, before the driver converts them.
                result = cursor.pgresult
                rows = [
                    tuple(result.get_value(number, field) for field in range(result.nfields))
                    for number in range(result.ntuples)
                ]
        yield from map(stored_row(table), rows)
