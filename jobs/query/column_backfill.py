"""Column backfill: existing rows of a generation get the columns that their table got later.

When a column with a default is added, the source shows the default in existing rows without writing them, so no event
says so. Events of earlier shapes get the value as they are read (``shape_history``). Rows that were applied before get
it here: by the destination's own DDL where that can do it, else one by one beside the running batches. These writes use
each row's own tag, so that newer ones win. The watermark waits until the backfill is over.

The coordination record ``g<n>.columns`` is written before the destination is prepared, and again when all rows have
their values. A killed job goes on at the next start. Rows that have the column by then, even with null, are left alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Final

import orjson

from cdc.model.errors import NeedsRebuild
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.executor.shape_history import added_values, relations
from jobs.generations.batch_gate import BatchGate
from jobs.generations.columns import Columns, TableColumns
from jobs.report import ColumnBackfillProgress, Reporter
from sinks.contract import AddedValues, Batch, Sink, StoredRow
from sinks.wrappers.projection import Projection

_GONE: Final = -1
"""The number of a column that the source dropped before its number was known."""

ROWS: Final = 500
_BYTES: Final = 8 * 1024 * 1024
"""The most rows, and the most bytes of rows (except the last one), per write."""

_REPORT_S: Final = 5.0
"""How often to report a long column backfill."""

_NOWHERE: Final = Position("", 0, 0)
"""These events don't come from the log."""


def next_columns(
    known_columns: Columns | None,
    tables: Iterable[Table],
    records: Sequence[SchemaRecord],
    *,
    projection: Projection,
    has_rows: bool,
) -> Columns:
    """The columns of a generation that is about to be prepared for these tables. Pure.

    ``records`` are all shapes in the order of the topic. The result omits columns that the ``projection`` leaves out,
    except in tables with expressions, which may read them. If nothing is known of a generation that ``has_rows``, every
    added column counts as lacking; rows that have it are left alone. Raises LockstepError for a column that took
    another one's name.
    """
    known_tables = {} if known_columns is None else dict(known_columns.tables)
    lacking: dict[TableName, Mapping[str, JsonValue]] = {}
    for whole in tables:
        table = read = projection.table(whole)
        if whole.name in projection.evaluated:
            read = replace(projection, excluded={}).table(whole)
        table_records = [record for record in records if record.table.name == table.name]
        added = added_values(table, table_records)
        known_table = known_tables.get(table.name)
        if known_table is not None:
            known_table = _of_newest_relation(known_table, table_records)
        missing: dict[str, JsonValue]
        if known_table is not None:
            _check_columns(read, known_table, table_records)
            numbers = {number for number in known_table.columns.values() if number}
            missing = {
                name: value
                for name, value in added.items()
                if name not in known_table.columns and table.column(name).number not in numbers
            }
            if known_columns is not None:
                missing |= _still_lacking(known_columns.lacking.get(table.name, {}), known_table, table)
        else:
            # A table that joins a generation has no rows in it.
            missing = added if known_columns is None and has_rows else {}
        if missing:
            lacking[table.name] = missing
        columns = {} if known_table is None else _under_their_names(known_table.columns, read)
        columns |= {column.name: column.number or columns.get(column.name, 0) for column in read.columns}
        known_tables[table.name] = TableColumns(whole.schema_id, columns, whole.relation)
    return Columns(known_tables, lacking, is_filled=not lacking)


def _of_newest_relation(known_table: TableColumns, records: Sequence[SchemaRecord]) -> TableColumns:
    """The same columns with their numbers in today's relation, if the relation was replaced. Columns go on under their
    names: capture has then copied the whole table, or found all names unchanged."""
    groups = relations(records)
    known = [index for index, group in enumerate(groups) if group[-1].table.relation == known_table.relation]
    if not known:
        return known_table
    columns = dict(known_table.columns)
    for before, after in pairwise(groups[known[-1] :]):
        names = {column.number: column.name for column in before[-1].table.columns if column.number}
        numbers = {column.name: column.number for column in after[0].table.columns}
        columns = {name: numbers.get(names.get(number, name), _GONE) for name, number in columns.items()}
    return replace(known_table, columns=columns)


def _under_their_names(columns: Mapping[str, int], table: Table) -> dict[str, int]:
    """Without the earlier names of renamed columns, in a destination that has renamed them too. A column that is gone
    and had no number must not be taken for a later column of the same name."""
    names = {column.number: column.name for column in table.columns if column.number}
    there = {column.name for column in table.columns}
    return {
        name: number if number or name in there else _GONE
        for name, number in columns.items()
        if names.get(number, name) == name
    }


def _still_lacking(lacking: Mapping[str, JsonValue], known_table: TableColumns, table: Table) -> dict[str, JsonValue]:
    """Under today's names, and without columns that the source has dropped."""
    numbered = {column.number: column.name for column in table.columns if column.number}
    names = {column.name for column in table.columns}
    now = ((numbered.get(known_table.columns.get(name, 0), name), value) for name, value in lacking.items())
    return {name: value for name, value in now if name in names}


