"""Rows as rows in a SQL warehouse: one table per source table and generation, read through views of the live rows.

=================================  =====================================================================
``shop_g1.orders``                 generation 1: the source's columns, ``_tag``, ``_deleted``
``shop.orders``                    view of the live generation's rows that aren't deleted
``shop.orders_history``            where that is wanted: all versions of its rows (``sinks.warehouse.history``)
``lockstep.*``                     writers, offsets, progress, coordination records (``migrations.warehouse``)
=================================  =====================================================================

A batch is one transaction: check the fence, COPY into a staging table, merge by tag, store the offsets, commit. A
writer that was replaced finds another fence and is refused before it has written anything. Deleted rows stay with their
key and tag, since without the tag an older write would bring them back.

**Bulk.** Until ``end_bulk`` the tables of a generation have no primary key, and a batch is copied straight into them.
``lockstep.writer`` says which way a generation is written, in the row that every batch looks at for its fence. Only a
generation that is empty and not live is loaded like that, and it doesn't go live before the end.

What is different in PostgreSQL and in a DuckDB file is in ``dialect``, ``postgres`` and ``duckdb``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import Events, JsonValue, TableEvents
from cdc.model.table import Table, TableName, quote_identifier
from sinks.columns.shape import Shape, unknown_column, unprepared
from sinks.contract import (
    NOTHING_ADDED,
    AddedValues,
    Batch,
    OpenedSink,
    Outcome,
    Progress,
    Rejection,
    StoredRow,
    TableVersions,
)
from sinks.warehouse.bookkeeping import HistoryBookkeeping, WarehouseBookkeeping
from sinks.warehouse.dialect import Dialect, UnknownColumn
from sinks.warehouse.held_table import HeldTable
from sinks.warehouse.names import HISTORY_SUFFIX, fitting, qualified
from sinks.warehouse.postgres.dialect import PostgreSql
from sinks.warehouse.reader_views import ViewDefinition, views_of
from sinks.warehouse.settings import WarehouseSettings


def open_warehouse(name: str, settings: WarehouseSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used."""
    sink = WarehouseSink(name, settings, generation)
    return OpenedSink(sink, sink, sink)


