"""What the bookkeeping tables of a SQL warehouse say of a generation's histories."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.warehouse.dialect import Connection
from sinks.warehouse.history import EPOCH


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

    def raise_missing_until(self, name: TableName, time_ms: int) -> None:
        """Changes of before may be missing. One of before the history was begun takes nothing from it."""
        self._execute(
            "update lockstep.kept_history set complete_from = :missing_until "
            "where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table "
            "and coalesce(complete_from, begun_at) < :missing_until",
            source_schema=name.schema,
            source_table=name.name,
            missing_until=EPOCH + timedelta(milliseconds=time_ms),
        )

    def refuse(self, version: TableEvents, reason: str) -> None:
        """Note that the history lacks a version, given alone."""
        self._execute(
            "insert into lockstep.refused_version (view_schema, generation, source_schema, source_table, tag, "
            "key_digest, reason) "
            "values (:view_schema, :generation, :source_schema, :source_table, :tag, :key_digest, :reason) on conflict "
            "do nothing",
            source_schema=version.table.schema,
            source_table=version.table.name,
            tag=version.tags[0],
            key_digest=_digest(version.keys[0]),
            reason=reason,
        )

    def retry(self, versions: TableEvents) -> None:
        """These versions are about to be written again.

        Those that the history lacked are no longer known to be lacking.
        """
        name = versions.table
        lacking: Sequence[Any] = self._execute(
            "select tag, key_digest from lockstep.refused_version where view_schema = :view_schema and generation = "
            ":generation "
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
                    "delete from lockstep.refused_version where view_schema = :view_schema and generation = "
                    ":generation "
                    "and source_schema = :source_schema and source_table = :source_table and tag = :tag and key_digest "
                    "= :digest",
                    source_schema=name.schema,
                    source_table=name.name,
                    tag=tag,
                    digest=digest,
                )


def _digest(key: bytes) -> str:
    """Of a key that may be too long for an index, and is nobody's business here."""
    return hashlib.sha256(key).hexdigest()
