"""Creates and drops the indexes that a sink's settings declare, in a generation's schema."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.model.errors import LockstepError
from sinks.warehouse.names import qualified
from sinks.warehouse.own_indexes import NAME_PREFIX, OwnIndex
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import LOCK_NOT_AVAILABLE, state_of, translated
from sinks.warehouse.stored_table import StoredTable

_MEMORY: Final = "256MB"
_DROP_LOCK_MS: Final = 500
"""Dropping an index waits for readers of the table, and new readers wait behind it."""


def keep_indexes(
    connection: WarehouseConnection, schema: str, wanted: Mapping[StoredTable, Sequence[OwnIndex]]
) -> None:
    """Create these indexes if they are missing, and drop our other ones.

    Creating one locks its table against writers, not readers. An index that can't be dropped, because its table is
    being read, stays until the next time. Raises LockstepError for an index that the server refuses.
    """
    there = _names(connection, schema)
    of = {
        index.name(held.name): (held, index)
        for held, indexes in wanted.items()
        for index in indexes
        if not index.unknown_columns([column.name for column in held.shape.columns])
    }
    declared = {index.name(held.name) for held, indexes in wanted.items() for index in indexes}
    missing, gone = sorted(of.keys() - there), sorted(there - declared)
    if not missing and not gone:
        return
    # Of two that prepare at once, one would fail because the other's names exist.
    connection.execute("select pg_advisory_xact_lock(hashtextextended(:schema, 0))", schema=f"lockstep {schema}")
    for name in gone:
        _drop(connection, qualified(schema, name))
    connection.run(f"set local maintenance_work_mem = '{_MEMORY}'")
    for name in missing:
        held, index = of[name]
        _make(connection, held, index, qualified(schema, held.name))


def _names(connection: WarehouseConnection, schema: str) -> set[str]:
    rows: Any = connection.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = :schema and c.relkind = 'i' and starts_with(c.relname::text, :prefix)",
        schema=schema,
        prefix=NAME_PREFIX,
    )
    return {str(row[0]) for row in rows}


def _drop(connection: WarehouseConnection, name: str) -> None:
    savepoint = connection.connected.begin_nested()
    try:
        connection.run(f"set local lock_timeout = {_DROP_LOCK_MS}; drop index if exists {name}")
    except connection.driver_errors() as error:
        savepoint.rollback()
        if state_of(error) != LOCK_NOT_AVAILABLE:
            raise
    else:
        savepoint.commit()
    connection.run(f"set local lock_timeout = {connection.lock_timeout_ms}")


def _make(connection: WarehouseConnection, held: StoredTable, index: OwnIndex, target: str) -> None:
    try:
        connection.run(index.sql(held.name, target))
    except connection.driver_errors() as error:
        ours = translated(error)
        if type(ours) is not LockstepError:  # a lost connection or a lock: not the index's fault
            raise
        raise LockstepError(
            f"the index on {index.on!r} that indexes declares for {held.shape.table.name} can't be made: "
            f"{ours.message}",
            hint="mend it in indexes of this sink, or leave it out, then start again",
        ) from error
