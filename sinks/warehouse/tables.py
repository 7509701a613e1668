"""The tables of one generation of a warehouse sink, with their views: created, altered, and exposed to readers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cdc.model.append_only import is_append_only
from cdc.model.errors import ConfigurationError, LockstepError, NeedsRebuild
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName, quote_identifier
from sinks.warehouse.bookkeeping import WarehouseBookkeeping, known_relations, why_not_ours
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.history_bookkeeping import HistoryBookkeeping
from sinks.warehouse.identities import Identities
from sinks.warehouse.names import DELETED_COLUMN, HISTORY_SUFFIX, SYNCED_COLUMN, TAG_COLUMN, fitting
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.postgres.dialect import postgres_dialect
from sinks.warehouse.purging import Purging
from sinks.warehouse.reader_views import ViewDefinition, views_of
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_progress import StoredProgress
from sinks.warehouse.stored_table import GenerationSchema, StoredTable
from sinks.warehouse.unfit import new_table, unfit_tables


class WarehouseTables:
    """The tables of one generation, in the dialect of the address. It connects when it is first used.

    Every method is called inside a transaction of ``connection``. ``fence`` is what this writer has claimed, 0 before
    that. Raises LockstepError for a schema name that is too long, and for a DuckDB file with the name of a schema.
    """

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        views = fitting(settings.prefix or name, f"schema of sink {name!r}")
        if settings.is_file:
            views = views.lower()  # DuckDB ignores case
        self._name = name
        self._settings = settings
        self._view_schema = views
        self._schema = GenerationSchema(fitting(f"{views}_g{generation}", f"schema of sink {name!r}"))
        self.generation = generation
        self.names = settings.warehouse_names
        self.dialect = _dialect(name, settings, views=views, schema=self._schema, generation=generation)
        self.connection = self.dialect.connection
        self.bookkeeping = WarehouseBookkeeping(self.connection, name, generation)
        self.histories = HistoryBookkeeping(self.connection)
        self.progress = StoredProgress(self.connection)
        self.purging = Purging(self.dialect, settings, self._schema, generation, self.bookkeeping)
        self.identities = Identities(self.dialect.storages, self.bookkeeping, self.purging, self.is_empty)
        self.views = self.dialect.views
        self.fence = 0

    def next(self, held: StoredTable | None, table: Table) -> StoredTable:
        """The table's next form. Raises LockstepError when the stored one can't become it."""
        new = new_table(table, self.names, has_synced_at=self._settings.synced_at)
        if held is None:
            return new
        if held.name != new.name:
            raise NeedsRebuild(
                f"table {table.name} has the name {held.name!r} in generation {self.generation}, and names says "
                f"{new.name!r}",
                hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
            )
        if held.has_history and not new.has_history:
            raise NeedsRebuild(
                f"generation {self.generation} has a history of table {table.name}, which history of this sink "
                "doesn't name",
                hint="rebuild it from the log, without the history: `lockstep rebuild SINK --switch`",
            )
        if held.has_synced_at != self._settings.synced_at:
            raise NeedsRebuild(
                f"table {table.name} {'has' if held.has_synced_at else 'lacks'} the column {SYNCED_COLUMN} in "
                f"generation {self.generation}, and synced_at of this sink says something else",
                hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
            )
        shape = held.shape.follow(table) if self._settings.schema_changes == "follow" else held.shape.evolve(table)
        return replace(new, shape=shape)

    def unfit(self, tables: Iterable[StoredTable]) -> dict[TableName, LockstepError]:
        """Those of these tables that can't be stored beside the ones before them, each with its error."""
        return unfit_tables(tables, self.names, is_file=self._settings.is_file)

    def check_settings(self, tables: Sequence[Table]) -> None:
        """Raise ConfigurationError with all settings that name missing tables or columns."""
        problems = self._settings.strangers({table.name for table in tables}) + self._settings.unknown_indexed(tables)
        if problems:
            raise ConfigurationError(
                "settings name what the tables of this sink don't have",
                problems=problems,
                hint="mend them, or its tables",
            )

    def check_schemas(self) -> None:
        """Raise LockstepError if a new generation's schema isn't its own: dropping the generation drops the schema."""
        why = why_not_ours(self.connection, self._name, self.generation, self._schema.name)
        if why is not None:
            raise LockstepError(
                why, hint="give the sink another schema, schema in its section, or remove what is there"
            )

    def keep_indexes(self, tables: Iterable[StoredTable]) -> None:
        """Give these tables the indexes that the settings declare, and drop those no longer declared."""
        declared = self._settings.indexes_by_table
        self.dialect.definitions.keep_indexes(
            {held: (*declared.get(held.shape.table.name, ()), *self._purging_indexes(held)) for held in tables}
        )

    def is_empty(self, relation: str) -> bool:
        rows = f"select exists (select 1 from {self._schema.qualified(relation)})"
        return not self.connection.run(rows).scalar()

    def newest_tag(self) -> str:
        """The greatest tag of all rows, including deleted ones; "" if there are none. Reads all of them."""
        tag = quote_identifier(TAG_COLUMN)
        newest = [
            self.connection.run(f"select max({tag}) from {self._schema.table(held)}").scalar()
            for held in self.bookkeeping.tables().values()
        ]
        return max((str(one) for one in newest if one is not None), default="")

    def _purging_indexes(self, held: StoredTable) -> tuple[OwnIndex, ...]:
        """Indexes that find the rows to purge."""
        # DuckDB has no partial index, and finds the rows by scanning two columns.
        if not self.purging.purges or is_append_only(held.shape.table) or self._settings.is_file:
            return ()
        index = OwnIndex(expression=quote_identifier(SYNCED_COLUMN), where=quote_identifier(DELETED_COLUMN))
        return (index,)

    def drop_indexes(self, tables: Iterable[StoredTable]) -> None:
        """Drop what ``keep_indexes`` creates."""
        self.dialect.definitions.keep_indexes(dict.fromkeys(tables, ()))

    def create_schema(self) -> None:
        self._create(self._schema.name)

    def drop_schema(self) -> None:
        """Drop this generation's schema with all of its tables."""
        self.connection.run(f"drop schema if exists {quote_identifier(self._schema.name)} cascade")

    def create(self, tables: Collection[StoredTable]) -> None:
        """Create tables that this generation doesn't have yet."""
        self.dialect.definitions.create(tables)
        for held in tables:
            if held.has_history:
                self._create_history(held)
        self.bookkeeping.save_tables(tables)

    def alter(self, held: StoredTable, before: StoredTable, added: Mapping[str, JsonValue]) -> None:
        """Add the columns that a table lacks, and a new history. Existing rows get the values of ``added``."""
        self.dialect.definitions.alter(held.name, before, held, added)
        if before.has_history:
            self.dialect.definitions.alter(held.name + HISTORY_SUFFIX, before, held, added)
        elif held.has_history:
            self._create_history(held)
        self.bookkeeping.save_tables([held])

    def _create_history(self, held: StoredTable) -> None:
        self.dialect.definitions.create_history(held)
        self.histories.begin(held.shape.table.name, held.name + HISTORY_SUFFIX)

    def expose(self, tables: Mapping[TableName, StoredTable]) -> None:
        """Point the views at this generation. The views of tables that it doesn't have are dropped."""
        self._create(self._view_schema)
        wanted: dict[str, ViewDefinition] = {}
        for held in tables.values():
            wanted |= views_of(held, self._schema.name)
        self.views.expose(wanted, {**known_relations(self.connection), **relations_of_all(tables.values())})

    def _create(self, schema: str) -> None:
        # "create schema if not exists" needs the right to create schemas even if the schema exists.
        if not self.connection.has_schema(schema):
            self.connection.run(f"create schema {quote_identifier(schema)}")


def relations_of_all(tables: Iterable[StoredTable]) -> dict[str, str]:
    return {relation: what for held in tables for relation, what in held.relations.items()}


def _dialect(
    name: str, settings: WarehouseSettings, *, views: str, schema: GenerationSchema, generation: int
) -> Dialect:
    if settings.is_file:
        from sinks.warehouse.duckdb.dialect import duckdb_dialect

        return duckdb_dialect(name, settings, views=views, schema=schema, generation=generation)
    return postgres_dialect(settings, views=views, schema=schema, generation=generation)
