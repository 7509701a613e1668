"""PostgreSQL's statistics of a table's rows, for estimates."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column's values. ``distinct`` counts the different ones, without nulls. ``most_common`` is the
    share of rows that have the most frequent value, ``nulls`` the share without a value. ``width`` is the average
    number of bytes of a value inside PostgreSQL."""

    distinct: float
    most_common: float
    nulls: float
    width: float


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """A table's rows, and its columns by name. Columns without statistics are absent."""

    rows: float
    columns: Mapping[str, ColumnStatistics]

    def of(self, share: float) -> "TableStatistics":
        """Statistics of a share of the rows, assuming that share is like the whole."""
        rows = self.rows * share
        fewer = {name: replace(each, distinct=min(each.distinct, rows)) for name, each in self.columns.items()}
        return TableStatistics(rows, fewer)
