"""Records of append-only tables -> rows of their stored form (``cdc.model.append_only``). Pure. All records of such a
topic have one key, so that they stay in order. From here on, each has a key of its own."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from cdc.event_format.decode import DELETED, EMPTIED, before_of, op_of
from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, OPERATIONS, event_id

if TYPE_CHECKING:
    import pyarrow as pa

LOG_KEY: Final = b"{}"
"""The key of all events of such a table in the log."""

_HEADS: Final = {
    letter.encode(): b',"%b":"%b"' % (OPERATION_COLUMN.encode(), word.encode()) for letter, word in OPERATIONS.items()
}


def event_key(tag: str, offset: int) -> bytes:
    """The key of an event, in JSON."""
    return b'{"%b":"%b"}' % (EVENT_COLUMN.encode(), event_id(tag, offset).encode())


def with_event_keys(records: "pa.Table", topics: Collection[str]) -> "pa.Table":
    """The records with a key of their own where they belong to these topics. They have the columns of ``with_tags``."""
    import pyarrow as pa  # comparisons read such events too, and don't need it

    present = set(records.column("topic").unique().to_pylist())
    if present.isdisjoint(topics):
        return records
    tags: list[str] = records.column("tag").cast(pa.string()).to_pylist()
    offsets: list[int] = records.column("offset").to_pylist()
    if present <= set(topics):
        keys = list(map(event_key, tags, offsets))
    else:
        given = zip(records.column("key").to_pylist(), records.column("topic").to_pylist(), tags, offsets, strict=True)
        keys = [event_key(tag, offset) if topic in topics else key for key, topic, tag, offset in given]
    return records.set_column(records.column_names.index("key"), "key", pa.array(keys, pa.binary()))


def row_before(value: bytes) -> bytes | None:
    """The deleted row in JSON, as far as the event has it; None if the event isn't a delete. Raises LockstepError for a
    value that isn't an event."""
    if op_of(value) != DELETED:
        return None
    row = before_of(value)
    return LOG_KEY if row == b"null" else row


def stored_row(key: bytes, value: bytes | None, row: bytes | None) -> bytes | None:
    """The row that a destination gets, in JSON, for an event with this own key and value, and columns ``row``. None for
    a tombstone, written while the table had a key; and for an event that doesn't meet the sink's condition."""
    operation = b"" if value is None else op_of(value)
    if not operation or (row is None and operation != EMPTIED):
        return None
    head = key[:-1] + _HEADS[operation]
    return head + (b"," + row[1:] if row is not None and len(row) > 2 else b"}")
