"""A view: its plan, its state, and the rows that its sink still has to get.

A step takes the changes of whole transactions and is kept with its output, its offsets and its LSN, or not at all. The
output stays pending until it is acknowledged: whoever was killed between the two writes it again. Written to a guarded
sink with the output's tag, the same output changes nothing the second time.

What was acknowledged is kept beside it until the sink's progress is known to have it (``confirm``). Another run of a
job writes it again (``adopt``): it can't tell a sink that was put back from one that wasn't told.

The view has a time as well: the greatest commit time that it was told, in whole minutes. Rows that are too old by it
don't count. A step keeps none of these, and takes those away that were there before: in one go with what comes, since
no moment of the source has both. Where they are too many for that, the rest goes in portions (``expire``), before the
output is written.

A new state is built: events are noted piece by piece, in any order. When all are there, the tables' rows are known as
of one position, and what the operators keep is computed from all of them together. Then the whole result is pending.
"""

import gc
import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson

from cdc.model.append_only import stored_tables
from cdc.model.errors import LockstepError
from cdc.model.event import Events, JsonValue, RowEvent
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ, TEXT_LENGTH, Tag
from views.counters import Counters, added
from views.failures import EvaluationError, FanOutExceeded
from views.operators.arrivals import Arrivals, Arrived
from views.operators.building import Building, Item
from views.operators.changes import Changes, Work
from views.operators.dataflow import Dataflow
from views.operators.order import part_of
from views.plan import Scan, ViewPlan, nodes
from views.result_rows import ResultRows, entry_of, joined, key_of, parts_of, row_of
from views.retention import whole_minutes
from views.shard import Shard
from views.state.contract import Entry, Reading, State, Step
from views.values import Row

FORMAT: Final = 4
"""Of what the operators keep. Another number means another state, which is built anew."""

CHANGES_MAX: Final = 5_000_000
"""How many rows of all operators one step may change, where nothing else is said."""

TopicPartition = tuple[str, int]

NOTHING_REACHED: Final[Mapping[TopicPartition, int]] = MappingProxyType({})

Ahead = Callable[[list[Item]], list[Item]]
"""Takes rows of a new result while more of them are computed, as they would be pending: ``rows_of`` reads them.

Returns rows that it got, now or before, and that are to stay pending. Called with none, it returns all that it has not
had written: there are no more.
"""

EXPIRED_CHANGES_MAX: Final = 200_000
"""How many rows are changed in one transaction where rows are taken away that are too old: memory has them."""

_TAKEN_AT_ONCE: Final = 1_000
"""Of these memory has the parsed rows."""

EXPIRED_AT_ONCE: Final = 20_000
"""How many rows of tables are taken away in one transaction at most, as they are too old."""

_POSITION, _PENDING, _REFUSED, _VOID = b"\x00position", b"p", b"r", b"v"
_AS_STORED: Final = b"q"
"""Pending rows that the sink has already, but for their tags: nobody sees them change, so they come last."""

_SENT, _SENT_AS_OF = b"\x00output", b"\x00sent"
"""Rows that were acknowledged, and the next offsets as of them: both by the number of the output."""

