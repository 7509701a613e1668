"""The tables of one generation of a warehouse sink, with their views: made, altered, and exposed to readers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cdc.model.append_only import is_append_only
from cdc.model.errors import ConfigurationError, DataLost, LockstepError, NeedsRebuild
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName, quote_identifier
from sinks.contract import Leftover, marks_of_rows
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Dialect, Storage
from sinks.warehouse.held_table import HeldTable
from sinks.warehouse.history_bookkeeping import HistoryBookkeeping
from sinks.warehouse.identity import Identity, Noted, Now, what_became
from sinks.warehouse.names import DELETED_COLUMN, HISTORY_SUFFIX, SYNCED_COLUMN, TAG_COLUMN, fitting, qualified
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.postgres.dialect import PostgreSql
from sinks.warehouse.purged import BLOCKS, PORTION, Purged
from sinks.warehouse.reader_views import ViewDefinition, views_of
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.unfit import new_table, unfit_tables


class WarehouseTables:
    """The tables of one generation, in the dialect of the address. It connects when it is first used.

    Every method is called inside a transaction of ``connection``. ``fence`` is what this writer has claimed; 0 until
    then. Raises LockstepError for a schema name that is too long, and for a DuckDB file with the name of a schema.
    """

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        views = fitting(settings.schema_name or name, f"schema of sink {name!r}")
        if settings.is_file:
            views = views.lower()  # to DuckDB, names of other letters are the same
        self._settings = settings
        self._view_schema = views
        self._schema = fitting(f"{views}_g{generation}", f"schema of sink {name!r}")
        self.generation = generation
        self.names = settings.warehouse_names
        self.dialect = _dialect(name, settings, views=views, schema=self._schema, generation=generation)
        self.connection = self.dialect.connection
        self.bookkeeping = WarehouseBookkeeping(self.connection, name, generation)
        self.histories = HistoryBookkeeping(self.connection)
        self.purged = Purged(self.connection, generation)
        self.purged_versions = Purged(self.connection, generation, "purged_versions")
        self.views = self.dialect.views
        self.fence = 0

    def next(self, held: HeldTable | None, table: Table) -> HeldTable:
        """A table as it will be. Raises LockstepError when that doesn't fit what is there."""
        new = new_table(table, self.names, has_synced_at=self._settings.synced_at)
        if held is None:
            return new
        if held.name != new.name:
            raise NeedsRebuild(
                f"table {table.name} has the name {held.name!r} in generation {self.generation}, and names says "
                f"{new.name!r}",
                hint="rebuild it from the log: lockstep rebuild, with --switch",
            )
        if held.has_history and not new.has_history:
            raise NeedsRebuild(
                f"generation {self.generation} has a history of table {table.name}, which history of this sink "
                "doesn't name",
                hint="rebuild it from the log, without the history: lockstep rebuild, with --switch",
            )
        if held.has_synced_at != self._settings.synced_at:
            raise NeedsRebuild(
                f"table {table.name} {'has' if held.has_synced_at else 'lacks'} the column {SYNCED_COLUMN} in "
                f"generation {self.generation}, and synced_at of this sink says something else",
                hint="rebuild it from the log: lockstep rebuild, with --switch",
            )
        shape = held.shape.follow(table) if self._settings.schema_changes == "follow" else held.shape.evolve(table)
        return replace(new, shape=shape)

    def unfit(self, tables: Iterable[HeldTable]) -> dict[TableName, LockstepError]:
        """Those of these tables that can't be there beside the ones before them, each with its error."""
        return unfit_tables(tables, self.names, is_file=self._settings.is_file)

    def check_settings(self, tables: Sequence[Table]) -> None:
        """Raise ConfigurationError with all settings that name tables or columns which aren't there."""
        problems = self._settings.strangers({table.name for table in tables}) + self._settings.unknown_indexed(tables)
        if problems:
            raise ConfigurationError(
                "settings name what the tables of this sink don't have",
                problems=problems,
                hint="mend them, or its tables",
            )

    def check_schemas(self) -> None:
        """Raise LockstepError where a new generation's schema isn't its own: all that is in there goes with it."""
        why = self.bookkeeping.why_not_ours(self._schema)
        if why is not None:
            raise LockstepError(
                why, hint="give the sink another schema, schema in its section, or remove what is there"
            )

    def keep_indexes(self, tables: Iterable[HeldTable]) -> None:
        """Give these tables the indexes that the settings declare, and take away those that they declare no more."""
        declared = self._settings.indexes_by_table
        self.dialect.keep_indexes(
            {held: (*declared.get(held.shape.table.name, ()), *self._purging_indexes(held)) for held in tables}
        )

    def purge(self, below: str, whole: Collection[TableName] | None = None) -> bool:
        """Delete a portion of each table's rows that were deleted long enough ago, with tags below this one.

        ``whole`` are the tables of which there is no event below that is still to come, None: all. Returns whether
        there may be more.
        """
        older_than_s = self._settings.purge_deleted_after_days * 86_400
        counts: list[int] = []
        tags: dict[TableName, str] = {}
        for name, held in sorted(self.bookkeeping.tables().items()):
            if is_append_only(held.shape.table) or not (whole is None or name in whole):
                continue
            count, tag = self.dialect.purge(held, older_than_s=older_than_s, below=below, rows_max=PORTION)
            counts.append(count)
            if tag:
                tags[name] = tag
        if tags:
            self.purged.raise_to(tags)
        return PORTION in counts

    def trim_histories(self, below: str, whole: Collection[TableName] | None, first_block: int, *, now_ms: int) -> bool:
        """Delete what histories needn't have any more, in a portion of the blocks of each. ``whole`` as for ``purge``.

        Returns whether there are more blocks in one of them.
        """
        complete_from_ms = now_ms - int(self._settings.keep_history_days * 86_400_000)
        has_more = False
        tags: dict[TableName, str] = {}
        for name, held in sorted(self.bookkeeping.tables().items()):
            if not held.has_history or not (whole is None or name in whole):
                continue
            goes_on, tag = self.dialect.trim_history(
                held, complete_from_ms=complete_from_ms, below=below, first_block=first_block, blocks=BLOCKS
            )
            has_more |= goes_on
            if tag:
                tags[name] = tag
                self.histories.raise_complete_from(name, complete_from_ms)
        if tags:
            self.purged_versions.raise_to(tags)
        return has_more

    def identities(self, names: Collection[TableName]) -> dict[TableName, str]:
        """What tells each of these tables, with its history, from others that take their places."""
        tables = self.bookkeeping.tables(names)
        storages = self._storages(tables)
        bookkeeping = self.dialect.bookkeeping_storage().relation

        def noted(relation: str) -> Noted:
            return Noted(storages[relation], has_rows=not self._is_empty(relation))

        found = {
            name: Identity(bookkeeping, {relation: noted(relation) for relation in held.relations})
            for name, held in tables.items()
            if storages.keys() >= held.relations.keys()
        }
        return {name: identity.to_json() for name, identity in found.items()}

    def lost(self, known: Mapping[TableName, str]) -> dict[TableName, str]:
        """Which tables aren't those any more that were known like this, each with what has become of it."""
        tables = self.bookkeeping.tables(known)
        now = Now(
            self.dialect.bookkeeping_storage().relation,
            self._storages(tables),
            self._purged_relations(tables),
            self._is_empty,
            self.dialect.keeps_rows,
        )
        found = {
            name: what_became(
                Identity.from_json(text) if text else None, tables[name].relations if name in tables else (), now
            )
            for name, text in known.items()
        }
        return {name: what for name, what in found.items() if what is not None}

    def still_there(self, tables: Mapping[TableName, HeldTable]) -> dict[TableName, HeldTable]:
        """Those of these tables that nobody has dropped, with their histories."""
        storages = self._storages(tables)
        return {name: held for name, held in tables.items() if storages.keys() >= held.relations.keys()}

    def check_same(self, known: Mapping[TableName, str]) -> None:
        """Raise DataLost where one of these tables is stored in something else than was known, whatever the reason is.

        For a transaction that has written to them: nobody empties or drops them until it ends.
        """
        identities = {name: Identity.from_json(text) for name, text in known.items() if text}
        storages = self.dialect.storages([relation for each in identities.values() for relation in each.relations])
        for name, identity in identities.items():
            for relation, noted in identity.relations.items():
                if storages.get(relation) != noted.storage:
                    raise DataLost(
                        f"{relation}, which has rows of {name}, was emptied, replaced or written anew as a whole by"
                        " somebody else"
                    )

    def _storages(self, tables: Mapping[TableName, HeldTable]) -> Mapping[str, Storage]:
        return self.dialect.storages([relation for held in tables.values() for relation in held.relations])

    def _purged_relations(self, tables: Mapping[TableName, HeldTable]) -> set[str]:
        """Those from which rows were purged or erased, so that they may have none any more."""
        purged = {tables[name].name for name in self.purged.load() if name in tables}
        return purged | {tables[name].name + HISTORY_SUFFIX for name in self.purged_versions.load() if name in tables}

    def _is_empty(self, relation: str) -> bool:
        rows = f"select exists (select 1 from {qualified(self._schema, relation)})"
        return not self.connection.run(rows).scalar()

    def newest_tag(self) -> str:
        """The greatest tag of all rows, also of deleted ones; "" where there are none. It reads all of them."""
        tag = quote_identifier(TAG_COLUMN)
        newest = [
            self.connection.run(f"select max({tag}) from {qualified(self._schema, held.name)}").scalar()
            for held in self.bookkeeping.tables().values()
        ]
        return max((str(one) for one in newest if one is not None), default="")

    def leftovers(self, name: TableName, key: Mapping[str, JsonValue]) -> list[Leftover]:
        """What is kept of the row of this key."""
        held = self.bookkeeping.tables([name]).get(name)
        if held is None:
            return []
        if set(held.shape.table.key) != key.keys():
            return [Leftover("rows by another key of the table", has_values=True)]
        kept = self.dialect.kept(held, key)
        found = []
        if kept.is_there:
            mark = Leftover(f"the mark of its deletion in {held.name}", has_values=False)
            found.append(mark if kept.is_deleted else Leftover(f"the row in {held.name}", has_values=True))
        if kept.versions:
            found.append(
                Leftover(f"{kept.versions} version{'s' * (kept.versions > 1)} in its history", has_values=True)
            )
        return found

    def marks(self, name: TableName, *, below: str | None = None) -> list[Leftover]:
        """What is kept of all deleted rows of a table, of tags below this one; None: of any."""
        held = self.bookkeeping.tables([name]).get(name)
        if held is None:
            return []
        deleted, tag = quote_identifier(DELETED_COLUMN), quote_identifier(TAG_COLUMN)
        until = "" if below is None else f" and {tag} < '{below}'"
        count = self.connection.run(
            f"select count(*) from {qualified(self._schema, held.name)} where {deleted}{until}"
        ).scalar_one()
        return marks_of_rows(int(count))

    def erase_marks(self, name: TableName, *, below: str) -> bool:
        """Delete a portion of a table's deleted rows, of tags below this one. Returns whether there may be more.

        No batch may be under way.
        """
        held = self.bookkeeping.tables([name]).get(name)
        if held is None:
            return False
        count, tag = self.dialect.purge(held, older_than_s=None, below=below, rows_max=PORTION)
        if tag:
            self.purged.raise_to({name: tag})
        return count == PORTION

    def erase(self, name: TableName, key: Mapping[str, JsonValue], *, below: str) -> None:
        """Delete what is deleted of this key, and its versions, of tags below this one.

        No batch may be under way.
        """
        held = self.bookkeeping.tables([name]).get(name)
        if held is None or set(held.shape.table.key) != key.keys():
            return
        tag, version_tag = self.dialect.erase(held, key, below=below)
        if tag:
            self.purged.raise_to({name: tag})
        if version_tag:
            self.purged_versions.raise_to({name: version_tag})

    @property
    def trims_histories(self) -> bool:
        return self._settings.keep_history_days > 0 and self._settings.keeps_history

    @property
    def purges(self) -> bool:
        return self._settings.purge_deleted_after_days > 0 and self._settings.synced_at

    def _purging_indexes(self, held: HeldTable) -> tuple[OwnIndex, ...]:
        """By which rows are found that are to be purged."""
        # DuckDB has no index of some rows, and finds them by looking at two columns.
        if not self.purges or is_append_only(held.shape.table) or self._settings.is_file:
            return ()
        index = OwnIndex(expression=quote_identifier(SYNCED_COLUMN), where=quote_identifier(DELETED_COLUMN))
        return (index,)

    def drop_indexes(self, tables: Iterable[HeldTable]) -> None:
        """Take away what ``keep_indexes`` makes."""
        self.dialect.keep_indexes(dict.fromkeys(tables, ()))

    def create_schema(self) -> None:
        """Create this generation's schema, unless it is there."""
        self._create(self._schema)

    def drop_schema(self) -> None:
        """Drop this generation's schema with all of its tables."""
        self.connection.run(f"drop schema if exists {quote_identifier(self._schema)} cascade")

    def create(self, tables: Collection[HeldTable]) -> None:
        """Make tables that this generation doesn't have yet."""
        self.dialect.create(tables)
        for held in tables:
            if held.has_history:
                self._create_history(held)
        self.bookkeeping.save_tables(tables)

    def alter(self, held: HeldTable, before: HeldTable, added: Mapping[str, JsonValue]) -> None:
        """Make the columns that a table lacks, and its history where that is new.

        Those of ``added`` have these values in the rows that are there.
        """
        self.dialect.alter(held.name, before, held, added)
        if before.has_history:
            self.dialect.alter(held.name + HISTORY_SUFFIX, before, held, added)
        elif held.has_history:
            self._create_history(held)
        self.bookkeeping.save_tables([held])

    def _create_history(self, held: HeldTable) -> None:
        self.dialect.create_history(held)
        self.histories.begin(held.shape.table.name, held.name + HISTORY_SUFFIX)

    def expose(self, tables: Mapping[TableName, HeldTable]) -> None:
        """Point the views at this generation; tables that it doesn't have lose theirs."""
        self._create(self._view_schema)
        wanted: dict[str, ViewDefinition] = {}
        for held in tables.values():
            wanted |= views_of(held, self._schema)
        self.views.expose(wanted, {**self.bookkeeping.relations(), **relations_of_all(tables.values())})

    def _create(self, schema: str) -> None:
        # "create schema if not exists" asks for the right to create schemas even where it exists.
        if not self.connection.has_schema(schema):
            self.connection.run(f"create schema {quote_identifier(schema)}")


def relations_of_all(tables: Iterable[HeldTable]) -> dict[str, str]:
    """The names that these have in a schema, with what has them."""
    return {relation: what for held in tables for relation, what in held.relations.items()}


def _dialect(name: str, settings: WarehouseSettings, *, views: str, schema: str, generation: int) -> Dialect:
    if settings.is_file:
        from sinks.warehouse.duckdb.dialect import DuckDb

        return DuckDb(name, settings, views=views, schema=schema, generation=generation)
    return PostgreSql(settings, views=views, schema=schema, generation=generation)
