"""A generation's tables in a PostgreSQL database: created, altered, and loaded in bulk without primary keys.

At the end of a bulk load, one transaction keeps the newest version of each row and creates the key.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Final

from cdc.model.append_only import is_append_only
from cdc.model.event import JsonValue
from cdc.model.table import quote_identifier
from sinks.warehouse.names import listed
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import UNIQUE_VIOLATION, state_of
from sinks.warehouse.postgres.history import create_history_sql, set_aside_sql
from sinks.warehouse.postgres.indexes import keep_indexes
from sinks.warehouse.postgres.tables import add_column_sql, create_table_sql, emptied_index_sql, newest_rows_sql
from sinks.warehouse.stored_table import GenerationSchema, StoredTable

# For the sort at the end of a bulk load, which runs once and alone.
_MEMORY: Final = "256MB"


class PostgresDefinitions:
    def __init__(self, connection: WarehouseConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def create(self, tables: Collection[StoredTable]) -> None:
        self._connection.run_all([create_table_sql(self._schema.table(held), held) for held in tables])

    def create_history(self, held: StoredTable) -> None:
        self._connection.run(create_history_sql(self._schema.history(held), held.shape))

    def alter(self, relation: str, before: StoredTable, held: StoredTable, added: Mapping[str, JsonValue]) -> None:
        target = self._schema.qualified(relation)
        steps = before.shape.steps_to(held.shape)
        for old, new in steps.renamed.items():
            self._connection.run(
                f"alter table {target} rename column {quote_identifier(old)} to {quote_identifier(new)}"
            )
        for column in steps.added:
            for statement in add_column_sql(target, column, added.get(column.name)):
                self._connection.run(statement)

    def drop_columns(self, held: StoredTable, names: Sequence[str], *, has_history: bool) -> None:
        for name in names:
            self._connection.run(f"alter table {self._schema.table(held)} drop column {quote_identifier(name)}")
            if has_history:
                number = self._connection.execute(
                    "select attnum from pg_attribute where attrelid = to_regclass(:relation) and attname = :name",
                    relation=self._schema.history(held),
                    name=name,
                ).scalar_one()
                self._connection.run(set_aside_sql(self._schema.history(held), name, number))

    def drop_key(self, held: StoredTable) -> None:
        target = self._schema.table(held)
        name = self._connection.execute(
            "select conname from pg_constraint where conrelid = to_regclass(:relation) and contype = 'p'",
            relation=target,
        ).scalar()
        if name is not None:
            self._connection.run(f"alter table {target} drop constraint {quote_identifier(name)}")

    def add_keys(self, tables: Collection[StoredTable]) -> None:
        self._connection.run(f"set local work_mem = '{_MEMORY}'; set local maintenance_work_mem = '{_MEMORY}'")
        ordered = sorted(tables, key=lambda table: table.shape.table.name)
        taken = {relation for table in ordered for relation in table.relations}
        spare = next(name for name in (f"lockstep_bulk_{number}" for number in count()) if name not in taken)
        for table in ordered:
            self._add_key(table, self._schema.table(table), self._schema.qualified(spare))

    def free_columns(self, tables: Collection[StoredTable]) -> bool:
        return False  # the server adapts indexes by itself

    def keep_indexes(self, wanted: Mapping[StoredTable, Sequence[OwnIndex]]) -> None:
        keep_indexes(self._connection, self._schema.name, wanted)

    def _add_key(self, held: StoredTable, target: str, spare: str) -> None:
        """``spare`` is a free name for a table."""
        add_key = f"alter table {target} add primary key ({listed(held.shape.table.key)})"
        # Usually the topic was compacted, and no row is a duplicate: building the index is the best way to find out.
        savepoint = self._connection.connected.begin_nested()
        try:
            self._connection.run(add_key)
        except self._connection.driver_errors() as error:
            savepoint.rollback()
            if state_of(error) != UNIQUE_VIOLATION:
                raise
            stored, newest = newest_rows_sql(target, held)
            # Rewritten: deleting would leave a table full of holes.
            self._connection.run(f"create table {spare} (like {target} including defaults)")
            self._connection.run(f"insert into {spare} ({stored}) {newest}")
            self._connection.run(f"drop table {target}")
            self._connection.run(f"alter table {spare} rename to {quote_identifier(held.name)}")
            self._connection.run(add_key)
            if is_append_only(held.shape.table):
                self._connection.run(emptied_index_sql(target))
        else:
            savepoint.commit()
