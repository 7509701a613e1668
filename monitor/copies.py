"""How far copies of tables are, by the state records, with or without a running capture."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg

from cdc.kafka.control_topics import copied_ranges, read_compacted
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.closing import Closing
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.slot import find_slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.copy_ledger import CopiedRange
from cdc.stream.slot_watch import HeldWal, SlotLook, look_at_slot, wal_rate

APPLICATION = "lockstep snapshot status"

# Takes no locks, since a table may be locked for long. For a partitioned table, its partitions have the rows.
_ROWS_ESTIMATED = """
with recursive tree(root, oid) as (
    select name, to_regclass(name)::oid from unnest(%s::text[]) as name
    union all
    select tree.root, i.inhrelid from tree
    join pg_class p on p.oid = tree.oid and p.relkind = 'p' join pg_inherits i on i.inhparent = tree.oid
)
select tree.root, coalesce(sum(greatest(c.reltuples, 0)), 0)::int8
from tree join pg_class c on c.oid = tree.oid and c.relkind = 'r' group by tree.root
"""


class CopyStage(StrEnum):
    """``WAITING``: nothing of it is known to be copied. ``IN_STREAM``: it is being copied while the stream runs, or
    will be. ``PAUSED``: its copy is paused."""

    COPIED = "copied"
    COPYING = "copying"
    WAITING = "waiting"
    IN_STREAM = "in stream"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class TableCopyStatus:
    """``rows`` and ``size``, bytes of values, count complete ranges; the size of a copied table isn't stored.
    ``rows_estimated`` is the planner's, None if unknown."""

    table: TableName
    stage: CopyStage
    rows: int
    rows_estimated: int | None
    size: int | None


@dataclass(frozen=True, slots=True)
class CopyReport:
    """``phase`` is the state's; None if capture never ran. ``rows_per_s`` and ``bytes_per_s`` are those of the ranges
    since the last start; None without any. ``held`` is the WAL that is held back; None without a slot.
    ``is_slot_lost``: the slot is lost or gone, so neither the first copy nor the stream can go on."""

    phase: SnapshotPhase | None
    tables: Sequence[TableCopyStatus]
    rows_per_s: float | None
    bytes_per_s: float | None
    held: HeldWal | None
    is_slot_lost: bool = False

    @property
    def seconds_left(self) -> float | None:
        """None if unknown, or if no first copy is in progress that can go on."""
        left = [table for table in self.tables if table.stage is not CopyStage.COPIED]
        is_paused = any(table.stage is CopyStage.PAUSED for table in left)
        if not self.rows_per_s or self.phase is not SnapshotPhase.COPYING or is_paused or self.is_slot_lost:
            return None
        if any(not table.rows_estimated for table in left):
            return None
        return sum(max(0, (table.rows_estimated or 0) - table.rows) for table in left) / self.rows_per_s

    def to_json(self) -> dict[str, Any]:
        held = self.held
        return {
            "phase": None if self.phase is None else self.phase.value,
            "rows_per_s": self.rows_per_s,
            "bytes_per_s": self.bytes_per_s,
            "seconds_left": self.seconds_left,
            "wal_retained_bytes": None if held is None else held.retained_bytes,
            "wal_limit_bytes": None if held is None else held.limit_bytes,
            "wal_bytes_per_s": None if held is None else held.bytes_per_s,
            "minutes_until_full": None if held is None else held.minutes_until_full,
            "slot_lost": self.is_slot_lost,
            "tables": [
                {
                    "table": str(table.table),
                    "stage": table.stage.value,
                    "rows": table.rows,
                    "rows_estimated": table.rows_estimated,
                    "bytes": table.size,
                }
                for table in self.tables
            ],
        }


