"""Drops the slot that holds back too much WAL, and tells why in the state before.

A process that is killed in between leaves the reason behind: with the slot gone, nobody could find it out any more.
"""

import contextlib
import time
from collections.abc import Callable
from typing import NoReturn

from cdc.capture.ownership import Ownership
from cdc.kafka.control_topics import read_state
from cdc.model.errors import Fenced, LockstepError
from cdc.model.lsn import format_lsn
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect
from cdc.postgres.replication import APPLICATION
from cdc.postgres.slot import announce_capture
from cdc.stream.slot_guard import SlotHoldsTooMuch
from cdc.stream.source_checks import RECOVER
from lockstep.capture.publisher import capture_publisher
from snapshot.recovery import drop_own_slot


class SlotDropped(LockstepError):
    """The slot was dropped, since the operator has allowed it."""


def drop_announced(
    pipeline: Pipeline, ownership: Ownership, full: SlotHoldsTooMuch, say: Callable[[str], None]
) -> NoReturn:
    """Drop the slot, and raise SlotDropped. The slot is free: the caller has given up its own connections.

    Raises Fenced, and drops nothing, where another capture has taken over. Raises psycopg's errors and Unavailable when
    PostgreSQL isn't available: the slot is still there then.
    """
    try:
        _announce(pipeline, ownership, full.reason)
    except Fenced:
        raise
    except LockstepError as error:  # the server's disk fills up while Kafka is away, too
        say(f"why the slot is dropped is in this log alone, since it couldn't be stored in Kafka: {error.message}")
    with contextlib.closing(connect(pipeline.source, application=APPLICATION)) as sql:
        announce_capture(sql, pipeline.slot)  # who stands by would take it over
        drop_own_slot(sql, pipeline.slot, say)
    look = full.look
    confirmed = "an unknown position" if look.confirmed is None else format_lsn(look.confirmed)
    raise SlotDropped(
        f"{full.reason}: it was dropped. What wasn't published can't be read any more: the slot was at {confirmed}, and"
        f" the WAL ended at {format_lsn(look.wal_end)}",
        hint=RECOVER,
    )


def _announce(pipeline: Pipeline, ownership: Ownership, reason: str) -> None:
    """Note in the state from where on nothing will be read, and why. Raises Fenced where another has taken over."""
    client = pipeline.kafka.client()
    if not ownership.is_taken:
        return  # nothing was ever published by us
    ownership.check(read_state(client, pipeline.name, pipeline.slot))
    with contextlib.closing(capture_publisher(pipeline)) as publisher:
        publisher.start()
        state = read_state(client, pipeline.name, pipeline.slot)
        ownership.check(state)
        if state is not None:
            state = state.with_gap(reason, now_ms=time.time_ns() // 1_000_000)
            publisher.commit(state, covering=list(pipeline.topics().values()))