class WarehouseSink:
    """Applies events to a database, whose dialect is that of the address. Connects when it is first used."""

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        self._settings = settings
        self._generation = generation
        views = fitting(settings.schema_name or name, f"schema of sink {name!r}")
        if settings.is_file:
            views = views.lower()  # to DuckDB, names of other letters are the same
        self._view_schema = views
        self._schema = fitting(f"{views}_g{generation}", f"schema of sink {name!r}")
        self._names = settings.called
        self._dialect = _dialect(name, settings, views=views, schema=self._schema, generation=generation)
        self._connection = self._dialect.connection
        self._bookkeeping = WarehouseBookkeeping(self._connection, name, generation)
        self._histories = HistoryBookkeeping(self._connection)
        self._views = self._dialect.views
        self._fence = 0

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._connection.transaction():
            self._bookkeeping.create()
            is_new = self._generation not in self._bookkeeping.generations()
            self._bookkeeping.enter()
            # One at a time: two jobs that start together would both create the same table.
            live = self._bookkeeping.hold_live()
            is_bulk = self._bookkeeping.is_bulk("for update")
            known = self._bookkeeping.tables()
            wanted = {**known, **{table.name: self._next(known.get(table.name), table) for table in tables}}
            self._names.check(wanted)
            self._dialect.check(wanted.values())
            if is_new:
                self._check_settings(wanted)
            self._create_schema(self._schema)
            changed = [held for name, held in wanted.items() if held != known.get(name)]
            if live == self._generation and changed:
                # As readers do it: the view before its table. The other way round one could wait for the other.
                self._views.hold(_relations(changed))
            for held in changed:
                name = held.shape.table.name
                before = known.get(name)
                self._build(held, before, added.get(name, {}))
                if live == self._generation and before is not None:
                    self._views.rename_columns(before.relations, before.shape.steps_to(held.shape).renamed)
                if is_bulk:
                    self._dialect.drop_key(held)
            if live is None and go_live and not is_bulk:
                live = self._generation
                self._bookkeeping.make_live()
            if live == self._generation:
                self._expose(wanted)
            # Now that no view has them any more.
            for held in changed:
                before = known.get(held.shape.table.name, held)
                dropped = before.shape.steps_to(held.shape).dropped
                self._dialect.drop_columns(held, dropped, has_history=before.has_history)
        self._connection.disconnect()  # staging tables have the shapes of before
        return NOTHING_ADDED

    def begin_bulk(self) -> None:
        """Has no effect on a generation that has rows already, or readers: its rows stay one per key throughout."""
        with self._connection.transaction():
            self._bookkeeping.require()
            live = self._bookkeeping.hold_live()
            is_bulk = self._bookkeeping.is_bulk("for update")
            if is_bulk is None:
                raise self._bookkeeping.missing()
            tables = self._bookkeeping.tables().values()
            if is_bulk or live == self._generation or any(map(self._dialect.has_rows, tables)):
                return
            for held in tables:
                self._dialect.drop_key(held)
            self._bookkeeping.set_bulk(True)

    def end_bulk(self) -> None:
        with self._connection.transaction():
            if not self._bookkeeping.exist() or not self._bookkeeping.is_bulk("for update"):
                return
            self._dialect.add_keys(self._bookkeeping.tables().values())
            self._bookkeeping.set_bulk(False)

    def claim(self) -> int:
        """Become the writer. Waits for the old writer's batch at most ``lock_timeout_s``, then raises Unavailable."""
        with self._connection.transaction():
            self._fence = self._bookkeeping.claim()
        return self._fence

    def fence(self) -> int:
        with self._connection.transaction():
            return self._bookkeeping.fence()

    def apply(self, batch: Batch) -> Outcome:
        # Always the same order of tables too, against deadlocks.
        tables = sorted(Events.of(batch.events).tables, key=lambda events: events.table)
        versions = sorted(batch.versions, key=lambda of_table: of_table.events.table)
        touched = {events.table for events in (*tables, *(of_table.events for of_table in versions))}
        self._look_at([name for name in sorted(touched) if not self._dialect.is_ready_for(name)])
        versions = [of_table for of_table in versions if self._dialect.keeps(of_table.events.table)]
        self._check_versions(tables, versions, batch)
        looked_again: set[TableName] = set()
        while True:
            try:
                return self._apply(tables, versions, batch)
            except UnknownColumn as unknown:
                if unknown.table in looked_again:
                    raise unknown_column(unknown.table, unknown.column) from None
                looked_again.add(unknown.table)
                self._look_at([unknown.table])  # the table may have got it since we looked

    def _apply(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions], batch: Batch) -> Outcome:
        """One transaction. Raises UnknownColumn, after which nothing of it has happened."""
        applied = 0
        rejections: list[Rejection] = []
        self._dialect.make_ready(tables, versions)
        with self._connection.transaction():
            is_bulk = self._bookkeeping.check_fence(batch.fence)
            for events in tables:
                write = (
                    self._dialect.append
                    if is_bulk
                    else partial(self._dialect.merge, overwrite_equal_tags=batch.overwrite_equal_tags)
                )
                applied += write(events, rejections)
            for of_table in versions:
                if batch.overwrite_equal_tags:
                    self._histories.retry(of_table.events)
                self._dialect.keep(of_table, self._histories.refuse, overwrite_equal_tags=batch.overwrite_equal_tags)
            # Last, since every task of a batch has these rows to itself from here on.
            for of_table in versions:
                if of_table.complete_from_ms is not None:
                    self._histories.raise_complete_from(of_table.events.table, of_table.complete_from_ms)
            self._bookkeeping.save_offsets(batch.next_offsets)
        return Outcome(applied, sum(map(len, tables)) - applied - len(rejections), rejections)

    def load_progress(self) -> Progress | None:
        with self._connection.transaction():
            return self._bookkeeping.load_progress() if self._bookkeeping.exist() else None

    def save_progress(self, progress: Progress) -> None:
        with self._connection.transaction():
            self._bookkeeping.check_fence(self._fence)
            self._bookkeeping.save_progress(progress)

    def live(self) -> int | None:
        with self._connection.transaction():
            if not self._bookkeeping.stored_format():  # who only looks changes nothing
                return None
            live = self._bookkeeping.live()
            # A view that is missing is shown again by the next prepare; one of something else is somebody's intention.
            for view in self._views.held(self._bookkeeping.relations()):
                if live is not None and view.generations != {live}:
                    raise LockstepError(
                        f"view {view.name} reads generation {', '.join(map(str, sorted(view.generations)))}, "
                        f"generation {live} was made live",
                        hint="somebody replaced it by hand; switch to the generation that is meant to be live",
                    )
        return live

    def numbers(self) -> list[int]:
        with self._connection.transaction():
            return self._bookkeeping.generations() if self._bookkeeping.exist() else []

    def switch(self) -> None:
        with self._connection.transaction():
            self._bookkeeping.require()
            self._bookkeeping.hold_live()
            tables = self._bookkeeping.tables()
            if not tables:
                raise self._bookkeeping.missing()
            if self._bookkeeping.is_bulk("for share"):
                raise LockstepError(
                    f"generation {self._generation} is still being loaded in bulk",
                    hint="switch when its load has ended",
                )
            self._expose(tables)
            self._bookkeeping.make_live()

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                return []
            live = self._bookkeeping.hold_live()
            held = self._bookkeeping.tables()
            others = sorted(held.keys() - set(tables))
            if live == self._generation:
                self._views.drop(_relations(held[name] for name in others))
            for name in others:
                for relation in held[name].relations:
                    self._connection.run(f"drop table {qualified(self._schema, relation)}")
                self._bookkeeping.forget_table(name)
            self._histories.forget([name for name in others if held[name].has_history])
        self._connection.disconnect()  # staging tables are like those that are gone
        return others

    def drop(self) -> None:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                return
            if self._bookkeeping.hold_live() == self._generation:
                raise LockstepError(
                    f"generation {self._generation} is live",
                    hint="switch to another generation before you drop this one",
                )
            self._connection.run(f"drop schema if exists {quote_identifier(self._schema)} cascade")
            self._histories.forget([name for name, held in self._bookkeeping.tables().items() if held.has_history])
            self._bookkeeping.forget_generation()
        self._connection.disconnect()

    def load(self, name: str) -> str | None:
        with self._connection.transaction():
            return self._bookkeeping.load_record(name) if self._bookkeeping.exist() else None

    def save(self, name: str, text: str | None) -> None:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                self._bookkeeping.create()
            self._bookkeeping.save_record(name, text)

    def create(self, name: str, text: str) -> bool:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                self._bookkeeping.create()
            return self._bookkeeping.create_record(name, text)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        return self._dialect.scan(self._names.of(table.name), table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        return self._dialect.rows(self._names.of(table.name), table, keys)

    def close(self) -> None:
        self._connection.close()

    def _check_versions(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions], batch: Batch) -> None:
        """Raise LockstepError for a batch that would leave a gap in a history. What is written again has left none."""
        if batch.overwrite_equal_tags:
            return
        given = {of_table.events.table for of_table in versions}
        lacking = [
            str(events.table) for events in tables if self._dialect.keeps(events.table) and events.table not in given
        ]
        if lacking:
            raise LockstepError(
                f"events came without the versions that the history of {', '.join(lacking)} is made of",
                hint="an earlier version of Lockstep applies to this generation, too: stop it, and nothing is lost",
            )

    def _look_at(self, names: Sequence[TableName]) -> None:
        """Look at these tables as they are now."""
        if not names:
            return
        try:
            with self._connection.transaction():
                self._bookkeeping.require()
                tables = self._bookkeeping.tables()
                self._dialect.look_at([_found(tables, name) for name in names])
        except BaseException:
            self._dialect.forget()  # what was made is gone with the transaction
            raise

    def _build(self, held: HeldTable, before: HeldTable | None, added: Mapping[str, JsonValue]) -> None:
        """Make a table, or the columns that it lacks.

        Those of ``added`` have these values in the rows that are there.
        """
        if before is None:
            self._dialect.create(held)
        else:
            self._dialect.alter(held.called, before, held, added)
        if held.has_history:
            if before is not None and before.has_history:
                self._dialect.alter(held.called + HISTORY_SUFFIX, before, held, added)
            else:
                self._dialect.create_history(held)
                self._histories.begin(held.shape.table.name, held.called + HISTORY_SUFFIX)
        self._bookkeeping.save_table(held)

    def _next(self, held: HeldTable | None, table: Table) -> HeldTable:
        """A table as it will be. Raises LockstepError when that doesn't fit what is there."""
        called, has_history = self._names.of(table.name), self._names.has_history(table.name)
        if held is None:
            return HeldTable(Shape.of(table), called, has_history)
        if held.called != called:
            raise LockstepError(
                f"table {table.name} is called {held.called!r} in generation {self._generation}, and names says "
                f"{called!r}",
                hint="rebuild it from the log: lockstep rebuild, with --switch",
            )
        if held.has_history and not has_history:
            raise LockstepError(
                f"generation {self._generation} has a history of table {table.name}, which history of this sink "
                "doesn't name",
                hint="rebuild it from the log, without the history: lockstep rebuild, with --switch",
            )
        shape = held.shape.follow(table) if self._settings.schema_changes == "follow" else held.shape.evolve(table)
        return HeldTable(shape, called, has_history)

    def _check_settings(self, tables: Collection[TableName]) -> None:
        """Raise ConfigurationError with all settings that name tables which aren't there, as a slip of the pen
        would."""
        problems = [
            f"{setting}: this sink has no table {name}"
            for setting, names in (("names", self._names.chosen), ("history", self._settings.history_tables))
            for name in sorted(names)
            if name not in tables
        ]
        if problems:
            raise ConfigurationError(
                "settings name tables that this sink doesn't have", problems=problems, hint="mend them, or its tables"
            )

    def _expose(self, tables: Mapping[TableName, HeldTable]) -> None:
        """Point the views at this generation; tables that it doesn't have lose theirs."""
        self._create_schema(self._view_schema)
        wanted: dict[str, ViewDefinition] = {}
        for held in tables.values():
            wanted |= views_of(held, self._schema)
        self._views.expose(wanted, {**self._bookkeeping.relations(), **_relations(tables.values())})

    def _create_schema(self, schema: str) -> None:
        # "create schema if not exists" asks for the right to create schemas even where it exists.
        if not self._connection.has_schema(schema):
            self._connection.run(f"create schema {quote_identifier(schema)}")


def _found(tables: Mapping[TableName, HeldTable], name: TableName) -> HeldTable:
    if name not in tables:
        raise unprepared(name)
    return tables[name]


def _dialect(name: str, settings: WarehouseSettings, *, views: str, schema: str, generation: int) -> Dialect:
    if settings.is_file:
        from sinks.warehouse.duckdb.dialect import DuckDb

        return DuckDb(name, settings, views=views, schema=schema, generation=generation)
    return PostgreSql(settings, views=views, schema=schema, generation=generation)


def _relations(tables: Iterable[HeldTable]) -> dict[str, str]:
    """The names that these have in a schema, with what stands there."""
    return {relation: what for held in tables for relation, what in held.relations.items()}
