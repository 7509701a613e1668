"""What a view's task stores beside the rows of its sink: coordination records of each generation, and of each shard.

``g<n>.view_run`` names the run whose state writes the result, or says that an unfinished state does. ``g<n>.view_tag``
has the newest tag of a further output at one LSN. Those of a shard end with its number. For a view with retention, a
record has the time as of which the sink has the result, before and after its rows are written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import orjson

from cdc.model.tag import Tag
from jobs.executor.open_sinks import sink_for
from jobs.executor.task_input import Task
from jobs.executor.view_log import Cut
from sinks.contract import Batch, CoordinationRecords
from views.retention import NotedTime, noted_name
from views.view import ViewPosition

RUN: Final = "view_run"
TAG: Final = "view_tag"

BUILDING: Final = "building"
"""Stored in the place of a run: an unfinished state has written rows, and no other state may go on."""


def note_name(what: str, generation: int, shard: int | None = None) -> str:
    return f"g{generation}.{what}" + ("" if shard is None else f".{shard}")


def has_had_state(records: CoordinationRecords, generation: int, *, tasks: int) -> bool:
    """Whether any state of the view, which so many tasks maintain, was ever whole. Before a state is whole, its run is
    stored. Raises what the destination raises."""
    numbers = [None] if tasks == 1 else list(range(tasks))
    return any(records.load(note_name(RUN, generation, number)) not in (None, BUILDING) for number in numbers)


class ViewRecords:
    """The records of one task. Each method raises what the destination raises."""

    def __init__(self, task: Task) -> None:
        assert task.view is not None
        self._task = task
        self._is_retained = bool(task.view.plan.retained)
        self._shard = None if task.view.shard is None else task.view.shard.number
        # What was stored last.
        self._tag: Tag | None = None
        self._time: NotedTime | None = None

    @property
    def run(self) -> str | None:
        """The run that has written the result last."""
        with self._records() as records:
            return records.load(self._name(RUN))

    def save_run(self, run: str) -> None:
        """Store whose state writes the result, before it writes anything. A store accepts this from a replaced writer
        whose successor hasn't stored its run yet. The empty batch then raises, so that the replaced writer stops."""
        self._save(self._name(RUN), run)
        sink_for(self._task).apply(Batch([], fence=self._task.fence))

    # The second output at one LSN has a greater number in its tag. So does a state that is built anew there, since the
    # sink takes no row of an equal tag. Only such tags are stored, and they are rare. What a newer writer has stored
    # stays, whenever the writer that it replaced wakes up.

    def seq_of_new_state(self, cut: Cut) -> int:
        """The number in the tag of a state that is built at this cut."""
        with self._records() as records:
            noted = records.load(self._name(TAG))
        epoch, lsn, seq = (0, 0, 0) if noted is None else orjson.loads(noted)
        return seq + 1 if (epoch, lsn) == (cut.epoch, cut.lsn) else 1

    def save_before_rows(self, position: ViewPosition) -> None:
        """Store what must be known of rows with this tag before the sink has any."""
        if position.seq and self._tag != position.tag:
            self._save(self._name(TAG), orjson.dumps([position.epoch, position.lsn, position.seq]).decode())
            self._tag = position.tag
        self.save_time(NotedTime(self.time.time_ms, position.time_ms))

    @property
    def time(self) -> NotedTime:
        """The view's stored time; a view without retention has none."""
        if self._time is None:
            self._time = NotedTime()
            if self._is_retained:
                with self._records() as records:
                    self._time = NotedTime.from_json(records.load(self._time_name))
        return self._time

    def save_time(self, time: NotedTime) -> None:
        """Store as of which time the sink has the result."""
        if self._is_retained and time != self.time:
            self._save(self._time_name, time.to_json())
            self._time = time

    def _name(self, what: str) -> str:
        return note_name(what, self._task.generation, self._shard)

    @property
    def _time_name(self) -> str:
        return noted_name(self._task.generation, self._shard)

    def _save(self, name: str, text: str) -> None:
        with self._records() as records:
            records.save(name, text, fence=self._task.fence)

    @contextmanager
    def _records(self) -> Iterator[CoordinationRecords]:
        opened = self._task.open(self._task.sink, self._task.settings, self._task.generation)
        try:
            yield opened.records
        finally:
            opened.sink.close()
