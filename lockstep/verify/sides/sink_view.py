"""What a sink gets to see of the other side's rows: its masks, computed columns and filters, applied to them before they are compared."""

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
"""Stands for a row that no sink of these settings takes: whatever is found in its place differs from it."""


class Deriver(Protocol):
    """Evaluates a sink's expressions."""

    def derive(self, table: TableName, rows: list[bytes]) -> list[bytes]:
        """What is derived of each row, as ``jobs.executor.computed_row`` reads it."""
        ...


class View:
    """``open_deriver`` is called once, when the first row needs it: what it opens takes seconds to start."""

    def __init__(self, projection: Projection, open_deriver: Callable[[], Deriver]) -> None:
        self._projection = projection
        self._open_deriver = open_deriver
        self._deriver: Deriver | None = None

    def changes(self, table: TableName) -> bool:
        """Whether rows of a table look otherwise than at the source, columns that are left out aside."""
        return table in self._projection.masks or table in self._projection.derived

    def evaluates(self, table: TableName) -> bool:
        """Whether expressions have to be evaluated of rows."""
        return table in self._projection.derived

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
        shown = self._evaluated(table, rows) if self.evaluates(table) else rows
        for key, row in shown:
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
                yield from self._derived(table, keys, texts)
                keys, texts, size = [], [], 0
        if keys:
            yield from self._derived(table, keys, texts)

    def _derived(self, table: TableName, keys: list[Key], texts: list[bytes]) -> Iterator[tuple[Key, Row]]:
        if self._deriver is None:
            self._deriver = self._open_deriver()
        columns = self._projection.computed.get(table, ())
        for key, text, results in zip(keys, texts, self._deriver.derive(table, texts), strict=True):
            found = computed_row(text, results, columns)
            if found.refused:
                yield key, _REFUSED
            elif found.row is not None:
                yield key, orjson.loads(found.row)