def _check_columns(table: Table, known_table: TableColumns, records: Sequence[SchemaRecord]) -> None:
    """Raise NeedsRebuild if older rows hold another column's values under a name, and no copy replaces them."""
    for column in table.columns:
        number = known_table.columns.get(column.name, 0)
        if not number or not column.number or number == column.number:
            continue
        # A table may have had the shape several times. The fewer records follow, the fewer copies count.
        held_at = [index for index, record in enumerate(records) if record.table.schema_id == known_table.schema_id]
        since = held_at[-1] + 1 if held_at else 0
        is_copied = False
        is_there = False
        for record in records[since:]:
            is_there = is_there or any(
                (other.name, other.number) == (column.name, column.number) for other in record.table.columns
            )
            is_copied = is_copied or (is_there and bool(record.change.rewritten))
        if not is_copied:
            raise NeedsRebuild(
                f"table {table.name} no longer fits what this generation was built for: column {column.name!r} is"
                " another one than before, and rows that were applied earlier have the values of the old one",
                hint="build it again from the log: `lockstep rebuild SINK --switch`",
            )


@dataclass(frozen=True, slots=True)
class ColumnBackfill:
    """How many of a table's rows got their values. Refused rows stay as they were; ``reason`` is the first one's."""

    rows: int = 0
    refused: int = 0
    reason: str = ""
    is_over: bool = False


def backfill_columns(
    sink: Sink,
    table: Table,
    values: Mapping[str, JsonValue],
    *,
    fence: int,
    enter: Callable[[], bool],
    leave: Callable[[ColumnBackfill], None],
    stopping: Callable[[], bool] = lambda: False,
) -> ColumnBackfill:
    """Give these columns' values to the rows that lack the columns.

    ``enter`` is called before each step, and ends the backfill if it returns False; ``leave`` is called after each
    step. ``stopping`` is called for each row, since most rows may have the columns, and ends the backfill if true.
    Repeating it is harmless, also while others apply newer events. Raises what the sink raises.
    """
    rows = refused = 0
    reason = ""
    scanned = takewhile(lambda _: not stopping(), sink.scan(table))
    # A scan may be a snapshot and so return old rows: each row is read again just before it is written.
    for keys in _portions(stored for stored in scanned if _lacks(stored, values)):
        if not enter():
            return ColumnBackfill(rows, refused, reason)
        events = [
            RowEvent(table.name, stored.key, stored.tag, _filled(stored, values), _NOWHERE)
            for stored in sink.rows(table, keys)
            if _lacks(stored, values)
        ]
        outcome = sink.apply(Batch(events, fence=fence, overwrite_equal_tags=True, as_stored=True))
        rows += outcome.applied
        refused += len(outcome.rejections)
        if outcome.rejections and not reason:
            reason = outcome.rejections[0].reason
        leave(ColumnBackfill(rows, refused, reason))
    return ColumnBackfill(rows, refused, reason, is_over=not stopping())


class BackfillReporter:
    """Reports a generation's column backfill: the end of each table, and what is done so far every few seconds."""

    def __init__(self, sink: str, generation: int, report: Reporter) -> None:
        self._sink = sink
        self._generation = generation
        self._report = report
        self._next_at = 0.0

    def report_if_due(self, table: TableName, columns: tuple[str, ...], done: ColumnBackfill) -> None:
        if time.monotonic() >= self._next_at:
            self.report(table, columns, done)

    def report(self, table: TableName, columns: tuple[str, ...], done: ColumnBackfill) -> None:
        self._next_at = time.monotonic() + _REPORT_S
        self._report(
            ColumnBackfillProgress(
                self._sink,
                self._generation,
                str(table),
                columns,
                rows=done.rows,
                refused=done.refused,
                reason=done.reason,
                is_over=done.is_over,
            )
        )


def backfill_tables(
    sink: Sink,
    tables: Mapping[TableName, Table],
    columns: Columns,
    lacking: AddedValues,
    *,
    fence: int,
    gate: BatchGate,
    report: BackfillReporter,
) -> Columns | None:
    """Give rows that lack a column the source's value; ``lacking`` is what the destination's DDL left undone. Returns
    the columns with what is still lacking, or None if the gate closed first. Raises what the sink raises."""
    still = dict(columns.lacking)
    for name in columns.lacking:
        values = lacking.get(name, {})
        if values:
            names = tuple(values)

            def leave(done: ColumnBackfill, table: TableName = name, names: tuple[str, ...] = names) -> None:
                gate.leave()
                report.report_if_due(table, names, done)

            done = backfill_columns(
                sink,
                tables[name],
                values,
                fence=fence,
                enter=gate.enter,
                leave=leave,
                stopping=lambda: gate.is_closed,
            )
            report.report(name, names, done)
            if not done.is_over:
                return None
            if done.refused:
                continue  # retried at the next start
        del still[name]
    return replace(columns, lacking=still, is_filled=True)


def _portions(rows: Iterable[StoredRow]) -> Iterator[list[Mapping[str, JsonValue]]]:
    """The rows' keys, in slices."""
    keys: list[Mapping[str, JsonValue]] = []
    size = 0
    for stored in rows:
        keys.append(stored.key)
        size += len(orjson.dumps(dict(stored.row)))
        if len(keys) >= ROWS or size >= _BYTES:
            yield keys
            keys, size = [], 0
    if keys:
        yield keys


def _lacks(stored: StoredRow, values: Mapping[str, JsonValue]) -> bool:
    return any(name in values for name in stored.lacks)


def _filled(stored: StoredRow, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {**stored.row, **{name: values[name] for name in stored.lacks if name in values}}