_FORGOTTEN, _RUN, _LOG = b"\x00forgotten", b"\x00run", b"\x00log"
_IS_BUILDING, _IS_WHOLE = b"\x00building", b"\x00whole"
_NOT_ARRANGED, _ARRANGED = b"", b"1"
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A row of the result that is new or has changed, or None where there is none with this key any more."""

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class Output:
    """Rows for the sink, as JSON objects by their keys'. One that is gone is None.

    ``tag`` is the version that they are written with: that of the newest step. With ``is_last`` nothing else is
    pending, so a sink that has these rows holds the result as of that position.
    """

    tag: Tag
    keys: Sequence[bytes]
    rows: Sequence[bytes | None]
    places: Sequence[bytes]
    """Where the state has them pending."""

    is_last: bool = True

    @property
    def changes(self) -> list[ViewChange]:
        """The same, parsed."""
        return [
            ViewChange(orjson.loads(key), None if row is None else orjson.loads(row))
            for key, row in zip(self.keys, self.rows, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """Up to where a view is exact, and where the log goes on: the next offset of each partition.

    ``seq`` counts the steps at this LSN that changed the result: their output has a tag of its own.
    With ``is_building`` the state isn't usable: its building was begun, and not ended. ``time_ms`` is the view's time,
    in milliseconds since 1970. It never goes back.
    """

    epoch: int = 0
    lsn: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    is_building: bool = False
    seq: int = SNAPSHOT_SEQ
    time_ms: int = 0

    @property
    def tag(self) -> Tag:
        """The version of rows that are pending."""
        return Tag(self.epoch, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class _Kept:
    """How many rows of the result have changed, and by how many it has grown."""

    changed: int
    grown: int


def identity(plan: ViewPlan, tables: Mapping[TableName, Table], shard: Shard | None = None) -> str:
    """What a state belongs to: the plan, and of each of its tables the key and the columns that the plan reads. And
    which rows of them count, and which of many shards it is.

    Another name, type or number of one of these makes another identity: a column that was dropped and added again
    holds other values. Other columns may come and go.
    """
    tables = stored_tables(tables)
    read: dict[TableName, set[str]] = {}
    for node in nodes(plan.root):
        if isinstance(node, Scan):
            read.setdefault(node.table, set()).update(node.names)
    for retained in plan.retained:
        read[retained.table].add(retained.column)
    shapes = [
        (str(table), tables[table].key, [tables[table].column(name).to_json() for name in sorted(names)])
        for table, names in sorted(read.items())
    ]
    # A view without retention, and without shards, goes on with the state that it had before there were any.
    rows: tuple[object, ...] = (plan.retained,) if plan.retained else ()
    if shard is not None:
        rows = (*rows, shard.identity)
    return hashlib.sha256(repr((FORMAT, plan, shapes, *rows)).encode()).hexdigest()


class View:
    """One view, or one shard of it, for one thread. ``state`` must be that of ``identity(plan, tables, shard)``."""

    def __init__(
        self,
        plan: ViewPlan,
        tables: Mapping[TableName, Table],
        state: State,
        *,
        changes_max: int = CHANGES_MAX,
        shard: Shard | None = None,
        scratch: Path | None = None,
    ) -> None:
        """``scratch`` is where a large building has temporary files, which go with it; None is the system's place.

        Raises KeyError when a table or column of the plan isn't among the shapes.
        """
        self._scratch = scratch
        self.plan = plan
        self._shard = shard
        self._state = state
        self._changes_max = changes_max
        self._dataflow = Dataflow(plan, stored_tables(tables), shard)
        self.result = ResultRows(plan, shard)
        expressions = dict(plan.outputs)
        self._part = part_of(plan.root, [expressions[name] for name in plan.key])
        self._arrivals: dict[TableName, Arrivals] | None = None
        """What has come while the state is built, until it is computed."""
        self._is_computed = False
        self._is_ahead = False
        """Whether the sink has some of the result that was computed."""
        self._expire_size = EXPIRED_AT_ONCE

    def position(self) -> ViewPosition:
        """Up to where the state is exact. Zero before the first step."""
        return self._state.read(stored_position)

    def own_events(self, events: Events) -> Events:
        """The events but for those that are another shard's by their key alone; the step leaves out the others."""
        return events if self._shard is None else Events(map(self._dataflow.own_events, events.tables))

    def step(
        self,
        events: Sequence[RowEvent],
        *,
        epoch: int,
        lsn: int,
        offsets: Mapping[TopicPartition, int],
        transactions: int = 1,
        time_ms: int = 0,
    ) -> Counters:
        """Take in the changes of whole transactions, so that the result is exact at ``lsn``.

        ``events`` are all changes of the query's tables between the position and ``lsn``, in any order; of one key the
        one with the greatest tag counts. Events of other tables are left out. ``offsets`` are where the log goes on,
        of those partitions that have moved. ``transactions`` is how many these are, for the counters. ``time_ms`` is
        when the newest of them was committed, in milliseconds since 1970. Rows of tables that are too old by it go with
        the step, as many as memory has. Returns what this step did. The rows for the sink are pending then, once
        ``expire`` has nothing left to do.

        Raises EvaluationError, FanOutExceeded or the state's errors; nothing of the step was kept then.
        """

        until = ViewPosition(epoch, lsn, offsets, time_ms=time_ms)
        work = partial(self._step, events=events, until=until, transactions=transactions)
        if not self.has_aged(time_ms):
            return self._state.update(partial(work, expired_most=0, limit=self._changes_max))
        try:
            limit = min(self._changes_max, EXPIRED_CHANGES_MAX)
            with suppress(FanOutExceeded):  # they go in portions then, and the events alone have the view's limit
                return self._state.update(partial(work, expired_most=self._expire_size, limit=limit))
            return self._state.update(partial(work, expired_most=0, limit=self._changes_max))
        except EvaluationError:
            # A part of the rows that are too old may be gone beside the rest, which no moment of the source has.
            with suppress(FanOutExceeded):
                return self._state.update(partial(work, expired_most=sys.maxsize, limit=self._changes_max))
            raise

    # --- rows that are too old ---

    def has_aged(self, time_ms: int = 0) -> bool:
        """Whether rows of tables are there that are too old, by the view's time or by this one where it is later."""
        if not self.plan.retained:
            return False

        def look(state: Reading) -> bool:
            position = stored_position(state)
            time = max(position.time_ms, whole_minutes(time_ms))
            return not position.is_building and self._dataflow.has_aged(state, time)

        return self._state.read(look)

    def is_due(self, time_ms: int) -> bool:
        """Whether a step is due for the time alone: rows are too old by it.

        A shard is to be as of each new minute all the same. Else it would never be as of one time with others that have
        such rows, and nobody could tell as of when the view is.
        """
        if self._shard is None or not self.plan.retained:
            return self.has_aged(time_ms)
        position = self.position()
        return not position.is_building and (whole_minutes(time_ms) > position.time_ms or self.has_aged(time_ms))

    def expire(self) -> bool:
        """Take away rows of tables that are too old by the view's time: a portion of them, in one transaction. It has
        no limit of rows of the view that change. Returns whether to call it again, before any output is written.

        Where the query fails for what is left beside a portion, all go at once, up to the view's limit.

        Raises EvaluationError or the state's errors; nothing of this portion was kept then.
        """
        if not self.has_aged():
            return False
        while True:
            limit = sys.maxsize if self._expire_size == 1 else EXPIRED_CHANGES_MAX
            try:
                inside = self._state.update(partial(self._expire, most=self._expire_size, limit=limit))
            except FanOutExceeded:
                self._expire_size //= 2
                continue
            except EvaluationError:
                with suppress(FanOutExceeded):
                    self._state.update(partial(self._expire, most=sys.maxsize, limit=self._changes_max))
                    return True
                raise
            if inside < limit // 4:
                self._expire_size = min(2 * self._expire_size, EXPIRED_AT_ONCE)
            return True

    def _expire(self, state: Step, *, most: int, limit: int) -> int:
        position = stored_position(state)
        work = Work(state, limit, time_ms=position.time_ms)
        changes, aged = self._dataflow.aged(work, most)
        kept = self._keep_pending(state, changes)
        done = Counters(0, aged, kept.changed, work.changed, rows=kept.grown)
        total = added(position.counters, done)
        _keep_position(state, replace(position, counters=total))
        return work.changed

    # --- building ---

    def begin_building(self, *, log: str = "") -> None:
        """Forget all that the state holds, and mark it as one that is being built. ``log`` says from what.

        What comes until ``compute`` is in no state: with this view it is gone, and the building begins again.
        """

        def work(state: Step) -> None:
            state.put(_IS_BUILDING, orjson.dumps(asdict(Counters())))
            state.put(_LOG, log.encode())

        self._state.clear()
        self._state.update(work)
        self._arrivals, self._is_computed, self._is_ahead = self._dataflow.arrivals(self._scratch), False, False

    def log(self) -> str:
        """What the state was built from, as ``begin_building`` was told."""
        return self._state.read(lambda state: (state.get(_LOG) or b"").decode())

    def build(self, events: Sequence[RowEvent], meanwhile: Callable[[int], None] = lambda _: None) -> None:
        """Note events from which the state is built: any number of them, in any order.

        Of a key the event with the greatest tag counts, in this call and all others. ``meanwhile`` is called with 0
        every so often. What it raises is raised, and so is LockstepError for a key that can't be read, and for a full
        disk. The building can't go on then: it begins again.
        """
        if self._arrivals is None:
            raise _not_building()
        with _no_collection():
            for of_table in Events.of(events).tables:
                for start in range(0, len(of_table), _TAKEN_AT_ONCE):
                    self._dataflow.take(of_table[start : start + _TAKEN_AT_ONCE], self._arrivals, meanwhile)
                    meanwhile(0)

    @property
    def arrived(self) -> int:
        """How many events were noted, without some of those that are superseded."""
        return sum(of_table.count for of_table in (self._arrivals or {}).values())

    def compute(
        self,
        meanwhile: Callable[[int], None] = lambda _: None,
        *,
        time_ms: int = 0,
        ahead: Ahead | None = None,
    ) -> None:
        """Keep the rows of tables that have come, and all that they make. It may take long.

        ``meanwhile`` is called every so often, with how many more rows of tables were read since. What it raises is
        raised, and so are EvaluationError, the state's errors, LockstepError for a full disk, and FanOutExceeded where
        a row has more partners than the view's limit. The building can't go on then: it begins again. ``time_ms`` is
        the view's time, as ``end_building`` gets it. ``ahead`` gets the rows of a large result as they are computed,
        and those that it doesn't return aren't pending after that. It is for a sink that has no row of the view.
        """
        if self._arrivals is None:
            return
        arrivals, self._arrivals = self._arrivals, None
        arrived = self._dataflow.arrived(arrivals, whole_minutes(time_ms))
        with _no_collection():
            self._compute(arrived, meanwhile, ahead)
        self._is_computed = True

    def _compute(
        self, arrived: Mapping[TableName, Iterable[Arrived]], meanwhile: Callable[[int], None], ahead: Ahead | None
    ) -> None:
        building = Building(self._state, scratch=self._scratch, changes_max=self._changes_max, meanwhile=meanwhile)
        rows = self._dataflow.built(arrived, building)
        if self._shard is not None:
            rows = map(self.result.checked_own, rows)
        count, stays, last = 0, 0, None
        for portion in building.sorted(rows, self.result.items, self._part):
            assert len({last, *[key for key, _, _ in portion]}) == 1 + len(portion), "two rows have one key"
            count, last = count + len(portion), portion[-1][0]
            building.changed += len(portion)
            stays += _keep_built(portion if ahead is None else ahead(portion), building)
            building.meanwhile(0)
        if ahead is not None:
            stays += _keep_built(ahead([]), building)
        self._is_ahead = stays < count
        building.flush()
        self._state.update(lambda state: _note_built(state, Counters(0, 0, count, building.changed, rows=count)))

    def end_building(
        self,
        *,
        epoch: int,
        lsn: int,
        offsets: Mapping[TopicPartition, int],
        seq: int = SNAPSHOT_SEQ,
        time_ms: int = 0,
    ) -> None:
        """All events are in: the result is exact at ``lsn``, and all of it is pending but for what was written ahead.
        What is to be computed is first.

        ``seq`` is greater than that of any output at this LSN from an earlier state. ``time_ms`` is the view's time: no
        earlier one than that of any output from an earlier state.
        """

        self.compute(time_ms=time_ms)
        if not self._is_computed:
            raise _not_building()

        def work(state: Step) -> None:
            stored = state.get(_IS_BUILDING)
            if stored is None:
                raise _not_building()
            state.delete(_IS_BUILDING)
            # A sink that has some of it had nothing else, so there is nothing to look at.
            state.put(_IS_WHOLE, _ARRANGED if self._is_ahead else _NOT_ARRANGED)
            # What a change costs on average isn't told by the building, which has made each row once.
            counters = Counters(rows=orjson.loads(stored)["rows"])
            position = ViewPosition(epoch, lsn, offsets, counters, seq=seq, time_ms=whole_minutes(time_ms))
            _keep_position(state, position)

        self._state.update(work)

    def compact(self) -> None:
        """Give back the space of what was pending: of a whole result that was delivered, about half of the file."""
        self._state.compact()

    @property
    def is_new(self) -> bool:
        """Whether the result of a new state isn't delivered yet: all of it is pending, or what is left of it."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) is not None)

    @property
    def is_whole(self) -> bool:
        """Whether all of the result is pending, and what the sink has of an earlier state hasn't been looked at."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) == _NOT_ARRANGED)

    @property
    def is_arranged(self) -> bool:
        """Whether what is pending was made from what the sink had of an earlier state, and isn't delivered yet."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) == _ARRANGED)

    def arrange(self, stored: Sequence[tuple[Mapping[str, JsonValue], Mapping[str, JsonValue]]]) -> None:
        """Take in what the sink has of an earlier state, keys and rows: any number of them, again and again.

        Those of which the result has no row become pending deletions. Those that are as they should be come last: so
        all that readers see change is pending first. Rows of other shards are left alone. Raises LockstepError where
        not all of the result is pending.
        """

        def work(state: Step) -> None:
            if state.get(_IS_WHOLE) != _NOT_ARRANGED:
                raise LockstepError(
                    "the view's state no longer has all of its result's keys", hint="build the view's state anew"
                )
            for key, row in stored:
                if not self.result.is_own(key):
                    continue
                own = self.result.stored_key(key)
                pending = state.get(_PENDING + own)
                if pending is None:
                    if state.get(_AS_STORED + own) is None:
                        state.put(_PENDING + own, entry_of({name: key[name] for name in self.plan.key}, None))
                elif (is_to_be := row_of(pending)) is not None and orjson.loads(is_to_be) == {
                    name: row.get(name) for name in self.result.names
                }:
                    state.delete(_PENDING + own)
                    state.put(_AS_STORED + own, pending)

        self._state.update(work)

    def end_arranging(self) -> None:
        """All that the sink has was taken in."""

        def work(state: Step) -> None:
            if next(_pending(state), None) is None:
                state.delete(_IS_WHOLE)
                # As after the last acknowledgement: a sink that is put back may have rows that nobody looks for again.
                state.put(_FORGOTTEN, orjson.dumps(_triples(stored_position(state).offsets)))
            else:
                state.put(_IS_WHOLE, _ARRANGED)

        self._state.update(work)

    def forgotten(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition as of the newest output that is kept no longer; empty before the first.

        A sink that doesn't know of these offsets may lack rows that only a new state can give it.
        """
        return self._state.read(lambda state: _offsets(orjson.loads(state.get(_FORGOTTEN) or b"[]")))

    def confirm(self, reached: Mapping[TopicPartition, int]) -> None:
        """The sink's progress has these next offsets: output from before them is needed no more."""
        if self._state.read(lambda state: _confirmed(state, reached)):
            self._state.update(lambda state: _forget(state, reached))

    def is_of(self, run: str) -> bool:
        """Whether this run of a job has made or adopted the state: it knows what became of the output."""
        return self._state.read(lambda state: state.get(_RUN) == run.encode())

    def adopt(self, run: str) -> None:
        """The state belongs to this run of a job from now on. What the sink may not have is pending again."""

        def work(state: Step) -> None:
            again = {key[len(_SENT) + _NUMBER_BYTES :]: row for key, row in state.scan(_SENT)}  # the newest of each key
            for key, row in again.items():
                # Of a key whose newest row was refused, the one before isn't written as if it were the newest.
                if state.get(_PENDING + key) is None and state.get(_REFUSED + key) is None:
                    state.put(_PENDING + key, row)
            for entry in [*_all(state, _SENT), *_all(state, _SENT_AS_OF)]:
                state.delete(entry)
            state.put(_RUN, run.encode())

        self._state.update(work)

    def _step(
        self,
        state: Step,
        events: Sequence[RowEvent],
        until: ViewPosition,
        transactions: int,
        expired_most: int,
        limit: int,
    ) -> Counters:
        position = stored_position(state)
        epoch, lsn = until.epoch, until.lsn
        if position.is_building:
            raise LockstepError("the view's state is being built; it takes no step", hint="build the view's state anew")
        if (epoch, lsn) < (position.epoch, position.lsn):
            raise LockstepError(
                f"the view is at {format_lsn(position.lsn)} (epoch {position.epoch}) and can't go back to"
                f" {format_lsn(lsn)} (epoch {epoch})",
                hint="the log begins before the view's state: build the view anew",
            )
        time_ms = max(position.time_ms, whole_minutes(until.time_ms))
        step_work = Work(state, limit, time_ms=time_ms)
        changes, changed_in = self._dataflow.changed(events, step_work, expired_most=expired_most)
        kept = self._keep_pending(state, changes)
        done = Counters(1, changed_in, kept.changed, step_work.changed, transactions, kept.grown)
        total = added(position.counters, done)
        seq = SNAPSHOT_SEQ
        if (epoch, lsn) == (position.epoch, position.lsn):
            # What the view has written at this LSN has another tag than what is to be written now.
            seq = position.seq + bool(kept.changed or self._dataflow.has_aged(state, time_ms))
        offsets = {**position.offsets, **until.offsets}
        _keep_position(state, ViewPosition(epoch, lsn, offsets, total, seq=seq, time_ms=time_ms))
        return done

    def _keep_pending(self, state: Step, changes: Changes) -> "_Kept":
        """The result's changes by the view's key. A key that went and came is one change."""
        rows: dict[bytes, Row] = {}
        vanished: dict[bytes, Row] = {}
        result = self.result
        for row, weight in changes.items():
            values = result.outputs(row)
            key = result.key(values)
            into = rows if weight > 0 else vanished
            assert key not in into, "two rows of the result have one key"
            assert result.has(values), "a row of the result is another shard's"
            into[key] = values
        stored: dict[bytes, bytes] = {}
        grown = len(rows) - len(vanished)  # a key that went and came is in both
        gone = sum(key not in rows for key in vanished)
        for key, old in vanished.items():
            if key not in rows:
                stored[_PENDING + key] = result.pending(old, is_gone=True)
                state.delete(_REFUSED + key)
            elif rows[key] == old:
                del rows[key]
            else:
                state.delete(_REFUSED + key)
        for key, values in rows.items():
            stored[_PENDING + key] = result.pending(values)
        if state.get(_IS_WHOLE) is not None:
            for key in stored:
                state.delete(_AS_STORED + key[len(_PENDING) :])
        state.put_all(stored)
        return _Kept(len(rows) + gone, grown)

    def pending(self, limit: int | None = None) -> Output | None:
        """Rows that the sink may not have yet, at most ``limit``, in the order of their keys; None when it has all.

        Those of ``arrange`` that the sink has already come after all others.
        """

        def look(state: Reading) -> Output | None:
            position = stored_position(state)
            if position.is_building:
                return None
            entries = _pending(state)
            keys: list[bytes] = []
            rows: list[bytes | None] = []
            places: list[bytes] = []
            for place, stored in islice(entries, limit):
                key, row = parts_of(stored)
                places.append(place)
                keys.append(key)
                rows.append(row or None)
            if not keys:
                return None
            is_last = limit is None or next(entries, None) is None
            return Output(position.tag, keys, rows, places, is_last)

        return self._state.read(look)

    def acknowledge(
        self,
        output: Output,
        *,
        refused: Collection[Mapping[str, JsonValue]] = (),
        void: Collection[Mapping[str, JsonValue]] = (),
        held: Collection[Mapping[str, JsonValue]] = (),
        reached: Mapping[TopicPartition, int] = NOTHING_REACHED,
    ) -> None:
        """The sink has these rows durably, but for those of the keys that it ``refused`` or that are ``held``.

        A row that was refused is set aside until it changes, or until ``settle``. One that is held stays pending.
        ``void`` are keys whose earlier refusal says nothing any more. ``reached`` is as in ``confirm``. Raises
        LockstepError after a further step: then the rows are pending again.
        """
        stays = set(map(self.result.stored_key, held))
        aside = set(map(self.result.stored_key, refused))
        tag = str(output.tag).encode()

        def work(state: Step) -> None:
            position = stored_position(state)
            if position.tag != output.tag:
                raise LockstepError("the view has gone on since this output was read; read it again")
            is_whole = state.get(_IS_WHOLE) is not None
            state.delete_all([place for place in output.places if place[len(_PENDING) :] not in stays])
            own: dict[bytes, bytes] = {}
            if aside or not is_whole:
                given = zip(output.places, output.keys, output.rows, strict=True)
                own = {place[len(_PENDING) :]: joined(key, row or b"") for place, key, row in given}
                own = {key: stored for key, stored in own.items() if key not in stays}
            state.put_all({_REFUSED + key: tag + own.pop(key) for key in aside if key in own})
            for values in void:
                own_key = {name: values[name] for name in self.plan.key}
                state.put(_VOID + self.result.stored_key(values), tag + entry_of(own_key, None))
            offsets = orjson.dumps(_triples(position.offsets))
            if is_whole:
                # Kept once more, the whole result would be half of the state. Built again, it is there again.
                state.put(_FORGOTTEN, offsets)
                if output.is_last and not stays:
                    state.delete(_IS_WHOLE)
            elif own:
                number = _next_number(state)
                state.put(_SENT_AS_OF + number, offsets)
                state.put_all({_SENT + number + key: stored for key, stored in own.items()})
            _forget(state, reached)

        self._state.update(work)

    def settle(self, kept: Callable[[Mapping[str, JsonValue]], str]) -> list[Mapping[str, JsonValue]]:
        """What became of refusals since they were acknowledged. ``kept`` says of a key with which tag its refusal is
        kept, by somebody who outlives this process; "" where none is.

        A row whose refusal isn't kept is pending again: its job was killed before that. Returns the keys whose refusal
        is kept though it is void. Both are asked again by the next call.
        """

        def is_any(state: Reading) -> bool:
            return any(next(state.scan(prefix), None) is not None for prefix in (_REFUSED, _VOID))

        def work(state: Step) -> list[Mapping[str, JsonValue]]:
            settled = set[bytes]()
            for key, stored, tag, of in self._aside(state, _REFUSED):
                state.delete(key)
                if kept(of) < tag:
                    state.put(_PENDING + key[len(_REFUSED) :], stored)
                else:
                    settled.add(key[len(_REFUSED) :])
            # The row before a refused one isn't written again as if it were the newest.
            for sent in _all(state, _SENT) if settled else ():
                if sent[len(_SENT) + _NUMBER_BYTES :] in settled:
                    state.delete(sent)
            void = []
            for key, _, tag, of in self._aside(state, _VOID):
                if "" < kept(of) < tag:
                    void.append(of)
                else:
                    state.delete(key)
            return void

        return self._state.update(work) if self._state.read(is_any) else []

    def _aside(self, state: Step, prefix: bytes) -> list[tuple[bytes, bytes, str, Mapping[str, JsonValue]]]:
        """What is set aside under a prefix: its key in the state, as it was pending, its tag, and the row's key."""
        found = [(key, stored[TEXT_LENGTH:], stored[:TEXT_LENGTH].decode()) for key, stored in state.scan(prefix)]
        return [(key, pending, tag, key_of(pending)) for key, pending, tag in found]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collection of cycles rests: very many objects are made here, none of which is part of one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _not_building() -> LockstepError:
    return LockstepError("the view's state isn't being built", hint="begin to build it anew")


