"""The tasks of a divided view: which shard each of them has, and how it learns that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from jobs.executor.log_reader import Range
from jobs.executor.task_input import Task
from jobs.offsets import Offsets

_SHARD: Final = ""
"""Stands in the place of a topic, which always has a name: a task's shard is sent among its ranges of the log."""


def range_of_shard(number: int, reached: Offsets) -> list[Range]:
    """The input of a shard's task: its number, and the next offsets stored in the sink."""
    return [Range(_SHARD, number, 0, 0), *(Range(*at, 0, offset) for at, offset in reached.items())]


def of_shard(task: Task, sent: Offsets) -> tuple[Task, Offsets]:
    """The task of the shard named in its input, and the offsets. The task of a view without shards stays as it is."""
    numbers = [partition for topic, partition in sent if topic == _SHARD]
    if task.view is None or not numbers:
        return task, sent
    offsets = {at: offset for at, offset in sent.items() if at[0] != _SHARD}
    return _task_of(task, numbers), offsets


def _task_of(task: Task, numbers: Sequence[int]) -> Task:
    assert task.view is not None
    (number,) = numbers
    shard = task.view.shards[number]
    view = replace(task.view, shard=shard, directory=f"{task.view.directory}/{shard.name}")
    return replace(task, view=view)
