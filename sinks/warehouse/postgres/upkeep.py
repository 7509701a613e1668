"""Deletes rows and versions that nobody needs any more from a PostgreSQL database."""

from collections.abc import Mapping
from typing import Any

from cdc.model.event import JsonValue
from cdc.model.table import quote_identifier
from sinks.warehouse.dialect import Kept
from sinks.warehouse.names import DELETED_COLUMN, SYNCED_COLUMN, TAG_COLUMN
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.history import trim_sql
from sinks.warehouse.postgres.tables import column_type, value_text
from sinks.warehouse.stored_table import GenerationSchema, StoredTable


class PostgresUpkeep:
    """Trims a history by the blocks of its file."""

    def __init__(self, connection: WarehouseConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def purge(self, held: StoredTable, *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        target, tag = self._schema.table(held), quote_identifier(TAG_COLUMN)
        deleted, synced = quote_identifier(DELETED_COLUMN), quote_identifier(SYNCED_COLUMN)
        is_old = "" if older_than_s is None else f"and {synced} < now() - make_interval(secs => {older_than_s!r}) "
        order = "" if older_than_s is None else f"order by {synced} "
        old = f"select ctid from {target} where {deleted} {is_old}and {tag} < '{below}' {order}limit {rows_max}"
        purged: Any = self._connection.run(
            f"with gone as (delete from {target} where ctid = any (array({old})) returning {tag} as tag) "
            "select count(*), coalesce(max(tag), '') from gone"
        ).one()
        return int(purged[0]), str(purged[1])

    def trim_history(
        self, held: StoredTable, *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        target = self._schema.history(held)
        trim = trim_sql(
            target,
            held.shape,
            complete_from_ms=complete_from_ms,
            below=below,
            first_block=first_block,
            end_block=first_block + blocks,
        )
        tag = str(self._connection.run(trim).scalar_one())
        has_more = self._connection.execute(
            "select pg_relation_size(to_regclass(:relation)) > :block * current_setting('block_size')::bigint",
            relation=target,
            block=first_block + blocks,
        ).scalar_one()
        return bool(has_more), tag

    def kept(self, held: StoredTable, key: Mapping[str, JsonValue]) -> Kept:
        deleted = quote_identifier(DELETED_COLUMN)
        row = self._of_key(f"select bool_and({deleted}) from {self._schema.table(held)}", held, key)
        versions = (
            self._of_key(f"select count(*) from {self._schema.history(held)}", held, key) if held.has_history else 0
        )
        return Kept(row is not None, bool(row), int(versions))

    def erase(self, held: StoredTable, key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        tag, deleted = quote_identifier(TAG_COLUMN), quote_identifier(DELETED_COLUMN)

        def erase_from(target: str, condition: str) -> str:
            gone = f"delete from {target} where {condition} and {tag} < '{below}'"
            end = f" returning {tag} as tag) select coalesce(max(tag), '') from gone"
            return str(self._of_key(gone, held, key, begin="with gone as (", end=end, word="and"))

        erased = erase_from(self._schema.table(held), deleted)
        return erased, erase_from(self._schema.history(held), "true") if held.has_history else ""

    def _of_key(
        self,
        statement: str,
        held: StoredTable,
        key: Mapping[str, JsonValue],
        *,
        begin: str = "",
        end: str = "",
        word: str = "where",
    ) -> Any:
        """The single value that a statement about the rows of one key returns. The key's values are parameters."""
        columns = held.shape.table.key_columns
        names = [quote_identifier(column.name).replace("%", "%%") for column in columns]
        matches = " and ".join(
            f"{name} = %s::{column_type(column)}" for name, column in zip(names, columns, strict=True)
        )
        query = f"{begin}{statement.replace('%', '%%')} {word} {matches}{end.replace('%', '%%')}"
        driver: Any = self._connection.connected.connection.driver_connection
        with driver.cursor() as cursor:
            return cursor.execute(query, [value_text(key[column.name]) for column in columns]).fetchone()[0]
