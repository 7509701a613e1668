"""The functions that the tasks of a query's batches run. They are made anew only if their input changes."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from jobs.executor.driver_line import Until
from jobs.executor.follow import deliver
from jobs.executor.result import RESULT_SCHEMA
from jobs.executor.task_input import Task
from jobs.query.progress import ProgressKeeper
from jobs.query.rejections import OpenRejections, Rejections
from jobs.spark.arrow_map import ArrowMap

_TOPICS_MAX: Final = 64
"""Tasks know no more topics than these, unless their batch has more: each topic costs a kilobyte to send and read."""


class TaskMaps:
    """The functions of one query, for long batches and for others."""

    def __init__(
        self,
        task: Task,
        keeper: ProgressKeeper,
        rejections: Rejections,
        *,
        socket: str | None,
        rows_max: int,
    ) -> None:
        """``socket`` is the driver's, and ``rows_max`` is that of ``Until``."""
        self._task = task
        self._keeper = keeper
        self._rejections = rejections
        self._socket = socket
        self._rows_max = rows_max
        # Whether the batch goes on -> the topics and rejections that the function was made with, and the function.
        self._made: dict[bool, tuple[frozenset[str], OpenRejections, ArrowMap]] = {}

    def map_for(self, topics: Collection[str], *, goes_on: bool) -> ArrowMap:
        """The function that tasks run for a batch with records of these topics."""
        task, rejected = self._task, self._rejections.open
        before = frozenset[str]()
        known = self._made.get(goes_on)
        if known is not None:
            before = known[0]
            # a history needs the time since when its versions may have been compacted
            if known[1] is rejected and not task.versions and before.issuperset(topics):
                return known[2]
        if task.reads_whole_transactions:
            topics = task.tables.keys()
        sent = topics_to_send(topics, before, task.tables)
        own = replace(
            task,
            rejected_before=dict(rejected),
            complete_at_ms=self._keeper.complete_at_ms if task.versions else 0,
        ).only(sent)
        # A view's task also reports the progress of a build, even in a batch that ends with the log.
        socket = self._socket if goes_on or task.view is not None else None
        until = Until(goes_on=goes_on, socket=socket, rows_max=self._rows_max)
        made = ArrowMap(partial(deliver, own, until), RESULT_SCHEMA)
        self._made[goes_on] = sent, rejected, made
        return made


def topics_to_send(topics: Collection[str], before: frozenset[str], known: Collection[str]) -> frozenset[str]:
    """The topics, out of all ``known`` ones, that tasks know in a batch with these ``topics``. Pure. All, if they are
    few. Otherwise also those of the batches ``before``, while few: the next batch then probably needs no other."""
    for wider in (frozenset(known), before.union(topics)):
        if len(wider) <= _TOPICS_MAX:
            return wider
    return frozenset(topics)
