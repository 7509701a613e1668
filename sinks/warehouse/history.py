"""All versions of a table's rows, beside the table of the newest ones.

=================================  =====================================================================
``shop_g1.orders_history``         all versions: the source's columns, ``_tag``, ``_committed_at``, ``_operation``
``shop.orders_history``            view of the live generation's, with ``valid_from`` and ``valid_to``
``lockstep.history``               from when on each history is complete
=================================  =====================================================================

Rows are only ever added, under the key and the tag: the same version twice is one, and one that comes late needs no
other to be changed. When a version ended is no part of it but asked of the next one by tag, in the view. So a row as it
was at any time is ``where valid_from <= t and (valid_to is null or t < valid_to)``, and one of several versions of one
transaction is the last. A deletion is a version whose time has no length, and ends the one before it. Where the
source's clock was set back, a version begins no earlier than the one before it.

The table keeps its key in bulk as well. A column that is dropped here as it was at the source stays in the table under
another name, with the values that it had.

Compaction takes versions away before anybody has read them, so a history is complete from some time on: from when the
table was prepared, or what the job says that it read without a gap, whichever is later.
"""

from datetime import UTC, datetime
from typing import Final

from sinks.columns.shape import Shape
from sinks.warehouse.names import NAME_BYTES_MAX, TAG_COLUMN, check_columns

COMMITTED: Final = "_committed_at"
OPERATION: Final = "_operation"
FROM: Final = "valid_from"
TO: Final = "valid_to"
_TAKEN: Final = (TAG_COLUMN, COMMITTED, OPERATION, FROM, TO)
WORDS: Final = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete"}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_history_columns(shape: Shape) -> None:
    """Raise LockstepError for a column whose name is taken by ours."""
    check_columns(shape, _TAKEN, "the warehouse's history of the table needs")


def aside_name(name: str, number: int) -> str:
    """What a column that the source has dropped is called from then on, as no other one is.

    ``number`` is its own in the table.
    """
    return f"_dropped_{number}_{name}".encode()[:NAME_BYTES_MAX].decode(errors="ignore")
