"""A captured table as it is published: its topic, its encoder, and what its keys and large values need."""

from typing import TYPE_CHECKING

from cdc.capture.old_rows import ALL_WHOLE
from cdc.event_format.encode import TableEncoder
from cdc.model.table import Table
from cdc.protocol.control_records import SchemaRecord
from cdc.toast.rule import ToastRule

if TYPE_CHECKING:
    from cdc.event_format._kernel import RowKernel


class PublishedTable:
    """A table with its topic and encoder. ``keys_can_swap``: its key is checked late, so two rows may share one for a
    moment. ``toast``: which values an update may leave out, unless the replica identity sends the old row. ``kernel``:
    its compiled encoder, if any."""

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
        """The shape's record, while the shape is new and none of its rows has come."""
