"""What became of one row: at the source, on the topic, in every generation of every sink, and a verdict.

The answer holds the row's values: it is for the person who asked, and never for a log.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.partitioner import partition_of
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from jobs.executor.shape_history import newest_shapes
from lockstep.config import Config
from lockstep.dashboard.model import FollowedKey, KeyEvent, SinkRow, SourceRow
from lockstep.verify.canonical import Key, key_of_text
from lockstep.verify.explain import rejection_reasons
from lockstep.verify.sides.compared_columns import compared_table, has_all_columns
from lockstep.verify.sides.sink import SinkSide
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.sides.topic import AFTER_EVERY_END
from lockstep.verify.source_load import Load
from lockstep.verify.waiting import Waiting
from sinks.registry import SinkSettings, open_sink, projection_of
from sinks.wrappers.projection import Projection

_READ_MAX_S: Final = 15.0
"""A topic has no index: to find the events of one key, its partition is read from the beginning."""

_EVENTS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Held:
    """What a generation holds. ``is_equal``: whether the source's row should look like that there; None: unknown."""

    label: str
    tag: str | None
    row: dict[str, Any] | None
    is_equal: bool | None
    rejected: str | None = None
    unanswered: str | None = None


class _OutOfTime(Exception):
    pass


def follow_key(config: Config, name: TableName, text: str) -> FollowedKey:
    """Look everywhere. Raises ConfigurationError for what isn't a key of the table, Unavailable and LockstepError."""
    if name not in config.source.keyed_names:
        raise ConfigurationError("an append-only table has no key to follow")
    records = read_schema_records(config.kafka.client(), config.pipeline.name)
    logged = newest_shapes(records).get(name)
    if logged is None:
        raise LockstepError("the table isn't in the log yet", hint="start `lockstep capture`")
    waiting = Waiting(lambda: False)
    with ExitStack() as closing:
        source = _source(config, name, waiting, SinkView(Projection()), closing)
        origin = source.tables().get(name)
        if origin is None:
            raise LockstepError("the table isn't in the source any more", hint="`lockstep doctor` says what to do")
        key = key_of_text(origin, text)
        lsn = source.sync_point().lsn
        found = source.rows(origin, [key]).get(key)
        events = _events(config, name, key)
        held = [
            one
            for sink, settings in config.sinks_of(name).items()
            for one in _held(config, sink, settings, origin, logged, key, waiting, closing)
        ]
    row = None if found is None else found[1]
    states, verdict = judge(row is not None, events, held)
    return FollowedKey(
        table=str(name),
        key=key.decode(),
        verdict=verdict,
        is_right=bool(states) and all(state == "equal" for state in states),
        source=SourceRow(row=row, lsn=None if lsn is None else format_lsn(lsn)),
        events=tuple(reversed(events or ())),
        sinks=tuple(
            SinkRow(sink=one.label, state=state, tag=one.tag, row=one.row)
            for one, state in zip(held, states, strict=True)
        ),
    )


def judge(has_row: bool, events: Sequence[KeyEvent] | None, held: Sequence[Held]) -> tuple[list[str], str]:
    """The state of what each generation holds, and a sentence about the first that is wrong. Pure. ``has_row``: the
    source has one. ``events`` are the newest of the key; None if reading them took too long."""
    if not held:
        return [], "No sink holds rows of this table so far: none that takes it has begun."
    newest = events[-1] if events else None
    states = [_state(has_row, newest, one) for one in held]
    wrong = next(((one, state) for one, state in zip(held, states, strict=True) if state != "equal"), None)
    if wrong is None:
        where = "every generation holds the source's row" if has_row else "neither the source nor any sink has a row"
        return states, f"All is right: {where}."
    one, state = wrong
    if events is None:
        late = " The topic is too long to be read while you wait, so whether the event came isn't known."
    elif has_row and newest is None:
        late = " The topic has no event of the row either: capture hasn't published it."
    elif newest is not None and has_row == (newest.op == "d"):
        late = " The topic lacks the source's last change of the row too: capture hasn't published it yet."
    else:
        late = ""
    sentences = {
        "unanswered": f"`{one.label}` couldn't be asked: {one.unanswered}.",
        "rejected": f"`{one.label}` has rejected the row: {one.rejected}.",
        "missing": f"`{one.label}` lacks the row.",
        "older": f"`{one.label}` holds an older version: it hasn't applied the newest event yet.",
        "resurrected": f"`{one.label}` holds a row that the source doesn't have.",
        "differs": f"`{one.label}` holds other values than the source has now.",
        "unknown": "The table's columns at the source differ from the log's. After the next write, only"
        f" `lockstep verify` can check what `{one.label}` computes.",
    }
    return states, sentences[state] + late


