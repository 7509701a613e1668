"""Names in the history of a table, beside the table of its newest rows (pure)."""

import re
from datetime import UTC, datetime
from typing import Final

from sinks.columns.shape import Shape
from sinks.warehouse.names import NAME_BYTES_MAX, TAG_COLUMN, check_columns

COMMITTED: Final = "_committed_at"
OPERATION: Final = "_operation"
FROM: Final = "valid_from"
TO: Final = "valid_to"
_WHO: Final = "the warehouse's history of the table needs"
_ASIDE: Final = re.compile(r"_dropped_\d+_", re.IGNORECASE)
"""The prefix of columns that the source has dropped: another column with it would be taken for one of them."""

OWN_COLUMNS: Final = 3
"""The number of our columns in a history's table; its view has two more."""

_TAKEN: Final = (TAG_COLUMN, COMMITTED, OPERATION, FROM, TO)
WORDS: Final = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete"}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_history_columns(shape: Shape) -> None:
    check_columns(shape, _TAKEN, _WHO)
    check_columns(shape, [column.name for column in shape.columns if _ASIDE.match(column.name)], _WHO)


def aside_name(name: str, number: int) -> str:
    """The unique new name of a column that the source has dropped. ``number`` is the column's own in the table."""
    return f"_dropped_{number}_{name}".encode()[:NAME_BYTES_MAX].decode(errors="ignore")
