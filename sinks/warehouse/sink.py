"""Rows of a SQL warehouse, merged by tag. ``docs/sinks/warehouse.md`` says what is stored where."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from cdc.model.errors import LockstepError
from cdc.model.event import Events, JsonValue, TableEvents
from cdc.model.table import Table, TableName
from sinks.capabilities.erasing import Erasing, Leftover, check_erased
from sinks.capabilities.whole_steps import WholeSteps
from sinks.columns.shape import unknown_column, unprepared
from sinks.contract import (
    NOTHING_ADDED,
    AddedValues,
    Batch,
    OpenedSink,
    Outcome,
    Rejection,
    Sink,
    StoredRow,
    TablesRefused,
    TableVersions,
    TopicPartition,
)
from sinks.warehouse.coordination import WarehouseCoordination
from sinks.warehouse.dialect import UnknownColumn
from sinks.warehouse.generations import WarehouseGenerations
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_table import StoredTable
from sinks.warehouse.tables import WarehouseTables, relations_of_all


def open_warehouse(name: str, settings: WarehouseSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used.

    Raises LockstepError for a schema name that is too long, and for a DuckDB file with the name of a schema.
    """
    tables = WarehouseTables(name, settings, generation)
    connection = tables.connection
    sink, generations = WarehouseSink(tables), WarehouseGenerations(tables)
    return OpenedSink(
        sink,
        generations,
        WarehouseCoordination(connection, tables.bookkeeping),
        bulk=generations,
        erasing=sink,
        identities=generations,
        whole=WarehouseSteps(tables, connection) if isinstance(connection, WarehouseConnection) else None,
        blocked_by=connection.blocked_by,
    )


class WarehouseSteps(WholeSteps):
    """Steps of one generation in PostgreSQL. Each is a transaction."""

    def __init__(self, tables: WarehouseTables, connection: WarehouseConnection) -> None:
        self._tables = tables
        self._connection = connection

    def step(self) -> AbstractContextManager[None]:
        return self._connection.step()

    def newest_tag(self) -> str:
        with self._connection.transaction():
            return self._tables.newest_tag() if self._tables.bookkeeping.exist() else ""

    def next_offsets(self) -> Mapping[TopicPartition, int]:
        with self._connection.transaction():
            return self._tables.progress.load_offsets() if self._tables.bookkeeping.exist() else {}


