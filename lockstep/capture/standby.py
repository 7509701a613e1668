"""``lockstep capture --standby``: waits beside another capture of the slot, and takes over when that one is gone.

Kafka decides who publishes: taking over fences the other. So a wrong guess here costs a restart, never a row.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import psycopg

from cdc.kafka.control_topics import read_state
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.replication import APPLICATION
from cdc.postgres.slot import announce_standby, is_captured, system_identifier
from cdc.protocol.control_records import CaptureState

PATIENCE_S: Final = 2.0
"""How long no capture must be at work. A capture that lost a connection is back sooner."""

_LOOK_EVERY_S: Final = 0.25


def capture_in_turn(
    pipeline: Pipeline, *, stopping: Callable[[], bool], say: Callable[[str], None], capture: Callable[[], None]
) -> None:
    """Run ``capture`` whenever no other does, until ``stopping``. Raises what it raises, except Fenced."""
    while not stopping():
        if wait_for_turn(pipeline, stopping=stopping, say=say):
            try:
                capture()
            except Fenced:
                say("another capture has taken over; this one stands by again")


def wait_for_turn(pipeline: Pipeline, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> bool:
    """Return True once no capture of the slot has been at work for ``PATIENCE_S``, False when told to stop. Asks an
    unreachable source again. Raises LockstepError if it refuses."""
    has_said = has_said_silent = False
    free_since_s: float | None = None
    with contextlib.ExitStack() as closing:
        connection = None
        while not stopping():
            now_s = time.monotonic()
            try:
                if connection is None:
                    connection = connect(pipeline.source, application=f"{APPLICATION} standby")
                    closing.callback(connection.close)
                    announce_standby(connection, pipeline.slot)
                is_free = not is_captured(connection, pipeline.slot)
                has_said_silent = False
            except (Unavailable, psycopg.Error) as raised:
                error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
                if not isinstance(error, Unavailable):
                    raise error from raised
                connection, is_free = None, False
                if not has_said_silent:
                    has_said_silent = True
                    say(f"{error.message}; asking again until it answers")
            if not is_free:
                free_since_s = None
                if not has_said and connection is not None:
                    has_said = True
                    say(f"standing by: another capture of slot {pipeline.slot} is at work")
                    for difference in differences(pipeline, _state(pipeline, say), system_identifier(connection)):
                        say(f"warning: once it takes over, this capture doesn't go on as the other one: {difference}")
            elif free_since_s is None:
                free_since_s = now_s
            elif now_s - free_since_s >= PATIENCE_S:
                return True
            time.sleep(_LOOK_EVERY_S)
    return False


def differences(pipeline: Pipeline, state: CaptureState | None, system_id: str | None) -> Iterator[str]:
    """How this pipeline's capture would differ from the state's, a phrase each.

    ``system_id`` is the source's, None if it isn't known. Differences are only reported: the other capture may be
    started anew with the same configuration, and the first of two that begin together has no state yet.
    """
    if state is None:
        yield f"Kafka holds no state of the slot for pipeline {pipeline.name}; are pipeline.name and [kafka] the same?"
        return
    if system_id is not None and system_id != state.system_id:
        yield f"the source's system identifier is {system_id}, not {state.system_id}"
    if pipeline.publication != state.publication:
        yield f"source.publication is {pipeline.publication}, not {state.publication}"
    # The capture that takes over decides which tables a pattern takes in.
    ours, theirs = set(pipeline.source.named), set(state.memberships)
    lacking = [name for name in theirs if not pipeline.source.may_have(name)]
    if lacking:
        yield f"source.tables lacks {', '.join(sorted(map(str, lacking)))}"
    if theirs and ours - theirs:
        yield f"source.tables has {', '.join(sorted(map(str, ours - theirs)))} as well"


def _state(pipeline: Pipeline, say: Callable[[str], None]) -> CaptureState | None:
    """The slot's state, None if there is none. If it can't be read, says so and returns None."""
    try:
        return read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
    except LockstepError as error:
        say(f"warning: {error.message}")
        return None
