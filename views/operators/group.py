"""``group by``: each group's aggregates, which are exact both when rows are added and when they are removed. Sums are
exact integers or numerics. For min, max, count(distinct) and ordered lists, the state has the group's values in the
order in which they are read, each with its count.
"""

import hashlib
import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from cdc.model.event import JsonValue
from views import numerics
from views.batch_functions import Code, packed
from views.documents import document, to_json
from views.evaluation import Evaluate, compiled, compiled_all
from views.expressions import Aggregate, Ref
from views.failures import EvaluationError
from views.numerics import decimal_of, scale_of, text_of
from views.operators.building import PORTION, PORTION_BYTES, Building, Item
from views.operators.changes import Changes, Rows, Work, add, prefix_of, unpack_row
from views.operators.order import part_of
from views.ordering import Direction, encoder, row_encoder
from views.plan import Group
from views.state.contract import Step
from views.values import INTEGERS, Kind, Row, SqlType, Value, float_json, to_event

KIND, MEMBERS = b"g", b"x"
_INT8_LIMIT: Final = 1 << 63

Stored = Any
"""What one aggregate stores for a group, as JSON."""


class _Kept(Protocol):
    """The maintenance of one aggregate."""

    def empty(self) -> Stored:
        """The stored value of a group without rows."""

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        """The stored value after a row is added or removed."""

    def result(self, stored: Stored, group: bytes, state: Step) -> Value: ...


class GroupOperator:
    def __init__(self, node: Group, number: int) -> None:
        columns = node.source.columns
        self._by = compiled_all([made for _, made in node.by], columns)
        self._encode = row_encoder([made.type for _, made in node.by])
        self._prefix = prefix_of(KIND, number)
        code = Code(columns)
        by = code.key([(made, Direction(made.type)) for _, made in node.by])
        self._items = code.of_rows(f'({by}, b"", {code.packed})', self._item)
        self._part = part_of(node.source, [made for _, made in node.by])
        self._aggregates = [
            _kept(aggregate, columns, prefix_of(MEMBERS, number, part))
            for part, (_, aggregate) in enumerate(node.aggregates)
        ]
        conditions = [aggregate.condition for _, aggregate in node.aggregates]
        self._conditions = [None if condition is None else compiled(condition, columns) for condition in conditions]

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        groups: dict[Row, list[tuple[Row, int]]] = {}
        for row, weight in changes.items():
            groups.setdefault(self._by(row), []).append((row, weight))
        made: Changes = {}
        for by, rows in groups.items():
            self._group_changed(by, rows, work.state, made)
        work.count(len(made))
        return made

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        made: Changes = {}
        portion: list[Item] = []
        held = 0
        for items in building.sorted(sources[0], self._items, self._part):
            portion += items
            held += sum([len(row) for _, _, row in items])
            # Whole groups. If one group is larger than a slice, its preliminary result is retracted later.
            end = bisect_left(portion, (portion[-1][0],)) or len(portion)
            if len(portion) < PORTION and held < PORTION_BYTES:
                continue
            held = 0
            is_whole = end < len(portion)
            self._take(portion[:end], made, building)
            del portion[:end]
            if is_whole:
                yield list(made)
                made = {}
        self._take(portion, made, building)
        yield list(made)

    def _item(self, row: Row) -> Item:
        return self._encode(self._by(row)), b"", packed(row)

    def _take(self, items: Sequence[Item], made: Changes, building: Building) -> None:
        rows = dict.fromkeys([unpack_row(row) for _, _, row in items], 1)

        def work(state: Step) -> tuple[Changes, int]:
            of_rows = Work(state, sys.maxsize)
            return self.changed(0, rows, of_rows), of_rows.changed

        changes, changed = building.state.update(work)
        building.changed += changed
        building.meanwhile(0)
        for row, weight in changes.items():
            add(made, row, weight)

    def _group_changed(self, by: Row, rows: list[tuple[Row, int]], state: Step, made: Changes) -> None:
        group = self._encode(by)
        key = self._prefix + group
        on_disk = state.get(key)
        if on_disk is None:
            count, kept = 0, [aggregate.empty() for aggregate in self._aggregates]
        else:
            count, *kept = orjson.loads(on_disk)
            add(made, by + self._results(kept, group, state), -1)
        for row, weight in rows:
            count += weight
            for index, aggregate in enumerate(self._aggregates):
                condition = self._conditions[index]
                if condition is None or condition(row) is True:
                    kept[index] = aggregate.changed(kept[index], row, weight, group, state)
        assert count >= 0, "a row left a group that it wasn't in"
        if count:
            state.put(key, orjson.dumps((count, *kept)))
            add(made, by + self._results(kept, group, state), 1)
        elif on_disk is not None:
            state.delete(key)

    def _results(self, kept: Sequence[Stored], group: bytes, state: Step) -> Row:
        return tuple(
            [aggregate.result(stored, group, state) for aggregate, stored in zip(self._aggregates, kept, strict=True)]
        )


