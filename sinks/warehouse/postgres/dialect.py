"""One generation's tables in a PostgreSQL database: written by COPY through staging tables, read by COPY."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Table, TableName, quote_identifier
from cdc.protocol.copy_text import split_row
from sinks.contract import Rejection, StoredRow, TableVersions
from sinks.warehouse.bookkeeping_format import SCHEMA, VERSION_TABLE
from sinks.warehouse.dialect import Kept, Refuse, Storage
from sinks.warehouse.held_table import HeldTable
from sinks.warehouse.names import DELETED_COLUMN, HISTORY_SUFFIX, SYNCED_COLUMN, TAG_COLUMN, qualified
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.postgres.bulk import add_keys, drop_key, has_rows
from sinks.warehouse.postgres.connection import WarehouseConnection, lines_of
from sinks.warehouse.postgres.errors import RowChanged, too_many_refused
from sinks.warehouse.postgres.history import HistoryStatements, create_history_sql, set_aside_sql, trim_sql
from sinks.warehouse.postgres.indexes import keep_indexes
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.postgres.tables import (
    Statements,
    add_column_sql,
    column_type,
    create_table_sql,
    rows_by_key_sql,
    stored_row,
    value_text,
)
from sinks.warehouse.postgres.views import WarehouseViews
from sinks.warehouse.reader_views import live_rows_sql
from sinks.warehouse.settings import WarehouseSettings

_REFUSED_FEW: Final = 1_000
"""So many rows of a batch may be refused in any case: to try them one by one takes some seconds."""


class PostgreSql:
    """Connects at the first call, and again after a lost connection."""

    def __init__(self, settings: WarehouseSettings, *, views: str, schema: str, generation: int) -> None:
        self.connection = WarehouseConnection(settings, views=views, generation=generation, forget=self.forget)
        self.views = WarehouseViews(self.connection, views, generation)
        self._schema = schema
        self._statements: dict[TableName, Statements] = {}
        self._history_statements: dict[TableName, HistoryStatements] = {}
        self._stagings = 0
        self._refused_max = max(_REFUSED_FEW, settings.max_open_rejections)

    def create(self, tables: Collection[HeldTable]) -> None:
        self.connection.run_all([create_table_sql(self._qualified(held.name), held) for held in tables])

    def create_history(self, held: HeldTable) -> None:
        self.connection.run(create_history_sql(self._history(held), held.shape))

    def alter(self, relation: str, before: HeldTable, held: HeldTable, added: Mapping[str, JsonValue]) -> None:
        target = self._qualified(relation)
        steps = before.shape.steps_to(held.shape)
        for old, new in steps.renamed.items():
            self.connection.run(
                f"alter table {target} rename column {quote_identifier(old)} to {quote_identifier(new)}"
            )
        for column in steps.added:
            for statement in add_column_sql(target, column, added.get(column.name)):
                self.connection.run(statement)

    def drop_columns(self, held: HeldTable, names: Sequence[str], *, has_history: bool) -> None:
        for name in names:
            self.connection.run(f"alter table {self._qualified(held.name)} drop column {quote_identifier(name)}")
            if has_history:
                number = self.connection.execute(
                    "select attnum from pg_attribute where attrelid = to_regclass(:relation) and attname = :name",
                    relation=self._history(held),
                    name=name,
                ).scalar_one()
                self.connection.run(set_aside_sql(self._history(held), name, number))

    def has_rows(self, held: HeldTable) -> bool:
        return has_rows(self.connection, self._qualified(held.name))

    def storages(self, relations: Collection[str]) -> dict[str, Storage]:
        return self._storages(self._schema, relations)

    def keeps_rows(self, relation: str) -> bool:
        # The transaction that gave it the file has written its entry of the catalogue.
        target = self._qualified(relation)
        began = self.connection.execute("select xmin::text from pg_class where oid = to_regclass(:name)", name=target)
        older = f"select exists (select from {target} as held where age(held.xmin) > age('{began.scalar_one()}'::xid))"
        return bool(self.connection.run(older).scalar())

    def bookkeeping_storage(self) -> Storage:
        return self._storages(SCHEMA, [VERSION_TABLE]).get(VERSION_TABLE, Storage())

    def _storages(self, schema: str, relations: Collection[str]) -> dict[str, Storage]:
        found: Any = self.connection.execute(
            "select c.relname, c.oid::bigint, coalesce(pg_relation_filenode(c.oid), 0)::bigint"
            " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = :schema and c.relname = any (:relations) and c.relkind in ('r', 'p')",
            schema=schema,
            relations=list(relations),
        )
        return {str(name): Storage(*map(int, numbers)) for name, *numbers in found}

    def drop_key(self, held: HeldTable) -> None:
        drop_key(self.connection, self._qualified(held.name))

    def add_keys(self, tables: Collection[HeldTable]) -> None:
        add_keys(self.connection, self._schema, tables)

    def free_columns(self, tables: Collection[HeldTable]) -> bool:
        return False  # the server takes care of indexes

    def keep_indexes(self, wanted: Mapping[HeldTable, Sequence[OwnIndex]]) -> None:
        keep_indexes(self.connection, self._schema, wanted)

    def look_at(self, tables: Sequence[HeldTable]) -> None:
        """Makes staging tables, which last as long as the connection."""
        for held in tables:
            name = held.shape.table.name
            target = self._qualified(held.name)
            statements = Statements(target, held, self._staging(target))
            self._statements[name] = statements
            if held.has_history:
                target = self._history(held)
                of_history = HistoryStatements(target, held.shape, self._staging(target))
                self._history_statements[name] = of_history

    def forget(self) -> None:
        """Staging tables are gone with their connection."""
        self._statements.clear()
        self._history_statements.clear()

    def is_ready_for(self, name: TableName) -> bool:
        return name in self._statements

    def keeps(self, name: TableName) -> bool:
        return name in self._history_statements

    def make_ready(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions]) -> None:
        """Lines are made while the server reads them."""

    def merge(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, purged: str = ""
    ) -> int:
        statements = self._statements[events.table]
        merge = statements.merge(purged, overwrite_equal_tags=overwrite_equal_tags)
        compared_merge = statements.compared_merge(purged, overwrite_equal_tags=overwrite_equal_tags)
        has_triggers = self._has_triggers(statements.target)

        def write(portion: TableEvents) -> int:
            size = self.connection.copy(statements.copy, statements.blocks(portion))
            if has_triggers:
                counts: Any = self.connection.run(compared_merge).one()
                written, changed = counts
                if changed or self.connection.run(statements.kept_out(purged)).scalar():
                    raise RowChanged
            else:
                written = self.connection.run(merge).rowcount
            self.connection.run(statements.staging.emptying(size))
            return int(written)

        return self.connection.in_halves(write, events, self._refuse(rejections))

    def purge(self, held: HeldTable, *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        if older_than_s is not None and not held.has_synced_at:
            return 0, ""
        target, tag = self._qualified(held.name), quote_identifier(TAG_COLUMN)
        deleted, synced = quote_identifier(DELETED_COLUMN), quote_identifier(SYNCED_COLUMN)
        is_old = "" if older_than_s is None else f"and {synced} < now() - make_interval(secs => {older_than_s!r}) "
        order = "" if older_than_s is None else f"order by {synced} "
        old = f"select ctid from {target} where {deleted} {is_old}and {tag} < '{below}' {order}limit {rows_max}"
        purged: Any = self.connection.run(
            f"with gone as (delete from {target} where ctid = any (array({old})) returning {tag} as tag) "
            "select count(*), coalesce(max(tag), '') from gone"
        ).one()
        return int(purged[0]), str(purged[1])

    def kept(self, held: HeldTable, key: Mapping[str, JsonValue]) -> Kept:
        deleted = quote_identifier(DELETED_COLUMN)
        row = self._of_key(f"select bool_and({deleted}) from {self._qualified(held.name)}", held, key)
        versions = self._of_key(f"select count(*) from {self._history(held)}", held, key) if held.has_history else 0
        return Kept(row is not None, bool(row), int(versions))

    def erase(self, held: HeldTable, key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        tag, deleted = quote_identifier(TAG_COLUMN), quote_identifier(DELETED_COLUMN)

        def erase_from(target: str, condition: str) -> str:
            gone = f"delete from {target} where {condition} and {tag} < '{below}'"
            end = f" returning {tag} as tag) select coalesce(max(tag), '') from gone"
            return str(self._of_key(gone, held, key, begin="with gone as (", end=end, word="and"))

        erased = erase_from(self._qualified(held.name), deleted)
        return erased, erase_from(self._history(held), "true") if held.has_history else ""

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        statements = self._statements[events.table]

        def write(portion: TableEvents) -> int:
            self.connection.copy(statements.append, statements.blocks(portion))
            return len(portion)

        indexable = self._indexable(statements, events, rejections)
        return self.connection.in_halves(write, indexable, self._refuse(rejections))

    def trim_history(
        self, held: HeldTable, *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        target = self._history(held)
        trim = trim_sql(
            target,
            held.shape,
            complete_from_ms=complete_from_ms,
            below=below,
            first_block=first_block,
            end_block=first_block + blocks,
        )
        tag = str(self.connection.run(trim).scalar_one())
        has_more = self.connection.execute(
            "select pg_relation_size(to_regclass(:relation)) > :block * current_setting('block_size')::bigint",
            relation=target,
            block=first_block + blocks,
        ).scalar_one()
        return bool(has_more), tag

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        statements = self._history_statements[versions.events.table]
        keep = statements.keep(purged, overwrite_equal_tags=overwrite_equal_tags)
        has_triggers = self._has_triggers(statements.target)

        def write(portion: TableVersions) -> int:
            size = self.connection.copy(statements.copy, statements.version_blocks(portion))
            self.connection.run(keep)
            if has_triggers and self.connection.run(statements.kept_out(purged)).scalar():
                raise RowChanged
            self.connection.run(statements.staging.emptying(size))
            return len(portion)

        if len(versions):
            self.connection.in_halves(write, versions, lambda refused, reason: refuse(refused.events, reason))

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]:
        stored = stored_row(table)
        names = [column.name for column in table.columns]
        selection = live_rows_sql(self._qualified(relation), table, [TAG_COLUMN, *names])
        # A connection of its own: the caller may apply a batch between two rows, and may take its time.
        with self.connection.translated(), self.connection.open() as connection, connection.begin():
            connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0; set local lock_timeout = 0")
            driver: Any = connection.connection.driver_connection
            # COPY prints values as they were read; a cast to text would print a boolean in another way.
            with driver.cursor() as cursor, cursor.copy(f"copy ({selection}) to stdout") as copy:
                for line in lines_of(copy):
                    yield stored(cast("tuple[bytes | None, ...]", split_row(line)))

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        texts = list(dict.fromkeys(tuple(value_text(key[name]) for name in table.key) for key in keys))
        if not texts:
            return
        query = rows_by_key_sql(self._qualified(relation), table)
        with self.connection.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute(query, [list(column) for column in zip(*texts, strict=True)])
                # The texts as the server sent them: the same as COPY's, and nothing that the driver made of them.
                result = cursor.pgresult
                rows = [
                    tuple(result.get_value(number, field) for field in range(result.nfields))
                    for number in range(result.ntuples)
                ]
        yield from map(stored_row(table), rows)

    def _of_key(
        self,
        statement: str,
        held: HeldTable,
        key: Mapping[str, JsonValue],
        *,
        begin: str = "",
        end: str = "",
        word: str = "where",
    ) -> Any:
        """The only value that a statement about the rows of one key answers. The key's values are parameters."""
        columns = held.shape.table.key_columns
        names = [quote_identifier(column.name).replace("%", "%%") for column in columns]
        matches = " and ".join(
            f"{name} = %s::{column_type(column)}" for name, column in zip(names, columns, strict=True)
        )
        query = f"{begin}{statement.replace('%', '%%')} {word} {matches}{end.replace('%', '%%')}"
        driver: Any = self.connection.connected.connection.driver_connection
        with driver.cursor() as cursor:
            return cursor.execute(query, [value_text(key[column.name]) for column in columns]).fetchone()[0]

    def _indexable(self, statements: Statements, events: TableEvents, rejections: list[Rejection]) -> TableEvents:
        """The events without those whose key is too long for an index, which nothing else would find out before the
        end."""
        long = statements.with_long_keys(events)
        if not long:
            return events

        def write(portion: TableEvents) -> int:
            self.connection.run(statements.create_probe)
            self.connection.copy(statements.copy_probe, statements.blocks(portion))
            self.connection.run(statements.drop_probe)
            return len(portion)

        refused: list[Rejection] = []
        self.connection.in_halves(write, events.select(long), self._refuse(refused))
        rejections += refused
        refused_keys = [rejection.event.key for rejection in refused]
        gone = {index for index in long if events[index].key in refused_keys}
        return events.select([index for index in range(len(events)) if index not in gone])

    def _has_triggers(self, target: str) -> bool:
        """True also after the last one was dropped, until a VACUUM."""
        query = "select relhastriggers from pg_class where oid = to_regclass(:name)"
        return bool(self.connection.execute(query, name=target).scalar())

    def _staging(self, target: str) -> Staging:
        self._stagings += 1
        staging = Staging(f"lockstep_staging_{self._stagings}", target)
        self.connection.run(staging.create)
        return staging

    def _qualified(self, relation: str) -> str:
        return qualified(self._schema, relation)

    def _history(self, held: HeldTable) -> str:
        return self._qualified(held.name + HISTORY_SUFFIX)

    def _refuse(self, rejections: list[Rejection]) -> Callable[[TableEvents, str], None]:
        """What keeps a refused row. It raises LockstepError for more rows than may be refused.

        It isn't the rows then, and the others would be tried one by one before anybody is told.
        """

        def refuse(refused: TableEvents, reason: str) -> None:
            if len(rejections) == self._refused_max:
                raise too_many_refused(self._refused_max, rejections[0].reason)
            rejections.append(Rejection(refused[0], reason))

        return refuse