class WarehouseSink(Sink, Erasing):
    def __init__(self, tables: WarehouseTables) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._bookkeeping = tables.bookkeeping
        self._dialect = tables.dialect
        self._writer = tables.dialect.writer
        self._purging = tables.purging
        self._generation = tables.generation

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        while (altered := self._altered(tables, go_live=go_live, added=added)) is None:
            pass
        wanted, is_bulk, unfit = altered
        if not is_bulk:
            # Readers don't wait for indexes, so they are created in a transaction without the locks of the one before.
            with self._connection.transaction():
                # Only for these tables: an index that can't be created fails its table alone.
                self._tables.keep_indexes(wanted[table.name] for table in tables if table.name in wanted)
        self._connection.disconnect()  # staging tables still have the former shapes
        if unfit:
            raise TablesRefused(unfit)
        return NOTHING_ADDED

    def _altered(
        self, tables: Sequence[Table], *, go_live: bool, added: AddedValues
    ) -> "tuple[Mapping[TableName, StoredTable], bool, Mapping[TableName, LockstepError]] | None":
        """All tables as they are from now on, whether they are in a bulk load, and those that can't be stored.

        None: call it again, since obstacles had to be removed in a transaction of their own.
        """
        with self._connection.transaction():
            self._bookkeeping.create()
            live, is_new = self._bookkeeping.enter()
            is_bulk = self._bookkeeping.is_bulk("for update")
            known = self._bookkeeping.tables()
            wanted = {**known, **{table.name: self._tables.next(known.get(table.name), table) for table in tables}}
            unfit = self._tables.unfit(wanted.values())
            if unfit and len(unfit) >= len(tables):
                raise TablesRefused(unfit)
            if is_new:
                self._tables.check_settings(tables)
                self._tables.check_schemas()
            wanted = {**known, **{name: held for name, held in wanted.items() if name not in unfit}}
            self._tables.create_schema()
            changed = [held for name, held in wanted.items() if held != known.get(name)]
            if self._dialect.definitions.free_columns(
                [known[name] for name in wanted if name in known and wanted[name] != known[name]]
            ):
                return None
            if live == self._generation and changed:
                # Lock in the order of readers, the view before its table. The reverse order could deadlock.
                self._tables.views.hold(relations_of_all(changed))
            self._tables.create([held for name, held in wanted.items() if name not in known])
            for held in changed:
                name = held.shape.table.name
                before = known.get(name)
                if before is not None:
                    self._tables.alter(held, before, added.get(name, {}))
                    if live == self._generation:
                        self._tables.views.rename_columns(before.relations, before.shape.steps_to(held.shape).renamed)
                if is_bulk:
                    self._dialect.definitions.drop_key(held)
            if live is None and go_live and not is_bulk:
                live = self._generation
                self._bookkeeping.make_live()
            if live == self._generation:
                # Without tables that somebody has dropped: the others continue, and the job reports the dropped ones.
                self._tables.expose(self._tables.identities.still_there(wanted))
            # Now no view uses them any more.
            for held in changed:
                before = known.get(held.shape.table.name, held)
                dropped = before.shape.steps_to(held.shape).dropped
                self._dialect.definitions.drop_columns(held, dropped, has_history=before.has_history)
        return wanted, bool(is_bulk), unfit

    def claim(self) -> int:
        """Become the writer. Waits for the old writer's batch at most ``lock_timeout_s``, then raises Unavailable."""
        with self._connection.transaction():
            self._tables.fence = self._bookkeeping.claim()
        return self._tables.fence

    def fence(self) -> int:
        with self._connection.transaction():
            return self._bookkeeping.fence()

    def apply(self, batch: Batch) -> Outcome:
        # Tables too are always in the same order, against deadlocks.
        tables = sorted(Events.of(batch.events).tables, key=lambda events: events.table)
        histories = sorted(batch.versions, key=lambda versions: versions.events.table)
        touched = {events.table for events in (*tables, *(versions.events for versions in histories))}
        self._look_at([name for name in sorted(touched) if not self._writer.is_ready_for(name)])
        histories = [versions for versions in histories if self._writer.keeps(versions.events.table)]
        self._check_versions(tables, histories, batch)
        looked_again: set[TableName] = set()
        while True:
            try:
                return self._apply(tables, histories, batch)
            except UnknownColumn as unknown:
                if unknown.table in looked_again:
                    raise unknown_column(unknown.table, unknown.column) from None
                looked_again.add(unknown.table)
                self._look_at([unknown.table])  # the table may have got the column since we looked

    def scan(self, table: Table) -> Iterator[StoredRow]:
        return self._dialect.reader.scan(self._tables.names.of(table.name), table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        if not keys:
            self._require_prepared(table.name)
        return self._dialect.reader.rows(self._tables.names.of(table.name), table, keys)

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                return []
            return self._purging.marks(table.name) if key is None else self._purging.leftovers(table.name, key)

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        with self._connection.transaction():
            return self._erased(tables) if self._bookkeeping.exist() else {}

    def _erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        rows, versions = self._purging.rows.load(), self._purging.versions.load()
        tags = {name: (rows.get(name, ""), versions.get(name, "")) for name in tables}
        return {name: "/".join(each) for name, each in tags.items() if any(each)}

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        if key is None:
            return self._erase_marks(table.name, below)
        if below is not None:
            with self._connection.transaction():
                # Locked: a batch that is under way knows an earlier purged tag. During a bulk load, a row's versions
                # stand side by side, and the end of the load needs all of them.
                if self._bookkeeping.exist() and self._bookkeeping.is_bulk("for update") is False:
                    self._purging.erase(table.name, key, below=below)
        return self.leftovers(table, key)

    def close(self) -> None:
        self._connection.close()

    def _erase_marks(self, name: TableName, below: str | None) -> Sequence[Leftover]:
        """Erase in several transactions, so that no batch waits for long."""
        has_more = below is not None
        while has_more:
            with self._connection.transaction():
                if not self._bookkeeping.exist() or self._bookkeeping.is_bulk("for update") is not False:
                    break
                has_more = self._purging.erase_marks(name, below=below or "")
        with self._connection.transaction():
            return self._purging.marks(name, below=below) if self._bookkeeping.exist() else []

    def _apply(self, tables: Sequence[TableEvents], histories: Sequence[TableVersions], batch: Batch) -> Outcome:
        """Apply the batch in one transaction. If it raises UnknownColumn, nothing has happened."""
        applied = 0
        rejections: list[Rejection] = []
        bookkeeping = self._tables.histories
        touched = {events.table for events in (*tables, *(versions.events for versions in histories))}
        self._writer.make_ready(tables, histories)
        with self._connection.transaction():
            is_bulk = self._bookkeeping.check_fence(batch.fence)
            # Nothing more is purged until this transaction ends.
            if batch.erased is not None:
                check_erased(batch.erased, self._erased(touched), touched)
            purged = {} if batch.never_applied else self._purging.rows.load()
            purged_versions = self._purging.versions.load() if histories and not batch.never_applied else {}
            for events in tables:
                write = (
                    self._writer.append
                    if is_bulk
                    else partial(
                        self._writer.merge,
                        overwrite_equal_tags=batch.overwrite_equal_tags,
                        purged=purged.get(events.table, ""),
                    )
                )
                applied += write(events, rejections)
            for versions in histories:
                if batch.overwrite_equal_tags or batch.never_applied:
                    bookkeeping.retry(versions.events)
                self._writer.keep(
                    versions,
                    bookkeeping.refuse,
                    overwrite_equal_tags=batch.overwrite_equal_tags,
                    purged=purged_versions.get(versions.events.table, ""),
                )
            # Last, since from here on other tasks of the batch wait for these rows.
            for versions in histories:
                if versions.complete_from_ms is not None:
                    bookkeeping.raise_complete_from(versions.events.table, versions.complete_from_ms)
                if versions.missing_until_ms is not None:
                    bookkeeping.raise_missing_until(versions.events.table, versions.missing_until_ms)
            self._tables.progress.save_offsets(batch.next_offsets)
            if batch.identities:
                self._tables.identities.check_same(
                    {name: batch.identities[name] for name in touched & batch.identities.keys()}
                )
        return Outcome(applied, sum(map(len, tables)) - applied - len(rejections), rejections)

    def _check_versions(self, tables: Sequence[TableEvents], histories: Sequence[TableVersions], batch: Batch) -> None:
        """Raise LockstepError for a batch that would leave a gap in a history. Versions written again leave none."""
        if batch.overwrite_equal_tags:
            return
        given = {versions.events.table for versions in histories}
        lacking = [
            str(events.table) for events in tables if self._writer.keeps(events.table) and events.table not in given
        ]
        if lacking:
            raise LockstepError(
                f"events came without the versions that the history of {', '.join(lacking)} is made of",
                hint="it is a bug: report it; nothing is lost",
            )

    def _require_prepared(self, name: TableName) -> None:
        with self._connection.transaction():
            self._bookkeeping.require()
            _prepared(self._bookkeeping.tables([name]), name)

    def _look_at(self, names: Sequence[TableName]) -> None:
        """Look at these tables as they are now. Raises LockstepError for one that isn't prepared."""
        if not names:
            return
        try:
            with self._connection.transaction():
                self._bookkeeping.require()
                tables = self._bookkeeping.tables(names)
                self._writer.look_at([_prepared(tables, name) for name in names])
        except BaseException:
            self._writer.forget()  # what was created is gone with the transaction
            raise


def _prepared(tables: Mapping[TableName, StoredTable], name: TableName) -> StoredTable:
    if name not in tables:
        raise unprepared(name)
    return tables[name]
