"""Reads tables under a slot's exported snapshot: exactly the rows that committed before its consistent point."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import psycopg

from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import Membership, load_tables, memberships, row_filters
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.settings import SourceSettings
from cdc.protocol.copytext import split_row
from cdc.protocol.pgoutput import Fields

APPLICATION = "lockstep snapshot"


class SnapshotReader:
    """A connection inside the snapshot. Opening it must happen while the slot's connection still runs nothing else."""

    def __init__(self, source: SourceSettings, snapshot_name: str) -> None:
        self._connection: psycopg.Connection[Any] = connect(source, application=APPLICATION)
        self._filters: dict[TableName, str] = {}
        self._connection.execute(LOCK_TIMEOUT)
        self._connection.execute("begin transaction isolation level repeatable read, read only")
        self._connection.execute(f"set transaction snapshot '{snapshot_name}'")  # a name that the server made

    def tables(
        self,
        names: Sequence[TableName],
        publication: str,
        keys: Mapping[TableName, Sequence[str]] | None = None,
    ) -> dict[TableName, Table]:
        """The shapes as of the snapshot. From here on ``rows`` leaves out what the publication filters away."""
        self._filters = row_filters(self._connection, publication)
        return load_tables(self._connection, names, publication, keys)

    def memberships(self, publication: str, names: Sequence[TableName]) -> dict[TableName, Membership]:
        """What the tables were and how they were published, as of the snapshot."""
        return memberships(self._connection, publication, names)

    def lock(self, names: Sequence[TableName]) -> None:
        """Keep the tables from being altered until the copy is done; writing to them goes on.

        A snapshot doesn't keep old columns readable, and a table that was rewritten or truncated after it looks empty in it. So
        compare ``memberships`` with another connection's when this has returned.
        """
        tables = ", ".join(name.sql for name in names)
        try:
            self._connection.execute(f"lock table {tables} in access share mode".encode())
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def estimated_rows(self, table: Table) -> int:
        """The planner's estimate, for the progress bar; 0 when the table was never analysed."""
        row = self._connection.execute(
            "select greatest(reltuples, 0)::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s",
            (table.name.schema, table.name.name),
        ).fetchone()
        return row[0] if row else 0

    def rows(self, table: Table, leaves: Sequence[int] = ()) -> Iterator[Fields]:
        """Every row's values in the order of the table's columns, in no particular order of rows.

        With ``leaves``, oids of partitions, the rows of these alone.
        """
        columns = ", ".join(quote_identifier(column.name) for column in table.columns)
        condition = self._filters.get(table.name)
        where = f" where {condition}" if condition else ""
        try:
            for source in self._sources(table, leaves):
                # Through a query: COPY of a table by name takes neither a partitioned one nor a condition.
                query = f"copy (select {columns} from {source}{where}) to stdout"
                with self._connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
                    for line in copy:
                        yield split_row(bytes(line)[:-1])
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _sources(self, table: Table, leaves: Sequence[int]) -> list[str]:
        """What to select from. Tables that inherit from an ordinary one are tables of their own."""
        if leaves:
            rows = self._connection.execute("select unnest(%s::oid[])::regclass::text", (list(leaves),)).fetchall()
            return [f"only {row[0]}" for row in rows]
        partitioned = self._connection.execute(
            "select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and c.relkind = 'p'",
            (table.name.schema, table.name.name),
        ).fetchone()
        return [table.name.sql if partitioned else f"only {table.name.sql}"]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
