"""The plan of a view: the operators that maintain it. Every node's rows have a key, so that no row occurs twice. The
numbers of columns (``Ref.id``) are unique in the whole plan. ``columns`` are a node's columns in order; ``key`` is a
subset of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from cdc.model.table import TableName
from views.expressions import Aggregate, Expression, Ref, SortKey, aggregate_refs, can_fail, refs
from views.retention import Retained
from views.values import SqlType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows of a table. ``names`` are the table's columns, one for each of ``columns``."""

    table: TableName
    names: tuple[str, ...]
    columns: tuple[Ref, ...]
    key: tuple[Ref, ...]
    condition: Expression | None = None


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What is computed from each single row of one table. ``names`` are the table's columns that it reads, one for each
    of ``columns``. Rows for which ``condition`` isn't true are left out. ``outputs`` are the columns, by name, that
    rows get besides the table's own.
    """

    names: tuple[str, ...]
    columns: tuple[Ref, ...]
    condition: Expression | None
    outputs: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Filter:
    source: "Node"
    condition: Expression

    @property
    def columns(self) -> tuple[Ref, ...]:
        return self.source.columns

    @property
    def key(self) -> tuple[Ref, ...]:
        return self.source.key


@dataclass(frozen=True, slots=True)
class Project:
    """Rows with computed columns, which include the source's key."""

    source: "Node"
    expressions: tuple[tuple[Ref, Expression], ...]

    @property
    def columns(self) -> tuple[Ref, ...]:
        return tuple(column for column, _ in self.expressions)

    @property
    def key(self) -> tuple[Ref, ...]:
        return self.source.key


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows with equal keys. With ``keeps_left``, also each left row without a partner, with nulls."""

    left: "Node"
    right: "Node"
    left_on: tuple[Expression, ...]
    right_on: tuple[Expression, ...]
    keeps_left: bool
    key: tuple[Ref, ...]

    @property
    def columns(self) -> tuple[Ref, ...]:
        return self.left.columns + self.right.columns


@dataclass(frozen=True, slots=True)
class Union:
    """All rows of several branches. ``identity`` identifies a row: the branch's number and the row's key there."""

    branches: tuple[tuple["Node", tuple[Expression, ...]], ...]
    values: tuple[Ref, ...]
    identity: Ref

    @property
    def columns(self) -> tuple[Ref, ...]:
        return (*self.values, self.identity)

    @property
    def key(self) -> tuple[Ref, ...]:
        return (self.identity,)


@dataclass(frozen=True, slots=True)
class Group:
    """One row per group: the group's values, and aggregates of its rows."""

    source: "Node"
    by: tuple[tuple[Ref, Expression], ...]
    aggregates: tuple[tuple[Ref, Aggregate], ...]

    @property
    def columns(self) -> tuple[Ref, ...]:
        return tuple(column for column, _ in self.by) + tuple(column for column, _ in self.aggregates)

    @property
    def key(self) -> tuple[Ref, ...]:
        return tuple(column for column, _ in self.by)


@dataclass(frozen=True, slots=True)
class Top:
    """The first ``limit`` rows of each part in an order. Rows that are equal in it are ordered by their keys."""

    source: "Node"
    per: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    limit: int

    @property
    def columns(self) -> tuple[Ref, ...]:
        return self.source.columns

    @property
    def key(self) -> tuple[Ref, ...]:
        return self.source.key


Node = Scan | Filter | Project | Join | Union | Group | Top


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A query that views can maintain. ``outputs`` are its columns by name, ``key`` those that identify its rows.
    ``retained`` are the tables of which it reads only rows that are young enough.
    """

    root: Node
    outputs: tuple[tuple[str, Expression], ...]
    key: tuple[str, ...]
    retained: tuple[Retained, ...] = field(default=(), repr=False)  # a plan's repr is part of states' identity

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables that it reads, each once, in the order of the query."""
        return tuple(dict.fromkeys(node.table for node in nodes(self.root) if isinstance(node, Scan)))


def sources(node: Node) -> tuple[Node, ...]:
    """The nodes that a node reads."""
    match node:
        case Scan():
            return ()
        case Join():
            return (node.left, node.right)
        case Union():
            return tuple(branch for branch, _ in node.branches)
        case _:
            return (node.source,)


