"""What a sink gets to see of the other side's rows: masks, computed columns and filters, applied before comparing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import orjson

from cdc.model.table import Column, Table, TableName
from jobs.executor.computed_row import computed_row
from lockstep.verify.canonical import Key, Row
from sinks.wrappers.projection import Projection

_ROWS_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024

_REFUSED: Final[Row] = {}
"""A row that no sink of these settings takes: whatever a sink holds under its key differs from this."""


class RowComputer(Protocol):
    """Evaluates a sink's expressions."""

    def compute(self, table: TableName, rows: list[bytes]) -> list[bytes]:
        """The results for each row, in order, in the form that ``jobs.executor.computed_row`` reads."""
        ...


def no_computer() -> RowComputer:
    """For a view of a sink of which no expression is evaluated."""
    raise AssertionError("nothing is evaluated here")


class SinkView:
    """Brings rows into what the sink is to have. ``open_computer`` is asked once, when the first row needs it.

    What ``open_computer`` opens takes seconds to start, so a comparison that needs no expression doesn't start it.
    """

    def __init__(self, projection: Projection, open_computer: Callable[[], RowComputer]) -> None:
        self._projection = projection
        self._open_computer = open_computer
        self._computer: RowComputer | None = None

    def changes(self, table: TableName) -> bool:
        """Whether rows of a table look different than at the source, columns that are left out aside."""
        return table in self._projection.masks or table in self._projection.evaluated

    def evaluates(self, table: TableName) -> bool:
        """Whether expressions have to be evaluated of rows."""
        return table in self._projection.evaluated

    def row(self, table: TableName, row: Row) -> Row:
        """A row whose expressions, if there are any, are evaluated."""
        return self._projection.row(table, row)

    def table(self, table: Table) -> Table:
        """The table as the sink knows it, by the source's names."""
        return self._projection.table(table)

    def computed(self, table: TableName) -> Sequence[Column]:
        """The columns that it has besides the source's own."""
        return self._projection.computed.get(table, ())

    def rows(self, table: TableName, rows: Iterable[tuple[Key, Row]]) -> Iterator[tuple[Key, Row]]:
        """The rows that the sink is to have, as it is to have them."""
        if not self.changes(table):
            yield from rows
            return
        evaluated = self._evaluated(table, rows) if self.evaluates(table) else rows
        for key, row in evaluated:
            yield key, self.row(table, row)

    def _evaluated(self, table: TableName, rows: Iterable[tuple[Key, Row]]) -> Iterator[tuple[Key, Row]]:
        """The same, a bounded number of rows and bytes at a time."""
        keys: list[Key] = []
        texts: list[bytes] = []
        size = 0
        for key, row in rows:
            keys.append(key)
            texts.append(orjson.dumps(row))
            size += len(texts[-1])
            if len(keys) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield from self._computed(table, keys, texts)
                keys, texts, size = [], [], 0
        if keys:
            yield from self._computed(table, keys, texts)

    def _computed(self, table: TableName, keys: list[Key], texts: list[bytes]) -> Iterator[tuple[Key, Row]]:
        if self._computer is None:
            self._computer = self._open_computer()
        columns = self._projection.computed.get(table, ())
        for key, text, results in zip(keys, texts, self._computer.compute(table, texts), strict=True):
            computed = computed_row(text, results, columns)
            if computed.refused:
                yield key, _REFUSED
            elif computed.row is not None:
                yield key, orjson.loads(computed.row)