def _kept(aggregate: Aggregate, columns: Sequence[Ref], prefix: bytes) -> _Kept:
    if aggregate.argument is None:
        return _CountRows()
    argument = compiled(aggregate.argument, columns)
    of = aggregate.argument.type
    match aggregate.function:
        case "count" if aggregate.is_distinct:
            return _CountDistinct(_Members(aggregate, columns, prefix, has_forms=False), argument)
        case "count":
            return _CountValues(argument)
        case "sum" | "avg" if of.kind in INTEGERS:
            return _SumOfIntegers(argument, aggregate.function, aggregate.type)
        case "sum" | "avg":
            return _SumOfNumerics(argument, aggregate.function)
        case "bool_and" | "bool_or":
            return _Bools(argument, aggregate.function)
        case "min" | "max":
            return _Extreme(_Members(aggregate, columns, prefix), argument, is_max=aggregate.function == "max")
        case "percentile_cont" | "percentile_disc":
            return _Percentile(_Members(aggregate, columns, prefix), argument, aggregate)
        case "mode":
            return _Mode(_Members(aggregate, columns, prefix), argument, aggregate)
    return _Listed(_Members(aggregate, columns, prefix), argument, aggregate)


class _CountRows:
    def empty(self) -> Stored:
        return 0

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        return stored + weight

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        return stored  # type: ignore[no-any-return]  # an int


@dataclass(slots=True)
class _CountValues(_CountRows):
    argument: Evaluate

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        return stored if self.argument(row) is None else stored + weight


@dataclass(slots=True)
class _SumOfIntegers:
    """Stores the number of values and their sum as text, since JSON's integers have at most 64 bits."""

    argument: Evaluate
    function: str
    type: SqlType

    def empty(self) -> Stored:
        return [0, "0"]

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        if value is None:
            return stored
        return [stored[0] + weight, str(int(stored[1]) + weight * value)]  # type: ignore[operator]  # an int

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        count, total = stored
        if not count:
            return None
        if self.function == "avg":
            return text_of(numerics.divide(decimal_of(total), decimal_of(str(count))))
        if self.type.kind is Kind.NUMERIC:
            return total  # type: ignore[no-any-return]  # text
        if not -_INT8_LIMIT <= int(total) < _INT8_LIMIT:
            raise EvaluationError("a sum is out of range for bigint")
        return int(total)


@dataclass(slots=True)
class _SumOfNumerics:
    """Stores the number of values, their sum, and the count of each scale: the sum has the greatest scale."""

    argument: Evaluate
    function: str

    def empty(self) -> Stored:
        return [0, "0", {}]

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        if value is None:
            return stored
        count, total, scales = stored
        assert isinstance(value, str)
        number = decimal_of(value)
        scale = str(scale_of(number))
        scales[scale] = scales.get(scale, 0) + weight
        if not scales[scale]:
            del scales[scale]
        change = number if weight > 0 else number.copy_negate()
        return [count + weight, text_of(numerics.add(decimal_of(total), change)), scales]

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        count, total, scales = stored
        if not count:
            return None
        exact = numerics.rounded(decimal_of(total), max(map(int, scales)))
        return text_of(numerics.divide(exact, decimal_of(str(count))) if self.function == "avg" else exact)


@dataclass(slots=True)
class _Bools:
    argument: Evaluate
    function: str

    def empty(self) -> Stored:
        return [0, 0]

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        if value is None:
            return stored
        trues, falses = stored
        return [trues + weight, falses] if value else [trues, falses + weight]

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        trues, falses = stored
        if not trues + falses:
            return None
        return bool(falses == 0) if self.function == "bool_and" else bool(trues > 0)


class _Members:
    """The values of an aggregate's argument in each group, in the aggregate's order, with their counts."""

    def __init__(self, aggregate: Aggregate, columns: Sequence[Ref], prefix: bytes, *, has_forms: bool = True) -> None:
        """With ``has_forms``, equal values of different form are separate members."""
        assert aggregate.argument is not None
        of = aggregate.argument.type
        self._prefix = prefix
        self._order = [
            (
                compiled(key.expression, columns),
                encoder(key.expression.type, descending=key.descending, nulls_first=key.nulls_first),
            )
            for key in aggregate.order
        ]
        # Values without an order are distinguished by a digest, which comes after the aggregate's own order.
        self._encode = encoder(of) if of.is_comparable else _digest
        self._has_forms = has_forms and of.is_comparable and not of.has_one_form

    def changed(self, row: Row, value: Value, weight: int, group: bytes, state: Step) -> int:
        """Count a value. Returns 1 if it is the first of its kind, -1 if the last one went, 0 otherwise."""
        parts = [self._prefix, group]
        parts += [encode(evaluate(row)) for evaluate, encode in self._order]
        parts.append(self._encode(value))
        if self._has_forms and isinstance(value, str):
            parts.append(str(value).encode())
        key = b"".join(parts)
        on_disk = state.get(key)
        before = 0 if on_disk is None else orjson.loads(on_disk)[0]
        after = before + weight
        assert after >= 0, "a value left a group that it wasn't in"
        if after:
            state.put(key, orjson.dumps((after, value)))
        else:
            state.delete(key)
        return (not before) - (not after)

    def values(self, group: bytes, state: Step) -> Iterator[Value]:
        for _, stored in state.scan(self._prefix + group):
            times, value = orjson.loads(stored)
            for _ in range(times):
                yield value

    def counted(self, group: bytes, state: Step, *, backwards: bool = False) -> Iterator[tuple[Value, int]]:
        """Each value with its count, in order or backwards."""
        prefix = self._prefix + group
        for _, stored in state.scan_back(prefix) if backwards else state.scan(prefix):
            times, value = orjson.loads(stored)
            yield value, times

    def extreme(self, group: bytes, state: Step, *, is_max: bool) -> Value:
        prefix = self._prefix + group
        entries = state.scan_back(prefix) if is_max else state.scan(prefix)
        for _, stored in entries:
            return orjson.loads(stored)[1]  # type: ignore[no-any-return]  # a value
        return None


