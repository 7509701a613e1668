"""Finds, from a view's plan, the key column by which the view can be divided into shards. Pure.

A column of the key is followed from the result down to the tables. The table that it comes from is divided by it. A
join divides both sides if it joins on the column; otherwise every shard has all rows of the other side. A group,
``distinct`` or ``top`` must have the column among its own (``by``, ``per``), so that each group is in one shard.

Of several possible columns, the one that divides the most tables wins, then the first one of the key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import assert_never

from cdc.model.table import TableName
from views.expressions import Call, Expression, Ref, refs, rewritten
from views.failures import Refusal, Refused
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union, ViewPlan, nodes
from views.plan_text import column_names, expression_text
from views.shard import Sharding
from views.values import INTEGERS, SqlType

_SAME_VALUE = ("same", "to_integer")
"""Calls that return the value of their argument."""

_Divided = Mapping[int, Expression]
"""The expression by which the rows of each scan are divided, by the node's ``id()``."""


class _Indivisible(Exception):
    """Rows can't be divided by an expression. The message is the reason."""


def sharding_of(plan: ViewPlan, count: int) -> Sharding:
    """How to divide the plan into ``count`` shards. Raises Refused if that is impossible."""
    finder = _Finder(plan)
    outputs = dict(plan.outputs)
    found: list[tuple[str, _Divided]] = []
    reasons: list[str] = []
    for name in plan.key:
        try:
            found.append((name, finder.divided(plan.root, outputs[name])))
        except _Indivisible as indivisible:
            reasons.append(f"by {name} it can't be, since {indivisible}")
    if not found:
        raise Refused(
            [
                Refusal(
                    f"tasks = {count}",
                    f"the view can't be divided by a column of its key: {'; '.join(reasons)}",
                    "leave `tasks` out, or give the view a key with a column that all of its groups, `distinct` and"
                    " `top` are by",
                )
            ]
        )
    key, divided = max(found, key=lambda pair: len(pair[1]))  # the first of those that divide most tables
    scans = [node for node in nodes(plan.root) if isinstance(node, Scan)]
    return Sharding(key, tuple(divided.get(id(scan)) for scan in scans))


def whole_tables(plan: ViewPlan, sharding: Sharding) -> tuple[TableName, ...]:
    """The tables of which every shard has all rows, in the order of the query."""
    scans = [node for node in nodes(plan.root) if isinstance(node, Scan)]
    pairs = zip(scans, sharding.columns, strict=True)
    return tuple(dict.fromkeys(scan.table for scan, by in pairs if by is None))


class _Finder:
    def __init__(self, plan: ViewPlan) -> None:
        self._names = column_names(plan)
        self._known: dict[tuple[int, Expression], _Divided | _Indivisible] = {}

    def divided(self, node: Node, by: Expression) -> _Divided:
        """Divides the scans so that a shard has the node's rows whose ``by`` belongs to it. Raises _Indivisible."""
        at = id(node), by
        if at not in self._known:
            try:
                self._known[at] = self._divided(node, by)
            except _Indivisible as indivisible:
                self._known[at] = indivisible
        known = self._known[at]
        if isinstance(known, _Indivisible):
            raise known
        return known

    def _divided(self, node: Node, by: Expression) -> _Divided:
        match node:
            case Scan():
                if not by.type.has_one_form:
                    raise _Indivisible(f"equality of {self._text(by)}, of type {by.type.name}, isn't known")
                if next(refs(by), None) is None:
                    raise _Indivisible(f"all rows of {node.table} would be in one shard")
                return {id(node): by}
            case Filter():
                return self.divided(node.source, by)
            case Project():
                return self.divided(node.source, _in_terms_of(by, dict(_by_id(node.expressions))))
            case Union():
                if node.identity.id in {ref.id for ref in refs(by)}:
                    raise _Indivisible("parts of a `union all` have no value of it")
                places = {column.id: place for place, column in enumerate(node.values)}
                parts: list[_Divided] = []
                for branch, values in node.branches:
                    made = {column: values[place] for column, place in places.items()}
                    parts.append(self.divided(branch, _in_terms_of(by, made)))
                return dict(chain.from_iterable(part.items() for part in parts))
            case Group():
                values_by = dict(_by_id(node.by))
                if any(ref.id not in values_by for ref in refs(by)):
                    raise _Indivisible(f"{self._text(by)} is made of all rows of a group")
                return self.divided(node.source, _in_terms_of(by, values_by))
            case Top():
                if not any(_equal_on(node.source, by, part) for part in node.per):
                    raise _Indivisible(f"`top` isn't per {self._text(by)}")
                return self.divided(node.source, by)
            case Join():
                return self._joined(node, by)
            case _:
                assert_never(node)

    def _joined(self, join: Join, by: Expression) -> _Divided:
        options: list[_Divided] = []
        reasons: list[str] = []
        pairs = list(zip(join.left_on, join.right_on, strict=True))
        sides = [(join.left, join.right, pairs)]
        if not join.keeps_left:
            sides.append((join.right, join.left, [(theirs, own) for own, theirs in pairs]))
        for own, other, on in sides:
            made = _by_columns_of(own, join, by)
            if made is None:
                continue
            try:
                mine = self.divided(own, made)
            except _Indivisible as indivisible:
                reasons.append(str(indivisible))
                continue
            options.append(mine)  # every shard has all rows of the other side
            for ours, theirs in on:
                if _equal_on(own, made, ours) and _is_alike(ours.type, theirs.type):
                    try:
                        options.append({**mine, **self.divided(other, theirs)})
                    except _Indivisible:
                        continue
        if not options:
            text = self._text(by)
            right = "it is a column of a left join's right side" if join.keeps_left else "it is of both sides of a join"
            raise _Indivisible(reasons[0] if reasons else f"{text} isn't of one table: {right}")
        return max(options, key=len)

    def _text(self, expression: Expression) -> str:
        return expression_text(expression, self._names)


