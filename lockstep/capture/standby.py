"""``lockstep capture --standby``: waits beside another capture of the slot, and takes over when that one is gone.

Kafka decides who publishes: whoever takes over fences the other. So a wrong guess here costs a restart, never a row.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Final

import psycopg

from cdc.model.errors import Fenced, Unavailable
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.replication import APPLICATION
from cdc.postgres.slot import is_captured
from lockstep.capture.run import Observer, capture

PATIENCE_S: Final = 2.0
"""How long nobody may be at work: a capture that lost a connection is back sooner."""

_LOOK_EVERY_S: Final = 0.25


def capture_in_turn(pipeline: Pipeline, *, stopping: Callable[[], bool], observer: Observer) -> None:
    """Capture whenever nobody else does, until ``stopping``. Raises as ``capture``, but for Fenced."""
    while not stopping():
        if wait_for_turn(pipeline, stopping=stopping, say=observer.say):
            try:
                capture(pipeline, stopping=stopping, observer=observer)
            except Fenced:
                observer.say("another capture has taken over; this one stands by again")


def wait_for_turn(pipeline: Pipeline, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> bool:
    """Return True once no capture of the slot has been at work for ``PATIENCE_S``, False when told to stop.

    A source that can't be reached is asked again. Raises LockstepError when it refuses.
    """
    has_said = False
    free_since_s: float | None = None
    with contextlib.ExitStack() as closing:
        connection = None
        while not stopping():
            now_s = time.monotonic()
            try:
                if connection is None:
                    connection = connect(pipeline.source, application=f"{APPLICATION} standby")
                    closing.callback(connection.close)
                is_free = not is_captured(connection, pipeline.slot)
            except (Unavailable, psycopg.Error) as raised:
                error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
                if not isinstance(error, Unavailable):
                    raise error from raised
                connection, is_free = None, False
            if not is_free:
                free_since_s = None
                if not has_said and connection is not None:
                    has_said = True
                    say(f"standing by: another capture of slot {pipeline.slot} is at work")
            elif free_since_s is None:
                free_since_s = now_s
            elif now_s - free_since_s >= PATIENCE_S:
                return True
            time.sleep(_LOOK_EVERY_S)
    return False
