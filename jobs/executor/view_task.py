"""The task of a view: whole transactions of its tables -> its state -> the changed rows of the result -> the sink.

Its state's own position says what it reads. A batch only says when.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa

from cdc.model.errors import DataLost, PositionMismatch, Unavailable
from cdc.model.event import Events, JsonValue, Position, TableEvents
from cdc.model.tag import Tag
from jobs.clock import now_ms
from jobs.executor.decode import decode
from jobs.executor.deliver import tags_of, with_records
from jobs.executor.left_out_rows import LeftOutRows
from jobs.executor.log_feed import LogFeed, delivered
from jobs.executor.long_batch import DriverLine, LongBatch, Told
from jobs.executor.open_sinks import close_sink, freeze_opened, sink_for
from jobs.executor.result import VALUES_BYTES_MAX, Failure, RejectedEvent, Result, check_rejections
from jobs.executor.task_input import Task, ViewInput
from jobs.executor.task_pace import DriverReports, LogEnd, NextCut
from jobs.executor.view_building import BuildProgress
from jobs.executor.view_log import Cut, Taken, ViewLog
from jobs.executor.view_notes import BUILDING, RUN, TAG, note_name
from jobs.executor.view_shards import of_shard
from jobs.executor.view_topic import ViewTopic, close_view_topic, view_topic_for
from jobs.executor.written_ahead import WrittenAhead
from jobs.offsets import Offsets
from sinks.contract import Batch, CoordinationRecords, Outcome
from views.failures import FanOutExceeded
from views.figures import Doing, ViewFigures
from views.operators.building import Item
from views.result_rows import rows_of
from views.retention import NotedTime, noted_name, whole_minutes
from views.state.contract import Size, UnusableState
from views.state.file import FileState
from views.view import View, ViewPosition, identity

_PORTION: Final = 20_000
"""How many rows of the result are written at once: what one step changes appears at once, if it is no more."""

_AHEAD_FROM: Final = 20_000
"""From so many events on, rows of a new result are written while others are computed."""

_FED_ROWS: Final = 5_000
_RETRY_S: Final = 0.5
_RETRY_MOST_S: Final = 8.0
"""How long a shard waits before it tries again: at first, and at most. An attempt that lasted longer begins anew."""
_KEPT_S: Final = 10.0
"""How long a shard waits until its rejections are kept. After that they come with the batch's result."""

_HELD_WINDOWS: Final = 4
"""So many windows of events wait for the end of their transactions at most. Where there are more, a state is built."""


_Key = Mapping[str, JsonValue]

_NOWHERE: Final = Position("", 0, 0)
"""These rows don't come from the log."""


class _TooMuch(Exception):
    """More waits than memory is to hold: the state is built anew."""


class _IsOver(Exception):
    """The driver has ended the batch in the middle of a building, which begins again."""


def deliver_view(
    task: Task, batches: Iterable[pa.RecordBatch], *, batch: LongBatch | None = None
) -> Iterator[pa.RecordBatch]:
    """Bring the view up to the log's end as of now, and yield what became of it, for ``mapInArrow``.

    ``batches`` say what the sink was told of, as ranges that end there. With ``batch`` the driver is told how far a
    building is. Nothing is raised, as in ``deliver``.
    """

    def follow(own: Task, stored: Offsets, result: Result) -> None:
        with nullcontext() if batch is None else DriverLine(batch.socket) as line:
            _follow_beside_others(own, stored, result, line, goes_on=False)

    yield from _delivered(task, batches, follow)


