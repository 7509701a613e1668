"""``lockstep snapshot``: ask capture to copy tables again, or chosen rows, and to pause, resume and cancel copies."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import psycopg

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.copy_orders import CopyAction, CopyOrder, send_order
from cdc.postgres.repair_messages import KEYS_MAX, request_repair
from cdc.postgres.slot import find_slot, is_captured, require_own_slot
from cdc.protocol.envelope import TableEncoder
from snapshot.table_reader import RowReader


@dataclass(frozen=True, slots=True)
class Requested:
    """The tables, and whether a capture is at work now. Another one reads the requests when it is started."""

    tables: tuple[TableName, ...]
    capture_runs: bool


def request_copies(pipeline: Pipeline, texts: Sequence[str]) -> Requested:
    """Send the requests.

    Raises ConfigurationError with every name that can't be copied, and LockstepError where no capture would ever read
    the requests; both before any request is sent.
    """
    names = _parsed(pipeline, texts, pipeline.source.table_names, "captured")
    with _asking(pipeline) as connection:
        for name in names:
            request_repair(connection, name, None, slot=pipeline.slot)
        return Requested(tuple(names), _capture_runs(connection, pipeline))


def request_rows(pipeline: Pipeline, text: str, where: str) -> tuple[int, bool]:
    """Ask for the rows of a table for which an SQL condition holds now; returns their number, and as ``Requested``.

    Raises as ``request_copies``, and LockstepError for a condition that PostgreSQL refuses and for too many rows.
    """
    (name,) = _parsed(pipeline, [text], pipeline.source.keyed_names, "captured with a key")
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


def order_copies(pipeline: Pipeline, action: CopyAction, texts: Sequence[str]) -> Requested:
    """Have capture pause, resume or cancel copies: of these tables, or all. Raises as ``request_copies``."""
    names = _parsed(pipeline, texts, pipeline.source.table_names, "captured")
    with _asking(pipeline) as connection:
        tables: list[TableName | None] = [*names] or [None]
        for table in tables:
            send_order(connection, CopyOrder(pipeline.slot, action, table))
        return Requested(tuple(names), _capture_runs(connection, pipeline))


def _parsed(pipeline: Pipeline, texts: Sequence[str], allowed: Sequence[TableName], what: str) -> list[TableName]:
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
    """A connection for messages that a capture will read. Raises LockstepError where none ever would."""
    with connect(pipeline.source, application="lockstep snapshot") as connection:
        slot = find_slot(connection, pipeline.slot)
        if slot is None:
            raise LockstepError(
                f"slot {pipeline.slot} doesn't exist: capture has never run here",
                hint="start it with `lockstep capture`, which copies every table first",
            )
        require_own_slot(slot, connection.info.dbname)  # else a message in this database's WAL reaches no capture
        if slot.wal_status == "lost":
            raise LockstepError(
                f"slot {pipeline.slot} is lost: capture can't read on", hint="`lockstep doctor` shows the way out"
            )
        yield connection


def _capture_runs(connection: psycopg.Connection[Any], pipeline: Pipeline) -> bool:
    """One that waits for Kafka doesn't read the slot."""
    slot = find_slot(connection, pipeline.slot)
    return (slot is not None and slot.active_pid is not None) or is_captured(connection, pipeline.slot)
