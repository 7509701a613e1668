"""A view: its plan, its state, and the rows that its sink still has to get.

A step takes the changes of whole transactions. It is stored with its output, its offsets and its LSN, or not at all.
The output stays pending until it is acknowledged. A process killed between the two writes it again: in a guarded sink,
the same output with the same tag changes nothing the second time.

Acknowledged output stays stored until the sink's progress shows that the sink has it (``confirm``). A new run of the
job writes it again (``adopt``), because it can't know whether the sink was put back to an earlier state.

The view's time is the greatest commit time that it has received, in whole minutes. Rows that are too old by it don't
count. A step stores no such row, and removes those that are stored: in the same transaction as its changes, since no
moment of the source has both. If they are too many, ``expire`` removes the others in slices before output is written.

To build a new state, events are noted in slices, in any order. When all have arrived, the tables' rows are known as of
one position. Everything that the operators store is computed from them in one go, and the whole result is pending.
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
"""The format of what the operators store. A state of another format is built anew."""

CHANGES_MAX: Final = 5_000_000
"""How many rows of all operators one step may change, by default."""

TopicPartition = tuple[str, int]

NOTHING_REACHED: Final[Mapping[TopicPartition, int]] = MappingProxyType({})

Ahead = Callable[[list[Item]], list[Item]]
"""Takes rows of a new result while more are computed, in their pending form (``rows_of`` reads them). Returns those of
the rows received so far that are to stay pending. A call with an empty list is the last one: it returns all rows that
haven't been written.
"""

EXPIRED_CHANGES_MAX: Final = 200_000
"""How many rows one transaction may change when it removes rows that are too old. Memory holds them all."""

_TAKEN_AT_ONCE: Final = 1_000
"""Slice of events that ``build`` takes at once: memory holds their parsed rows."""

EXPIRED_AT_ONCE: Final = 20_000
"""How many rows of tables that are too old one transaction removes at most."""

_POSITION, _PENDING, _REFUSED, _VOID = b"\x00position", b"p", b"r", b"v"
_AS_STORED: Final = b"q"
"""Pending rows that the sink has already except for their tags. They come last, since no reader sees a change."""

_SENT, _SENT_AS_OF = b"\x00output", b"\x00sent"
"""Acknowledged rows, and the next offsets as of them, both by the number of the output."""

_FORGOTTEN, _RUN, _LOG = b"\x00forgotten", b"\x00run", b"\x00log"
_IS_BUILDING, _IS_WHOLE = b"\x00building", b"\x00whole"
_NOT_ARRANGED, _ARRANGED = b"", b"1"
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A new or changed row of the result; ``row`` is None if the key no longer exists."""

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class Output:
    """Keys and rows for the sink, as JSON objects. A deleted row is None. ``tag`` is the version to write them with:
    that of the newest step. ``is_last`` means that nothing else is pending, so a sink that has these rows holds the
    result as of that position.
    """

    tag: Tag
    keys: Sequence[bytes]
    rows: Sequence[bytes | None]
    places: Sequence[bytes]
    """The keys under which the state stores these pending rows."""

    is_last: bool = True

    @property
    def changes(self) -> list[ViewChange]:
        return [
            ViewChange(orjson.loads(key), None if row is None else orjson.loads(row))
            for key, row in zip(self.keys, self.rows, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """Where a view is exact, and where the log goes on: the next offset of each partition. ``seq`` counts the steps at
    this LSN that changed the result, so that the output of each has its own tag. While ``is_building``, the state isn't
    usable yet. ``time_ms`` is the view's time in milliseconds since 1970. It never goes back.
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
        return Tag(self.epoch, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class _Kept:
    changed: int
    grown: int


def identity(plan: ViewPlan, tables: Mapping[TableName, Table], shard: Shard | None = None) -> str:
    """A hash of everything that a state depends on: the plan, the key and the read columns of each table, the retention
    of rows, and the shard. A column with another name, type or number gives another identity: a column that was dropped
    and added again holds other values. Columns that the plan doesn't read may come and go.
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
    # Views without retention or shards keep the identity that they had before these features existed.
    rows: tuple[object, ...] = (plan.retained,) if plan.retained else ()
    if shard is not None:
        rows = (*rows, shard.identity)
    return hashlib.sha256(repr((FORMAT, plan, shapes, *rows)).encode()).hexdigest()


class View:
    """One view, or one shard of it, for one thread. ``state`` must belong to ``identity(plan, tables, shard)``."""

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
        """``scratch`` is the directory for temporary files of a large building; None means the system's. They are
        deleted. Raises KeyError when a table or column of the plan isn't among the shapes.
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
        """Events that have arrived for a new state, until it is computed."""
        self._is_computed = False
        self._is_ahead = False
        """Whether the sink already has some of the computed result."""
        self._expire_size = EXPIRED_AT_ONCE

    def position(self) -> ViewPosition:
        """Where the state is exact. Zero before the first step."""
        return self._state.read(stored_position)

    def own_events(self, events: Events) -> Events:
        """Leaves out the events whose key alone assigns them to another shard. The step leaves out the rest."""
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
        """Take in changes of whole transactions, so that the result is exact at ``lsn``. Returns what was done.

        ``events`` are all changes of the query's tables between the position and ``lsn``, in any order. Of each key the
        event with the greatest tag counts; events of other tables are ignored. ``offsets`` are the next offsets of the
        partitions that have moved. ``transactions`` is the number of transactions, for the counters. ``time_ms`` is the
        commit time of the newest, in milliseconds since 1970. The step also removes rows of tables that are too old by
        it, as many as memory holds. The rows for the sink are complete once ``expire`` has nothing left to do.

        Raises EvaluationError, FanOutExceeded or the state's errors; then nothing of the step is stored.
        """

        until = ViewPosition(epoch, lsn, offsets, time_ms=time_ms)
        work = partial(self._step, events=events, until=until, transactions=transactions)
        if not self.has_aged(time_ms):
            return self._state.update(partial(work, expired_most=0, limit=self._changes_max))
        try:
            limit = min(self._changes_max, EXPIRED_CHANGES_MAX)
            with suppress(FanOutExceeded):  # expire() removes them then; the events alone have the view's limit
                return self._state.update(partial(work, expired_most=self._expire_size, limit=limit))
            return self._state.update(partial(work, expired_most=0, limit=self._changes_max))
        except EvaluationError:
            # The query may fail only because some of the rows that are too old are gone and others aren't.
            with suppress(FanOutExceeded):
                return self._state.update(partial(work, expired_most=sys.maxsize, limit=self._changes_max))
            raise

    # --- rows that are too old ---

    def has_aged(self, time_ms: int = 0) -> bool:
        """Whether the state has rows that are too old by the view's time, or by ``time_ms`` if that is later."""
        if not self.plan.retained:
            return False

        def look(state: Reading) -> bool:
            position = stored_position(state)
            time = max(position.time_ms, whole_minutes(time_ms))
            return not position.is_building and self._dataflow.has_aged(state, time)

        return self._state.read(look)

    def is_due(self, time_ms: int) -> bool:
        """Whether a step is due only because time has passed: some rows are too old by ``time_ms``. For a shard, a step
        is due in each new minute. Otherwise shards without such rows would never be as of the same time as the others,
        and the view as a whole would be as of no time.
        """
        if self._shard is None or not self.plan.retained:
            return self.has_aged(time_ms)
        position = self.position()
        return not position.is_building and (whole_minutes(time_ms) > position.time_ms or self.has_aged(time_ms))

    def expire(self) -> bool:
        """Remove a slice of the rows of tables that are too old by the view's time, in one transaction.

        Returns True if it must be called again before any output is written. The view's limit of changed rows doesn't
        apply. If the query fails for the rows that a slice leaves behind, all go at once, up to the view's limit.

        Raises EvaluationError or the state's errors; then nothing of this slice is stored.
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
        """Clear the state and mark it as being built. ``log`` says from what. Events that come before ``compute``
        aren't stored in the state: if this object is lost, the building begins again.
        """

        def work(state: Step) -> None:
            state.put(_IS_BUILDING, orjson.dumps(asdict(Counters())))
            state.put(_LOG, log.encode())

        self._state.clear()
        self._state.update(work)
        self._arrivals, self._is_computed, self._is_ahead = self._dataflow.arrivals(self._scratch), False, False

    def log(self) -> str:
        return self._state.read(lambda state: (state.get(_LOG) or b"").decode())

    def build(self, events: Sequence[RowEvent], meanwhile: Callable[[int], None] = lambda _: None) -> None:
        """Note events from which the state is built: any number, in any order, over any number of calls.

        Of each key, the event with the greatest tag of all calls counts. ``meanwhile`` is called with 0 every so often.
        Raises what ``meanwhile`` raises, and LockstepError for a key that can't be read and for a full disk. After an
        error the building can't go on: it begins again.
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
        """How many events were noted. Some that newer ones supersede aren't counted."""
        return sum(of_table.count for of_table in (self._arrivals or {}).values())

    def compute(
        self,
        meanwhile: Callable[[int], None] = lambda _: None,
        *,
        time_ms: int = 0,
        ahead: Ahead | None = None,
    ) -> None:
        """Store the rows of tables that have arrived, and compute everything from them. It may take long.

        ``meanwhile`` is called every so often with the number of rows of tables read since the last call. Raises what
        it raises, EvaluationError, the state's errors, LockstepError for a full disk, and FanOutExceeded if a row has
        more partners than the view's limit. After an error the building can't go on: it begins again. ``time_ms`` is
        the view's time, as in ``end_building``. ``ahead`` gets the rows of a large result as they are computed; only
        those that it returns stay pending. Use it only for a sink that has no row of the view.
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
        """End the building: all events have arrived. The result is exact at ``lsn``, and all of it is pending except
        what was written ahead. Calls ``compute`` if that hasn't been done.

        ``seq`` must be greater than that of any output at this LSN from an earlier state. ``time_ms`` is the view's
        time, and must not be earlier than that of any output from an earlier state.
        """

        self.compute(time_ms=time_ms)
        if not self._is_computed:
            raise _not_building()

        def work(state: Step) -> None:
            stored = state.get(_IS_BUILDING)
            if stored is None:
                raise _not_building()
            state.delete(_IS_BUILDING)
            # A sink that has a part of the result had nothing before, so there is nothing to compare.
            state.put(_IS_WHOLE, _ARRANGED if self._is_ahead else _NOT_ARRANGED)
            # Only the number of rows stays: the building made each row once, which says nothing about the cost of a
            # change.
            counters = Counters(rows=orjson.loads(stored)["rows"])
            position = ViewPosition(epoch, lsn, offsets, counters, seq=seq, time_ms=whole_minutes(time_ms))
            _keep_position(state, position)

        self._state.update(work)

    def compact(self) -> None:
        """Free the space of pending rows that were delivered: about half of the file after a whole result."""
        self._state.compact()

    @property
    def is_new(self) -> bool:
        """Whether a new state's result isn't fully delivered yet."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) is not None)

    @property
    def is_whole(self) -> bool:
        """Whether the whole result is pending, and the sink's rows of an earlier state haven't been compared yet."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) == _NOT_ARRANGED)

    @property
    def is_arranged(self) -> bool:
        """Whether the pending rows were compared with the sink's rows of an earlier state, and aren't delivered yet."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) == _ARRANGED)

    def arrange(self, stored: Sequence[tuple[Mapping[str, JsonValue], Mapping[str, JsonValue]]]) -> None:
        """Compare rows that the sink has from an earlier state, keys and rows, with the pending result, in any number
        of calls.

        A row that the result lacks becomes a pending deletion. A row that is equal already moves behind all others, so
        that everything that readers see change is pending first. Rows of other shards are ignored. Raises LockstepError
        when not all of the result is pending.
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
        """All rows that the sink has were passed to ``arrange``."""

        def work(state: Step) -> None:
            if next(_pending(state), None) is None:
                state.delete(_IS_WHOLE)
                # As after the last acknowledgement: a sink that is put back may have rows that nobody looks for again.
                state.put(_FORGOTTEN, orjson.dumps(_triples(stored_position(state).offsets)))
            else:
                state.put(_IS_WHOLE, _ARRANGED)

        self._state.update(work)

    def forgotten(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition as of the newest output that was forgotten; empty before the first. A sink
        whose progress is behind these offsets may lack rows that only a new state can give it.
        """
        return self._state.read(lambda state: _offsets(orjson.loads(state.get(_FORGOTTEN) or b"[]")))

    def confirm(self, reached: Mapping[TopicPartition, int]) -> None:
        """The sink's progress has reached these next offsets: forget output from before them."""
        if self._state.read(lambda state: _confirmed(state, reached)):
            self._state.update(lambda state: _forget(state, reached))

    def is_of(self, run: str) -> bool:
        """Whether this run of a job has made or adopted the state, so that it knows what became of the output."""
        return self._state.read(lambda state: state.get(_RUN) == run.encode())

    def adopt(self, run: str) -> None:
        """Assign the state to this run of a job. Output that the sink may not have becomes pending again."""

        def work(state: Step) -> None:
            again = {key[len(_SENT) + _NUMBER_BYTES :]: row for key, row in state.scan(_SENT)}  # the newest of each key
            for key, row in again.items():
                # If the newest row of a key was refused, the row before it must not be written as if it were the
                # newest.
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
            # Later output at this LSN must have another tag than output that was written at this LSN.
            seq = position.seq + bool(kept.changed or self._dataflow.has_aged(state, time_ms))
        offsets = {**position.offsets, **until.offsets}
        _keep_position(state, ViewPosition(epoch, lsn, offsets, total, seq=seq, time_ms=time_ms))
        return done

    def _keep_pending(self, state: Step, changes: Changes) -> "_Kept":
        """Store the result's changes as pending, by key. A key that was deleted and inserted is one change."""
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
        """Rows that the sink may not have yet, at most ``limit``, in the order of their keys; None if it has all. Rows
        that the sink has already except for their tags (see ``arrange``) come after all others.
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
        """The sink durably has these rows, except the keys that it ``refused`` and those that are ``held``.

        A refused row is set aside until it changes or until ``settle``; a held row stays pending. ``void`` are keys
        whose earlier refusal no longer applies. ``reached`` is as in ``confirm``. Raises LockstepError if another step
        has happened since: then the rows are pending again.
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
                # Storing the whole result once more would double the state. A new build makes it again.
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
        """Check refusals that were acknowledged earlier. ``kept`` returns the tag with which the refusal of a key is
        stored in a place that outlives this process, or "" if there is none.

        A row whose refusal isn't stored is pending again: its job was killed before it stored the refusal. Returns the
        keys whose refusal is stored although it is void. The next call checks both again.
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
            # The row before a refused one must not be written again as if it were the newest.
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
        """Entries that are set aside under a prefix: key in the state, pending form, tag, and the row's key."""
        found = [(key, stored[TEXT_LENGTH:], stored[:TEXT_LENGTH].decode()) for key, stored in state.scan(prefix)]
        return [(key, pending, tag, key_of(pending)) for key, pending, tag in found]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector: the block makes very many objects, none of which is part of a cycle."""
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
    """Store rows of the result as pending. Returns their number."""
    building.keep([(_PENDING + own, stored) for own, _, stored in items])
    return len(items)


def _note_built(state: Step, counters: Counters) -> None:
    """Store the building's counters. Raises LockstepError when the state isn't being built."""
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
    """The outputs that a sink with this progress has. They are the first ones, since offsets only grow."""

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
    """The position of a state of any view. While it is being built, only its counters are known."""
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
