"""What a view would cost, estimated from PostgreSQL's statistics: rows that change with a row, and the state's size. As
in PostgreSQL's planner, columns count as independent of each other, and a condition other than an equality as true for
a third of the rows. The most frequent value of a column gives the largest reach of one change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, assert_never

from cdc.model.statistics import ColumnStatistics, TableStatistics
from cdc.model.table import TableName
from views.expressions import Call, Expression, Ref, refs
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union, ViewPlan, nodes, sources
from views.plan_text import keeps_values
from views.sql.relations import plain
from views.values import Kind, SqlType

_SHARE: Final = 1 / 3
"""Share of rows that meet an unknown condition."""

_DISTINCT_MAX: Final = 200.0
"""Number of different values of an unknown column."""

_ENTRY_BYTES: Final = 1.45
"""Bytes of the file for each byte of keys and rows: pages aren't full, and each entry has a header."""

_TAG_BYTES: Final = 30
_PREFIX_BYTES: Final = 12
_WIDTHS: Final = {
    Kind.BOOL: 5.0, Kind.INT2: 4.0, Kind.INT4: 7.0, Kind.INT8: 10.0, Kind.NUMERIC: 10.0, Kind.DATE: 5.0,
    Kind.TIMESTAMP: 16.0, Kind.TIMESTAMPTZ: 16.0, Kind.UUID: 38.0,
}  # fmt: skip
"""Characters of a stored value, for types that determine it."""
_WIDTH_UNKNOWN: Final = 20.0
_KEY_BYTES: Final = 9.0


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """What a changed row of a table costs. With one of the table's ``rows``, ``average`` rows of the result change;
    ``largest`` with the row that reaches most.
    """

    table: TableName
    rows: float
    average: float
    largest: float


@dataclass(frozen=True, slots=True)
class Kept:
    """``rows`` is what an operator returns; the other fields are its part of the state."""

    rows: float
    kept_rows: float
    kept_bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A view's costs. ``operators`` are in the order of ``plan.nodes``. ``assumed`` are columns without statistics."""

    rows: float
    changes: tuple[ChangeCost, ...]
    operators: tuple[Kept, ...]
    assumed: tuple[str, ...]

    @property
    def kept_rows(self) -> float:
        return sum(kept.kept_rows for kept in self.operators)

    @property
    def kept_bytes(self) -> float:
        return sum(kept.kept_bytes for kept in self.operators)


