"""Writes batches to a DuckDB file, from Arrow.

A batch is one transaction, as in all destinations. Rows with an older tag are deleted, then rows whose key doesn't
exist are inserted. Values that don't fit are found before, so no statement fails because of a row. Rows are prepared
before the file is opened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.columns.arrow_columns import DELETED_COLUMN, Rows
from sinks.contract import Rejection, TableVersions
from sinks.warehouse.dialect import Refuse, UnknownColumn
from sinks.warehouse.duckdb.connection import DuckDbConnection, registered
from sinks.warehouse.duckdb.tables import INDEX, Finding, HistoryStatements, Statements, find_bad
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.history import COMMITTED, OPERATION
from sinks.warehouse.stored_table import GenerationSchema, StoredTable


@dataclass(frozen=True, slots=True)
class _Written:
    rows: Rows
    statements: Statements
    of_history: HistoryStatements | None
    find_bad: Mapping[str, Finding]
    """By column, how to find values that Arrow accepts and DuckDB refuses."""


@dataclass(frozen=True, slots=True)
class _Given:
    data: pa.Table
    indexes: Sequence[int]
    """The index of each row's event."""
    refused: Mapping[int, str]
    """By index, why an event has no row."""

    def without(self, unfit: Mapping[int, str]) -> "_Given":
        """Removes these rows too."""
        if not unfit:
            return self
        fit = [number for number in range(self.data.num_rows) if number not in unfit]
        return replace(
            self._only(fit), refused={**self.refused, **{self.indexes[number]: why for number, why in unfit.items()}}
        )

    def rejections(self, events: TableEvents) -> list[Rejection]:
        return [Rejection(events[index], reason) for index, reason in sorted(self.refused.items())]

    def of_history(self, versions: TableVersions) -> "_Given":
        """Adds what a history stores with each version, and keeps each version once.

        A version may be given twice. The time of a tombstone whose event is gone is the record's, which is later, so
        the earliest time counts. (DuckDB's own ``distinct on`` turns -0.0 into 0.0 in columns that aren't part of it.)
        """
        keys, tags, times_ms = versions.events.keys, versions.events.tags, versions.commit_times_ms
        earliest: dict[tuple[bytes, str], int] = {}
        for number, index in enumerate(self.indexes):
            known = earliest.setdefault((keys[index], tags[index]), number)
            if times_ms[index] < times_ms[self.indexes[known]]:
                earliest[keys[index], tags[index]] = number
        once = self if len(earliest) == len(self.indexes) else self._only(sorted(earliest.values()))
        times_us = pa.array([times_ms[index] * 1000 for index in once.indexes], pa.int64())
        operations = pa.array([versions.operations[index] for index in once.indexes], pa.string())
        data = once.data.drop_columns([DELETED_COLUMN])
        data = data.append_column(COMMITTED, times_us.cast(pa.timestamp("us", "UTC")))
        return replace(once, data=data.append_column(OPERATION, operations))

    def _only(self, numbers: Sequence[int]) -> "_Given":
        data = self.data.take(pa.array(numbers, pa.int64()))
        return replace(self, data=data, indexes=[self.indexes[number] for number in numbers])


class DuckDbWriter:
    def __init__(self, connection: DuckDbConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema
        self._written: dict[TableName, _Written] = {}
        self._given: dict[TableName, _Given] = {}
        self._given_versions: dict[TableName, _Given] = {}

    def look_at(self, tables: Sequence[StoredTable]) -> None:
        for held in tables:
            of_history = HistoryStatements(self._schema.history(held), held.shape) if held.has_history else None
            statements = Statements(self._schema.table(held), held)
            written = _Written(rows_of(held.shape), statements, of_history, find_bad(held.shape))
            self._written[held.shape.table.name] = written

    def forget(self) -> None:
        self._written.clear()

    def is_ready_for(self, name: TableName) -> bool:
        return name in self._written

    def keeps(self, name: TableName) -> bool:
        return name in self._written and self._written[name].of_history is not None

    def make_ready(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions]) -> None:
        """Turns rows into columns before the file is opened: that takes longer than writing them."""
        self._given = {events.table: self._encoded(events) for events in tables}
        self._given_versions = {history.events.table: self._encoded(history.events) for history in versions}

    def merge(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, purged: str = ""
    ) -> int:
        written = self._written[events.table]
        statements = written.statements
        repeated = statements.repeated_after(purged) if purged else ""
        with self._checked(written, self._given[events.table], repeated) as given:
            rejections += given.rejections(events)
            self._connection.run(statements.replace_again if overwrite_equal_tags else statements.replace)
            return int(self._connection.run(statements.insert).rowcount)

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        written = self._written[events.table]
        statements = written.statements
        with self._checked(written, self._given[events.table]) as given:
            rejections += given.rejections(events)
            return int(self._connection.run(statements.append).rowcount)

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        written = self._written[versions.events.table]
        statements = written.of_history
        assert statements is not None
        given = self._given_versions[versions.events.table].of_history(versions)
        repeated = statements.repeated(purged) if purged else ""
        with self._checked(written, given, repeated) as given:
            for index, reason in given.refused.items():
                refuse(versions.events.select([index]), reason)
            self._connection.run(statements.make_again if overwrite_equal_tags else statements.make_earlier)
            self._connection.run(statements.keep)

    def _encoded(self, events: TableEvents) -> _Given:
        rows = self._written[events.table].rows
        parsed = list(events)
        if (name := rows.unknown(parsed)) is not None:
            raise UnknownColumn(events.table, name)
        data, refused = rows.encode_those_that_fit(parsed)
        return _Given(data, [index for index in range(len(parsed)) if index not in refused], refused)

    @contextmanager
    def _checked(self, written: _Written, given: _Given, repeated: str = "") -> Iterator[_Given]:
        """Make rows available to statements, without unfit ones and those whose numbers ``repeated`` queries."""
        unfit: dict[int, str] = {}
        with registered(self._connection, given.data):
            for name, query in written.find_bad.items():
                if self._connection.run(query.counted).scalar():
                    valid = [bool(row[0]) for row in self._connection.run(query.listed)]
                    unfit |= {
                        index: f"column {name!r}: no JSON" for index, is_valid in enumerate(valid) if not is_valid
                    }
        fit = given.without(unfit)
        with registered(self._connection, fit.data if not repeated else self._without_repeated(fit.data, repeated)):
            yield fit

    def _without_repeated(self, data: pa.Table, repeated: str) -> pa.Table:
        numbered = data.append_column(INDEX, pa.array(range(data.num_rows), pa.int64()))
        with registered(self._connection, numbered):
            again = {int(row[0]) for row in self._connection.run(repeated)}
        return data.take(pa.array([number for number in range(data.num_rows) if number not in again], pa.int64()))
