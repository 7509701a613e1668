"""A captured table as it is published: its topic, its encoder, and what decides over its keys and large values."""

from typing import TYPE_CHECKING

from cdc.capture.old_rows import ALL_WHOLE
from cdc.model.table import Table
from cdc.protocol.control_records import SchemaRecord
from cdc.protocol.envelope import TableEncoder
from cdc.protocol.pgoutput import Relation
from cdc.toast.rule import ToastRule

if TYPE_CHECKING:
    from cdc.protocol._kernel import RowKernel


class PublishedTable:
    """A table with where its events go and how they are encoded.

    ``keys_can_swap``: its key is checked late, so two rows may share one for a moment. ``toast``:
    which of its values an update may leave out, where the replica identity doesn't send the old row. ``kernel``: its
    compiled encoder, where it has one.
    """

    __slots__ = (
        "encoder",
        "kernel",
        "keys_can_swap",
        "old_rows",
        "source",
        "table",
        "toast",
        "topic",
        "unrecorded",
    )

    def __init__(
        self,
        topic: str,
        encoder: TableEncoder,
        *,
        keys_can_swap: bool = False,
        toast: ToastRule | None = None,
        kernel: "RowKernel | None" = None,
    ) -> None:
        self.topic = topic
        self.encoder = encoder
        self.table: Table = encoder.table
        self.keys_can_swap = keys_can_swap
        self.toast = toast
        self.kernel = kernel
        self.source = b""
        """The ``source`` block of the current transaction; empty until its first row."""
        self.old_rows = ALL_WHOLE
        """What the stream has of old rows, as of the last Relation message."""
        self.unrecorded: SchemaRecord | None = None
        """The shape's record, when it is new and no row of it has come yet."""


def shape_difference(table: Table, relation: Relation) -> str:
    """How a described relation differs from the table's recorded shape, in words; empty when it doesn't."""
    known_columns = {column.name: column for column in table.columns}
    described = {column.name for column in relation.columns}
    added = [column.name for column in relation.columns if column.name not in known_columns]
    dropped = [name for name in known_columns if name not in described]
    changed = [
        column.name
        for column in relation.columns
        if column.name in known_columns
        and (column.type_oid, column.type_modifier)
        != (known_columns[column.name].type_oid, known_columns[column.name].type_modifier)
    ]
    parts = [
        f"{word} {', '.join(names)}"
        for word, names in (("new column", added), ("without column", dropped), ("other type of", changed))
        if names
    ]
    if not parts and [column.name for column in relation.columns] != [column.name for column in table.columns]:
        return "its columns have another order"
    return "; ".join(parts)
