"""Writes batches to a PostgreSQL database, by COPY through staging tables."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.contract import Rejection, TableVersions
from sinks.warehouse.dialect import Refuse
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import RowChanged, too_many_refused
from sinks.warehouse.postgres.halves import in_halves
from sinks.warehouse.postgres.history import HistoryStatements
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.postgres.tables import Statements
from sinks.warehouse.stored_table import GenerationSchema, StoredTable

REFUSED_FEW: Final = 1_000
"""This many rows of a batch may always be refused: trying them one by one takes some seconds."""


class PostgresWriter:
    """Writes through staging tables, which last as long as the connection."""

    def __init__(self, connection: WarehouseConnection, schema: GenerationSchema, *, max_open_rejections: int) -> None:
        self._connection = connection
        self._schema = schema
        self._statements: dict[TableName, Statements] = {}
        self._history_statements: dict[TableName, HistoryStatements] = {}
        self._stagings = 0
        self._refused_max = max(REFUSED_FEW, max_open_rejections)

    def look_at(self, tables: Sequence[StoredTable]) -> None:
        for held in tables:
            name = held.shape.table.name
            target = self._schema.table(held)
            statements = Statements(target, held, self._staging(target))
            self._statements[name] = statements
            if held.has_history:
                target = self._schema.history(held)
                of_history = HistoryStatements(target, held.shape, self._staging(target))
                self._history_statements[name] = of_history

    def forget(self) -> None:
        """Staging tables end with their connection."""
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
        has_triggers = self._has_triggers(statements.target)
        merge_of = statements.compared_merge if has_triggers else statements.merge
        merge = merge_of(purged, overwrite_equal_tags=overwrite_equal_tags)

        def write(portion: TableEvents) -> int:
            size = self._connection.copy(statements.copy, statements.blocks(portion))
            if has_triggers:
                counts: Any = self._connection.run(merge).one()
                written, changed = counts
                if changed or self._connection.run(statements.kept_out(purged)).scalar():
                    raise RowChanged
            else:
                written = self._connection.run(merge).rowcount
            self._connection.run(statements.staging.emptying(size))
            return int(written)

        return in_halves(self._connection, write, events, self._refuse(rejections))

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        statements = self._statements[events.table]

        def write(portion: TableEvents) -> int:
            self._connection.copy(statements.append, statements.blocks(portion))
            return len(portion)

        indexable = self._indexable(statements, events, rejections)
        return in_halves(self._connection, write, indexable, self._refuse(rejections))

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        statements = self._history_statements[versions.events.table]
        keep = statements.keep(purged, overwrite_equal_tags=overwrite_equal_tags)
        has_triggers = self._has_triggers(statements.target)

        def write(portion: TableVersions) -> int:
            size = self._connection.copy(statements.copy, statements.version_blocks(portion))
            self._connection.run(keep)
            if has_triggers and self._connection.run(statements.kept_out(purged)).scalar():
                raise RowChanged
            self._connection.run(statements.staging.emptying(size))
            return len(portion)

        if len(versions):
            in_halves(self._connection, write, versions, lambda refused, reason: refuse(refused.events, reason))

    def _indexable(self, statements: Statements, events: TableEvents, rejections: list[Rejection]) -> TableEvents:
        """The events whose key isn't too long for an index: otherwise such a key is found only at the load's end."""
        long = statements.with_long_keys(events)
        if not long:
            return events

        def write(portion: TableEvents) -> int:
            self._connection.run(statements.create_probe)
            self._connection.copy(statements.copy_probe, statements.blocks(portion))
            self._connection.run(statements.drop_probe)
            return len(portion)

        refused: list[Rejection] = []
        in_halves(self._connection, write, events.select(long), self._refuse(refused))
        rejections += refused
        refused_keys = [rejection.event.key for rejection in refused]
        gone = {index for index in long if events[index].key in refused_keys}
        return events.select([index for index in range(len(events)) if index not in gone])

    def _has_triggers(self, target: str) -> bool:
        """True also after the last one was dropped, until a VACUUM."""
        query = "select relhastriggers from pg_class where oid = to_regclass(:name)"
        return bool(self._connection.execute(query, name=target).scalar())

    def _staging(self, target: str) -> Staging:
        self._stagings += 1
        staging = Staging(f"lockstep_staging_{self._stagings}", target)
        self._connection.run(staging.create)
        return staging

    def _refuse(self, rejections: list[Rejection]) -> Callable[[TableEvents, str], None]:
        """A function that stores a refused row. It raises LockstepError when more rows are refused than may be.

        So many can't be the rows' fault, and without a limit all would be tried one by one before anybody hears of it.
        """

        def refuse(refused: TableEvents, reason: str) -> None:
            if len(rejections) == self._refused_max:
                raise too_many_refused(self._refused_max, rejections[0].reason)
            rejections.append(Rejection(refused[0], reason))

        return refuse
