"""Removes what a Delta table keeps of a deleted row: its mark, and older files and commits that contain it.

The greatest erased tag is a property of the table, stored before the first row goes. An event up to that tag whose row
is missing is a repetition, as with purged rows of a warehouse.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.capabilities.erasing import Erasing, Leftover, marks_of_rows
from sinks.delta.lake import Lake, talking
from sinks.delta.merge import time_literal
from sinks.delta.names import SYNCED_COLUMN, quoted
from sinks.delta.opened_table import OpenedTable, is_among
from sinks.delta.tables import DeltaTables

if TYPE_CHECKING:
    import pyarrow as pa

ERASED: Final = "lockstep.erased"
"""Property of a table: the greatest tag that was erased."""

_ERASED_AT: Final = "lockstep.erased_at"
"""Property of a table: when a row was last erased, in milliseconds since 1970."""

_HOUR_MS: Final = 3_600_000
_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"


def erased_tag(opened: OpenedTable) -> str:
    """As of the last refresh; "" if nothing was erased."""
    return opened.table.metadata().configuration.get(ERASED, "")


def purge(lake: Lake, opened: OpenedTable, *, below: str, before: datetime | None = None) -> bool:
    """Remove rows with tags less than ``below``, deleted before a time (None: at any). Returns whether any was removed.

    A table that doesn't store its rows' times isn't purged by time. Raises Overtaken.
    """
    import pyarrow.dataset as ds

    if before is not None and not opened.has_synced_at:
        return False
    # Stubs of Arrow's expressions lack most of them.
    condition: Any = ds.field("_deleted") & (ds.field("_tag").cast("large_string") < below)
    predicate = f"{quoted('_deleted')} and {quoted('_tag')} < '{below}'"
    if before is not None:
        condition &= ds.field(SYNCED_COLUMN) < before
        predicate += f" and {quoted(SYNCED_COLUMN)} < {time_literal(before)}"
    newest = ""
    with talking():
        for batch in opened.table.to_pyarrow_dataset().scanner(columns=["_tag"], filter=condition).to_batches():
            newest = max([newest, *batch.column("_tag").to_pylist()])
    if not newest:
        return False
    # First the tag that keeps them out: a kill may leave only the first of two commits.
    if newest > erased_tag(opened):
        lake.set_properties(opened.path, opened.table, {ERASED: newest})
    lake.commit(opened.path, opened.table, lambda commit: opened.table.delete(predicate, commit_properties=commit))
    return True


class DeltaErasing(Erasing):
    """Erases rows of one generation. Replaced files stay for ``retention_hours``."""

    def __init__(self, tables: DeltaTables, *, retention_hours: int) -> None:
        self._tables = tables
        self._retention_hours = retention_hours

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> list[Leftover]:
        """The row or its mark, older files with it, and commits with values of those."""
        opened = self._opened(table.name)
        if opened is None:
            return []
        if key is None:
            return self._of_all(opened, None)
        if not _has_key(opened, key):
            return [Leftover("rows by another key of the table", has_values=True)]
        found = []
        stored = [row for batch in _of_key(opened.table.to_pyarrow_dataset(), opened, key) for row in batch.to_pylist()]
        if stored:
            is_mark = all(row["_deleted"] for row in stored)
            found.append(Leftover("the mark of its deletion" if is_mark else "the row", has_values=not is_mark))
        now_ms = time.time_ns() // 1_000_000
        old = sum(1 for _ in self._old_files(opened, key))
        if old:
            until_ms = now_ms + self._retention_hours * _HOUR_MS
            found.append(Leftover(f"{old} replaced file{'s' * (old > 1)} with the row", True, until_ms))
        erased_at_ms = int(opened.table.metadata().configuration.get(_ERASED_AT, "0"))
        if self._oldest_commit_ms(opened, now_ms) < erased_at_ms:
            until_ms = erased_at_ms + self._retention_hours * _HOUR_MS
            found.append(Leftover("commits with the least and greatest values of files", True, until_ms))
        return found

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> list[Leftover]:
        opened = self._opened(table.name)
        if opened is None or opened.is_bulk:
            return self.leftovers(table, key)
        if key is None:
            if below is not None:
                self._tables.repeat(opened, lambda opened: purge(self._tables.lake, opened, below=below))
            self._clean_up(opened)
            opened.refresh()
            return self._of_all(opened, below)
        if below is not None and _has_key(opened, key):
            self._tables.repeat(opened, lambda opened: self._erase(opened, key, below))
        self._clean_up(opened)
        return self.leftovers(table, key)

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        opened = {name: each for name in tables if (each := self._opened(name)) is not None}
        return {name: tag for name, each in opened.items() if (tag := erased_tag(each))}

    def _of_all(self, opened: OpenedTable, below: str | None) -> list[Leftover]:
        """Marks with tags less than ``below`` (None: all), and all replaced files: their rows are unknown by now."""
        import pyarrow.dataset as ds

        condition: Any = ds.field("_deleted")
        if below is not None:
            condition &= ds.field("_tag").cast("large_string") < below
        with talking():
            marks = opened.table.to_pyarrow_dataset().count_rows(filter=condition)
            unused = opened.table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
        old = sum(path.endswith(".parquet") for path in unused)
        until_ms = time.time_ns() // 1_000_000 + self._retention_hours * _HOUR_MS
        files = [Leftover(f"{old} replaced file{'s' * (old > 1)} of the table", True, until_ms)] if old else []
        commits = [Leftover("commits with the least and greatest values of files", True, until_ms)]
        return [*marks_of_rows(marks), *files, *commits]

    def _opened(self, name: TableName) -> OpenedTable | None:
        build = self._tables.build(self._tables.bookkeeping.read())
        if name not in build.tables:
            return None
        opened = self._tables.open(name)
        opened.refresh()
        return opened

    def _erase(self, opened: OpenedTable, key: Mapping[str, JsonValue], below: str) -> None:
        """Raises Overtaken."""
        import pyarrow as pa

        tags = [
            row["_tag"]
            for batch in _of_key(opened.table.to_pyarrow_dataset(), opened, key)
            for row in batch.to_pylist()
            if row["_deleted"] and row["_tag"] < below
        ]
        if not tags:
            return
        lake = self._tables.lake
        properties = {
            ERASED: max([erased_tag(opened), *tags]),
            _ERASED_AT: str(time.time_ns() // 1_000_000),
        }
        lake.set_properties(opened.path, opened.table, properties)
        # As a merge: a commit contains its condition, and a deletion's condition would contain the key.
        keys = pa.table(opened.rows().key_arrays([key]))
        lake.commit(
            opened.path,
            opened.table,
            lambda commit: (
                opened.table.merge(
                    keys,
                    " and ".join(f"{quoted(name, of='t')} = {quoted(name, of='s')}" for name in keys.column_names),
                    source_alias="s",
                    target_alias="t",
                    streamed_exec=False,
                    commit_properties=commit,
                )
                .when_matched_delete(f"{quoted('_deleted', of='t')} and {quoted('_tag', of='t')} < '{below}'")
                .execute()
            ),
        )

    def _clean_up(self, opened: OpenedTable) -> None:
        from deltalake.exceptions import CommitFailedError

        opened.refresh()
        with talking(), suppress(CommitFailedError):
            opened.table.vacuum(
                retention_hours=self._retention_hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        opened.refresh()
        with talking():
            # Expired commits are removed once a checkpoint has their content.
            opened.table.create_checkpoint()
            opened.table.cleanup_metadata()

    def _old_files(self, opened: OpenedTable, key: Mapping[str, JsonValue]) -> Iterator[str]:
        """Files of earlier versions and of killed writers that have a row of this key."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        with talking():
            unused = opened.table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
            now = opened.table.to_pyarrow_dataset()
        for path in unused:
            if not path.endswith(".parquet"):
                continue
            with suppress(FileNotFoundError), talking():
                own = ds.dataset(path, format="parquet", filesystem=now.filesystem).schema.names
                # With the table's types: Arrow can't filter by some of a file's own. Files lack partition columns.
                fields = pa.schema([now.schema.field(name) for name in own if name in now.schema.names])
                dataset = ds.dataset(path, schema=fields, format="parquet", filesystem=now.filesystem)
                if any(batch.num_rows for batch in _of_key(dataset, opened, key)):
                    yield path

    def _oldest_commit_ms(self, opened: OpenedTable, now_ms: int) -> int:
        import pyarrow.fs

        with talking():
            filesystem = opened.table.to_pyarrow_dataset().filesystem
            files: Any = filesystem.get_file_info(pyarrow.fs.FileSelector(_LOG, recursive=False))
        times = [file.mtime_ns // 1_000_000 for file in files if file.mtime_ns and file.base_name != _LAST_CHECKPOINT]
        return min(times, default=now_ms)


def _has_key(opened: OpenedTable, key: Mapping[str, JsonValue]) -> bool:
    """Whether these are the table's key columns: it may be older than a change of the source's key."""
    return set(opened.rows().shape.table.key) == key.keys()


def _of_key(dataset: Any, opened: OpenedTable, key: Mapping[str, JsonValue]) -> "Iterator[pa.RecordBatch]":
    """Mark and tag of the rows of a key, as far as files have these columns."""
    condition: Any = None
    names = set(dataset.schema.names)
    for name, values in opened.rows().key_arrays([key]).items():
        if name in names:
            among = is_among(name, values)
            condition = among if condition is None else condition & among
    with talking():
        columns = [name for name in ("_deleted", "_tag") if name in names]
        yield from dataset.scanner(columns=columns, filter=condition).to_batches()
