"""Deletes rows and versions that nobody needs any more from a DuckDB file."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from cdc.model.event import JsonValue
from sinks.warehouse.dialect import Kept
from sinks.warehouse.duckdb.connection import DuckDbConnection, registered
from sinks.warehouse.duckdb.tables import HistoryStatements, Statements
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.stored_table import GenerationSchema, StoredTable

TRIMMED_AT_ONCE: Final = 500_000
"""A history of at most this many versions is trimmed as a whole."""

TRIM_PORTIONS: Final = 64
"""A longer one is trimmed in this many parts. Each reads all keys, and other columns only of its own."""


class DuckDbUpkeep:
    def __init__(self, connection: DuckDbConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def purge(self, held: StoredTable, *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        gone = list(self._connection.run(self._rows(held).purge(older_than_s, below, rows_max)))
        return len(gone), max((str(row[0]) for row in gone), default="")

    def trim_history(
        self, held: StoredTable, *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        """Each call of this many blocks trims one part, which has all versions of its keys."""
        rows = int(self._connection.run(f"select count(*) from {self._schema.history(held)}").scalar_one())
        portions = 1 if rows <= TRIMMED_AT_ONCE else TRIM_PORTIONS
        portion = first_block // blocks
        trim = self._versions(held).trim(complete_from_ms, below, portion=portion, portions=portions)
        return portion + 1 < portions, self._greatest(trim)

    def kept(self, held: StoredTable, key: Mapping[str, JsonValue]) -> Kept:
        with registered(self._connection, pa.table(rows_of(held.shape).key_arrays([key]))):
            found: Any = self._connection.run(self._rows(held).deleted_of_key).scalar()
            versions: Any = 0
            if held.has_history:
                versions = self._connection.run(self._versions(held).versions_of_key).scalar()
        return Kept(found is not None, bool(found), int(versions))

    def erase(self, held: StoredTable, key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        with registered(self._connection, pa.table(rows_of(held.shape).key_arrays([key]))):
            erased = self._greatest(self._rows(held).erase(below))
            return erased, self._greatest(self._versions(held).erase(below)) if held.has_history else ""

    def _greatest(self, deletion: str) -> str:
        return max((str(row[0]) for row in self._connection.run(deletion)), default="")

    def _rows(self, held: StoredTable) -> Statements:
        return Statements(self._schema.table(held), held)

    def _versions(self, held: StoredTable) -> HistoryStatements:
        return HistoryStatements(self._schema.history(held), held.shape)
