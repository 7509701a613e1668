"""Starts streaming: ends an older reader, and requires that the slot still holds everything after the state."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.kafka.topic_admin import COMMIT_MARKER_LOSS
from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.timeouts import SLOT_LET_GO_S
from cdc.pipeline_settings import Pipeline
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.slot import end_other_reader, find_slot
from cdc.protocol.control_records import CaptureState, StreamedTransaction
from cdc.stream.source_checks import RECOVER


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream, the position confirmed to its slot before, and the transactions that it must begin with, if known.
    ``last`` comes first; ``begun``, published in part, comes after it."""

    connection: ReplicationConnection
    confirmed: Lsn
    last: StreamedTransaction | None
    begun: StreamedTransaction | None


def start_stream(
    pipeline: Pipeline, sql: psycopg.Connection[Any], state: CaptureState, say: Callable[[str], None]
) -> OpenedStream:
    """Stream from the state's position. An older reader of the slot, which is fenced by now, is ended first. Raises
    PositionMismatch if the slot was moved beyond the state, LockstepError if PostgreSQL refuses and Unavailable if it
    can't be reached."""
    deadline = time.monotonic() + SLOT_LET_GO_S
    only_local = pipeline.source.origin == "none"
    while True:
        slot = find_slot(sql, state.slot)
        if slot is not None and slot.active_pid is not None:
            say(f"slot {slot.name} is still read by pid {slot.active_pid}, which is fenced: ending it")
            end_other_reader(sql, slot)
            time.sleep(0.2)
        stream = ReplicationConnection(pipeline.source)
        try:
            stream.start(state.slot, publication=state.publication, at=Lsn(state.resume_lsn), only_local=only_local)
        except LockstepError as error:
            stream.close()
            if "is active for PID" in error.message and time.monotonic() < deadline:
                continue
            raise
        break
    try:
        confirmed = _check_position(sql, state)
    except BaseException:
        stream.close()
        raise
    last = state.last_transaction
    # It doesn't come again if somebody moved the slot beyond it, or if the stream leaves it out.
    comes_again = last is not None and confirmed <= last.commit_lsn and last.only_local == only_local
    begun = state.begun if state.begun is not None and state.begun.only_local == only_local else None
    return OpenedStream(stream, confirmed, last if comes_again else None, begun)


def _check_position(sql: psycopg.Connection[Any], state: CaptureState) -> Lsn:
    """The position confirmed to the slot. Only read while we stream: from then on nobody else can move it. Raises
    PositionMismatch."""
    slot = find_slot(sql, state.slot)
    if slot is None or slot.confirmed is None or slot.confirmed > state.end_lsn:
        confirmed_at = "nowhere" if slot is None or slot.confirmed is None else format_lsn(slot.confirmed)
        raise PositionMismatch(
            f"slot {state.slot} is at {confirmed_at}, but only {format_lsn(state.end_lsn)} was published:"
            " the changes in between are lost to this slot",
            hint="was the slot advanced or recreated by hand? Was Kafka put back to an earlier copy, or did it lose a"
            f" transaction? {COMMIT_MARKER_LOSS}. {RECOVER}",
        )
    return slot.confirmed
