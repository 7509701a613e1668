"""Tables that a generation's job doesn't read: they can't be compared, and may hold up the watermark of all others."""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Protocol

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.columns import load_columns
from jobs.generations.held_tables import HeldTable, load_held_tables
from jobs.query.watermark import Watermark
from lockstep.verify.waiting import LoadsProgress
from sinks.contract import CoordinationRecords, Progress


class NewRecords(Protocol):
    """The progress topic, as ``cdc.kafka.control_topics.ProgressReader`` reads it."""

    def new_records(self) -> list[ProgressRecord]:
        """Records since the last call; the first one bounds all topics. Raises Unavailable."""
        ...


class UnreadTables:
    """The tables that a generation's job doesn't read, as of when this is made. Every method that asks the destination
    raises what it raises."""

    def __init__(self, records: CoordinationRecords, sink: str, generation: int) -> None:
        self._records, self._sink, self._generation = records, sink, generation
        self._unread = self._load()

    @property
    def tables(self) -> Set[TableName]:
        return self._unread.keys()

    @property
    def hold_watermark(self) -> bool:
        return any(held.holds_watermark for held in self._unread.values())

    def reason(self, table: TableName) -> str:
        """Why this table can't be compared, and the command that changes that; "" if it can be."""
        held = self._unread.get(table)
        if held is None:
            return ""
        step = held.next_step(self._sink, str(table))
        return f"generation {self._generation}: {held.why(str(table))}" + ("" if step is None else f"; {step}")

    def check(self) -> None:
        """Raise LockstepError if another table was held since: the sink won't get further, or lacks rows."""
        for table, held in self._load().items():
            if table not in self._unread:
                raise LockstepError(
                    f"generation {self._generation} of sink {self._sink!r} was being compared, and"
                    f" {held.why(str(table))}",
                    hint="compare again: the other tables are compared without that one",
                )

    def _load(self) -> Mapping[TableName, HeldTable]:
        held_tables = load_held_tables(self._records, self._generation)
        return {table: held for table, held in held_tables.items() if not held.is_read}


class ProgressOfTables:
    """A generation's progress, with the watermark that it would have if it had these tables alone.

    ``topics`` are theirs, by table. ``published`` has what capture has reported since. ``generation`` is the number
    under which ``records`` say which columns rows still lack: until they have them, nothing counts as applied.
    """

    def __init__(
        self,
        progress: LoadsProgress,
        records: CoordinationRecords,
        generation: int,
        *,
        topics: Mapping[TableName, str],
        published: NewRecords,
    ) -> None:
        self._progress, self._records, self._generation = progress, records, generation
        self._tables = topics.keys()
        self._published = published
        self._watermark = Watermark(topics.values())

    def load_progress(self) -> Progress | None:
        """Raises what the destination raises, and Unavailable if Kafka doesn't answer."""
        for record in self._published.new_records():
            self._watermark.add(record, learned_at_ms=0)
        progress = self._progress.load_progress()
        if progress is None:
            return None
        mark = self._watermark
        mark.advance(progress.next_offsets)
        columns = load_columns(self._records, self._generation)
        if columns is not None and columns.lacking.keys() & self._tables:
            return replace(progress, watermark_lsn=0, commit_time_ms=0)
        return replace(
            progress, epoch=mark.epoch, watermark_lsn=mark.lsn, commit_time_ms=mark.commit_time_ms, joining=()
        )
