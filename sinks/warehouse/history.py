"""All versions of a table's rows, beside the table of the newest ones.

=================================  =====================================================================
``shop_g1.orders_history``         every version that came: the source's columns, ``_tag``, ``_committed_at``, ``_operation``
``shop.orders_history``            view of the live generation's, with ``valid_from`` and ``valid_to``
``lockstep.history``               from when on each history is complete
=================================  =====================================================================

Rows are only ever added, under the key and the tag: the same version twice is one, and one that comes late needs no other to be
changed. When a version ended is no part of it but asked of the next one by tag, in the view. So a row as it was at any time is
``where valid_from <= t and (valid_to is null or t < valid_to)``, and one of several versions of one transaction is the last. A
deletion is a version whose time has no length, and ends the one before it. Where the source's clock was set back, a version begins
no earlier than the one before it.

The table keeps its key in bulk as well. A column that is dropped here as it was at the source stays in the table under another
name, with the values that it had.

Compaction takes versions away before anybody has read them, so a history is complete from some time on: from when the table was
prepared, or what the job says that it read without a gap, whichever is later.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.columns.shape import Shape
from sinks.warehouse.dialect import Connection
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
    """What a column that the source has dropped is called from then on, as no other one is; ``number`` is its own in the table."""
    return f"_dropped_{number}_{name}".encode()[:NAME_BYTES_MAX].decode(errors="ignore")


class HistoryBookkeeping:
    """From when on the histories of one generation are complete. Every method is called inside a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute

    def begin(self, name: TableName, relation: str) -> None:
        """From now on versions of the table are kept. Does nothing when they are already."""
        self._execute(
            "insert into lockstep.kept_history (view_schema, generation, source_schema, source_table, view_name) "
            "values (:view_schema, :generation, :source_schema, :source_table, :view_name) on conflict do nothing",
            source_schema=name.schema,
            source_table=name.name,
            view_name=relation,
        )

    def forget(self, names: Sequence[TableName]) -> None:
        for name in names:
            for bookkeeping in ("kept_history", "refused_version"):
                self._execute(
                    f"delete from lockstep.{bookkeeping} where view_schema = :view_schema and generation = :generation "
                    "and source_schema = :source_schema and source_table = :source_table",
                    source_schema=name.schema,
                    source_table=name.name,
                )

    def raise_complete_from(self, name: TableName, time_ms: int) -> None:
        self._execute(
            "update lockstep.kept_history set complete_from = :complete_from "
            "where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table "
            "and (complete_from is null or complete_from < :complete_from)",
            source_schema=name.schema,
            source_table=name.name,
            complete_from=EPOCH + timedelta(milliseconds=time_ms),
        )

    def refuse(self, version: TableEvents, reason: str) -> None:
        """Note that the history lacks a version, given alone."""
        self._execute(
            "insert into lockstep.refused_version (view_schema, generation, source_schema, source_table, tag, key_digest, reason) "
            "values (:view_schema, :generation, :source_schema, :source_table, :tag, :key_digest, :reason) on conflict do nothing",
            source_schema=version.table.schema,
            source_table=version.table.name,
            tag=version.tags[0],
            key_digest=_digest(version.keys[0]),
            reason=reason,
        )

    def retry(self, versions: TableEvents) -> None:
        """These versions are about to be written again: those that the history lacked are no longer known to be lacking."""
        name = versions.table
        lacking: Sequence[Any] = self._execute(
            "select tag, key_digest from lockstep.refused_version where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table",
            source_schema=name.schema,
            source_table=name.name,
        ).fetchall()
        if not lacking:
            return
        written = {(tag, _digest(key)) for tag, key in zip(versions.tags, versions.keys, strict=True)}
        for tag, digest in lacking:
            if (tag, digest) in written:
                self._execute(
                    "delete from lockstep.refused_version where view_schema = :view_schema and generation = :generation "
                    "and source_schema = :source_schema and source_table = :source_table and tag = :tag and key_digest = :digest",
                    source_schema=name.schema,
                    source_table=name.name,
                    tag=tag,
                    digest=digest,
                )


def _digest(key: bytes) -> str:
    """Of a key that may be too long for an index, and is nobody's business here."""
    return hashlib.sha256(key).hexdigest()
