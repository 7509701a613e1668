"""Delivers what a view has computed to the sink, and to the topic of the view."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

import orjson

from cdc.model.event import Events, JsonValue, Position, TableEvents
from jobs.executor.open_sinks import freeze_opened, sink_for
from jobs.executor.result import VALUES_BYTES_MAX, RejectedEvent, Result, check_rejections
from jobs.executor.task_input import Task
from jobs.executor.view_coordination import BUILDING, ViewRecords
from jobs.executor.view_reports import ViewReports
from jobs.executor.view_topic import ViewTopic
from jobs.executor.written_ahead import WrittenAhead
from jobs.offsets import Offsets
from sinks.contract import Batch, Outcome
from views.figures import Doing
from views.operators.building import Item
from views.result_rows import rows_of
from views.retention import NotedTime
from views.view import View, ViewPosition

PORTION: Final = 20_000
"""How many rows of the result are written at once: the changes of one step appear at once up to this number."""

_FED_ROWS: Final = 5_000

_Key = Mapping[str, JsonValue]

_NOWHERE: Final = Position("", 0, 0)
"""These rows don't come from the log."""


@dataclass(frozen=True, slots=True)
class _Became:
    """Keys of rows that the sink refuses for good, and of rows whose earlier rejection is void. ``held`` rows are
    refused as well, but the next batch reports them: this one's result has no room."""

    refused: list[_Key] = field(default_factory=list)
    void: list[_Key] = field(default_factory=list)
    held: list[_Key] = field(default_factory=list)


