"""A view: its plan, its state, and the rows that its sink still has to get.

A step takes the changes of whole transactions and is kept with its output, its offsets and its LSN, or not at all. The
output stays pending until it is acknowledged: whoever was killed between the two writes it again. Written to a guarded
sink with the output's tag, the same output changes nothing the second time.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ, Tag
from views.evaluation import compiled_all
from views.operators.changes import Changes, Work
from views.operators.dataflow import Dataflow
from views.ordering import row_encoder
from views.plan import Scan, ViewPlan, nodes
from views.state.contract import Reading, State, Step
from views.values import Value, to_event

FORMAT: Final = 1
"""Of what the operators keep. Another number means another state, which is built anew."""

CHANGES_MAX: Final = 5_000_000
"""How many rows of all operators one step may change, where nothing else is said."""

TopicPartition = tuple[str, int]

_POSITION, _PENDING = b"\x00position", b"p"


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
    """What a view has done since its state began.

    ``changes_in`` are rows of tables, ``changes_out`` rows of the result, ``inside`` those of all operators.
    """

    steps: int = 0
    changes_in: int = 0
    changes_out: int = 0
    inside: int = 0

    @property
    def amplification(self) -> float:
        """Rows of the result that change with one row of a table, on average."""
        return self.changes_out / self.changes_in if self.changes_in else 0.0


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """Up to where a view is exact, and where the log goes on: the next offset of each partition."""

    epoch: int = 0
    lsn: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    counters: Counters = Counters()


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
        self._to_event = [to_event(made.type) for _, made in plan.outputs]
        self._key_places = [self._names.index(name) for name in plan.key]
        self._encode_key = row_encoder([expressions[name].type for name in plan.key])

    def position(self) -> ViewPosition:
        """Up to where the state is exact. Zero before the first step."""
        return self._state.read(_position)

    def step(
        self, events: Sequence[RowEvent], *, epoch: int, lsn: int, offsets: Mapping[TopicPartition, int]
    ) -> Counters:
        """Take in the changes of whole transactions, so that the result is exact at ``lsn``.

        ``events`` are all changes of the query's tables between the position and ``lsn``, in any order; of one key the
        one with the greatest tag counts. Events of other tables are left out. ``offsets`` are where the log goes on,
        of those partitions that have moved. Returns what this step did. The rows for the sink are pending then.

        Raises EvaluationError, FanOutExceeded or the state's errors; nothing of the step was kept then.
        """

        def work(state: Step) -> Counters:
            return self._step(state, events, epoch, lsn, offsets)

        return self._state.update(work)

    def _step(
        self, state: Step, events: Sequence[RowEvent], epoch: int, lsn: int, offsets: Mapping[TopicPartition, int]
    ) -> Counters:
        position = _position(state)
        if (epoch, lsn) < (position.epoch, position.lsn):
            raise LockstepError(
                f"the view is at {format_lsn(position.lsn)} (epoch {position.epoch}) and can't go back to"
                f" {format_lsn(lsn)} (epoch {epoch})",
                hint="the log begins before the view's state: build the view anew",
            )
        step_work = Work(state, self._changes_max)
        changes, changed_in = self._dataflow.changed(events, step_work)
        changed_out = self._keep_pending(state, changes)
        done = Counters(1, changed_in, changed_out, step_work.changed)
        before = position.counters
        total = Counters(
            before.steps + 1,
            before.changes_in + done.changes_in,
            before.changes_out + done.changes_out,
            before.inside + done.inside,
        )
        _keep_position(state, ViewPosition(epoch, lsn, {**position.offsets, **offsets}, total))
        return done

    def _keep_pending(self, state: Step, changes: Changes) -> int:
        """The result's changes by the view's key. A key that went and came is one change."""
        rows: dict[bytes, tuple[list[Value], bool]] = {}
        vanished: dict[bytes, list[Value]] = {}
        for row, weight in changes.items():
            values = list(self._outputs(row))
            key = self._encode_key([values[place] for place in self._key_places])
            if weight > 0:
                assert key not in rows, "two rows of the result have one key"
                rows[key] = values, True
            else:
                assert key not in vanished, "two rows of the result had one key"
                vanished[key] = values
        changed = 0
        for key, old in vanished.items():
            if key not in rows:
                rows[key] = old, False
            elif rows[key][0] == old:
                del rows[key]
        for key, (values, is_there) in rows.items():
            event_values = [made(value) for made, value in zip(self._to_event, values, strict=True)]
            own = [event_values[place] for place in self._key_places]
            state.put(_PENDING + key, orjson.dumps((own, event_values if is_there else None)))
            changed += 1
        return changed

    def pending(self, limit: int | None = None) -> Output | None:
        """Rows that the sink may not have yet, in the order of their keys, at most ``limit``; None when it has all."""

        def look(state: Reading) -> Output | None:
            entries = state.scan(_PENDING)
            changes = [self._change(stored) for _, stored in islice(entries, limit)]
            if not changes:
                return None
            position = _position(state)
            is_last = limit is None or next(entries, None) is None
            return Output(Tag(position.epoch, position.lsn, SNAPSHOT_SEQ), changes, is_last)

        return self._state.read(look)

    def _change(self, stored: bytes) -> ViewChange:
        own, values = orjson.loads(stored)
        key = dict(zip(self.plan.key, own, strict=True))
        return ViewChange(key, None if values is None else dict(zip(self._names, values, strict=True)))

    def acknowledge(self, output: Output) -> None:
        """The sink has these rows durably. Raises LockstepError after a further step: then they are pending again."""

        def work(state: Step) -> None:
            position = _position(state)
            if (position.epoch, position.lsn) != (output.tag.epoch, output.tag.commit_lsn):
                raise LockstepError("the view has gone on since this output was read; read it again")
            for key, _ in list(islice(state.scan(_PENDING), len(output.changes))):
                state.delete(key)

        self._state.update(work)


def _position(state: Reading) -> ViewPosition:
    stored = state.get(_POSITION)
    if stored is None:
        return ViewPosition()
    parsed: dict[str, Any] = orjson.loads(stored)
    offsets = {(topic, partition): offset for topic, partition, offset in parsed["offsets"]}
    return ViewPosition(parsed["epoch"], parsed["lsn"], offsets, Counters(**parsed["counters"]))


def _keep_position(state: Step, position: ViewPosition) -> None:
    stored = {
        "epoch": position.epoch,
        "lsn": position.lsn,
        "offsets": [(topic, partition, offset) for (topic, partition), offset in position.offsets.items()],
        "counters": asdict(position.counters),
    }
    state.put(_POSITION, orjson.dumps(stored))