def _digest(value: Value) -> bytes:
    return hashlib.blake2b(b"" if value is None else str(value).encode(), digest_size=16).digest()


@dataclass(slots=True)
class _CountDistinct:
    members: _Members
    argument: Evaluate

    def empty(self) -> Stored:
        return 0

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        return stored if value is None else stored + self.members.changed(row, value, weight, group, state)

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        return stored  # type: ignore[no-any-return]  # an int


@dataclass(slots=True)
class _OfMembers:
    """An aggregate that is computed from its members only and stores nothing else."""

    members: _Members
    argument: Evaluate

    def empty(self) -> Stored:
        return None

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        if value is not None:
            self.members.changed(row, value, weight, group, state)
        return None


@dataclass(slots=True)
class _Extreme(_OfMembers):
    is_max: bool

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        return self.members.extreme(group, state, is_max=self.is_max)


@dataclass(slots=True)
class _Percentile:
    """Stores the number of values. The requested value is counted off from the nearer end."""

    members: _Members
    argument: Evaluate
    aggregate: Aggregate

    def empty(self) -> Stored:
        return 0

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self.argument(row)
        if value is None:
            return stored
        self.members.changed(row, value, weight, group, state)
        return stored + weight

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        if not stored:
            return None
        if self.aggregate.function == "percentile_disc":
            place = max(math.ceil(self.aggregate.fraction * stored), 1) - 1
            return self._at([place], stored, group, state)[0]
        # PostgreSQL's arithmetic of float8, step by step.
        exact = self.aggregate.fraction * (stored - 1)
        first, second = math.floor(exact), math.ceil(exact)
        low, high = map(_float, self._at([first, second], stored, group, state))
        return float_json(low if first == second else low + (exact - first) * (high - low))

    def _at(self, places: list[int], count: int, group: bytes, state: Step) -> list[Value]:
        """The values at these positions, which are neighbours, in the requested order."""
        is_far = places[0] > count // 2
        wanted = [count - 1 - place for place in places] if is_far else places
        found: dict[int, Value] = {}
        end = 0
        for value, times in self.members.counted(group, state, backwards=is_far != self.aggregate.is_descending):
            end += times
            found |= {place: value for place in wanted if place < end and place not in found}
            if len(found) == len(set(wanted)):
                break
        return [found[place] for place in wanted]


def _float(value: Value) -> float:
    assert isinstance(value, int | str)
    number = float(decimal_of(value)) if isinstance(value, str) else float(value)
    if math.isinf(number):
        raise EvaluationError("a numeric is out of range for double precision")
    return number


@dataclass(slots=True)
class _Mode(_OfMembers):
    """The most frequent value; of several, the first one."""

    aggregate: Aggregate

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        best: Value = None
        most = 0
        for value, times in self.members.counted(group, state, backwards=self.aggregate.is_descending):
            if times > most:
                best, most = value, times
        return best


class _Listed:
    """array_agg, string_agg, jsonb_agg and json_agg: all members, in order."""

    def __init__(self, members: _Members, argument: Evaluate, aggregate: Aggregate) -> None:
        assert aggregate.argument is not None
        self._members = members
        self._argument = argument
        self._function = aggregate.function
        self._separator = aggregate.separator
        self._to_event = to_event(aggregate.argument.type)
        self._to_json = to_json(aggregate.argument.type)

    def empty(self) -> Stored:
        return None

    def changed(self, stored: Stored, row: Row, weight: int, group: bytes, state: Step) -> Stored:
        value = self._argument(row)
        if value is not None or self._function != "string_agg":
            self._members.changed(row, value, weight, group, state)
        return None

    def result(self, stored: Stored, group: bytes, state: Step) -> Value:
        values = list(self._members.values(group, state))
        if not values:
            return None
        if self._function == "string_agg":
            return self._separator.join(map(str, values))
        if self._function == "array_agg":
            elements: list[JsonValue] = [self._to_event(value) for value in values]
            return orjson.dumps(elements).decode()
        return document(f"[{', '.join(map(self._to_json, values))}]")