def estimate(plan: ViewPlan, statistics: Mapping[TableName, TableStatistics]) -> Estimate:
    """Raises KeyError when ``statistics`` lacks a table of the plan."""
    figures = _Figures(plan.root, statistics)
    changes = []
    for table in plan.tables:
        scans = [node for node in nodes(plan.root) if isinstance(node, Scan) and node.table == table]
        reached = [figures.reached(plan.root, scan) for scan in scans]
        average, largest = sum(each.average for each in reached), sum(each.largest for each in reached)
        changes.append(ChangeCost(table, statistics[table].rows, average, max(average, largest)))
    return Estimate(
        figures.of(plan.root).rows,
        tuple(changes),
        tuple(figures.kept(node) for node in nodes(plan.root)),
        tuple(figures.assumed),
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: number of different values, rows with the most frequent one, share of nulls, width in characters."""

    distinct: float
    largest: float
    nulls: float
    width: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that an operator returns. ``key`` are the columns that identify them."""

    rows: float
    columns: Mapping[int, _Column]
    key: frozenset[int]

    def column(self, expression: Expression) -> _Column:
        expression = plain(expression)
        of = [self.columns[ref.id] for ref in refs(expression)]
        if isinstance(expression, Ref):
            return of[0]
        if not of:
            return _Column(1.0, self.rows, 0.0, _width(expression.type, None))
        distinct = min(self.rows, prod(column.distinct for column in of))
        largest = max(self.rows / max(distinct, 1.0), *(column.largest for column in of))
        nulls = 1 - prod(1 - column.nulls for column in of)
        return _Column(distinct, largest, nulls, _width(expression.type, None))

    def distinct(self, expressions: Sequence[Expression]) -> float:
        """How many different combinations the expressions have; at least one."""
        if self._is_key(expressions):
            return max(self.rows, 1.0)
        return max(1.0, min(self.rows, prod(self.column(made).distinct for made in expressions)))

    def largest(self, expressions: Sequence[Expression]) -> float:
        """How many rows have the most frequent combination."""
        if self._is_key(expressions):
            return min(self.rows, 1.0)
        return min([self.rows, *(self.column(made).largest for made in expressions)])

    def filled(self, expressions: Sequence[Expression]) -> float:
        return prod(1 - self.column(made).nulls for made in expressions)

    def width(self, ids: Sequence[Ref]) -> float:
        return 2.0 + sum(self.columns[column.id].width + 1 for column in ids)

    def share(self, rows: float) -> Mapping[int, _Column]:
        """The columns' figures if only so many rows are left."""
        return {
            number: _Column(min(column.distinct, rows), min(column.largest, rows), column.nulls, column.width)
            for number, column in self.columns.items()
        }

    def _is_key(self, expressions: Sequence[Expression]) -> bool:
        return self.key <= {made.id for made in map(plain, expressions) if isinstance(made, Ref)}


@dataclass(frozen=True, slots=True)
class _Reached:
    """The rows of an operator that change with one row of a table. All have the same values in ``fixed``."""

    average: float
    largest: float
    fixed: frozenset[int]


class _Figures:
    """The rows of each operator of a plan, computed once each, from the tables up."""

    def __init__(self, root: Node, statistics: Mapping[TableName, TableStatistics]) -> None:
        self.assumed: dict[str, None] = {}
        self._statistics = statistics
        self._rows: dict[int, _Rows] = {}
        self._scans: dict[TableName, list[Scan]] = {}
        for node in nodes(root):
            if isinstance(node, Scan):
                self._scans.setdefault(node.table, []).append(node)
        for node in reversed(list(nodes(root))):  # sources first
            self._rows[id(node)] = self._given(node)

    def of(self, node: Node) -> _Rows:
        return self._rows[id(node)]

    # --- rows ---

    def _given(self, node: Node) -> _Rows:
        key = frozenset(column.id for column in node.key)
        match node:
            case Scan():
                pairs = zip(node.names, node.columns, strict=True)
                columns = {column.id: self._table_column(node, name, column) for name, column in pairs}
                return _filtered(_Rows(self._statistics[node.table].rows, columns, key), node.condition)
            case Filter():
                return _filtered(self.of(node.source), node.condition)
            case Project():
                source = self.of(node.source)
                return _Rows(source.rows, {column.id: source.column(made) for column, made in node.expressions}, key)
            case Join():
                return self._joined(node, key)
            case Union():
                return self._united(node, key)
            case Group():
                return self._grouped(node, key)
            case Top():
                source = self.of(node.source)
                rows = min(source.rows, source.distinct(node.per) * node.limit)
                return _Rows(rows, source.share(rows), key)
            case _:
                assert_never(node)

    def _table_column(self, scan: Scan, name: str, column: Ref) -> _Column:
        table = self._statistics[scan.table]
        known: ColumnStatistics | None = table.columns.get(name)
        if known is None:
            self.assumed[f"{scan.table}.{name}"] = None
            is_key = [key.id for key in scan.key] == [column.id]
            distinct = table.rows if is_key else min(_DISTINCT_MAX, table.rows)
            return _Column(distinct, table.rows / max(distinct, 1.0), 0.0, _width(column.type, None))
        average = table.rows * (1 - known.nulls) / max(known.distinct, 1.0)
        return _Column(
            known.distinct, max(average, known.most_common * table.rows), known.nulls, _width(column.type, known.width)
        )

    def _joined(self, node: Join, key: frozenset[int]) -> _Rows:
        left, right = self.of(node.left), self.of(node.right)
        pairs = left.rows * _partners(left, node.left_on, right, node.right_on)
        rows = max(pairs, left.rows) if node.keeps_left else pairs
        reach_right, reach_left = right.largest(node.right_on), left.largest(node.left_on)
        columns = {
            number: _Column(
                min(column.distinct, rows), min(rows, column.largest * max(reach, 1.0)), column.nulls, column.width
            )
            for side, reach in ((left, reach_right), (right, reach_left))
            for number, column in side.columns.items()
        }
        return _Rows(rows, columns, key)

    def _united(self, node: Union, key: frozenset[int]) -> _Rows:
        parts = [(self.of(branch), made) for branch, made in node.branches]
        rows = sum(part.rows for part, _ in parts)
        columns = {}
        for place, column in enumerate(node.values):
            of = [part.column(made[place]) for part, made in parts]
            nulls = sum(each.nulls * part.rows for each, (part, _) in zip(of, parts, strict=True)) / max(rows, 1.0)
            columns[column.id] = _Column(
                sum(each.distinct for each in of),
                sum(each.largest for each in of),
                nulls,
                max(each.width for each in of),
            )
        return _Rows(rows, {**columns, node.identity.id: _Column(rows, min(rows, 1.0), 0.0, 16.0)}, key)

    def _grouped(self, node: Group, key: frozenset[int]) -> _Rows:
        source = self.of(node.source)
        made = [expression for _, expression in node.by]
        rows = min(source.rows, source.distinct(made))
        columns = {}
        for column, expression in node.by:
            of = source.column(expression)
            others = [other for other in made if other is not expression]
            largest = min(of.largest, source.distinct(others) if others else 1.0)
            columns[column.id] = _Column(min(of.distinct, rows), min(largest, rows), of.nulls, of.width)
        for column, aggregate in node.aggregates:
            distinct = min(_DISTINCT_MAX, rows)
            width = _width(column.type, None)
            if keeps_values(aggregate) and aggregate.function.endswith("agg") and aggregate.argument is not None:
                width = source.column(aggregate.argument).width * source.rows / max(rows, 1.0)
            columns[column.id] = _Column(distinct, rows / max(distinct, 1.0), 0.0, width)
        return _Rows(rows, columns, key)

    # --- changes ---

    def reached(self, node: Node, scan: Scan) -> _Reached:
        """The rows of ``node`` that change with one row of ``scan``, which is the node itself or below it."""
        if node is scan:
            table_rows = self._statistics[scan.table].rows
            share = self.of(scan).rows / table_rows if table_rows else 1.0
            return _Reached(share, 1.0, frozenset(column.id for column in scan.columns))
        source = next(source for source in sources(node) if any(below is scan for below in nodes(source)))
        before = self.reached(source, scan)
        match node:
            case Scan():
                raise AssertionError("a scan has no sources")
            case Filter():
                share = self.of(node).rows / self.of(source).rows if self.of(source).rows else 1.0
                return _Reached(before.average * share, before.largest, before.fixed)
            case Project():
                return _Reached(before.average, before.largest, _fixed(before, node.expressions))
            case Join():
                return self._reached_pairs(node, source, before)
            case Union():
                made = next(made for branch, made in node.branches if branch is source)
                return _Reached(before.average, before.largest, _fixed(before, zip(node.values, made, strict=True)))
            case Group():
                reach = self._parts_reached(node.source, [made for _, made in node.by], before)
                fixed = _fixed(before, node.by)
                if len(fixed) == len(node.by):
                    fixed |= {column.id for column in node.columns}
                return _Reached(min(before.average, reach[0]), min(before.largest, reach[1]), fixed)
            case Top():
                # A row that comes among the first pushes another one out.
                parts = self._parts_reached(node.source, node.per, before)
                most = [2.0 * node.limit * max(reach, 1.0) for reach in parts]
                return _Reached(min(2 * before.average, most[0]), min(2 * before.largest, most[1]), before.fixed)
            case _:
                assert_never(node)

    def _reached_pairs(self, node: Join, source: Node, before: _Reached) -> _Reached:
        is_left = source is node.left
        own_on, other_on = (node.left_on, node.right_on) if is_left else (node.right_on, node.left_on)
        other_node = node.right if is_left else node.left
        own, other = self.of(source), self.of(other_node)
        average = _partners(own, own_on, other, other_on)
        largest = other.largest(other_on)
        if is_left and node.keeps_left:
            average, largest = max(average, 1.0), max(largest, 1.0)
        fixed = set(before.fixed)
        for mine, theirs in zip(own_on, other_on, strict=True):
            column = plain(theirs)
            if isinstance(column, Ref) and {ref.id for ref in refs(mine)} <= before.fixed:
                fixed.add(column.id)
        if other.key <= fixed:
            fixed |= {column.id for column in other_node.columns}
        rows = self.of(node).rows
        return _Reached(
            min(rows, before.average * average), min(max(rows, 1.0), before.largest * largest), frozenset(fixed)
        )

    def _parts_reached(self, source: Node, by: Sequence[Expression], before: _Reached) -> tuple[float, float]:
        """How many groups a change reaches, on average and at most."""
        free = [made for made in by if not {ref.id for ref in refs(made)} <= before.fixed]
        if not free:
            return 1.0, 1.0
        groups = self.of(source).distinct(free)
        return groups, groups

    # --- state ---

    def kept(self, node: Node) -> Kept:
        rows = self.of(node).rows
        match node:
            case Scan():
                scans = self._scans[node.table]
                if scans[0] is not node:  # all scans of a table share one copy
                    return Kept(rows, 0.0, 0.0)
                copied = {
                    name: self._table_column(scan, name, column).width
                    for scan in scans
                    for name, column in zip(scan.names, scan.columns, strict=True)
                }
                table_rows = self._statistics[node.table].rows
                width = _TAG_BYTES + sum(copied.values()) + len(copied)
                return Kept(rows, table_rows, _bytes(table_rows, len(node.key), width))
            case Join():
                left, right = self.of(node.left), self.of(node.right)
                left_rows = left.rows * left.filled(node.left_on)
                right_rows = right.rows * right.filled(node.right_on)
                left_keys = len(node.left_on) + len(node.left.key)
                right_keys = len(node.right_on) + len(node.right.key)
                return Kept(
                    rows,
                    left_rows + right_rows,
                    _bytes(left_rows, left_keys, left.width(node.left.columns))
                    + _bytes(right_rows, right_keys, right.width(node.right.columns)),
                )
            case Group():
                source = self.of(node.source)
                kept_rows, kept_bytes = rows, _bytes(rows, len(node.by), 6.0 + 12.0 * len(node.aggregates))
                for _, aggregate in node.aggregates:
                    if keeps_values(aggregate) and aggregate.argument is not None:
                        value = source.column(aggregate.argument)
                        kept_rows += source.rows
                        keys = len(node.by) + len(aggregate.order) + 1
                        kept_bytes += _bytes(source.rows, keys, value.width + 5)
                return Kept(rows, kept_rows, kept_bytes)
            case Top():
                source = self.of(node.source)
                keys = len(node.per) + len(node.order)
                return Kept(rows, source.rows, _bytes(source.rows, keys, source.width(node.source.columns)))
            case Filter() | Project() | Union():
                return Kept(rows, 0.0, 0.0)
            case _:
                assert_never(node)


def _partners(own: _Rows, own_on: Sequence[Expression], other: _Rows, other_on: Sequence[Expression]) -> float:
    """How many rows of the other side a row joins with, on average."""
    most = max(own.distinct(own_on), other.distinct(other_on))
    return own.filled(own_on) * other.rows * other.filled(other_on) / most


def _fixed(before: _Reached, pairs: "Sequence[tuple[Ref, Expression]] | zip[tuple[Ref, Expression]]") -> frozenset[int]:
    """The new columns that have one value in all rows that change."""
    return frozenset(column.id for column, made in pairs if {ref.id for ref in refs(made)} <= before.fixed)


def _filtered(rows: _Rows, condition: Expression | None) -> _Rows:
    if condition is None:
        return rows
    left = rows.rows * _selectivity(condition, rows)
    return _Rows(left, rows.share(left), rows.key)


def _selectivity(condition: Expression, rows: _Rows) -> float:
    match condition:
        case Call("and", arguments):
            return prod(_selectivity(argument, rows) for argument in arguments)
        case Call("or", arguments):
            return 1 - prod(1 - _selectivity(argument, rows) for argument in arguments)
        case Call("possible", (argument,)):
            return _selectivity(argument, rows)
        case Call("not", (argument,)):
            return 1 - _selectivity(argument, rows)
        case Call("is_null", (Ref() as column,)):
            return rows.column(column).nulls
        case Call("=", (one, other)) if not (list(refs(one)) and list(refs(other))):
            compared = rows.column(one if list(refs(one)) else other)
            return (1 - compared.nulls) / max(compared.distinct, 1.0)
        case Ref():
            return (1 - rows.column(condition).nulls) / 2
        case _:
            return _SHARE


def _width(of: SqlType, inside: float | None) -> float:
    """The characters of a stored value. ``inside`` is its width inside PostgreSQL."""
    if of.kind in _WIDTHS and of.kind is not Kind.NUMERIC:
        return _WIDTHS[of.kind]
    return _WIDTH_UNKNOWN if inside is None else inside + 2


def _bytes(rows: float, keys: int, width: float) -> float:
    return rows * (_PREFIX_BYTES + keys * _KEY_BYTES + width) * _ENTRY_BYTES
