"""A generation's progress in a SQL warehouse, in schema ``lockstep``: offsets with the rows, progress after them."""

from collections.abc import Iterable, Mapping
from typing import Any

from sinks.contract import Progress, TopicPartition
from sinks.progress_json import dump_progress, load_progress
from sinks.warehouse.bookkeeping import OF_GENERATION
from sinks.warehouse.dialect import Connection


class StoredProgress:
    """The progress of one generation. Every method is called inside a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def save_offsets(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        # Always in the same order, so that two tasks can't deadlock.
        self._connection.execute_each(
            "insert into lockstep.applied_offset as known (view_schema, generation, topic, partition, next_offset) "
            "values (:view_schema, :generation, :topic, :partition, :next_offset) "
            "on conflict (view_schema, generation, topic, partition) do update "
            "set next_offset = greatest(known.next_offset, excluded.next_offset), applied_at = now()",
            [
                {"topic": topic, "partition": partition, "next_offset": next_offset}
                for (topic, partition), next_offset in sorted(next_offsets.items())
            ],
        )

    def load_offsets(self) -> dict[TopicPartition, int]:
        """The next offsets that were stored with the rows."""
        rows: Iterable[Any] = self._connection.execute(
            f"select topic, partition, next_offset from lockstep.applied_offset {OF_GENERATION}"
        )
        return {(row[0], int(row[1])): int(row[2]) for row in rows}

    def load_progress(self) -> Progress | None:
        text = self._connection.execute(f"select document from lockstep.progress {OF_GENERATION}").scalar()
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        self._connection.execute(
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
