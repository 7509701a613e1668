"""Dead letters -> the events that a retry applies, in the shapes that the sink is prepared for. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cdc.event_format.decode import parse_value, row_event, schema_id_of
from cdc.model.append_only import OPERATION_COLUMN, OPERATIONS, TRUNCATE
from cdc.model.errors import LockstepError
from cdc.model.event import Position, RowEvent, TableEvents, parse_key, parse_object
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.dead_letters.record import DeadLetter
from jobs.executor.append_only import LOG_KEY, row_before
from jobs.executor.computed_row import RowComputer
from jobs.executor.shape_history import TableHistory, histories
from jobs.generations.prepared import Prepared
from lockstep.rejections.output import Tables
from sinks.contract import TableVersions
from sinks.view_settings import ViewSettings


@dataclass(slots=True)
class RetryEvents:
    """Events made of dead letters. ``refused`` are those that can't become one, with the reason. ``void`` counts those
    that a later copy of their table has replaced. ``origins`` are the operation and the commit time, in milliseconds
    since 1970, of the event at a position."""

    events: list[tuple[DeadLetter, RowEvent]] = field(default_factory=list)
    refused: list[DeadLetter] = field(default_factory=list)
    void: int = 0
    origins: dict[Position, tuple[str, int]] = field(default_factory=dict)


Evaluate = Callable[[RetryEvents], RetryEvents]
"""Evaluates the expressions over the events' rows."""


def prepared_histories(records: Iterable[SchemaRecord], prepared: Prepared) -> dict[TableName, TableHistory]:
    """How events of shapes up to the prepared ones become rows of these; ``records`` in the order of the topic."""
    by_table: dict[TableName, list[SchemaRecord]] = {}
    for record in records:
        by_table.setdefault(record.table.name, []).append(record)
    histories_by_table = {}
    for name, shapes in by_table.items():
        last = max(
            (index for index, record in enumerate(shapes) if record.table.schema_id == prepared.get(name)), default=None
        )
        if last is not None:
            table = shapes[last].table
            alone = TableHistory(name, table.key, {table.schema_id: ()})
            histories_by_table[name] = histories(shapes[: last + 1]).get(name, alone)
    return histories_by_table


def result_histories(view: ViewSettings) -> dict[TableName, TableHistory]:
    """The same for a view's result, whose rows have the one shape that its query gives them."""
    return {view.table: TableHistory(view.table, view.key, {"": ()})}


def retry_events(
    portion: Iterable[tuple[DeadLetter, bytes | None]],
    tables: Tables,
    table_histories: Mapping[TableName, TableHistory],
) -> RetryEvents:
    """Dead letters with their events' values -> events in the shapes that the sink is prepared for."""
    result = RetryEvents()
    for dead_letter, value in portion:
        table = tables.get(dead_letter.position.topic)
        history = None if table is None else table_histories.get(table)
        if table is None or history is None:
            result.refused.append(replace(dead_letter, reason="the sink isn't prepared for its table"))
            continue
        try:
            tag = dead_letter.tag if value is None else None
            key = dead_letter.key if history.key else LOG_KEY
            event = row_event(table, key, value, tag, dead_letter.position)
            if not history.key and value is not None and (before := row_before(value)) is not None:
                event = replace(event, row=parse_object(before))
            translated = history.translate(event, schema_id_of(value or b""))
        except LockstepError as error:
            result.refused.append(replace(dead_letter, reason=error.message))
            continue
        if translated is not None and not history.key:
            translated = replace(translated, key=parse_key(dead_letter.key))
        if translated is None:
            result.void += 1
        else:
            result.events.append((dead_letter, translated))
            # A tombstone has no time of its own: the job refused it at about the time of its commit.
            envelope = None if value is None else parse_value(value)
            result.origins[dead_letter.position] = (
                ("d", dead_letter.rejected_at_ms) if envelope is None else (envelope.op, envelope.commit_time_ms)
            )
    return result


def versions_of(events: RetryEvents, keeps: Collection[TableName]) -> list[TableVersions]:
    """The events of the tables of which all versions are kept."""
    versions = []
    for table in dict.fromkeys(event.table for _, event in events.events if event.table in keeps):
        rows = [event for _, event in events.events if event.table == table]
        origins = [events.origins[event.position] for event in rows]
        operations = ["d" if event.row is None else op for event, (op, _) in zip(rows, origins, strict=True)]
        times_ms = [time_ms for _, time_ms in origins]
        versions.append(TableVersions(TableEvents.of(table, rows), operations, times_ms))
    return versions


def stored(events: RetryEvents, append_only: Collection[TableName]) -> RetryEvents:
    """The events, with those of append-only tables as a sink holds them; an event that is no row there is void."""
    result = replace(events, events=[])
    for dead_letter, event in events.events:
        if event.table in append_only:
            operation = OPERATIONS[events.origins[event.position][0]]
            if event.row is None and operation != TRUNCATE:
                result.void += 1
                continue
            row = {**event.key, OPERATION_COLUMN: operation, **(event.row or {})}
            result.events.append((dead_letter, replace(event, row=row)))
        else:
            result.events.append((dead_letter, event))
    return result


def evaluated(events: RetryEvents, *, computers: Mapping[TableName, RowComputer]) -> RetryEvents:
    """Events with their tables' expressions evaluated. An event for which one still fails is refused."""
    result = RetryEvents(refused=list(events.refused), void=events.void, origins=events.origins)
    for dead_letter, event in events.events:
        computer = computers.get(event.table)
        if computer is None or event.row is None:
            result.events.append((dead_letter, event))
            continue
        computed = computer.computed(event.row)
        if computed.refused:
            result.refused.append(replace(dead_letter, reason=computed.refused))
        else:
            result.events.append((dead_letter, replace(event, row=computed.row)))
    return result