def _by_id(pairs: tuple[tuple[Ref, Expression], ...]) -> Iterator[tuple[int, Expression]]:
    return ((column.id, made) for column, made in pairs)


def _in_terms_of(by: Expression, made: Mapping[int, Expression]) -> Expression:
    """An expression over a node's columns, rewritten over its source's columns."""
    return _plain(rewritten(by, lambda part: made[part.id] if isinstance(part, Ref) else None))


def _plain(expression: Expression) -> Expression:
    """The expression without calls that return their argument."""
    while isinstance(expression, Call) and expression.name in _SAME_VALUE:
        expression = expression.arguments[0]
    return expression


def _by_columns_of(side: Node, join: Join, by: Expression) -> Expression | None:
    """The same value, computed from the columns of one side only; None if that is impossible."""
    own = {column.id for column in side.columns}
    instead: dict[int, Ref] = {}
    for ref in refs(by):
        if ref.id not in own:
            equal = [other for other in equals(join, ref) if other.id in own]
            if not equal:
                return None
            instead[ref.id] = min(equal, key=lambda column: column.id)
    if not instead:
        return by
    if isinstance(by, Call):  # with columns of another type, the call might be of another type as well
        return None if any(instead[ref.id].type != ref.type for ref in refs(by) if ref.id in instead) else rewritten(
            by, lambda part: instead.get(part.id) if isinstance(part, Ref) else None
        )  # fmt: skip
    return _in_terms_of(by, instead)


def _equal_on(node: Node, one: Expression, other: Expression) -> bool:
    """Whether two expressions are equal in every row of a node."""
    one, other = _plain(one), _plain(other)
    if isinstance(one, Ref) and isinstance(other, Ref):
        return other in equals(node, one)
    return one == other


def equals(node: Node, column: Ref) -> set[Ref]:
    """The columns of a node that equal this column in each of its rows, itself included."""
    match node:
        case Filter() | Top():
            return equals(node.source, column)
        case Project():
            return _made_equal(node.source, node.expressions, column)
        case Group():
            return _made_equal(node.source, node.by, column)
        case Join():
            return _joined_equal(node, column)
        case _:
            return {column}


def _made_equal(source: Node, expressions: tuple[tuple[Ref, Expression], ...], column: Ref) -> set[Ref]:
    made = {ref.id: _plain(expression) for ref, expression in expressions}
    own = made.get(column.id)
    if not isinstance(own, Ref):
        return {column}
    below = equals(source, own)
    return {column} | {ref for ref, _ in expressions if made[ref.id] in below}


def _joined_equal(join: Join, column: Ref) -> set[Ref]:
    left = {ref.id for ref in join.left.columns}
    found: set[Ref] = set()
    new = {column}
    while new:
        ref = new.pop()
        found.add(ref)
        same = equals(join.left if ref.id in left else join.right, ref)
        if not join.keeps_left:  # in a left join, a row without a partner has nulls there
            for one, other in zip(map(_plain, join.left_on), map(_plain, join.right_on), strict=True):
                if isinstance(one, Ref) and isinstance(other, Ref) and _is_alike(one.type, other.type):
                    same |= {other} if one in same else {one} if other in same else set()
        new |= same - found
    return found


def _is_alike(one: SqlType, other: SqlType) -> bool:
    """Whether equal values of these two types have the same form."""
    if one.kind in INTEGERS and other.kind in INTEGERS:
        return True
    return one.has_one_form and replace(one, is_user_text=False) == replace(other, is_user_text=False)
