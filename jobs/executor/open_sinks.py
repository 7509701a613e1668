"""One open sink per generation and worker process: workers outlive batches, and connecting costs more than a batch."""

import gc
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from jobs.executor.task_input import Task
from sinks.contract import OpenedSink, Sink
from sinks.registry import SinkSettings
from sinks.wrappers.retrying import Retries, Waiting, retrying

_Identity = tuple[str, int]
"""A sink's name and a generation."""

IDLE_S: Final = 600.0
"""A sink without a task for so long is closed when another is opened: its generation may be dropped."""


@dataclass(slots=True)
class _Open:
    """An open sink, with the run and settings that it was opened for. ``used_at`` is of the monotonic clock. ``sink``
    is ``opened`` with repeated calls."""

    sink: Sink
    opened: OpenedSink
    purpose: tuple[str, SinkSettings]
    used_at: float


held: dict[_Identity, _Open] = {}

_unfrozen: set[_Identity] = set()
"""Those that were opened since the last garbage collection."""


def sink_for(task: Task) -> Sink:
    """The task's open sink: that of an earlier task of the same run, else a new one. Raises what opening it raises."""
    return _open_for(task).sink


def opened_for(task: Task) -> OpenedSink:
    """The same sink with all that was opened with it. It repeats no call: within a step nothing can be repeated."""
    return _open_for(task).opened


def _open_for(task: Task) -> _Open:
    identity = (task.sink, task.generation)
    purpose = (task.run, task.settings)
    now = time.monotonic()
    opened = held.get(identity)
    if opened is not None and opened.purpose == purpose:
        opened.used_at = now
        return opened
    for other, earlier in list(held.items()):
        if other == identity or now - earlier.used_at > IDLE_S:
            _close(other)
    retries = Retries(
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=_wait_quietly,
        give_up_after_s=task.retry_s,
    )
    bare = task.open(task.sink, task.settings, task.generation)
    if task.server is not None:
        bare.require_server(task.server)
    opened = _Open(retrying(bare, retries).sink, bare, purpose, now)
    held[identity] = opened
    _unfrozen.add(identity)
    return opened


def freeze_opened() -> None:
    """Keep PySpark's garbage collection after every task from scanning open sinks: 70 ms with SQLAlchemy. Acts only
    after a sink was opened and used, since its libraries are loaded by then. Frees the garbage of earlier sinks."""
    if _unfrozen:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _unfrozen.clear()


def close_sink(task: Task) -> None:
    _close((task.sink, task.generation))


def _close(identity: _Identity) -> None:
    opened = held.pop(identity, None)
    if opened is not None:
        # It has failed or isn't used any more, so it doesn't matter how it ends.
        with suppress(Exception):
            opened.sink.close()


def _wait_quietly(_: Waiting) -> None:
    """The driver reports it once the task gives up."""
