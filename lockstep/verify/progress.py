"""How far a comparison is, for displays."""

from collections.abc import Callable
from dataclasses import dataclass

from cdc.model.table import TableName


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done to a table. ``count`` is the number of rows read so far, or of keys in hand."""

    table: TableName
    what: str
    count: int


OnStep = Callable[[Step], None]
