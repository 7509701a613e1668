"""A view: its plan, its state, and the rows that its sink still has to get.

A step takes the changes of whole transactions and is kept with its output, its offsets and its LSN, or not at all. The
output stays pending until it is acknowledged: whoever was killed between the two writes it again. Written to a guarded
sink with the output's tag, the same output changes nothing the second time.

A new state is built: the tables' rows as of one position are brought in piece by piece, and nothing is pending before
all of them are in. Then the whole result is.
"""

import hashlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ, TEXT_LENGTH, Tag
from views.evaluation import compiled_all
from views.failures import FanOutExceeded
from views.operators.changes import Changes, Work
from views.operators.dataflow import Dataflow
from views.ordering import row_encoder
from views.plan import Scan, ViewPlan, nodes
from views.state.contract import Reading, State, Step
from views.values import Value, from_event, to_event

FORMAT: Final = 3
"""Of what the operators keep. Another number means another state, which is built anew."""

CHANGES_MAX: Final = 5_000_000
"""How many rows of all operators one step may change, where nothing else is said."""

TopicPartition = tuple[str, int]

_BUILD_CHANGES_MAX: Final = 200_000
"""How many rows one transaction of a building changes, unless a single row of a table changes more: memory has them."""

_POSITION, _PENDING, _REFUSED, _VOID = b"\x00position", b"p", b"r", b"v"
_DELIVERED, _RUN = b"\x00delivered", b"\x00run"
_IS_BUILDING, _IS_WHOLE = b"\x00building", b"\x00whole"
_GONE: Final = b"-"
"""Before a pending row that is gone, its key's values follow. A row's own values are a JSON array."""


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A row of the result that is new or has changed, or None where there is none with this key any more."""

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class Output:
    """Rows for the sink. ``tag`` is the version that they are written with: that of the newest step.

    With ``is_last`` nothing else is pending, so a sink that has these rows holds the result as of that position.
    """

    tag: Tag
    changes: Sequence[ViewChange]
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Counters:
    """What a view has done since its state was built.

    ``changes_in`` are rows of tables, ``changes_out`` rows of the result, ``inside`` those of all operators. ``rows``
    are those that the result has now. While a state is being built, what that has done is counted in the same way.
    """

    steps: int = 0
    changes_in: int = 0
    changes_out: int = 0
    inside: int = 0
    transactions: int = 0
    rows: int = 0

    @property
    def amplification(self) -> float:
        """Rows of the result that change with one row of a table, on average."""
        return self.changes_out / self.changes_in if self.changes_in else 0.0

    def since(self, before: "Counters") -> "Counters":
        """What was done since then. A state that was built anew has counted from 0."""
        if self.steps < before.steps or self.changes_in < before.changes_in:
            return self
        return _added(self, Counters(*(-count for count in astuple(before))))

    @property
    def rows_per_step(self) -> float:
        """Changed rows of tables that one step takes in, on average."""
        return self.changes_in / self.steps if self.steps else 0.0

    @property
    def transactions_per_step(self) -> float:
        """Transactions that one step takes in, on average."""
        return self.transactions / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """Up to where a view is exact, and where the log goes on: the next offset of each partition.

    ``seq`` counts the steps at this LSN that changed the result: their output has a tag of its own.
    With ``is_building`` the state isn't usable: its building was begun, and not ended.
    """

    epoch: int = 0
    lsn: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    counters: Counters = Counters()
    is_building: bool = False
    seq: int = SNAPSHOT_SEQ

    @property
    def tag(self) -> Tag:
        """The version of rows that are pending."""
        return Tag(self.epoch, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class _Kept:
    """How many rows of the result have changed, and by how many it has grown."""

    changed: int
    grown: int


def identity(plan: ViewPlan, tables: Mapping[TableName, Table]) -> str:
    """What a state belongs to: the plan, and of each of its tables the key and the columns that the plan reads.

    Another name, type or number of one of these makes another identity: a column that was dropped and added again
    holds other values. Other columns may come and go.
    """
    read: dict[TableName, set[str]] = {}
    for node in nodes(plan.root):
        if isinstance(node, Scan):
            read.setdefault(node.table, set()).update(node.names)
    shapes = [
        (str(table), tables[table].key, [tables[table].column(name).to_json() for name in sorted(names)])
        for table, names in sorted(read.items())
    ]
    return hashlib.sha256(repr((FORMAT, plan, shapes)).encode()).hexdigest()


class View:
    """One view, or one shard of it, for one thread. ``state`` must be that of ``identity(plan, tables)``."""

    def __init__(
        self, plan: ViewPlan, tables: Mapping[TableName, Table], state: State, *, changes_max: int = CHANGES_MAX
    ) -> None:
        """Raises KeyError when a table or column of the plan isn't among the shapes."""
        self.plan = plan
        self._state = state
        self._changes_max = changes_max
        self._dataflow = Dataflow(plan.root, tables)
        self._names = [name for name, _ in plan.outputs]
        expressions = dict(plan.outputs)
        self._outputs = compiled_all([made for _, made in plan.outputs], plan.root.columns)
        self._converted = [
            (place, to_event(made.type))
            for place, (_, made) in enumerate(plan.outputs)
            if not made.type.is_same_in_events
        ]
        self._key_places = [self._names.index(name) for name in plan.key]
        self._encode_key = row_encoder([expressions[name].type for name in plan.key])
        self._key_from_event = [(name, from_event(expressions[name].type)) for name in plan.key]
        self._build_size = sys.maxsize

    def position(self) -> ViewPosition:
        """Up to where the state is exact. Zero before the first step."""
        return self._state.read(stored_position)

    def step(
        self,
        events: Sequence[RowEvent],
        *,
        epoch: int,
        lsn: int,
        offsets: Mapping[TopicPartition, int],
        transactions: int = 1,
    ) -> Counters:
        """Take in the changes of whole transactions, so that the result is exact at ``lsn``.

        ``events`` are all changes of the query's tables between the position and ``lsn``, in any order; of one key the
        one with the greatest tag counts. Events of other tables are left out. ``offsets`` are where the log goes on,
        of those partitions that have moved. ``transactions`` is how many these are, for the counters. Returns what this
        step did. The rows for the sink are pending then.

        Raises EvaluationError, FanOutExceeded or the state's errors; nothing of the step was kept then.
        """

        def work(state: Step) -> Counters:
            return self._step(state, events, ViewPosition(epoch, lsn, offsets), transactions)

        return self._state.update(work)

    # --- building ---

    def begin_building(self) -> None:
        """Forget all that the state holds, and mark it as one that is being built."""
        self._state.clear()
        self._state.update(lambda state: state.put(_IS_BUILDING, orjson.dumps(asdict(Counters()))))

    def build(self, events: Sequence[RowEvent]) -> None:
        """Bring in rows as of the position that the building ends with: any number of them, in any order.

        They are kept in transactions of a size that memory holds. A key that comes twice counts once, by its tag.

        Raises EvaluationError, or FanOutExceeded where one row alone changes more than the view's limit. The building
        can't go on then: it begins again.
        """
        done = 0
        while done < len(events):
            part = events[done : done + self._build_size]
            limit = self._changes_max if len(part) == 1 else min(self._changes_max, _BUILD_CHANGES_MAX)
            try:
                inside = self._state.update(lambda state, part=part, limit=limit: self._build(state, part, limit))  # type: ignore[misc]  # bound now
            except FanOutExceeded:
                if len(part) == 1:
                    raise
                self._build_size = len(part) // 2
                continue
            done += len(part)
            if len(part) == self._build_size and inside < limit // 4:
                self._build_size *= 2

    def _build(self, state: Step, events: Sequence[RowEvent], limit: int) -> int:
        stored = state.get(_IS_BUILDING)
        if stored is None:
            raise LockstepError("the view's state isn't being built", hint="begin to build it anew")
        work = Work(state, limit)
        changes, changed_in = self._dataflow.changed(events, work)
        kept = self._keep_pending(state, changes, keeps_gone=False)
        done = Counters(0, changed_in, kept.changed, work.changed, rows=kept.grown)
        counters = _added(Counters(**orjson.loads(stored)), done)
        state.put(_IS_BUILDING, orjson.dumps(asdict(counters)))
        return work.changed

    def end_building(
        self, *, epoch: int, lsn: int, offsets: Mapping[TopicPartition, int], seq: int = SNAPSHOT_SEQ
    ) -> None:
        """All rows are in: the result is exact at ``lsn``, and all of it is pending.

        ``seq`` is greater than that of any output at this LSN from an earlier state.
        """

        def work(state: Step) -> None:
            stored = state.get(_IS_BUILDING)
            if stored is None:
                raise LockstepError("the view's state isn't being built", hint="begin to build it anew")
            state.delete(_IS_BUILDING)
            state.put(_IS_WHOLE, b"")
            # What a change costs on average isn't told by the building, which has made each row once.
            counters = Counters(rows=orjson.loads(stored)["rows"])
            _keep_position(state, ViewPosition(epoch, lsn, offsets, counters, seq=seq))

        self._state.update(work)

    @property
    def is_whole(self) -> bool:
        """Whether all of the result is pending, since nothing was acknowledged after the building."""
        return self._state.read(lambda state: state.get(_IS_WHOLE) is not None)

    def absent(self, keys: Sequence[Mapping[str, JsonValue]]) -> list[Mapping[str, JsonValue]]:
        """Those of these keys of which the result has no row: what a sink has of an earlier state, and has to delete.

        A state knows it only while all of the result is pending: from the end of its building until the first output is
        acknowledged. Raises LockstepError at any other time.
        """

        def look(state: Reading) -> list[Mapping[str, JsonValue]]:
            if state.get(_IS_WHOLE) is None:
                raise LockstepError(
                    "the view's state no longer has all of its result's keys", hint="build the view's state anew"
                )
            return [key for key in keys if (state.get(_PENDING + self._stored_key(key)) or _GONE).startswith(_GONE)]

        return self._state.read(look)

    def delivered(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition as of the newest output that was acknowledged; empty before the first.

        The state has forgotten that output. So a sink that doesn't know of these offsets has lost rows that only a new
        state can give it.
        """
        return self._state.read(lambda state: _offsets(orjson.loads(state.get(_DELIVERED) or b"[]")))

    def is_of(self, run: str) -> bool:
        """Whether this run of a job has made or adopted the state: it knows what became of the output."""
        return self._state.read(lambda state: state.get(_RUN) == run.encode())

    def adopt(self, run: str) -> None:
        """The state belongs to this run of a job from now on."""
        self._state.update(lambda state: state.put(_RUN, run.encode()))

    def _step(self, state: Step, events: Sequence[RowEvent], until: ViewPosition, transactions: int) -> Counters:
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
        step_work = Work(state, self._changes_max)
        changes, changed_in = self._dataflow.changed(events, step_work)
        kept = self._keep_pending(state, changes)
        done = Counters(1, changed_in, kept.changed, step_work.changed, transactions, kept.grown)
        total = _added(position.counters, done)
        seq = SNAPSHOT_SEQ
        if (epoch, lsn) == (position.epoch, position.lsn):
            seq = position.seq + bool(kept.changed)
        _keep_position(state, ViewPosition(epoch, lsn, {**position.offsets, **until.offsets}, total, seq=seq))
        return done

    def _keep_pending(self, state: Step, changes: Changes, *, keeps_gone: bool = True) -> "_Kept":
        """The result's changes by the view's key. A key that went and came is one change.

        Without ``keeps_gone`` nobody has seen a row that goes, and nothing stays of it.
        """
        rows: dict[bytes, list[Value]] = {}
        vanished: dict[bytes, list[Value]] = {}
        for row, weight in changes.items():
            values = list(self._outputs(row))
            key = self._encode_key([values[place] for place in self._key_places])
            into = rows if weight > 0 else vanished
            assert key not in into, "two rows of the result have one key"
            into[key] = values
        stored: dict[bytes, bytes] = {}
        grown = len(rows) - len(vanished)  # a key that went and came is in both
        gone = sum(key not in rows for key in vanished)
        for key, old in vanished.items():
            if key not in rows:
                if keeps_gone:
                    own = self._as_in_events(old)
                    stored[_PENDING + key] = _gone([own[place] for place in self._key_places])
                else:
                    state.delete(_PENDING + key)
                state.delete(_REFUSED + key)
            elif rows[key] == old:
                del rows[key]
            else:
                state.delete(_REFUSED + key)
        for key, values in rows.items():
            stored[_PENDING + key] = orjson.dumps(self._as_in_events(values))
        state.put_all(stored)
        return _Kept(len(rows) + gone, grown)

    def _as_in_events(self, values: list[Value]) -> list[JsonValue]:
        made: list[JsonValue] = [*values]
        for place, convert in self._converted:
            made[place] = convert(values[place])
        return made

    def pending(self, limit: int | None = None) -> Output | None:
        """Rows that the sink may not have yet, in the order of their keys, at most ``limit``; None when it has all."""

        def look(state: Reading) -> Output | None:
            position = stored_position(state)
            if position.is_building:
                return None
            entries = state.scan(_PENDING)
            changes = [self._change(stored) for _, stored in islice(entries, limit)]
            if not changes:
                return None
            is_last = limit is None or next(entries, None) is None
            return Output(position.tag, changes, is_last)

        return self._state.read(look)

    def _change(self, stored: bytes) -> ViewChange:
        if stored.startswith(_GONE):
            return ViewChange(dict(zip(self.plan.key, orjson.loads(stored[len(_GONE) :]), strict=True)), None)
        values = orjson.loads(stored)
        key = {name: values[place] for name, place in zip(self.plan.key, self._key_places, strict=True)}
        return ViewChange(key, dict(zip(self._names, values, strict=True)))

    def acknowledge(
        self,
        output: Output,
        *,
        refused: Collection[Mapping[str, JsonValue]] = (),
        void: Collection[Mapping[str, JsonValue]] = (),
    ) -> None:
        """The sink has these rows durably, but for those of the keys that it ``refused``.

        A row that was refused is set aside until it changes, or until ``settle``. ``void`` are keys whose earlier
        refusal says nothing any more. Raises LockstepError after a further step: then the rows are pending again.
        """
        aside = {_PENDING + self._stored_key(key) for key in refused}
        tag = str(output.tag).encode()

        def work(state: Step) -> None:
            position = stored_position(state)
            if position.tag != output.tag:
                raise LockstepError("the view has gone on since this output was read; read it again")
            state.delete(_IS_WHOLE)
            if output.changes:
                state.put(_DELIVERED, orjson.dumps(_triples(position.offsets)))
            for key, stored in list(islice(state.scan(_PENDING), len(output.changes))):
                state.delete(key)
                if key in aside:
                    state.put(_REFUSED + key[len(_PENDING) :], tag + stored)
            for values in void:
                state.put(_VOID + self._stored_key(values), tag + _gone([values[name] for name in self.plan.key]))

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
            for key, stored, tag, of in self._aside(state, _REFUSED):
                state.delete(key)
                if kept(of) < tag:
                    state.put(_PENDING + key[len(_REFUSED) :], stored)
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
        return [(key, pending, tag, self._change(pending).key) for key, pending, tag in found]

    def _stored_key(self, key: Mapping[str, JsonValue]) -> bytes:
        return self._encode_key([read(key[name]) for name, read in self._key_from_event])


def _gone(key: Sequence[JsonValue]) -> bytes:
    """A row that is gone, as it is pending."""
    return _GONE + orjson.dumps(key)


def _added(before: Counters, done: Counters) -> Counters:
    return Counters(
        before.steps + done.steps,
        before.changes_in + done.changes_in,
        before.changes_out + done.changes_out,
        before.inside + done.inside,
        before.transactions + done.transactions,
        before.rows + done.rows,
    )


def stored_position(state: Reading) -> ViewPosition:
    """Up to where a state is exact, whosever it is. Of one that is being built, what it has done so far."""
    stored = state.get(_POSITION)
    if stored is None:
        building = state.get(_IS_BUILDING)
        counters = Counters() if building is None else Counters(**orjson.loads(building))
        return ViewPosition(counters=counters, is_building=building is not None)
    parsed: dict[str, Any] = orjson.loads(stored)
    offsets, counters = _offsets(parsed["offsets"]), Counters(**parsed["counters"])
    return ViewPosition(parsed["epoch"], parsed["lsn"], offsets, counters, seq=parsed["seq"])


def _keep_position(state: Step, position: ViewPosition) -> None:
    stored = {
        "epoch": position.epoch,
        "lsn": position.lsn,
        "seq": position.seq,
        "offsets": _triples(position.offsets),
        "counters": asdict(position.counters),
    }
    state.put(_POSITION, orjson.dumps(stored))


def _triples(offsets: Mapping[TopicPartition, int]) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _offsets(triples: Sequence[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {(topic, partition): offset for topic, partition, offset in triples}
