"""What PostgreSQL has noted of a table's rows, for estimates."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """A column's values. ``distinct`` is how many different ones there are, nulls aside.

    ``most_common`` is the share of rows that have the most frequent value, ``nulls`` that of rows without a value.
    ``width`` is the average number of bytes of a value inside PostgreSQL.
    """

    distinct: float
    most_common: float
    nulls: float
    width: float


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """A table: its rows, and its columns by name, those of which nothing is known left out."""

    rows: float
    columns: Mapping[str, ColumnStatistics]

    def of(self, share: float) -> "TableStatistics":
        """Those of a share of the rows, of which nothing else is known."""
        rows = self.rows * share
        fewer = {name: replace(each, distinct=min(each.distinct, rows)) for name, each in self.columns.items()}
        return TableStatistics(rows, fewer)
