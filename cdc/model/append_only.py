"""How destinations and views hold a table without a key: one row per event, keyed by the event's identity. Pure.

Such a row has two columns before the source's. ``_event`` identifies the event and is the key, so applying an event
again changes nothing, as for every other table.

``_operation`` says what happened. Rows are never changed: an update adds a row with the new values, a delete adds one
with the old values. Only a truncate removes rows: from then on, rows with a lesser tag are deleted, even if they arrive
after it. A copy of the whole table begins with a truncate.
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
    """An event's identity within its table: the tag. Rows of a copy share a tag, so their offset is appended. All
    events of such a table share one key, hence one partition. An offset means the same record as long as the topic is
    the same one, and no job resumes a generation on another topic."""
    return f"{tag}-{offset:0{_OFFSET_DIGITS}x}" if tag.endswith(_SNAPSHOT_ENDING) else tag


def stored_table(table: Table) -> Table:
    """The table as a destination holds it: the two columns are added if it has no key. Raises LockstepError if a column
    already has one of their names."""
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
    """``stored_table`` for several tables."""
    return {name: stored_table(table) for name, table in tables.items()}


def is_append_only(table: Table) -> bool:
    """Whether ``stored_table`` gave this table its key."""
    return table.key == (EVENT_COLUMN,) and table.columns[: len(_COLUMNS)] == _COLUMNS


def hides(row: Mapping[str, JsonValue], tag: str, emptied: str) -> bool:
    """Whether readers don't see the row once a truncate with the tag ``emptied`` is stored."""
    return row.get(OPERATION_COLUMN) == TRUNCATE or tag < emptied


def named(columns: Collection[str]) -> list[str]:
    """Those of these columns that have the name of one of ours."""
    return [name for name in columns if name.lower() in OWN_COLUMNS]