def copy_report(
    names: Iterable[TableName],
    state: CaptureState | None,
    ranges: Iterable[CopiedRange],
    estimated: Mapping[TableName, int],
    held: HeldWal | None,
) -> CopyReport:
    """The report of these tables. Ranges of an earlier first copy don't count."""
    phase = None if state is None else state.phase
    is_first = state is None or state.is_first_copy
    own = [] if state is None else [r for r in ranges if (r.epoch, r.begun_lsn) == (state.epoch, state.commit_lsn)]
    tables = []
    for name in names:
        of_it = [copied for copied in own if copied.table == name]
        rows, size = sum(copied.rows for copied in of_it), sum(copied.size for copied in of_it)
        if state is not None and name in state.copied:
            tables.append(TableCopyStatus(name, CopyStage.COPIED, state.copied[name], None, None))
            continue
        stage = CopyStage.IN_STREAM if not is_first else CopyStage.COPYING if of_it else CopyStage.WAITING
        if state is not None and state.first_copy_paused:
            stage = CopyStage.PAUSED
        beside = None if state is None else state.copying.get(name)
        if beside is not None:
            rows, stage = beside.rows, CopyStage.PAUSED if beside.paused else stage
        tables.append(TableCopyStatus(name, stage, rows, estimated.get(name), size))
    recent = [] if state is None else [copied for copied in own if copied.point_lsn == state.handoff]
    rows_per_s = bytes_per_s = None
    if recent:
        began_ms = min(copied.committed_ms - copied.took_ms for copied in recent)
        seconds = max(1, max(copied.committed_ms for copied in recent) - began_ms) / 1000
        rows_per_s = sum(copied.rows for copied in recent) / seconds
        bytes_per_s = sum(copied.size for copied in recent) / seconds
    return CopyReport(phase, tables, rows_per_s, bytes_per_s, held)


def held_wal(look: SlotLook, before: SlotLook | None, state: CaptureState | None, *, now_ms: int) -> HeldWal:
    """What the slot makes the server retain. ``before`` is an earlier look of the same observer. Without one, a first
    copy says how much WAL was written since it began."""
    rate: float | None = None
    if before is not None:
        rate = wal_rate(bytes_written=look.wal_end - before.wal_end, seconds=look.at_s - before.at_s)
    elif state is not None and state.phase is SnapshotPhase.COPYING:
        seconds = (now_ms - state.commit_time_ms) / 1000
        rate = wal_rate(bytes_written=look.wal_end - state.commit_lsn, seconds=seconds)
    return HeldWal.of(look, rate)


class CopyStatusCollector(Closing):
    """Collects reports, one after the other, until it is closed. Writes nothing anywhere."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._connection: psycopg.Connection[Any] | None = None
        self._first_look: SlotLook | None = None

    def collect(self) -> CopyReport:
        """The report now. Raises Unavailable if a server doesn't answer, LockstepError if one refuses."""
        pipeline = self._pipeline
        client, topic = pipeline.kafka.client(), control_topic(pipeline.name, STATE)
        state: CaptureState | None = None
        ranges: Sequence[CopiedRange] = ()
        if TopicAdmin(client).exists(topic):
            records = read_compacted(client, topic)
            record = records.get(pipeline.slot.encode())
            state = None if record is None else CaptureState.from_bytes(record.value, record.what)
            ranges = copied_ranges(records, pipeline.slot)
        names = pipeline.source.table_names
        try:
            sql = self._source()
            rows = sql.execute(_ROWS_ESTIMATED, ([name.regclass for name in names],)).fetchall()
            look = look_at_slot(sql, pipeline.slot, at_s=time.monotonic())
            slot = find_slot(sql, pipeline.slot)
        except psycopg.Error as error:
            self.close()  # the next report opens another one
            raise connection_error(error) from error
        by_name = dict(rows)
        estimated = {name: by_name[name.regclass] for name in names if by_name.get(name.regclass)}
        held: HeldWal | None = None
        if look is not None:
            held = held_wal(look, self._first_look, state, now_ms=time.time_ns() // 1_000_000)
            self._first_look = self._first_look or look
        report = copy_report(names, state, ranges, estimated, held)
        # The state was read before the slot was looked at: in these phases the slot existed by then.
        had_slot = state is not None and state.phase in (SnapshotPhase.COPYING, SnapshotPhase.DONE)
        return replace(report, is_slot_lost=had_slot and (slot is None or slot.wal_status == "lost"))

    def _source(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = connect(self._pipeline.source, application=APPLICATION)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error, Unavailable):
                self._connection.close()
            self._connection = None
