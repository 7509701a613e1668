"""The bookkeeping tables in a SQL warehouse, schema ``lockstep``.

Writers, tables, progress, coordination records, histories.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from cdc.model.errors import Fenced, LockstepError
from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.contract import Progress, TopicPartition
from sinks.progress_json import dump_progress, load_progress
from sinks.stored_format import check_stored_format
from sinks.warehouse.dialect import Connection
from sinks.warehouse.held_table import HeldTable, relations_of
from sinks.warehouse.history import EPOCH
from sinks.warehouse.names import warehouse_name


class WarehouseBookkeeping:
    """The bookkeeping of one generation. Every method is called inside a transaction."""

    def __init__(self, connection: Connection, name: str, generation: int) -> None:
        self._execute = connection.execute
        self._locking = connection.locking
        self._connection = connection
        self._name = name
        self._generation = generation
        self._are_current = False

    def create(self) -> None:
        """Create the bookkeeping tables, or bring them to this version's format.

        Raises LockstepError for a newer one.
        """
        from migrations.warehouse import upgrade

        self.stored_format()
        upgrade(self._connection.connected)

    def exist(self) -> bool:
        """Whether there are any. Earlier ones are brought to this version's format.

        Raises LockstepError for newer ones.
        """
        from migrations.warehouse import HEAD

        if self._are_current:
            return True
        found = self.stored_format()
        if 0 < found < HEAD:
            self.create()
        self._are_current = found == HEAD  # else this transaction may undo it
        return found > 0

    def stored_format(self) -> int:
        """0 where there is nothing yet. Raises LockstepError for a newer one than this version knows."""
        from migrations.warehouse import HEAD, SCHEMA, VERSION_TABLE

        if not self._connection.has_relation(SCHEMA, VERSION_TABLE):
            return 0
        found = int(self._execute(f"select version_num from {SCHEMA}.{VERSION_TABLE}").scalar() or 0)
        check_stored_format(self._name, max(found, HEAD), known=HEAD, elsewhere="url")
        return found

    def require(self) -> None:
        if not self.exist():
            raise self.missing()

    def missing(self) -> LockstepError:
        return LockstepError(
            f"generation {self._generation} of sink {self._name!r} doesn't exist",
            hint="it was never prepared, or it was dropped",
        )

    # Generations

    def enter(self) -> None:
        """Make this sink and this generation known."""
        self._execute("insert into lockstep.sink (view_schema) values (:view_schema) on conflict do nothing")
        self._execute(
            "insert into lockstep.writer (view_schema, generation, fence) values (:view_schema, :generation, 0) on "
            "conflict do nothing"
        )

    def hold_live(self) -> int | None:
        """The live generation, which stays it until the transaction ends. One at a time.

        Who prepares or switches waits here.
        """
        live = self._execute(
            f"select live_generation from lockstep.sink where view_schema = :view_schema {self._locking('for update')}"
        ).scalar()
        return None if live is None else int(live)

    def live(self) -> int | None:
        live = self._execute("select live_generation from lockstep.sink where view_schema = :view_schema").scalar()
        return None if live is None else int(live)

    def make_live(self) -> None:
        self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")

    def generations(self) -> list[int]:
        rows: Iterable[Any] = self._execute(
            "select generation from lockstep.writer where view_schema = :view_schema order by generation"
        )
        return [int(row[0]) for row in rows]

    def is_bulk(self, lock: str) -> bool | None:
        """Whether this generation is loaded in bulk, held like that with the lock; None when it doesn't exist."""
        is_bulk = self._execute(
            "select is_bulk from lockstep.writer where view_schema = :view_schema and generation = :generation "
            f"{self._locking(lock)}"
        ).scalar()
        return None if is_bulk is None else bool(is_bulk)

    def set_bulk(self, is_bulk: bool) -> None:
        self._execute(
            "update lockstep.writer set is_bulk = :is_bulk where view_schema = :view_schema and generation = "
            ":generation",
            is_bulk=is_bulk,
        )

    def forget_generation(self) -> None:
        for bookkeeping in ("writer", "prepared_table", "applied_offset", "progress"):
            self._execute(
                f"delete from lockstep.{bookkeeping} where view_schema = :view_schema and generation = :generation"
            )
        self._execute(
            "delete from lockstep.coordination_record where view_schema = :view_schema and starts_with(name, "
            ":beginning)",
            beginning=f"g{self._generation}.",
        )

    # Tables

    def tables(self) -> dict[TableName, HeldTable]:
        rows: Iterable[Any] = self._execute(
            "select source_schema, source_table, shape from lockstep.prepared_table "
            "where view_schema = :view_schema and generation = :generation"
        )
        return {TableName(row[0], row[1]): HeldTable.from_json(row[2]) for row in rows}

    def relations(self) -> dict[str, str]:
        """The names of the tables of all generations, with what stands there. Readers know them by these."""
        rows: Iterable[Any] = self._execute(
            "select distinct source_schema, source_table, shape::json ->> 'warehouse_name', "
            "coalesce(shape::json ->> 'has_history', 'false') = 'true' "
            "from lockstep.prepared_table where view_schema = :view_schema"
        )
        relations: dict[str, str] = {}
        for schema, table, called, has_history in rows:
            name = TableName(schema, table)
            relations |= relations_of(name, called or warehouse_name(name), has_history=has_history)
        return relations

    def save_table(self, table: HeldTable) -> None:
        name = table.shape.table.name
        self._execute(
            "insert into lockstep.prepared_table (view_schema, generation, source_schema, source_table, shape) "
            "values (:view_schema, :generation, :source_schema, :source_table, :shape) "
            "on conflict (view_schema, generation, source_schema, source_table) do update set shape = excluded.shape",
            source_schema=name.schema,
            source_table=name.name,
            shape=table.to_json(),
        )

    def forget_table(self, name: TableName) -> None:
        self._execute(
            "delete from lockstep.prepared_table where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table",
            source_schema=name.schema,
            source_table=name.name,
        )

    # Writers and progress

    def claim(self) -> int:
        fence = self._execute(
            "update lockstep.writer set fence = fence + 1, claimed_at = now() "
            "where view_schema = :view_schema and generation = :generation returning fence"
        ).scalar()
        if fence is None:
            raise self.missing()
        return int(fence)

    def fence(self) -> int:
        self.require()
        fence = self._execute(
            "select fence from lockstep.writer where view_schema = :view_schema and generation = :generation"
        ).scalar()
        if fence is None:
            raise self.missing()
        return int(fence)

    def check_fence(self, fence: int) -> bool:
        """Hold the right to write until the transaction ends. Raises Fenced when another job has it.

        Returns whether the generation is loaded in bulk, which stays so as long.
        """
        held = self._execute(
            "select is_bulk from lockstep.writer where view_schema = :view_schema and generation = :generation and "
            "fence = :fence " + self._locking("for share"),
            fence=fence,
        ).scalar()
        if held is None:
            known = self._execute(
                "select 1 from lockstep.writer where view_schema = :view_schema and generation = :generation"
            )
            if known.scalar() is None:
                raise self.missing()
            raise Fenced(
                f"another job has become the writer of sink {self._name!r}, generation {self._generation}",
                hint="stop one of the two jobs",
            )
        return bool(held)

    def save_offsets(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        for (topic, partition), next_offset in sorted(next_offsets.items()):
            self._execute(
                "insert into lockstep.applied_offset as known (view_schema, generation, topic, partition, next_offset) "
                "values (:view_schema, :generation, :topic, :partition, :next_offset) "
                "on conflict (view_schema, generation, topic, partition) do update "
                "set next_offset = greatest(known.next_offset, excluded.next_offset), applied_at = now()",
                topic=topic,
                partition=partition,
                next_offset=next_offset,
            )

    def load_progress(self) -> Progress | None:
        text = self._execute(
            "select document from lockstep.progress where view_schema = :view_schema and generation = :generation"
        ).scalar()
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        self._execute(
            "insert into lockstep.progress "
            "(view_schema, generation, watermark_lsn, commit_time_ms, updated_at_ms, document) "
            "values (:view_schema, :generation, :watermark_lsn, :commit_time_ms, :updated_at_ms, :document) "
            "on conflict (view_schema, generation) do update set watermark_lsn = excluded.watermark_lsn, "
            "commit_time_ms = excluded.commit_time_ms, updated_at_ms = excluded.updated_at_ms, "
            "document = excluded.document",
            watermark_lsn=progress.watermark_lsn,
            commit_time_ms=progress.commit_time_ms,
            updated_at_ms=progress.updated_at_ms,
            document=dump_progress(progress).decode(),
        )

    # Coordination records

    def load_record(self, name: str) -> str | None:
        content = self._execute(
            "select content from lockstep.coordination_record where view_schema = :view_schema and name = :name",
            name=name,
        ).scalar()
        return None if content is None else str(content)

    def save_record(self, name: str, text: str | None) -> None:
        if text is None:
            self._execute(
                "delete from lockstep.coordination_record where view_schema = :view_schema and name = :name", name=name
            )
        else:
            self._execute(
                "insert into lockstep.coordination_record (view_schema, name, content) values (:view_schema, :name, "
                ":content) "
                "on conflict (view_schema, name) do update set content = excluded.content, updated_at = now()",
                name=name,
                content=text,
            )

    def create_record(self, name: str, text: str) -> bool:
        created = self._execute(
            "insert into lockstep.coordination_record (view_schema, name, content) values (:view_schema, :name, "
            ":content) "
            "on conflict (view_schema, name) do nothing",
            name=name,
            content=text,
        )
        return bool(created.rowcount)


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