def _keep_built(items: Sequence[Item], building: Building) -> int:
    """Have these rows of the result pending. How many they are."""
    building.keep([(_PENDING + own, stored) for own, _, stored in items])
    return len(items)


def _note_built(state: Step, counters: Counters) -> None:
    """What a building has done. Raises LockstepError where the state isn't being built."""
    if state.get(_IS_BUILDING) is None:
        raise _not_building()
    state.put(_IS_BUILDING, orjson.dumps(asdict(counters)))


def _pending(state: Reading) -> Iterator[Entry]:
    return chain(state.scan(_PENDING), state.scan(_AS_STORED))


def _all(state: Reading, prefix: bytes) -> list[bytes]:
    return [key for key, _ in state.scan(prefix)]


def _next_number(state: Reading) -> bytes:
    newest = next(state.scan_back(_SENT_AS_OF), None)
    number = 0 if newest is None else int.from_bytes(newest[0][len(_SENT_AS_OF) :], "big") + 1
    return number.to_bytes(_NUMBER_BYTES, "big")


def _confirmed(state: Reading, reached: Mapping[TopicPartition, int]) -> list[Entry]:
    """The outputs that a sink has whose progress has reached these offsets: the first ones, since offsets only grow."""

    def has(entry: Entry) -> bool:
        return all(reached.get(at, 0) >= offset for at, offset in _offsets(orjson.loads(entry[1])).items())

    return list(takewhile(has, state.scan(_SENT_AS_OF))) if reached else []