def _state(has_row: bool, newest: KeyEvent | None, one: Held) -> str:
    if one.unanswered is not None:
        return "unanswered"
    if one.is_equal or (one.row is None and not has_row):
        return "equal"
    if one.rejected is not None:
        return "rejected"
    if one.row is None:
        return "unknown" if one.is_equal is None else "missing"
    if newest is not None and one.tag is not None and one.tag < newest.tag:
        return "older"
    if not has_row:
        return "resurrected"
    return "unknown" if one.is_equal is None else "differs"


def _source(config: Config, name: TableName, waiting: Waiting, view: SinkView, closing: ExitStack) -> SourceSide:
    source = SourceSide(
        config.source,
        names=[name],
        publication=config.publication,
        epoch=0,
        load=Load(pause_ratio=0),
        waiting=waiting,
        view=view,
    )
    closing.callback(source.close)
    return source


def _events(config: Config, name: TableName, key: Key) -> list[KeyEvent] | None:
    """The newest events of a key, the newest last; None if there wasn't time to read them."""
    client, topic = config.kafka.client(), config.topics()[name]
    partitions = len(partitions_of([topic], TopicAdmin(client).partition_counts([topic])))
    of_key = partition_of(key, partitions)
    start = {partition: 0 if partition == of_key else AFTER_EVERY_END for partition in range(partitions)}
    deadline = time.monotonic() + _READ_MAX_S

    def check_time() -> None:
        if time.monotonic() > deadline:
            raise _OutOfTime

    events: list[KeyEvent] = []
    try:
        for record in TopicReader(client, while_waiting=check_time).records(topic, start):
            if record.key != key or record.value is None:
                continue
            match orjson.loads(record.value):
                case {"op": str(op), "tag": str(tag), **rest}:
                    time_ms = rest.get("ts_ms")
                    is_time = isinstance(time_ms, int)
                    events.append(
                        KeyEvent(
                            op=op,
                            tag=tag,
                            time_ms=time_ms if is_time else None,
                            offset=record.offset,
                            partition=of_key,
                        )
                    )
            del events[:-_EVENTS_MAX]
    except _OutOfTime:
        return None
    return events


def _held(
    config: Config,
    sink: str,
    settings: SinkSettings,
    origin: Table,
    logged: Table,
    key: Key,
    waiting: Waiting,
    closing: ExitStack,
) -> list[Held]:
    view = SinkView(projection_of(settings), settings.expressions(), {logged.name: logged})
    can_tell = not view.evaluates(origin.name) or has_all_columns(origin, logged)
    table = compared_table(origin, logged, view, ours=settings, theirs=settings, against="source").table
    found: list[Held] = []
    try:
        first = open_sink(sink, settings, 1)
        closing.callback(first.sink.close)
        live, numbers = first.generations.live(), first.generations.numbers()
        expected = None
        if can_tell:
            side = _source(config, origin.name, waiting, view, closing)
            side.tables()
            expected = side.versions(table, [key]).get(key)
        for number in sorted(numbers, key=lambda number: number != live):
            opened = open_sink(sink, settings, number)
            closing.callback(opened.sink.close)
            reasons, _ = rejection_reasons(config, sink=sink, generation=number, tables=[logged])
            label = sink if number == live else f"{sink} g{number}"
            copies = SinkSide(opened.sink, waiting).rows(table, [key]).get(key, [])
            rejected = reasons.get((origin.name, key))
            if not copies:
                is_equal = expected is None if can_tell else None
                found.append(Held(label, None, None, is_equal, rejected))
            for copy, row in copies:
                is_same = expected is not None and expected.fingerprint == copy.fingerprint
                is_equal = is_same if can_tell else None
                found.append(Held(label, copy.tag, dict(row), is_equal, rejected))
    except LockstepError as error:
        found.append(Held(sink, None, None, None, unanswered=error.message))
    return found
