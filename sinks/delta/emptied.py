"""Truncations in the Delta table of an append-only table. Its readers look only at ``_deleted``.

The tag of the last truncate is a property of the table. It is stored before the first row is marked as deleted because
of it: after a kill in between, the marking is repeated, and a row that arrives after it is stored as deleted.
"""

from typing import TYPE_CHECKING, Any, Final

from cdc.model.append_only import OPERATION_COLUMN, TRUNCATE
from sinks.delta.lake import Lake
from sinks.delta.opened_table import OpenedTable

if TYPE_CHECKING:
    import pyarrow as pa

EMPTIED: Final = "lockstep.emptied"
"""Property of a table: the tag of the last truncate."""


def emptied_tag(opened: OpenedTable) -> str:
    """As of the last refresh; "" if there was no truncate."""
    return opened.table.metadata().configuration.get(EMPTIED, "")


def note_truncates(lake: Lake, opened: OpenedTable, data: "pa.Table") -> bool:
    """Store the newest truncate among these rows. Returns whether there is one. Raises Overtaken."""
    operations, tags = data.column(OPERATION_COLUMN).to_pylist(), data.column("_tag").to_pylist()
    newest = max((tag for operation, tag in zip(operations, tags, strict=True) if operation == TRUNCATE), default="")
    if newest > emptied_tag(opened):
        lake.set_properties(opened.path, opened.table, {EMPTIED: newest})
    return bool(newest)


def with_deletions(data: "pa.Table", emptied: str) -> "pa.Table":
    """The rows, with those marked as deleted that nobody may see."""
    import pyarrow as pa
    import pyarrow.compute

    # Stubs of Arrow's compute functions, which are created at import, lack most of them.
    compute: Any = pyarrow.compute
    is_truncate = compute.equal(data.column(OPERATION_COLUMN), pa.scalar(TRUNCATE, pa.string())).fill_null(False)
    is_before = compute.less(data.column("_tag"), pa.scalar(emptied, pa.string()))
    deleted = compute.or_(compute.or_(is_truncate, is_before), data.column("_deleted"))
    return data.set_column(data.column_names.index("_deleted"), data.schema.field("_deleted"), deleted)
