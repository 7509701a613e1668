"""Rows as rows in a SQL warehouse: one table per source table and generation, read through views of the live rows.

=================================  =====================================================================
``shop_g1.orders``                 generation 1: the source's columns, ``_tag``, ``_deleted``
``shop.orders``                    view of the live generation's rows that aren't deleted
``shop.orders_history``            where that is wanted: all versions of its rows (``sinks.warehouse.history``)
``lockstep.*``                     whose turn it is to write, what was applied, how far it is, notes (``migrations.warehouse``)
=================================  =====================================================================

A batch is one transaction: check the fence, COPY into a staging table, merge by tag, store the offsets, commit. A writer that was
replaced finds another fence and is refused before it has written anything. Deleted rows stay with their key and tag, since without
the tag an older write would bring them back.

**Bulk.** Until ``end_bulk`` the tables of a generation have no primary key, and a batch is copied straight into them.
``lockstep.writer`` says which way a generation is written, in the row that every batch looks at for its fence. Only a generation that
is empty and not live is loaded like that, and it doesn't go live before the end.

PostgreSQL is the one dialect so far.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import Events, JsonValue, TableEvents
from cdc.model.table import Table, TableName, quote_identifier
from cdc.protocol.copytext import split_row
from sinks.shape import Shape, unknown_column, unprepared
from sinks.sink import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, StoredRow, TableVersions
from sinks.warehouse.books import HeldTable, WarehouseBooks
from sinks.warehouse.bulk import add_keys, drop_key, has_rows
from sinks.warehouse.connection import WarehouseConnection, lines_of
from sinks.warehouse.history import (
    HistoryBooks,
    HistoryStatements,
    check_history_columns,
    create_history_sql,
    history_view,
    set_aside_sql,
)
from sinks.warehouse.names import HISTORY_SUFFIX, fitting, qualified
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.tables import (
    TAG_COLUMN,
    Statements,
    UnknownColumn,
    add_column_sql,
    create_table_sql,
    live_rows_sql,
    rows_by_key_sql,
    stored_row,
    value_text,
)
from sinks.warehouse.views import Shown, WarehouseViews


class WarehouseSink:
    """Applies events to a PostgreSQL database. Connects at the first call, and again after a lost connection."""

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        self._settings = settings
        self._generation = generation
        views = fitting(settings.schema_name or name, f"schema of sink {name!r}")
        self._view_schema = views
        self._schema = fitting(f"{views}_g{generation}", f"schema of sink {name!r}")
        self._names = settings.called
        self._connection = WarehouseConnection(settings, views=views, generation=generation, forget=self._forget)
        self._books = WarehouseBooks(self._connection, name, generation)
        self._histories = HistoryBooks(self._connection)
        self._views = WarehouseViews(self._connection, views, generation)
        self._statements: dict[TableName, Statements] = {}
        self._history_statements: dict[TableName, HistoryStatements] = {}
        self._stagings = 0
        self._fence = 0

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._connection.transaction():
            self._books.create()
            is_new = self._generation not in self._books.generations()
            self._books.enter()
            # One at a time: two jobs that start together would both create the same table.
            live = self._books.hold_live()
            is_bulk = self._books.is_bulk("for update")
            known = self._books.tables()
            wanted = {**known, **{table.name: self._next(known.get(table.name), table) for table in tables}}
            self._names.check(wanted)
            if is_new:
                self._check_settings(wanted)
            self._create_schema(self._schema)
            changed = [held for name, held in wanted.items() if held != known.get(name)]
            if live == self._generation and changed:
                # As readers do it: the view before its table. The other way round one could wait for the other.
                self._views.hold(self._views.held(_relations(changed)))
            for held in changed:
                name = held.shape.table.name
                before = known.get(name)
                self._build(held, before, added.get(name, {}))
                if live == self._generation and before is not None:
                    self._views.rename_columns(before.relations, before.shape.steps_to(held.shape).renamed)
                if is_bulk:
                    drop_key(self._connection, self._target(held))
            if live is None and go_live and not is_bulk:
                live = self._generation
                self._books.make_live()
            if live == self._generation:
                self._show(wanted)
            # Now that no view has them any more.
            for held in changed:
                self._drop_columns(held, known.get(held.shape.table.name, held))
        self._connection.disconnect()  # staging tables have the shapes of before
        return NOTHING_ADDED

    def begin_bulk(self) -> None:
        """Has no effect on a generation that has rows already, or readers: its rows stay one per key throughout."""
        with self._connection.transaction():
            self._books.require()
            live = self._books.hold_live()
            is_bulk = self._books.is_bulk("for update")
            if is_bulk is None:
                raise self._books.missing()
            targets = [self._target(held) for held in self._books.tables().values()]
            if is_bulk or live == self._generation or any(has_rows(self._connection, target) for target in targets):
                return
            for target in targets:
                drop_key(self._connection, target)
            self._books.set_bulk(True)

    def end_bulk(self) -> None:
        with self._connection.transaction():
            if not self._books.exist() or not self._books.is_bulk("for update"):
                return
            add_keys(self._connection, self._schema, self._books.tables().values())
            self._books.set_bulk(False)

    def claim(self) -> int:
        """Become the writer. Waits for the old writer's batch at most ``lock_timeout_s``, then raises Unavailable."""
        with self._connection.transaction():
            self._fence = self._books.claim()
        return self._fence

    def fence(self) -> int:
        with self._connection.transaction():
            return self._books.fence()

    def apply(self, batch: Batch) -> Outcome:
        # Always the same order of tables too, against deadlocks.
        tables = sorted(Events.of(batch.events).tables, key=lambda events: events.table)
        versions = sorted(batch.versions, key=lambda of_table: of_table.events.table)
        touched = {events.table for events in (*tables, *(of_table.events for of_table in versions))}
        self._stage_for([name for name in sorted(touched) if name not in self._statements])
        versions = [of_table for of_table in versions if of_table.events.table in self._history_statements]
        self._check_versions(tables, versions, batch)
        looked_again: set[TableName] = set()
        while True:
            try:
                return self._apply(tables, versions, batch)
            except UnknownColumn as unknown:
                if unknown.table in looked_again:
                    raise unknown_column(unknown.table, unknown.column) from None
                looked_again.add(unknown.table)
                self._stage_for([unknown.table])  # the table may have got it since we looked

    def _apply(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions], batch: Batch) -> Outcome:
        """One transaction. Raises UnknownColumn, after which nothing of it has happened."""
        applied = 0
        rejections: list[Rejection] = []
        with self._connection.transaction():
            is_bulk = self._books.check_fence(batch.fence)
            for events in tables:
                write = self._append if is_bulk else partial(self._merge, replays=batch.replays)
                applied += write(self._statements[events.table], events, rejections)
            for of_table in versions:
                self._keep(self._history_statements[of_table.events.table], of_table, replays=batch.replays)
            # Last, since every task of a batch has these rows to itself from here on.
            for of_table in versions:
                if of_table.complete_from_ms is not None:
                    self._histories.raise_complete_from(of_table.events.table, of_table.complete_from_ms)
            self._books.save_offsets(batch.next_offsets)
        return Outcome(applied, sum(map(len, tables)) - applied - len(rejections), rejections)

    def load_progress(self) -> Progress | None:
        with self._connection.transaction():
            return self._books.load_progress() if self._books.exist() else None

    def save_progress(self, progress: Progress) -> None:
        with self._connection.transaction():
            self._books.check_fence(self._fence)
            self._books.save_progress(progress)

    def live_generation(self) -> int | None:
        with self._connection.transaction():
            if not self._books.exist():
                return None
            live = self._books.live()
            # A view that is missing is shown again by the next prepare; one of something else is somebody's intention.
            for view in self._views.held(self._books.relations()):
                if live is not None and view.generations != {live}:
                    raise LockstepError(
                        f"view {view.name} reads generation {', '.join(map(str, sorted(view.generations)))}, "
                        f"generation {live} was made live",
                        hint="somebody replaced it by hand; switch to the generation that is meant to be live",
                    )
        return live

    def generations(self) -> list[int]:
        with self._connection.transaction():
            return self._books.generations() if self._books.exist() else []

    def switch(self) -> None:
        with self._connection.transaction():
            self._books.require()
            self._books.hold_live()
            tables = self._books.tables()
            if not tables:
                raise self._books.missing()
            if self._books.is_bulk("for share"):
                raise LockstepError(
                    f"generation {self._generation} is still being loaded in bulk",
                    hint="switch when its load has ended",
                )
            self._show(tables)
            self._books.make_live()

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        with self._connection.transaction():
            if not self._books.exist():
                return []
            live = self._books.hold_live()
            held = self._books.tables()
            others = sorted(held.keys() - set(tables))
            if live == self._generation:
                self._views.drop(_relations(held[name] for name in others))
            for name in others:
                for relation in held[name].relations:
                    self._connection.run(f"drop table {qualified(self._schema, relation)}")
                self._books.forget_table(name)
            self._histories.forget([name for name in others if held[name].has_history])
        self._connection.disconnect()  # staging tables are like those that are gone
        return others

    def drop(self) -> None:
        with self._connection.transaction():
            if not self._books.exist():
                return
            if self._books.hold_live() == self._generation:
                raise LockstepError(
                    f"generation {self._generation} is live",
                    hint="switch to another generation before you drop this one",
                )
            self._connection.run(f"drop schema if exists {quote_identifier(self._schema)} cascade")
            self._histories.forget([name for name, held in self._books.tables().items() if held.has_history])
            self._books.forget_generation()
        self._connection.disconnect()

    def load_note(self, name: str) -> str | None:
        with self._connection.transaction():
            return self._books.load_note(name) if self._books.exist() else None

    def save_note(self, name: str, text: str | None) -> None:
        with self._connection.transaction():
            if not self._books.exist():
                self._books.create()
            self._books.save_note(name, text)

    def create_note(self, name: str, text: str) -> bool:
        with self._connection.transaction():
            if not self._books.exist():
                self._books.create()
            return self._books.create_note(name, text)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        stored = stored_row(table)
        names = [column.name for column in table.columns]
        selection = live_rows_sql(self._target_of(table.name), [TAG_COLUMN, *names])
        # A connection of its own: the caller may apply a batch between two rows, and may take its time.
        with self._connection.translated(), self._connection.open() as connection, connection.begin():
            connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
            driver: Any = connection.connection.driver_connection
            # COPY prints values as they were read; a cast to text would print a boolean in another way.
            with driver.cursor() as cursor, cursor.copy(f"copy ({selection}) to stdout") as copy:
                for line in lines_of(copy):
                    yield stored(cast("tuple[bytes | None, ...]", split_row(line)))

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        texts = list(dict.fromkeys(tuple(value_text(key[name]) for name in table.key) for key in keys))
        if not texts:
            return
        query = rows_by_key_sql(self._target_of(table.name), table)
        with self._connection.transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute(query, [list(column) for column in zip(*texts, strict=True)])
                # The texts as the server sent them: the same as COPY's, and nothing that the driver made of them.
                result = cursor.pgresult
                found = [
                    tuple(result.get_value(number, field) for field in range(result.nfields))
                    for number in range(result.ntuples)
                ]
        yield from map(stored_row(table), found)

    def close(self) -> None:
        self._connection.close()

    def _merge(self, statements: Statements, events: TableEvents, rejections: list[Rejection], *, replays: bool) -> int:
        """How many of the events won over what is there."""
        merge = statements.merge_again if replays else statements.merge

        def write(portion: TableEvents) -> int:
            if len(portion) < len(events):
                self._connection.run(statements.empty_staging)  # the commit does it else
            self._connection.copy(statements.copy, statements.lines(portion))
            return int(self._connection.run(merge).rowcount)

        return self._connection.in_halves(write, events, _refuse(rejections))

    def _append(self, statements: Statements, events: TableEvents, rejections: list[Rejection]) -> int:
        """How many of the events stand in the table now, in which a key may have several rows until ``end_bulk``."""

        def write(portion: TableEvents) -> int:
            self._connection.copy(statements.append, statements.lines(portion))
            return len(portion)

        indexable = self._indexable(statements, events, rejections)
        return self._connection.in_halves(write, indexable, _refuse(rejections))

    def _indexable(self, statements: Statements, events: TableEvents, rejections: list[Rejection]) -> TableEvents:
        """The events without those whose key is too long for an index, which nothing else would find out before the end."""
        long = statements.with_long_keys(events)
        if not long:
            return events

        def write(portion: TableEvents) -> int:
            self._connection.run(statements.create_probe)
            self._connection.copy(statements.copy_probe, statements.lines(portion))
            self._connection.run(statements.drop_probe)
            return len(portion)

        refused: list[Rejection] = []
        self._connection.in_halves(write, events.select(long), _refuse(refused))
        rejections += refused
        refused_keys = [rejection.event.key for rejection in refused]
        gone = {place for place in long if events[place].key in refused_keys}
        return events.select([place for place in range(len(events)) if place not in gone])

    def _keep(self, statements: HistoryStatements, versions: TableVersions, *, replays: bool) -> None:
        """Add versions to a table's history; with ``replays`` those that are there are replaced."""
        keep = statements.keep_again if replays else statements.keep

        def write(portion: TableVersions) -> int:
            if len(portion) < len(versions):
                self._connection.run(statements.empty_staging)
            self._connection.copy(statements.copy, statements.version_lines(portion))
            self._connection.run(keep)
            return len(portion)

        if replays:
            self._histories.retry(versions.events)
        if len(versions):
            refuse = self._histories.refuse
            self._connection.in_halves(write, versions, lambda refused, reason: refuse(refused.events, reason))

    def _check_versions(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions], batch: Batch) -> None:
        """Raise LockstepError for a batch that would leave a gap in a history. What is written again has left none."""
        if batch.replays or not self._history_statements:
            return
        given = {of_table.events.table for of_table in versions}
        lacking = [
            str(events.table)
            for events in tables
            if events.table in self._history_statements and events.table not in given
        ]
        if lacking:
            raise LockstepError(
                f"events came without the versions that the history of {', '.join(lacking)} is made of",
                hint="an earlier version of Lockstep applies to this generation, too: stop it, and nothing is lost",
            )

    def _stage_for(self, names: Sequence[TableName]) -> None:
        """Look at these tables as they are now and make a staging table for each, for as long as the connection lasts."""
        if not names:
            return
        made: dict[TableName, Statements] = {}
        histories: dict[TableName, HistoryStatements] = {}
        with self._connection.transaction():
            self._books.require()
            tables = self._books.tables()
            for name in names:
                held = tables.get(name)
                if held is None:
                    raise unprepared(name)
                made[name] = Statements(self._target(held), held.shape, self._staging())
                self._connection.run(made[name].create_staging)
                if held.has_history:
                    histories[name] = HistoryStatements(self._history(held), held.shape, self._staging())
                    self._connection.run(histories[name].create_staging)
        self._statements.update(made)
        self._history_statements.update(histories)

    def _staging(self) -> str:
        self._stagings += 1
        return f"lockstep_staging_{self._stagings}"

    def _forget(self) -> None:
        """Staging tables are gone with their connection."""
        self._statements.clear()
        self._history_statements.clear()

    def _build(self, held: HeldTable, before: HeldTable | None, added: Mapping[str, JsonValue]) -> None:
        """Make a table, or the columns that it lacks; those of ``added`` have these values in the rows that are there."""
        create = create_table_sql(self._target(held), held.shape)  # refuses names in either case
        if before is None:
            self._connection.run(create)
        else:
            self._alter(self._target(held), before.shape, held.shape, added)
        if held.has_history:
            check_history_columns(held.shape)
            if before is not None and before.has_history:
                self._alter(self._history(held), before.shape, held.shape, added)
            else:
                self._connection.run(create_history_sql(self._history(held), held.shape))
                self._histories.begin(held.shape.table.name, held.called + HISTORY_SUFFIX)
        self._books.save_table(held)

    def _alter(self, target: str, before: Shape, shape: Shape, added: Mapping[str, JsonValue]) -> None:
        steps = before.steps_to(shape)
        for old, new in steps.renamed.items():
            self._connection.run(
                f"alter table {target} rename column {quote_identifier(old)} to {quote_identifier(new)}"
            )
        for column in steps.added:
            for statement in add_column_sql(target, column, added.get(column.name)):
                self._connection.run(statement)

    def _next(self, held: HeldTable | None, table: Table) -> HeldTable:
        """A table as it will be. Raises LockstepError when that doesn't fit what is there."""
        called, has_history = self._names.of(table.name), self._names.has_history(table.name)
        if held is None:
            return HeldTable(Shape.of(table), called, has_history)
        if held.called != called:
            raise LockstepError(
                f"table {table.name} is called {held.called!r} in generation {self._generation}, and names says {called!r}",
                hint="build it anew from the log: lockstep rebuild, with --switch",
            )
        if held.has_history and not has_history:
            raise LockstepError(
                f"generation {self._generation} has a history of table {table.name}, which history of this sink doesn't name",
                hint="build it anew from the log, without the history: lockstep rebuild, with --switch",
            )
        shape = held.shape.follow(table) if self._settings.schema_changes == "follow" else held.shape.evolve(table)
        return HeldTable(shape, called, has_history)

    def _check_settings(self, tables: Collection[TableName]) -> None:
        """Raise ConfigurationError with all settings that name tables which aren't there, as a slip of the pen would."""
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

    def _drop_columns(self, held: HeldTable, before: HeldTable) -> None:
        for name in before.shape.steps_to(held.shape).dropped:
            self._connection.run(f"alter table {self._target(held)} drop column {quote_identifier(name)}")
            if before.has_history:
                number = self._connection.execute(
                    "select attnum from pg_attribute where attrelid = to_regclass(:relation) and attname = :name",
                    relation=self._history(held),
                    name=name,
                ).scalar_one()
                self._connection.run(set_aside_sql(self._history(held), name, number))

    def _show(self, tables: Mapping[TableName, HeldTable]) -> None:
        """Point the views at this generation; tables that it doesn't have lose theirs."""
        self._create_schema(self._view_schema)
        wanted: dict[str, Shown] = {}
        for held in tables.values():
            columns = tuple(column.name for column in held.shape.columns)
            wanted[held.called] = Shown(columns, live_rows_sql(self._target(held), columns))
            if held.has_history:
                wanted[held.called + HISTORY_SUFFIX] = history_view(self._history(held), held.shape)
        self._views.show(wanted, {**self._books.relations(), **_relations(tables.values())})

    def _target(self, held: HeldTable) -> str:
        return qualified(self._schema, held.called)

    def _target_of(self, name: TableName) -> str:
        return qualified(self._schema, self._names.of(name))

    def _history(self, held: HeldTable) -> str:
        return qualified(self._schema, held.called + HISTORY_SUFFIX)

    def _create_schema(self, schema: str) -> None:
        # "create schema if not exists" asks for the right to create schemas even where it exists.
        if self._connection.execute("select to_regnamespace(:name) is null", name=quote_identifier(schema)).scalar():
            self._connection.run(f"create schema {quote_identifier(schema)}")


def _relations(tables: Iterable[HeldTable]) -> dict[str, str]:
    """The names that these have in a schema, with what stands there."""
    return {relation: what for held in tables for relation, what in held.relations.items()}


def _refuse(rejections: list[Rejection]) -> "partial[None]":
    def refuse(refused: TableEvents, reason: str) -> None:
        rejections.append(Rejection(refused[0], reason))

    return partial(refuse)
