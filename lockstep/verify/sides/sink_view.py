"""What a sink should see of the other side's rows: masks, computed columns and filters, applied before comparing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from cdc.model.table import Column, Table, TableName
from jobs.executor.computed_row import RowComputer
from lockstep.verify.canonical import Key, Row
from sinks.table_settings import Expressions
from sinks.wrappers.projection import Projection

_REFUSED: Final[Row] = {}
"""A row that no sink of these settings takes. Whatever a sink holds under its key differs from it."""


class SinkView:
    """Turns rows into what the sink should have. Expressions are over tables of these ``shapes``."""

    def __init__(
        self,
        projection: Projection,
        expressions: Mapping[TableName, Expressions] = MappingProxyType({}),
        shapes: Mapping[TableName, Table] = MappingProxyType({}),
    ) -> None:
        self._projection = projection
        self._expressions = expressions
        self._shapes = shapes
        self._computers: dict[TableName, RowComputer] = {}

    def changes(self, table: TableName) -> bool:
        """Whether a table's rows look different than at the source, apart from columns that are left out."""
        return table in self._projection.masks or table in self._projection.evaluated

    def evaluates(self, table: TableName) -> bool:
        return table in self._projection.evaluated

    def table(self, table: Table) -> Table:
        """The table as the sink knows it, by the source's names."""
        return self._projection.table(table)

    def computed(self, table: TableName) -> Sequence[Column]:
        """The columns that it has besides the source's own."""
        return self._projection.computed.get(table, ())

    def seen(self, table: TableName, row: Row) -> Row | None:
        """A row as the sink should have it; None if it shouldn't have it. Raises ConfigurationError if the table's
        expressions can't be evaluated."""
        if self.evaluates(table):
            computed = self._computer(table).computed(row)
            if computed.refused:
                return _REFUSED
            if computed.row is None:
                return None
            row = computed.row
        return self._projection.row(table, row)

    def rows(self, table: TableName, rows: Iterable[tuple[Key, Row]]) -> Iterator[tuple[Key, Row]]:
        """The rows that the sink should have, as it should have them. Raises as ``seen``."""
        if not self.changes(table):
            yield from rows
            return
        for key, row in rows:
            if (seen := self.seen(table, row)) is not None:
                yield key, seen

    def _computer(self, table: TableName) -> RowComputer:
        if table not in self._computers:
            from jobs.query.row_plan import row_plans  # the web page shouldn't load a reader of SQL before it needs it

            [plan] = row_plans({table: self._expressions[table]}, self._shapes).values()
            self._computers[table] = RowComputer(plan)
        return self._computers[table]
