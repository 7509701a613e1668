"""Reads rows from a DuckDB file into Arrow."""

from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryFile
from typing import Final

import pyarrow as pa

from cdc.model.event import JsonValue
from cdc.model.table import Table, quote_identifier
from sinks.columns.arrow_columns import Rows
from sinks.columns.shape import unprepared
from sinks.contract import StoredRow
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.duckdb.connection import DuckDbConnection, registered
from sinks.warehouse.duckdb.tables import rows_by_key_sql
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.reader_views import live_condition
from sinks.warehouse.stored_table import GenerationSchema

_SCAN_ROWS: Final = 8192


class DuckDbReader:
    def __init__(
        self, connection: DuckDbConnection, schema: GenerationSchema, bookkeeping: WarehouseBookkeeping
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._bookkeeping = bookkeeping

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]:
        """Copies the rows to a temporary file first: the caller may be slow, or apply a batch between two rows."""
        with TemporaryFile() as copied:
            with self._connection.transaction():
                rows = self._rows(table)
                columns = ", ".join(map(quote_identifier, rows.columns_for(table)))
                target = self._schema.qualified(relation)
                live = f"select {columns} from {target} where {live_condition(target, table)}"
                reader = self._connection.driver.sql(live).to_arrow_reader(_SCAN_ROWS)
                with pa.ipc.new_stream(copied, reader.schema) as writer:
                    for batch in reader:
                        writer.write_batch(batch)
            copied.seek(0)
            with pa.ipc.open_stream(copied) as stream:
                for batch in stream:
                    yield from rows.decode(batch, table)

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        if not keys:
            return
        with self._connection.transaction():
            rows = self._rows(table)
            query = rows_by_key_sql(self._schema.qualified(relation), rows.shape, rows.columns_for(table))
            with registered(self._connection, pa.table(rows.key_arrays(keys))):
                stored = self._connection.driver.sql(query).to_arrow_table()
        for batch in stored.to_batches():
            yield from rows.decode(batch, table)

    def _rows(self, table: Table) -> Rows:
        held = self._bookkeeping.tables().get(table.name) if self._bookkeeping.exist() else None
        if held is None:
            raise unprepared(table.name)
        return rows_of(held.shape)
