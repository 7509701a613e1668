"""Tables without a key, as destinations and views hold them: a row per event, keyed by the event's own identity. Pure.

Such a row has the source's columns, and two more before them. ``_event`` says which event it is, and is the key. So the
rule that makes every other table safe to repeat holds here too: an event that comes again is there already.

``_operation`` says what happened. A row is never changed: an update is another row, with the values after it, and so is
a delete, with the values before it. Only a truncate takes rows away: those with a lesser tag are deleted from then on,
also where they come after it. A copy of the whole table begins with one.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Column, Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ

EVENT_COLUMN: Final = "_event"
OPERATION_COLUMN: Final = "_operation"
OWN_COLUMNS: Final = (EVENT_COLUMN, OPERATION_COLUMN)

TRUNCATE: Final = "truncate"
OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"r": "snapshot", "c": "insert", "u": "update", "d": "delete", "t": TRUNCATE}
)
"""The envelope's letters in words."""

_SNAPSHOT_ENDING: Final = f"{SNAPSHOT_SEQ:08x}"
_OFFSET_DIGITS: Final = 16
_TEXT: Final = ("text", "text", False, 25, -1)
_COLUMNS: Final = tuple(Column(name, *_TEXT) for name in OWN_COLUMNS)


def event_id(tag: str, offset: int) -> str:
    """The identity of an event of one table: its tag. Rows of a copy share theirs, so their offset follows.

    All events of such a table have one key in the log, hence one partition. An offset means the same record for as long
    as the topic is the same one, and nobody goes on with a generation when it is another one.
    """
    return f"{tag}-{offset:0{_OFFSET_DIGITS}x}" if tag.endswith(_SNAPSHOT_ENDING) else tag


def stored_table(table: Table) -> Table:
    """A table as a destination holds it: one without a key with the columns above, any other as it is.

    Raises LockstepError for a column that has the name of one of these.
    """
    if table.key:
        return table
    for column in table.columns:
        if column.name.lower() in OWN_COLUMNS:
            raise LockstepError(
                f"table {table.name} is append-only and has a column {column.name!r}, a name that sinks of such tables"
                " need for themselves",
                hint="rename the column in the source, or leave the table out of the sink's tables",
            )
    return replace(table, columns=(*_COLUMNS, *table.columns), key=(EVENT_COLUMN,))


def stored_tables(tables: Mapping[TableName, Table]) -> dict[TableName, Table]:
    """The same of several. Raises as ``stored_table``."""
    return {name: stored_table(table) for name, table in tables.items()}


def is_append_only(table: Table) -> bool:
    """Whether a table is one that ``stored_table`` has given its key."""
    return table.key == (EVENT_COLUMN,) and table.columns[: len(_COLUMNS)] == _COLUMNS


def hides(row: Mapping[str, JsonValue], tag: str, emptied: str) -> bool:
    """Whether readers don't see a row, once a truncate of the tag ``emptied`` is stored."""
    return row.get(OPERATION_COLUMN) == TRUNCATE or tag < emptied


def named(columns: Collection[str]) -> list[str]:
    """Those of these columns that are ours."""
    return [name for name in columns if name.lower() in OWN_COLUMNS]