class ViewDelivery:
    """Delivers the result of one view, or of its shard. Raises as ``Sink.apply``, ``View`` and ``ViewTopic``."""

    def __init__(
        self,
        task: Task,
        view: View,
        topic: ViewTopic | None,
        stored: ViewRecords,
        result: Result,
        reports: ViewReports,
    ) -> None:
        assert task.view is not None
        self._task = task
        self._input = task.view
        self._view = view
        self._topic = topic
        self._stored = stored
        self._result = result
        self._reports = reports
        self._progress = reports.progress
        self._figures = reports.figures
        # How many rows of a new result the sink got while it was computed.
        self._written_ahead = 0

    def deliver(self, offsets: Offsets) -> None:
        """Give the sink what it may not have yet. Afterwards it is as of these ``offsets``."""
        while self._view.expire():
            # Otherwise the driver takes the task for one that hangs.
            self._reports.send(time.monotonic())
        position = self._view.position()
        self._figures.begin(Doing.WRITING, position.counters.rows - self._written_ahead)
        self._stored.save_before_rows(position)
        is_new = self._view.is_new
        if self._view.is_whole:
            self._arrange()
        table = self._input.table.name
        while (output := self._view.pending(PORTION)) is not None:
            tags = [str(output.tag)] * len(output.keys)
            events = TableEvents.from_log(table, list(output.keys), tags, list(output.rows), lambda _: _NOWHERE)
            became = self._apply(events, offsets if output.is_last else {})
            if self._topic is not None:  # after the sink, so that whoever reads the topic finds the row there
                for key, row in zip(output.keys, output.rows, strict=True):
                    self._topic.write(key, row, output.tag)
                self._commit(self._topic, is_complete=output.is_last)
            self._view.acknowledge(
                output, refused=became.refused, void=became.void, held=became.held, reached=self._progress.offsets
            )
            if became.held and not self._reports.are_kept():
                self._result.has_more = True
                return
            if self._figures.building is not None:
                self._figures.add(len(events))
                self._reports.send(time.monotonic())
        if is_new:
            self._view.compact()
        self._figures.building = None
        if self._topic is not None and self._lacks_step(self._topic):
            self._commit(self._topic, is_complete=True)
        self._stored.save_time(NotedTime(position.time_ms, position.time_ms))
        freeze_opened()
        self._result.next_offsets = offsets

    def take_over(self, run: str) -> None:
        """This run goes on with what another one has delivered. Nothing else changes. Called before the state changes:
        after a kill in between, the next start finds two runs, and builds."""
        if self._topic is not None:
            self._topic.take_over(run)
        self._stored.save_run(run)

    def rejected_with(self, key: _Key) -> str:
        """The tag with which the driver has stored a rejection of this row; "" if it has none."""
        return self._progress.rejected.get((self._input.topic, orjson.dumps(key)), "")

    def has_nothing(self) -> bool:
        """Whether no row of the view exists anywhere. Nobody else can add one: a replaced writer is refused."""
        if self._topic is not None or any(topic == self._input.topic for topic, _ in self._progress.rejected):
            return False
        return not any(self._view.result.is_own(row.key) for row in sink_for(self._task).scan(self._input.table))

    @contextmanager
    def writing_ahead(self, position: ViewPosition, meanwhile: Callable[[], None]) -> Iterator[WrittenAhead]:
        """Give the sink rows while they are computed. A later job finds that this was unfinished, and builds anew."""
        self._stored.save_run(BUILDING)
        self._stored.save_before_rows(position)
        table, tag = self._input.table.name, str(position.tag)

        def write(items: Sequence[Item]) -> Outcome:
            keys, rows = rows_of(items)
            events = TableEvents.from_log(table, keys, [tag] * len(keys), [*rows], lambda _: _NOWHERE)
            batch = Batch(Events([events]), fence=self._task.fence, identities=self._task.identities)
            return sink_for(self._task).apply(batch)

        with closing(WrittenAhead(write, meanwhile, rows_max=PORTION)) as ahead:
            yield ahead
        self._result.applied += ahead.applied
        self._result.stale += ahead.stale
        self._written_ahead = ahead.applied + ahead.stale

    def _arrange(self) -> None:
        """Order rows that differ from an earlier state's first, and delete rows that the result doesn't have."""
        stored = ((row.key, row.row) for row in sink_for(self._task).scan(self._input.table))
        on_topic = () if self._topic is None else self._topic.keys()
        # The sink may not have rows that were rejected and that the result has lost.
        rejected = (orjson.loads(key) for topic, key in self._progress.rejected if topic == self._input.topic)
        arrange(self._view, stored, chain(on_topic, rejected))

    def _commit(self, topic: ViewTopic, *, is_complete: bool) -> None:
        position = self._view.position()
        topic.commit(tag=position.tag, offsets=dict(position.offsets), run=self._task.run, is_complete=is_complete)

    def _lacks_step(self, topic: ViewTopic) -> bool:
        """Whether the topic has no complete step as of the view's LSN yet: the result didn't change."""
        last, position = topic.last, self._view.position()
        at = (position.epoch, position.lsn)
        return last is None or not last.is_complete or (last.epoch, last.lsn) != at

    def _apply(self, events: TableEvents, next_offsets: Offsets) -> _Became:
        """Give these events to the sink, and collect the outcome. Raises LockstepError for too many rejections."""
        if self._input.shard is not None:
            next_offsets = {}  # other shards may not be there yet
        batch = Batch(
            Events([events]), next_offsets=next_offsets, fence=self._task.fence, identities=self._task.identities
        )
        outcome = sink_for(self._task).apply(batch)
        self._result.applied += outcome.applied
        self._result.stale += outcome.stale
        if not (outcome.rejections or self._progress.rejected or self._result.rejected):
            return _Became()
        reasons = {orjson.dumps(each.event.key): each.reason for each in outcome.rejections}
        topic, result = self._input.topic, self._result
        came = set(events.keys)
        # The newest version's outcome counts.
        result.rejected = [event for event in result.rejected if event.key not in came]
        size = sum(len(event.value or b"") for event in result.rejected)
        became, held = _Became(), list[RejectedEvent]()
        for key, tag, row in zip(events.keys, events.tags, events.rows, strict=True):
            if key in reasons:
                value = None if row is None else _rejected_value(tag, row, result.commit_time_ms)
                event = RejectedEvent(Position(topic, 0, 0), key, value, tag, reasons[key])
                size += len(value or b"")
                is_held = bool(result.rejected) and size > VALUES_BYTES_MAX
                (held if is_held else result.rejected).append(event)
                (became.held if is_held else became.refused).append(orjson.loads(key))
            elif (topic, key) in self._progress.rejected:
                result.resolved.append((topic, key))
                became.void.append(orjson.loads(key))
        check_rejections(self._task.sink, [*result.rejected, *held])
        return became


def arrange(view: View, stored: Iterable[tuple[_Key, Mapping[str, JsonValue]]], others: Iterable[_Key]) -> None:
    """Order rows that differ from the ``stored`` ones first, and delete rows that the result doesn't have. ``others``
    are keys of rows that may be elsewhere. Their values there say nothing about what the sink's readers see."""
    no_row: Mapping[str, JsonValue] = {}
    for earlier in (iter(stored), ((key, no_row) for key in others)):
        while rows := list(islice(earlier, _FED_ROWS)):
            view.arrange(rows)
    view.end_arranging()


def _rejected_value(tag: str, row: bytes, commit_time_ms: int) -> bytes:
    """A row of the result in the form of a table's event, as a retry reads it."""
    return orjson.dumps({"op": "u", "tag": tag, "after": orjson.Fragment(row), "ts_ms": commit_time_ms})