def _forget(state: Step, reached: Mapping[TopicPartition, int]) -> None:
    for key, offsets in _confirmed(state, reached):
        for sent in _all(state, _SENT + key[len(_SENT_AS_OF) :]):
            state.delete(sent)
        state.delete(key)
        state.put(_FORGOTTEN, offsets)


def stored_position(state: Reading) -> ViewPosition:
    """Up to where a state is exact, whosever it is. Of one that is being built, what it has done so far."""
    stored = state.get(_POSITION)
    if stored is None:
        building = state.get(_IS_BUILDING)
        counters = Counters() if building is None else Counters(**orjson.loads(building))
        return ViewPosition(counters=counters, is_building=building is not None)
    parsed: dict[str, Any] = orjson.loads(stored)
    offsets, counters = _offsets(parsed["offsets"]), Counters(**parsed["counters"])
    return ViewPosition(parsed["epoch"], parsed["lsn"], offsets, counters, seq=parsed["seq"], time_ms=parsed["time_ms"])


def _keep_position(state: Step, position: ViewPosition) -> None:
    stored = {
        "epoch": position.epoch,
        "lsn": position.lsn,
        "seq": position.seq,
        "time_ms": position.time_ms,
        "offsets": _triples(position.offsets),
        "counters": asdict(position.counters),
    }
    state.put(_POSITION, orjson.dumps(stored))


def _triples(offsets: Mapping[TopicPartition, int]) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _offsets(triples: Sequence[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {(topic, partition): offset for topic, partition, offset in triples}
