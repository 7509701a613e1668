"""A generation's tables while it is loaded in bulk: without their primary keys, which come back at the end.

At the end the newest version of each row stays and the key is made, in one transaction.
"""

from collections.abc import Iterable
from itertools import count
from typing import Final

from cdc.model.append_only import is_append_only
from cdc.model.table import quote_identifier
from sinks.warehouse.held_table import HeldTable
from sinks.warehouse.names import listed, qualified
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import UNIQUE_VIOLATION, state_of
from sinks.warehouse.postgres.tables import emptied_index_sql, newest_rows_sql

# For the sorting at the end of a bulk load, which is done once and by nobody else.
_MEMORY: Final = "256MB"


def has_rows(connection: WarehouseConnection, target: str) -> bool:
    return bool(connection.run(f"select exists (select from {target})").scalar())


def drop_key(connection: WarehouseConnection, target: str) -> None:
    name = connection.execute(
        "select conname from pg_constraint where conrelid = to_regclass(:relation) and contype = 'p'",
        relation=target,
    ).scalar()
    if name is not None:
        connection.run(f"alter table {target} drop constraint {quote_identifier(name)}")


def add_keys(connection: WarehouseConnection, schema: str, tables: Iterable[HeldTable]) -> None:
    """Give all tables their primary keys back, of each row the newest version first."""
    connection.run(f"set local work_mem = '{_MEMORY}'; set local maintenance_work_mem = '{_MEMORY}'")
    ordered = sorted(tables, key=lambda table: table.shape.table.name)
    taken = {relation for table in ordered for relation in table.relations}
    spare = next(name for name in (f"lockstep_bulk_{number}" for number in count()) if name not in taken)
    for table in ordered:
        _add_key(connection, table, qualified(schema, table.name), qualified(schema, spare))


def _add_key(connection: WarehouseConnection, held: HeldTable, target: str, spare: str) -> None:
    """``spare`` is a free name for a table."""
    add_key = f"alter table {target} add primary key ({listed(held.shape.table.key)})"
    # Mostly the topic had been compacted and there is nothing to clear up: then building the index finds that out best.
    savepoint = connection.connected.begin_nested()
    try:
        connection.run(add_key)
    except connection.driver_errors() as error:
        savepoint.rollback()
        if state_of(error) != UNIQUE_VIOLATION:
            raise
        stored, newest = newest_rows_sql(target, held)
        # Rewritten rather than deleted from: that would leave a table of holes.
        connection.run(f"create table {spare} (like {target} including defaults)")
        connection.run(f"insert into {spare} ({stored}) {newest}")
        connection.run(f"drop table {target}")
        connection.run(f"alter table {spare} rename to {quote_identifier(held.name)}")
        connection.run(add_key)
        if is_append_only(held.shape.table):
            connection.run(emptied_index_sql(target))
    else:
        savepoint.commit()
