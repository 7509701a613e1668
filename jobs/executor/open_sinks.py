"""One open sink per generation and worker process: workers outlive batches, and connecting costs more than a batch."""

import gc
import random
import time
from contextlib import suppress

from jobs.executor.task_input import Task
from sinks.contract import Sink
from sinks.registry import SinkSettings
from sinks.wrappers.retrying import Retries, Waiting, retrying

_Identity = tuple[str, int]
"""A sink's name and a generation."""

_open: dict[_Identity, tuple[tuple[str, SinkSettings], Sink]] = {}
"""The open sinks, each with the run and the settings that it was opened for."""

_unfrozen: set[_Identity] = set()
"""Those that were opened since garbage was collected last."""


def sink_for(task: Task) -> Sink:
    """The task's sink, open: that of an earlier task of the same run, else a new one. Raises what opening it raises."""
    identity = (task.sink, task.generation)
    known = _open.get(identity)
    purpose = (task.run, task.settings)
    if known is not None and known[0] == purpose:
        return known[1]
    close_sink(task)
    retries = Retries(
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=_wait_quietly,
        give_up_after_s=task.retry_s,
    )
    sink = retrying(task.open(task.sink, task.settings, task.generation), retries).sink
    _open[identity] = (purpose, sink)
    _unfrozen.add(identity)
    return sink


def freeze_opened() -> None:
    """Keep PySpark's garbage collection, which follows every task, from looking at open sinks: 70 ms with SQLAlchemy.

    It acts only after a sink was opened and has been used, since its libraries are loaded by then. The garbage of
    earlier sinks is freed.
    """
    if _unfrozen:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _unfrozen.clear()


def close_sink(task: Task) -> None:
    """Close the worker's sink of this generation, if it has one."""
    known = _open.pop((task.sink, task.generation), None)
    if known is not None:
        # It was given up because it failed; how it ends doesn't matter.
        with suppress(Exception):
            known[1].close()


def _wait_quietly(_: Waiting) -> None:
    """The driver tells of it once the task gives up."""
