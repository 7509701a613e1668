"""Compares every row of every table in a sink with the source, value by value.

Both sides are in the event's form: the source's rows pass capture's own encoder, and a sink's ``scan`` returns what it
stores. Every sink promises the exact values, including JSON's text. So equal means the same value of the same type:
``1``, ``1.0``, ``true`` and ``"1"`` are four different ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg

from cdc.event_format.encode import TableEncoder
from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.settings import SourceSettings
from cdc.protocol.copy_text import split_row
from lockstep.verify.canonical import Key, Row, differing_columns, key_of
from sinks.contract import Sink, StoredRow
from sinks.wrappers.projection import Projection

EXAMPLES_MAX: Final = 5
"""How many keys are shown."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The number of rows, and the keys of a few of them. Never a row's other values."""

    count: int
    examples: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "keys": list(self.examples)}


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table of one sink. ``extra`` holds rows that the source lacks, and second rows of a key. ``different`` are
    rows of the same key with another value; ``columns`` says in which columns."""

    table: TableName
    source_rows: int
    sink_rows: int
    missing: Differences
    extra: Differences
    different: Differences
    columns: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not (self.missing.count or self.extra.count or self.different.count)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "rows": self.sink_rows,
            "missing": self.missing.to_json(),
            "extra": self.extra.to_json(),
            "different": {**self.different.to_json(), "columns": list(self.columns)},
        }


class SourceRows:
    """The source's tables as of one snapshot, so that they don't change while they are compared."""

    def __init__(self, connection: psycopg.Connection[Any], tables: Mapping[TableName, Table]) -> None:
        self._connection = connection
        self.tables = tables

    def rows(self, table: Table, where: str = "") -> Iterator[Row]:
        """Every row in the event's form, or those for which the SQL of ``where`` holds. Raises Unavailable."""
        encoder = TableEncoder(table, server="", database="", version="")
        columns = ", ".join(quote_identifier(column.name) for column in table.columns)
        # Through a query: COPY of a table by name doesn't take a partitioned one.
        condition = f" where {where}" if where else ""
        query = f"copy (select {columns} from {table.name.sql}{condition}) to stdout"
        try:
            with self._connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
                for line in copy:
                    row: Row = orjson.loads(encoder.row(split_row(bytes(line)[:-1])))
                    yield row
        except psycopg.OperationalError as error:
            raise connection_error(error) from error


@contextmanager
def open_source(
    source: SourceSettings, *, names: Sequence[TableName], publication: str, application: str
) -> Iterator[SourceRows]:
    """The source's published tables under one snapshot, until the block ends. Raises as ``connect``."""
    with connect(source, application=application) as connection:
        connection.execute("begin transaction isolation level repeatable read, read only")
        yield SourceRows(connection, load_tables(connection, names, publication))


def compare_sinks(source: SourceRows, sinks: Mapping[str, tuple[Sink, Projection]]) -> dict[str, list[TableComparison]]:
    """Compare every table in every sink with the rows that its projection leaves. Holds one table at a time in memory.
    Raises Unavailable if the source is lost, and what ``Sink.scan`` raises."""
    comparisons: dict[str, list[TableComparison]] = {name: [] for name in sinks}
    for table in source.tables.values():
        rows = by_key(table, source.rows(table))
        for name, (sink, projection) in sinks.items():
            expected = {key: projection.row(table.name, row) for key, row in rows.items()} if projection else rows
            comparisons[name].append(compare_table(table, expected, sink.scan(table)))
    return comparisons


def by_key(table: Table, rows: Iterable[Row]) -> dict[Key, Row]:
    return {key_of(table, row): row for row in rows}


def compare_table(table: Table, expected: Mapping[Key, Row], stored: Iterable[StoredRow]) -> TableComparison:
    seen_keys: set[Key] = set()
    extra: list[Key] = []
    different: list[Key] = []
    columns: set[str] = set()
    sink_rows = 0
    for actual in stored:
        sink_rows += 1
        key = key_of(table, actual.key)
        expected_row = expected.get(key)
        if expected_row is None or key in seen_keys:
            extra.append(key)
            continue
        seen_keys.add(key)
        unequal = differing_columns(table, expected_row, actual.row)
        if unequal:
            different.append(key)
            columns.update(unequal)
    missing = [key for key in expected if key not in seen_keys]
    return TableComparison(
        table.name,
        len(expected),
        sink_rows,
        _differences(missing),
        _differences(extra),
        _differences(different),
        tuple(sorted(columns)),
    )


def _differences(keys: Sequence[Key]) -> Differences:
    return Differences(len(keys), tuple(key.decode() for key in sorted(keys)[:EXAMPLES_MAX]))
