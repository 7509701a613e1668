"""The bookkeeping about a generation's histories in a SQL warehouse."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.warehouse.dialect import Connection
from sinks.warehouse.history import EPOCH

_OF_TABLE: Final = (
    "view_schema = :view_schema and generation = :generation "
    "and source_schema = :source_schema and source_table = :source_table"
)


class HistoryBookkeeping:
    """The time from which each history of one generation is complete. Every method is called inside a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute

    def begin(self, name: TableName, relation: str) -> None:
        """Versions of the table are stored from now on. Does nothing if they already are."""
        self._execute(
            "insert into lockstep.kept_history (view_schema, generation, source_schema, source_table, view_name) "
            "values (:view_schema, :generation, :source_schema, :source_table, :view_name) on conflict do nothing",
            **_bound(name),
            view_name=relation,
        )

    def forget(self, names: Sequence[TableName]) -> None:
        for name in names:
            for bookkeeping in ("kept_history", "refused_version"):
                self._execute(f"delete from lockstep.{bookkeeping} where {_OF_TABLE}", **_bound(name))

    def raise_complete_from(self, name: TableName, time_ms: int) -> None:
        self._raise(name, time_ms, "(complete_from is null or complete_from < :complete_from)")

    def raise_missing_until(self, name: TableName, time_ms: int) -> None:
        """Changes before this time may be missing. It has no effect if the history began later."""
        self._raise(name, time_ms, "coalesce(complete_from, begun_at) < :complete_from")

    def _raise(self, name: TableName, time_ms: int, condition: str) -> None:
        self._execute(
            f"update lockstep.kept_history set complete_from = :complete_from where {_OF_TABLE} and {condition}",
            **_bound(name),
            complete_from=EPOCH + timedelta(milliseconds=time_ms),
        )

    def refuse(self, version: TableEvents, reason: str) -> None:
        """Record that the history lacks this single version."""
        self._execute(
            "insert into lockstep.refused_version (view_schema, generation, source_schema, source_table, tag, "
            "key_digest, reason) "
            "values (:view_schema, :generation, :source_schema, :source_table, :tag, :key_digest, :reason) on conflict "
            "do nothing",
            **_bound(version.table),
            tag=version.tags[0],
            key_digest=_digest(version.keys[0]),
            reason=reason,
        )

    def retry(self, versions: TableEvents) -> None:
        """These versions are about to be written again: none of them counts as lacking any more."""
        table = _bound(versions.table)
        lacking: Sequence[Any] = self._execute(
            f"select tag, key_digest from lockstep.refused_version where {_OF_TABLE}", **table
        ).fetchall()
        if not lacking:
            return
        written = {(tag, _digest(key)) for tag, key in zip(versions.tags, versions.keys, strict=True)}
        for tag, digest in lacking:
            if (tag, digest) in written:
                self._execute(
                    f"delete from lockstep.refused_version where {_OF_TABLE} and tag = :tag and key_digest = :digest",
                    **table,
                    tag=tag,
                    digest=digest,
                )


def _bound(name: TableName) -> dict[str, str]:
    return {"source_schema": name.schema, "source_table": name.name}


def _digest(key: bytes) -> str:
    """A digest: the key may be too long for an index, and its values are private."""
    return hashlib.sha256(key).hexdigest()
