"""How far a comparison is, for whoever shows it."""

from collections.abc import Callable
from dataclasses import dataclass

from cdc.model.table import TableName


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done to which table. ``count`` are the rows read so far, or the keys in hand."""

    table: TableName
    what: str
    count: int


OnStep = Callable[[Step], None]
