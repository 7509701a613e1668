"""What is known of the rows that a part of the query returns: names, dependencies, columns that are never null. A set
of columns is a key of the result if its closure under the dependencies contains the key.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from views.expressions import DOCUMENTS, LENIENT, Call, Expression, Literal, Ref, all_of, can_fail, conjuncts, refs
from views.plan import Filter, Join, Node, Scan
from views.values import BOOL

Dependency = tuple[frozenset[int], frozenset[int]]
"""Rows that agree in the first columns also agree in the second ones."""


@dataclass(frozen=True)
class Relation:
    """A node, its columns by their names in the query, and what is known of them. ``branches`` are a union's parts,
    with the union's names. ``hidden`` are names that ``*`` leaves out. ``unchecked`` are conditions that fail for some
    rows. They are evaluated where rows are read, so rows that a later join leaves out can't fail.
    """

    node: Node
    names: Mapping[str, Expression]
    dependencies: tuple[Dependency, ...]
    not_null: frozenset[int]
    branches: tuple["Relation", ...] = ()
    hidden: frozenset[str] = frozenset()
    unchecked: tuple[Expression, ...] = ()

    def closure(self, ids: Iterable[int]) -> set[int]:
        known = set(ids)
        grows = True
        while grows:
            grows = False
            for given, determined in self.dependencies:
                if given <= known and not determined <= known:
                    known |= determined
                    grows = True
        return known

    def is_unique(self, names: Collection[str]) -> bool:
        """Whether no two rows agree in these columns, as far as is known."""
        if self.branches:
            return _is_unique_in_union(self.branches, [list(self.names).index(name) for name in names])
        columns = {made.id for name in names if isinstance(made := plain(self.names[name]), Ref)}
        return {column.id for column in self.node.key} <= self.closure(columns)

    def is_never_null(self, expression: Expression) -> bool:
        """Whether it has a value in every row, as far as is known."""
        match expression:
            case Ref():
                return expression.id in self.not_null
            case Literal():
                return expression.value is not None
            case Call("coalesce", arguments):
                return any(map(self.is_never_null, arguments))
            case Call("case", arguments):
                return all(map(self.is_never_null, (*arguments[1:-1:2], arguments[-1])))
            case Call(name) if name in DOCUMENTS:
                return True
            case Call("attempt" | "failure" | "->" | "->>"):
                return False
            case Call("checked", (_, value)):
                return self.is_never_null(value)
            case Call("is_null" | "is_true" | "is_false" | "is_distinct"):
                return True
            case _:
                return all(map(self.is_never_null, expression.arguments))


def plain(expression: Expression) -> Expression:
    """The original of a column that was only widened to a larger integer. Both distinguish the same rows."""
    if isinstance(expression, Call) and expression.name == "to_integer" and len(expression.arguments) == 1:
        return expression.arguments[0]
    return expression


def _is_unique_in_union(branches: tuple[Relation, ...], places: list[int]) -> bool:
    columns = [[list(branch.names.items())[place] for place in places] for branch in branches]
    if not all(branch.is_unique([name for name, _ in pairs]) for branch, pairs in zip(branches, columns, strict=True)):
        return False
    # Any two branches must differ in a constant that is part of the key.
    for index, one in enumerate(columns):
        for other in columns[:index]:
            if not any(
                isinstance(a, Literal)
                and isinstance(b, Literal)
                and None not in (a.value, b.value)
                and a.value != b.value
                for (_, a), (_, b) in zip(one, other, strict=True)
            ):
                return False
    return True


def smallest_key(relation: Relation, candidate: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """The key without columns that its other columns determine."""
    kept = list(candidate)
    for column in reversed(candidate):
        others = [other.id for other in kept if other is not column]
        if others and column.id in relation.closure(others):
            kept.remove(column)
    return tuple(kept)


def never_null_after(condition: Expression, not_null: frozenset[int]) -> frozenset[int]:
    """The columns that have values where the condition is true."""
    match condition:
        case Call("and", arguments):
            for argument in arguments:
                not_null = never_null_after(argument, not_null)
            return not_null
        case Call("not", (Call("is_null", (Ref() as column,)),)):
            return not_null | {column.id}
        case Call("=" | "<>" | "<" | "<=" | ">" | ">=", arguments):
            return not_null | {ref.id for argument in arguments if _is_strict(argument) for ref in refs(argument)}
        case Ref():
            return not_null | {condition.id}
        case _:
            return not_null


def settled(relation: Relation) -> Relation:
    """The rows for which all conditions are true; nothing is unchecked any more."""
    if not relation.unchecked:
        return relation
    not_null = relation.not_null
    for condition in relation.unchecked:
        not_null = never_null_after(condition, not_null)
    node = with_condition(relation.node, all_of(relation.unchecked))
    return replace(relation, node=node, not_null=not_null, unchecked=())


def narrowed(relation: Relation) -> Relation:
    """The relation without rows of a table that a condition rejects. Rows for which a condition fails stay."""
    if not isinstance(relation.node, Scan):
        return relation
    return replace(relation, node=all_possible(relation.node, relation.unchecked))


def all_possible(node: Node, conditions: Iterable[Expression]) -> Node:
    """The node's rows that no condition rejects."""
    for condition in conditions:
        node = with_condition(node, Call("possible", (condition,), BOOL))
    return node


def with_condition(node: Node, condition: Expression) -> Node:
    """The node's rows for which the condition is true, filtered as early as possible."""
    ids = {ref.id for ref in refs(condition)}
    match node:
        case Scan():
            known = () if node.condition is None else tuple(conjuncts(node.condition))
            return node if condition in known else replace(node, condition=all_of((*known, condition)))
        case Filter() if not can_fail(condition):
            return replace(node, source=with_condition(node.source, condition))
        case Join() if ids and ids <= _ids(node.left) and not can_fail(condition):
            return replace(node, left=with_condition(node.left, condition))
        case Join() if ids and ids <= _ids(node.right) and not node.keeps_left and not can_fail(condition):
            return replace(node, right=with_condition(node.right, condition))
    return Filter(node, condition)


def _ids(node: Node) -> set[int]:
    return {column.id for column in node.columns}


def _is_strict(expression: Expression) -> bool:
    """Whether it is null if one of its columns is null."""
    if isinstance(expression, Call):
        return expression.name not in LENIENT and all(map(_is_strict, expression.arguments))
    return True
