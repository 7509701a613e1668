"""The row that is to be erased, as every place looks for it."""

from dataclasses import dataclass

from cdc.model.event import JsonValue
from cdc.model.table import Table


@dataclass(frozen=True, slots=True)
class DeletedRow:
    """``tag`` is that of its deletion, "" where no topic has it any more. ``key`` is in the order of the table's.

    ``gone_at`` is a tag that is greater than those of all that was committed while the row was there.
    """

    table: Table
    key: dict[str, JsonValue]
    tag: str
    topic: str
    gone_at: str = ""