def nodes(root: Node) -> Iterator[Node]:
    """All nodes: each before its sources, left before right. The order is part of the state's format."""
    yield root
    for source in sources(root):
        yield from nodes(source)


def pruned(node: Node, needed: set[int]) -> Node:
    """The node with only the columns that are needed above it, and those that it and its sources need themselves."""
    match node:
        case Scan():
            needed = needed | _ids(node.condition) | {column.id for column in node.key}
            kept = [pair for pair in zip(node.names, node.columns, strict=True) if pair[1].id in needed]
            return replace(node, names=tuple(name for name, _ in kept), columns=tuple(column for _, column in kept))
        case Filter():
            return replace(node, source=pruned(node.source, needed | _ids(node.condition)))
        case Project():
            wanted = needed | {column.id for column in node.key}
            expressions = tuple(pair for pair in node.expressions if pair[0].id in wanted)
            return replace(
                node, source=pruned(node.source, _ids(*(made for _, made in expressions))), expressions=expressions
            )
        case Join():
            needed = needed | {column.id for column in node.key}
            return replace(
                node,
                left=pruned(node.left, needed | _ids(*node.left_on)),
                right=pruned(node.right, needed | _ids(*node.right_on)),
            )
        case Union():
            kept_at = [index for index, column in enumerate(node.values) if column.id in needed]
            branches = tuple(
                (branch, tuple(expressions[index] for index in kept_at)) for branch, expressions in node.branches
            )
            return replace(
                node,
                branches=tuple((pruned(branch, _ids(*kept)), kept) for branch, kept in branches),
                values=tuple(node.values[index] for index in kept_at),
            )
        case Group():
            aggregates = tuple(pair for pair in node.aggregates if pair[0].id in needed)
            wanted = _ids(*(made for _, made in node.by))
            wanted |= {ref.id for _, aggregate in aggregates for ref in aggregate_refs(aggregate)}
            return replace(node, source=pruned(node.source, wanted), aggregates=aggregates)
        case Top():
            wanted = needed | _ids(*node.per, *(key.expression for key in node.order))
            return replace(node, source=pruned(node.source, wanted))


def reordered(node: Node) -> Node:
    """The same rows, with joins that give each row at most one partner before joins that give it many. So fewer joins
    store the rows after they have multiplied.
    """
    match node:
        case Scan():
            return node
        case Join():
            return _reordered(replace(node, left=reordered(node.left), right=reordered(node.right)))
        case Union():
            return replace(node, branches=tuple((reordered(branch), values) for branch, values in node.branches))
        case _:
            return replace(node, source=reordered(node.source))


def _reordered(join: Join) -> Join:
    inner = join.left
    if not isinstance(inner, Join) or not _is_unique(join.right, join.right_on) or any(map(can_fail, join.left_on)):
        return join
    read = _ids(*join.left_on)
    if read <= {column.id for column in inner.left.columns} and not _is_unique(inner.right, inner.right_on):
        first = _reordered(replace(join, left=inner.left, key=inner.left.key))
        return replace(inner, left=first, key=join.key)
    if (
        read <= {column.id for column in inner.right.columns}
        and not inner.keeps_left
        and not _is_unique(inner.left, inner.left_on)
    ):
        first = _reordered(replace(join, left=inner.right, key=inner.right.key))
        return replace(inner, right=first, key=join.key)
    return join


def _is_unique(node: Node, on: tuple[Expression, ...]) -> bool:
    """Whether at most one row has given values of ``on``."""
    return {column.id for column in node.key} <= {made.id for made in on if isinstance(made, Ref)}


def renumbered(plan: T) -> T:
    """The same plan with columns numbered in order of use, so that a column that isn't read changes no number."""
    numbers: dict[int, int] = {}

    def changed(part: Any) -> Any:
        match part:
            case Ref():
                return Ref(numbers.setdefault(part.id, len(numbers) + 1), part.type)
            case tuple():
                return tuple(map(changed, part))
            case _ if is_dataclass(part) and not isinstance(part, SqlType | TableName):
                return replace(part, **{of.name: changed(getattr(part, of.name)) for of in fields(part)})  # type: ignore[type-var]  # an instance
        return part

    renumbered_plan: T = changed(plan)
    return renumbered_plan


def _ids(*expressions: Expression | None) -> set[int]:
    return {ref.id for expression in expressions for ref in refs(expression)}
