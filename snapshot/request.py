"""``lockstep snapshot table``: ask capture to copy tables again."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.slot import find_slot, is_captured, require_own_slot


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
    names, problems = [], []
    for text in texts:
        try:
            name = TableName.parse(text)
        except ValueError as error:
            problems.append(str(error))
            continue
        if name not in pipeline.source.table_names:
            problems.append(f"{name} isn't captured")
        if name not in names:
            names.append(name)
    if problems:
        raise ConfigurationError(
            "these tables can't be copied",
            problems=problems,
            hint=f"captured are: {', '.join(map(str, pipeline.source.table_names))}",
        )
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
        for name in names:
            request_repair(connection, name, None, slot=pipeline.slot)
        # One that waits for Kafka doesn't read the slot.
        capture_runs = slot.active_pid is not None or is_captured(connection, pipeline.slot)
    return Requested(tuple(names), capture_runs)