def deliver_view_long(task: Task, batch: LongBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, and go on with what comes, until the driver ends it."""

    def follow(own: Task, stored: Offsets, result: Result) -> None:
        with DriverLine(batch.socket) as line:
            _follow_beside_others(own, stored, result, line, goes_on=True)

    yield from _delivered(task, batches, follow)


def _delivered(
    task: Task, batches: Iterable[pa.RecordBatch], follow: Callable[[Task, Offsets, Result], None]
) -> Iterator[pa.RecordBatch]:
    def work(told: Offsets, result: Result) -> None:
        own, stored = of_shard(task, told)
        if own.view is not None and own.view.shard is not None:
            result.shard = own.view.shard.number
        follow(own, stored, result)

    def close() -> None:
        close_sink(task)
        if task.view is not None and task.view.result_topic is not None:
            close_view_topic(task.view.result_topic)

    yield from delivered(batches, work, close=close)


def _follow_beside_others(
    task: Task, stored: Offsets, result: Result, line: DriverLine | None, *, goes_on: bool
) -> None:
    """The same as ``_follow``. ``stored`` is what the sink was told of.

    The result of a shard's task is looked at when all tasks of its batch have ended, and one that builds a state ends
    late. So it tells at once what it fails with. Where that ends by itself, it goes on.
    """
    assert task.view is not None
    progress, shard = _SinkProgress({**task.view.reached, **stored}, task.rejected_before), task.view.shard
    retry_s = 0.0
    while True:
        began_s = time.monotonic()
        try:
            return _follow(task, progress, result, line, goes_on=goes_on)
        except Exception as error:
            if shard is None or line is None:
                raise
            ends_by_itself = isinstance(error, Unavailable) and not isinstance(error, DataLost)
            is_first = not retry_s or time.monotonic() - began_s > 2 * _RETRY_MOST_S
            retry_s = _RETRY_S if is_first else min(2 * retry_s, _RETRY_MOST_S)
            failure = replace(Failure.of(error), retry_after_s=retry_s)
            line.tell(Told(failure=failure, shard=shard.number))
            progress.tell({})
            if not (goes_on and ends_by_itself):
                raise
            close_sink(task)  # the next attempt starts with a new connection
            if line.is_over_within(retry_s):
                raise


def _follow(task: Task, progress: "_SinkProgress", result: Result, line: DriverLine | None, *, goes_on: bool) -> None:
    """Keep the view until the batch has to end: by the driver's word, or where it doesn't go on, when all is taken in.

    Raises as ``LogReader.follow``, ``View`` and ``Sink.apply``.
    """
    assert task.view is not None
    # A job that another one has replaced leaves the state to that one.
    sink_for(task).apply(Batch([], fence=task.fence))
    is_to_be_built = False
    while True:
        with _opened_state(task, task.view) as state:
            view = View(
                task.view.plan,
                task.shapes,
                state,
                scratch=Path(task.view.directory),
                shard=task.view.shard,
            )
            topic = _topic_of(task, state)
            is_usable = (
                view.log() == task.view.log
                and _is_usable(view, task.run, progress.offsets)
                and (view.is_of(task.run) or _is_of_last_run(view, task))
                and (topic is None or _fits(view, topic))
            )
            is_to_be_built = is_to_be_built or not is_usable
            try:
                _Run(
                    task, view, result, line, progress, topic, size=state.size, goes_on=goes_on, builds=is_to_be_built
                ).follow()
                return
            except _IsOver:
                return
            except _TooMuch:
                is_to_be_built = True


@contextmanager
def _opened_state(task: Task, view: ViewInput) -> Iterator[FileState]:
    directory = Path(view.directory)
    own = identity(view.plan, task.shapes, view.shard)
    try:
        state = FileState(directory, identity=own)
    except UnusableState:
        # It holds nothing that the log doesn't.
        shutil.rmtree(directory, ignore_errors=True)
        state = FileState(directory, identity=own)
    with closing(state):
        yield state


def _is_usable(view: View, run: str, reached: Offsets) -> bool:
    """Whether a view can go on from here: its state is whole, and fits what the sink was told of.

    A state that is behind the sink is an earlier one. A state that has forgotten output which the sink wasn't told of
    may be ahead of a sink that was put back. So may one that has looked at what the sink had, and isn't delivered yet:
    rows that came back with an earlier sink aren't among those that it has deleted.
    """
    position = view.position()
    if position.is_building or not position.lsn:
        return False
    if any(position.offsets.get(at, 0) < offset for at, offset in reached.items()):
        return False
    if view.is_of(run):
        return True
    return not view.is_arranged and all(reached.get(at, 0) >= offset for at, offset in view.forgotten().items())


def _is_of_last_run(view: View, task: Task) -> bool:
    """Whether no other state has written the result since this one did, or begun to while it was built.

    Another one, as on another machine, may have written rows of which nobody was told, and that are gone since. This
    state has never had them, so it wouldn't have them removed.
    """
    with _records_of(task) as records:
        last = records.load(_note_name(task, RUN))
    return last is None or view.is_of(last)


@contextmanager
def _records_of(task: Task) -> Iterator[CoordinationRecords]:
    opened = task.open(task.sink, task.settings, task.generation)
    try:
        yield opened.records
    finally:
        opened.sink.close()


def _note_name(task: Task, what: str) -> str:
    """The name of a coordination record of this view's generation, or of its shard."""
    shard = None if task.view is None else task.view.shard
    return note_name(what, task.generation, None if shard is None else shard.number)


def _arrange(
    view: View,
    stored: Iterable[tuple[_Key, Mapping[str, JsonValue]]],
    others: Iterable[_Key],
) -> None:
    """Have what differs from the rows that are ``stored`` come first, and those go that the result doesn't have.

    ``others`` are keys of rows that may be elsewhere. What these are there says nothing of what the sink's readers see.
    """
    no_row: Mapping[str, JsonValue] = {}
    for earlier in (iter(stored), ((key, no_row) for key in others)):
        while rows := list(islice(earlier, _FED_ROWS)):
            view.arrange(rows)
    view.end_arranging()


class _SinkProgress:
    """What the sink's progress is known to have, as next offsets, and which rejections the driver has kept.

    A batch has one, also where it builds a state, or tries again.
    """

    def __init__(self, stored: Offsets, rejected: Mapping[tuple[str, bytes], str]) -> None:
        """``rejected`` are the rejections of before, each with its tag."""
        self.offsets: Offsets = dict(stored)
        self.rejected = dict(rejected)
        self._not_stored: deque[Offsets] = deque()

    def tell(self, offsets: Offsets) -> None:
        """The driver is told of these."""
        self._not_stored.append(dict(offsets))

    @property
    def not_stored(self) -> int:
        """How many of the times that the driver was told something it hasn't said to be stored."""
        return len(self._not_stored)

    def hear(self, times: int) -> None:
        """So many more of the times that it was told are stored."""
        for _ in range(times):
            self.offsets |= self._not_stored.popleft()


def _topic_of(task: Task, state: FileState) -> ViewTopic | None:
    """The topic that the result goes to besides the sink, open for this run."""
    assert task.view is not None
    assert task.client is not None
    where = task.view.result_topic
    return None if where is None else view_topic_for(task.client, where, task.run, state)


def _fits(view: View, topic: ViewTopic) -> bool:
    """Whether a view can go on with what is on its topic: its own state has made it, and all of its output is there.

    Another state may be at the same place, and still have come there by other steps. A row that changed back meanwhile
    is the same again for it, and the topic would keep the other one.
    """
    last = topic.last
    if last is None or not view.is_of(last.run):
        return False
    return all(last.offsets.get(at, 0) >= offset for at, offset in view.forgotten().items())


@dataclass(frozen=True, slots=True)
class _Became:
    """Keys of rows that the sink refuses for good, and of those whose earlier rejection is void.

    Those that are ``held`` are refused as well, and the next batch tells so: this one's result has no room for them.
    """

    refused: list[_Key] = field(default_factory=list)
    void: list[_Key] = field(default_factory=list)
    held: list[_Key] = field(default_factory=list)


class _Run:
    """One batch."""

    def __init__(
        self,
        task: Task,
        view: View,
        result: Result,
        line: DriverLine | None,
        progress: _SinkProgress,
        topic: ViewTopic | None,
        *,
        size: Callable[[], Size],
        goes_on: bool,
        builds: bool,
    ) -> None:
        """``size`` is that of the view's state."""
        assert task.client is not None
        assert task.view is not None
        self._task = task
        self._input = task.view
        self._view = view
        self._result = result
        self._line = line
        self._topic = topic
        self._goes_on = goes_on
        self._size = size
        self._building: BuildProgress | None = None
        self._written_ahead = 0
        """How many rows of a new result the sink has got while it was computed."""
        self._position = ViewPosition() if builds else view.position()
        self._builds = builds
        self._is_taking_in = builds
        """Whether a state is being built, of which not all events are there yet."""
        self._progress = progress
        self._began: Offsets = {}
        self._to_read = 0
        self._log = ViewLog(task.tables, self._position.offsets, append_only=task.append_only)
        self._feed = LogFeed(
            task.client,
            self._log,
            pipeline=self._input.pipeline,
            progress_topic=self._input.progress_topic,
            topics=list(task.tables),
        )
        self._cuts = NextCut(self._log, is_long=line is not None)
        self._end = LogEnd(self._log, result)
        self._reports = DriverReports(self._log, result)
        self._left_out = LeftOutRows()
        self._is_kept_first = False  # whether this part ends, so that the driver keeps what is known of these rows
        self._noted: Tag | None = None
        self._noted_time: NotedTime | None = None

    def follow(self) -> None:
        """Until the batch has to end. Raises _TooMuch and _IsOver."""
        self._follow_to_end()
        self._result.view = self._figures()

    def _follow_to_end(self) -> None:
        if self._builds or self._view.is_new:
            self._building = BuildProgress()
        if not self._builds:
            # Before another run adopts it: what the sink has for sure isn't written again, as a mark that was erased.
            self._view.confirm(self._progress.offsets)
            if not self._view.is_of(self._task.run):
                # Before the state: whoever is killed in between finds two runs, and builds.
                if self._topic is not None:
                    self._topic.take_over(self._task.run)
                self._note_run(self._task.run)
                self._view.adopt(self._task.run)
            void = self._view.settle(self._rejected_with)
            self._result.resolved += [(self._input.topic, orjson.dumps(key)) for key in void]
            self._deliver()  # what a batch that was killed has left
            if not self._result.has_more:
                self._follow()
            return
        self._view.begin_building(log=self._input.log)
        self._follow()

    def _follow(self) -> None:
        ends = self._feed.begin()
        if self._builds:
            begins = self._feed.cluster.begin_offsets(list(ends))
            if not self._input.trimmed:
                self._check_log_is_whole(begins)
            self._began = begins
            self._to_read = sum(ends.values()) - sum(begins.values())
        with closing(self._feed.follow(self._position.offsets, ends)) as polls:
            for rows in polls:
                self._result.rows += rows
                self._take()
                if self._is_over(time.monotonic()):
                    return

    def _is_over(self, now_s: float) -> bool:
        if self._is_kept_first or ((self._result.rejected or self._result.resolved) and not self._are_kept()):
            return True
        self._note_read()
        self._tell(now_s)
        if self._line is None or not self._goes_on:
            return self._end.is_reached(now_s, is_taken_in=not self._is_taking_in and not self._log.waits)
        if self._line.is_over():
            return True
        self._progress.hear(self._line.take_stored())
        return False

    def _are_kept(self) -> bool:
        """Have the driver keep the rejections of a shard now, and forget those that are void. Whether it has.

        The result of a batch is looked at when all of its tasks have ended, and one that builds a state ends late.
        """
        return self._result.shard is not None and self._keeps_now()

    def _keeps_now(self) -> bool:
        result = self._result
        if self._line is None:
            return False
        self._line.tell(Told(rejected=result.rejected, resolved=result.resolved, shard=result.shard))
        self._progress.tell({})
        self._line.wait_stored(self._progress.not_stored, _KEPT_S)
        self._progress.hear(self._line.take_stored())
        if self._progress.not_stored:
            return False
        for row in result.resolved:
            self._progress.rejected.pop(row, None)
        self._progress.rejected |= {(event.position.topic, event.key): event.tag for event in result.rejected}
        result.rejected, result.resolved = [], []
        return True

    def _note_read(self) -> None:
        if self._is_taking_in and self._building is not None:
            reached = self._log.next_offsets
            read = sum(max(0, reached.get(at, begin) - begin) for at, begin in self._began.items())
            self._building.reach(read, total=self._to_read)

    def _tell(self, now_s: float) -> None:
        """Let the driver know how far this is, every so often. One that ends by itself tells of a building alone."""
        if self._line is None:
            return
        has_news = self._building is not None or (self._goes_on and self._reports.has_moved)
        if not self._reports.is_due(now_s, has_news=has_news):
            return
        now = self._reports.take(now_s) if self._goes_on else self._reports.sign_of_life(now_s, has_got_on=False)
        now.view, now.shard = self._figures(), self._result.shard
        now.read = self._feed.of_topics(self._log.next_offsets) if self._log.waits else {}
        self._line.tell(now)
        self._progress.tell(self._result.next_offsets)

    def _figures(self) -> ViewFigures:
        building = None if self._building is None else self._building.now
        at_ms = now_ms()
        return ViewFigures.of(self._view.position(), self._size(), building=building, at_ms=at_ms)

    def _take(self) -> None:
        """Take in what has come, up to the newest cut."""
        log = self._log
        if log.bytes > self._task.window_bytes:
            if not self._is_taking_in:
                if log.bytes > _HELD_WINDOWS * self._task.window_bytes:
                    raise _TooMuch
            else:
                self._keep(log.take_all())
        if (cut := self._cuts.find(time.monotonic(), waits=log.waits)) is not None:
            self._step(cut)

    def _keep(self, records: pa.Table | None) -> None:
        if records is not None:
            self._view.build(self._decoded(records), self._note_computed)

    def _decoded(self, records: pa.Table) -> Events:
        """The events of these records, without those of rows that were left out. Such a row stays as it was."""
        decoded = decode(records, self._task)
        known = {row: tag for row, tag in self._progress.rejected.items() if row[0] in self._task.tables}
        if known or self._left_out or decoded.rejections:
            tags = tags_of(self._task, decoded.events)
            self._left_out.take(with_records(decoded.rejections, records), tags, known)
        return decoded.events

    def _tells_of_rows(self) -> bool:
        """Whether the driver has to keep what is known of rows that were left out before these records are taken in:
        they aren't read again after that. It is asked now, and where it doesn't answer, with the result."""
        if not self._left_out:
            return False
        self._result.rejected += self._left_out.rejected
        self._result.resolved += self._left_out.resolved
        if self._keeps_now():
            self._left_out.forget()
            return False
        self._is_kept_first = self._result.has_more = True
        return True

    def _step(self, cut: Cut) -> None:
        read = self._feed.of_topics(self._log.next_offsets)
        with nullcontext() if self._line is None else self._line.at_work_on(read):
            self._take_in(cut)

    def _take_in(self, cut: Cut) -> None:
        if (cut.epoch, cut.lsn) < (self._position.epoch, self._position.lsn):
            return
        taken = self._log.take(cut)
        if self._is_taking_in:
            self._keep(taken.records)
            if self._tells_of_rows():
                return
            self._build(cut, taken)
        elif (
            taken.records is None
            and (self._position.offsets == taken.next_offsets or not self._cuts.is_due(time.monotonic()))
            and not self._view.is_due(cut.commit_time_ms)  # time goes on where nothing else happens
        ):
            return
        else:
            events = [] if taken.records is None else list(self._view.own_events(self._decoded(taken.records)))
            if self._tells_of_rows():
                return
            try:
                self._view.step(
                    events,
                    epoch=cut.epoch,
                    lsn=cut.lsn,
                    offsets=taken.next_offsets,
                    transactions=taken.transactions,
                    time_ms=cut.commit_time_ms,
                )
            except FanOutExceeded:
                # The limit is for what one transaction changes. What many have changed meanwhile is built in pieces.
                if taken.transactions == 1:
                    raise
                raise _TooMuch from None
        self._position = self._view.position()
        self._cuts.was_taken(time.monotonic())
        self._result.commit_time_ms = max(self._result.commit_time_ms, cut.commit_time_ms)
        self._deliver()

    def _build(self, cut: Cut, taken: Taken) -> None:
        assert self._building is not None
        self._building.begin(Doing.COMPUTING, self._view.arrived)
        # What the sink had from an earlier state may be as of a later time, where the source's clock went back since.
        time_ms = max(cut.commit_time_ms, self._time_before.next_ms)
        seq = self._seq_of_new_state(cut)
        if self._view.arrived >= _AHEAD_FROM and self._sink_has_nothing():
            self._compute_and_write(ViewPosition(cut.epoch, cut.lsn, seq=seq, time_ms=whole_minutes(time_ms)), time_ms)
        else:
            self._view.compute(self._note_computed, time_ms=time_ms)
        # Before the state is whole: who finds no run noted knows that none has ever been.
        self._note_run(self._task.run)
        self._view.end_building(epoch=cut.epoch, lsn=cut.lsn, offsets=taken.next_offsets, seq=seq, time_ms=time_ms)
        self._view.adopt(self._task.run)
        self._is_taking_in = False

    def _sink_has_nothing(self) -> bool:
        """Whether no row of the view is anywhere that the new result might not have. Nobody else puts one there: a
        writer that this one has replaced is refused."""
        if self._topic is not None or any(topic == self._input.topic for topic, _ in self._progress.rejected):
            return False
        return not any(self._view.result.is_own(row.key) for row in sink_for(self._task).scan(self._input.table))

    def _compute_and_write(self, position: ViewPosition, time_ms: int) -> None:
        """Compute, and give the sink the rows at the same time. Another job finds them there, and builds anew."""
        self._note_run(BUILDING)
        self._note_before_rows(position)
        table, tag = self._input.table.name, str(position.tag)

        def write(items: Sequence[Item]) -> Outcome:
            keys, rows = rows_of(items)
            events = TableEvents.from_log(table, keys, [tag] * len(keys), [*rows], lambda _: _NOWHERE)
            batch = Batch(Events([events]), fence=self._task.fence, identities=self._task.identities)
            return sink_for(self._task).apply(batch)

        with closing(WrittenAhead(write, lambda: self._note_computed(0), rows_max=_PORTION)) as ahead:
            self._view.compute(self._note_computed, time_ms=time_ms, ahead=ahead)
        self._result.applied += ahead.applied
        self._result.stale += ahead.stale
        self._written_ahead = ahead.applied + ahead.stale

    def _note_before_rows(self, position: ViewPosition) -> None:
        """Note what is to be known of rows with this tag before the sink has any."""
        if position.seq:
            self._note_tag(position)
        self._note_time(NotedTime(self._time_before.time_ms, position.time_ms))

    def _note_computed(self, rows: int) -> None:
        """So many more rows of tables are computed. Raises _IsOver."""
        assert self._building is not None
        self._building.add(rows)
        # A driver that hears nothing takes the task for one that hangs, and ends its batch.
        self._tell(time.monotonic())
        if self._goes_on and self._line is not None and self._line.is_over():
            raise _IsOver

    def _arrange(self) -> None:
        """Have what differs from an earlier state's rows come first, and those go that the result doesn't have."""
        stored = ((row.key, row.row) for row in sink_for(self._task).scan(self._input.table))
        on_topic = () if self._topic is None else self._topic.keys()
        # Of a row that was rejected and that the result doesn't have any more, the sink may have nothing.
        rejected = (orjson.loads(key) for topic, key in self._progress.rejected if topic == self._input.topic)
        _arrange(self._view, stored, chain(on_topic, rejected))

    def _commit(self, topic: ViewTopic, *, is_complete: bool) -> None:
        position = self._view.position()
        topic.commit(tag=position.tag, offsets=dict(position.offsets), run=self._task.run, is_complete=is_complete)

    def _deliver(self) -> None:
        """Give the sink what it may not have yet."""
        while self._view.expire():
            # A driver that hears nothing takes the task for one that hangs.
            self._tell(time.monotonic())
        position = self._view.position()
        offsets = self._feed.of_topics(position.offsets)
        if self._building is not None:
            self._building.begin(Doing.WRITING, position.counters.rows - self._written_ahead)
        self._note_before_rows(position)
        is_new = self._view.is_new
        if self._view.is_whole:
            self._arrange()
        table = self._input.table.name
        while (output := self._view.pending(_PORTION)) is not None:
            tags = [str(output.tag)] * len(output.keys)
            events = TableEvents.from_log(table, list(output.keys), tags, list(output.rows), lambda _: _NOWHERE)
            became = self._apply(events, offsets if output.is_last else {})
            if self._topic is not None:  # after the sink: who is told of a row finds it there
                for key, row in zip(output.keys, output.rows, strict=True):
                    self._topic.write(key, row, output.tag)
                self._commit(self._topic, is_complete=output.is_last)
            self._view.acknowledge(
                output, refused=became.refused, void=became.void, held=became.held, reached=self._progress.offsets
            )
            if became.held and not self._are_kept():
                self._result.has_more = True
                return
            if self._building is not None:
                self._building.add(len(events))
                self._tell(time.monotonic())
        if is_new:
            self._view.compact()
        self._building = None
        if self._topic is not None and self._lacks_step(self._topic):
            self._commit(self._topic, is_complete=True)
        self._note_time(NotedTime(position.time_ms, position.time_ms))
        freeze_opened()
        self._result.next_offsets = offsets

    def _lacks_step(self, topic: ViewTopic) -> bool:
        """Whether the topic doesn't say yet that it has all as of the view's LSN: nothing of the result has changed."""
        last, position = topic.last, self._view.position()
        at = (position.epoch, position.lsn)
        return last is None or not last.is_complete or (last.epoch, last.lsn) != at

    def _apply(self, events: TableEvents, next_offsets: Offsets) -> "_Became":
        """Give these to the sink, and note what became of them. Raises LockstepError for too many rejections."""
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
        # What became of the newest version counts.
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

    def _rejected_with(self, key: _Key) -> str:
        """With which tag the driver has kept a rejection of this row; "" where it has none."""
        return self._progress.rejected.get((self._input.topic, orjson.dumps(key)), "")

    # Of two outputs at one LSN the second has a greater number in its tag. So has that of a state which is built anew
    # there: the sink takes no row of an equal tag. Only such tags are noted, and they are rare. What a newer writer has
    # noted stays, whenever the one that it has replaced wakes up.

    def _seq_of_new_state(self, cut: Cut) -> int:
        with _records_of(self._task) as records:
            noted = records.load(self._note)
        epoch, lsn, seq = (0, 0, 0) if noted is None else orjson.loads(noted)
        return seq + 1 if (epoch, lsn) == (cut.epoch, cut.lsn) else 1

    def _note_tag(self, position: ViewPosition) -> None:
        if self._noted != position.tag:
            with _records_of(self._task) as records:
                noted = orjson.dumps([position.epoch, position.lsn, position.seq]).decode()
                records.save(self._note, noted, fence=self._task.fence)
            self._noted = position.tag

    # As of which time the sink has the result is noted beside its rows, before and after they are written.

    @property
    def _time_before(self) -> NotedTime:
        """The view's time as it is noted; one without retention has none."""
        if self._noted_time is None:
            self._noted_time = NotedTime()
            if self._input.plan.retained:
                with _records_of(self._task) as records:
                    self._noted_time = NotedTime.from_json(records.load(self._time_note))
        return self._noted_time

    def _note_time(self, time: NotedTime) -> None:
        if self._input.plan.retained and time != self._time_before:
            with _records_of(self._task) as records:
                records.save(self._time_note, time.to_json(), fence=self._task.fence)
            self._noted_time = time

    @property
    def _note(self) -> str:
        return _note_name(self._task, TAG)

    # Whose state writes the result is noted there before it writes anything. A store that lets a writer note it which
    # was replaced, and whose successor hasn't noted it yet, says so now: that one mustn't go on with its state.

    def _note_run(self, run: str) -> None:
        with _records_of(self._task) as records:
            records.save(_note_name(self._task, RUN), run, fence=self._task.fence)
        sink_for(self._task).apply(Batch([], fence=self._task.fence))

    @property
    def _time_note(self) -> str:
        shard = self._input.shard
        return noted_name(self._task.generation, None if shard is None else shard.number)

    def _check_log_is_whole(self, begins: Offsets) -> None:
        for (topic, partition), begin in sorted(begins.items()):
            if begin:
                raise PositionMismatch(
                    f"topic {topic}, partition {partition}, begins at {begin}: a view can't be built from it, since"
                    " rows may be missing",
                    hint="let capture copy the table again (lockstep snapshot table TABLE), then build with"
                    f" `lockstep rebuild {self._task.sink} --trimmed --switch`",
                )


def _rejected_value(tag: str, row: bytes, commit_time_ms: int) -> bytes:
    """A row of the result in the form of a table's event, as a retry reads it."""
    return orjson.dumps({"op": "u", "tag": tag, "after": orjson.Fragment(row), "ts_ms": commit_time_ms})
