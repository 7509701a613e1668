"""``lockstep snapshot``: ask capture to copy tables again, or chosen rows, and to pause, resume and cancel copies."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import psycopg

from cdc.event_format.encode import TableEncoder
from cdc.kafka.control_topics import read_state
from cdc.machine_load import patient
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.model.timeouts import OBEYED_S
from cdc.pipeline_settings import Pipeline
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.copy_orders import CopyAction, CopyOrder, notify_order, send_order
from cdc.postgres.repair_messages import KEYS_MAX, request_repair
from cdc.postgres.slot import find_slot, is_captured, require_own_slot
from cdc.stream.slot_watch import HeldWal, look_at_slot
from cdc.stream.topics import order_secret
from snapshot.table_reader import RowReader

_GIVE_AGAIN_S: Final = 1.0
_ABSENCE_S: Final = 5.0
"""How long no capture may be at work: one that lost a connection is back sooner."""


@dataclass(frozen=True, slots=True)
class Requested:
    """The tables, and whether a capture is at work. If not, the next one reads the requests when it starts."""

    tables: tuple[TableName, ...]
    capture_runs: bool


@dataclass(frozen=True, slots=True)
class FirstCopyOrdered:
    """Whether the first copy is paused now. ``held`` is the WAL that is kept for it."""

    is_paused: bool
    held: HeldWal | None


def request_copies(pipeline: Pipeline, texts: Sequence[str]) -> Requested:
    """Send the requests. Raises ConfigurationError with every name that can't be copied, and LockstepError if no
    capture would ever read the requests; both before any request is sent."""
    names = parsed_tables(texts, pipeline.source.table_names, "captured")
    with _asking(pipeline) as connection:
        for name in names:
            request_repair(connection, name, None, slot=pipeline.slot)
        return Requested(tuple(names), _capture_runs(connection, pipeline))


def request_rows(pipeline: Pipeline, text: str, where: str) -> tuple[int, bool]:
    """Request the rows of a table for which an SQL condition holds now. Returns their number, and whether a capture is
    at work. Raises as ``request_copies``, and LockstepError for a condition that PostgreSQL refuses and for too many
    rows."""
    (name,) = parsed_tables([text], pipeline.source.keyed_names, "captured with a key")
    with _asking(pipeline) as connection:
        table = load_tables(connection, [name], pipeline.publication, pipeline.source.keys).get(name)
        if table is None:
            raise LockstepError(f"{name} doesn't exist any more", hint="`lockstep doctor` shows what is missing")
        encoder = TableEncoder(replace(table, columns=table.key_columns), server="", database="", version="")
        try:
            with connection.transaction():
                connection.execute("set transaction read only")
                found = RowReader(connection).keys_where(table, where, KEYS_MAX + 1)
        except psycopg.Error as error:
            raise connection_error(error) from error
        if len(found) > KEYS_MAX:
            raise LockstepError(
                f"the condition holds for more than {KEYS_MAX} rows of {name}",
                hint=f"ask for fewer at once, or for the whole table: lockstep snapshot table '{name}'",
            )
        keys = [orjson.loads(encoder.key(fields)) for fields in found]
        if keys:
            request_repair(connection, name, keys, slot=pipeline.slot)
        return len(keys), _capture_runs(connection, pipeline)


def order_copies(pipeline: Pipeline, action: CopyAction, texts: Sequence[str]) -> Requested | FirstCopyOrdered:
    """Make capture pause, resume or cancel copies: of these tables, or all.

    During the first copy, no stream delivers such an order, so it is repeated until the state shows that it is obeyed.
    Raises as ``request_copies``, and LockstepError for what a first copy doesn't allow, and if no capture is at work to
    obey. Raises Unavailable if Kafka doesn't answer.
    """
    names = parsed_tables(texts, pipeline.source.table_names, "captured")
    with _asking(pipeline) as connection:
        state = read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
        if state is not None and state.is_first_copy:
            return _order_first_copy(pipeline, connection, action, names)
        tables: list[TableName | None] = [*names] or [None]
        secret = order_secret(pipeline)
        for table in tables:
            send_order(connection, CopyOrder(pipeline.slot, action, table), secret)
        return Requested(tuple(names), _capture_runs(connection, pipeline))


def _order_first_copy(
    pipeline: Pipeline, connection: psycopg.Connection[Any], action: CopyAction, names: Sequence[TableName]
) -> FirstCopyOrdered:
    slot = pipeline.slot
    if action is CopyAction.CANCEL:
        raise LockstepError(
            "the first copy can't be cancelled: the topics hold nothing that could go on without it",
            hint="hold it up with `lockstep snapshot pause`. To leave a table out, stop capture, take the table out of"
            " source.tables and start capture again. To give the pipeline up, stop capture, then: "
            f"select pg_drop_replication_slot('{slot}');",
        )
    if names:
        raise LockstepError(
            "tables of the first copy can't wait one by one: all are read as of one moment",
            hint=f"name no table: lockstep snapshot {action}",
        )
    is_to_pause = action is CopyAction.PAUSE
    began_s = seen_s = time.monotonic()
    obeyed_s = patient(OBEYED_S)
    secret = order_secret(pipeline)
    while True:
        notify_order(connection, CopyOrder(slot, action, None), secret)
        state = read_state(pipeline.kafka.client(), pipeline.name, slot)
        if state is None or not state.is_first_copy:
            if not is_to_pause:
                return FirstCopyOrdered(is_paused=False, held=None)  # it went on, and has ended since
            raise LockstepError(
                f"there is nothing to {action}: the first copy has just ended",
                hint="`lockstep snapshot status` shows what is still copied",
            )
        if state.first_copy_paused is is_to_pause:
            look = look_at_slot(connection, slot, at_s=0.0)
            return FirstCopyOrdered(is_to_pause, None if look is None else HeldWal.of(look, None))
        now_s = time.monotonic()
        if is_captured(connection, slot):
            seen_s = now_s
        if now_s - seen_s > _ABSENCE_S:
            raise LockstepError(
                "capture doesn't run, so nothing is copied and orders about the first copy wait",
                hint=f"start it with `lockstep capture`, then: lockstep snapshot {action}",
            )
        if now_s - began_s > obeyed_s:
            raise LockstepError(
                f"capture hasn't obeyed in {obeyed_s:.0f} s: it may wait for PostgreSQL or Kafka, as its log says",
                hint="it may obey later; `lockstep snapshot status` shows whether the copy is paused",
            )
        time.sleep(_GIVE_AGAIN_S)


def parsed_tables(texts: Sequence[str], allowed: Sequence[TableName], what: str) -> list[TableName]:
    """Each of these tables once. Raises ConfigurationError with every name that isn't among the allowed ones."""
    names: list[TableName] = []
    problems = []
    for text in texts:
        try:
            name = TableName.parse(text)
        except ValueError as error:
            problems.append(str(error))
            continue
        if name not in allowed:
            problems.append(f"{name} isn't {what}")
        if name not in names:
            names.append(name)
    if problems:
        raise ConfigurationError(
            "these tables can't be copied",
            problems=problems,
            hint=f"{what} are: {', '.join(map(str, allowed))}",
        )
    return names


@contextlib.contextmanager
def _asking(pipeline: Pipeline) -> Iterator[psycopg.Connection[Any]]:
    """A connection for messages that a capture will read. Raises LockstepError if none ever would."""
    with connect(pipeline.source, application="lockstep snapshot") as connection:
        slot = find_slot(connection, pipeline.slot)
        if slot is None:
            raise LockstepError(
                f"slot {pipeline.slot} doesn't exist: capture has never run here, or the slot was dropped",
                hint="start it with `lockstep capture`, which copies every table first, or says what else to do",
            )
        require_own_slot(slot, connection.info.dbname)  # else a message in this database's WAL reaches no capture
        if slot.wal_status == "lost":
            raise LockstepError(
                f"slot {pipeline.slot} is lost: capture can't read on", hint="`lockstep doctor` shows the way out"
            )
        yield connection


def _capture_runs(connection: psycopg.Connection[Any], pipeline: Pipeline) -> bool:
    """A capture that waits for Kafka doesn't read the slot, but is at work."""
    slot = find_slot(connection, pipeline.slot)
    return (slot is not None and slot.active_pid is not None) or is_captured(connection, pipeline.slot)
