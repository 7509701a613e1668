"""Expressions over the rows of a plan: each is typed, and columns are numbers that mean the same in the whole plan."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from views.values import SqlType, Value


@dataclass(frozen=True, slots=True)
class Ref:
    """A column of some node of the plan. No two columns of a plan have one number."""

    id: int
    type: SqlType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, in the form that its type has inside a view."""

    value: Value
    type: SqlType


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function; ``views.evaluation`` has all of them by name."""

    name: str
    arguments: tuple["Expression", ...]
    type: SqlType


Expression = Ref | Literal | Call


DOCUMENTS: Final = frozenset(("jsonb_object", "json_object", "jsonb_array", "json_array"))
"""Calls that make a document of their arguments; of an object's, each first one is a name. None of them is null."""

LENIENT: Final = DOCUMENTS | {"and", "or", "is_null", "is_true", "is_false", "is_distinct", "case", "coalesce"}
"""Calls that look at nulls themselves. All others are null where an argument is."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """A part of an order."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What is made of a group's rows.

    ``function`` is count, sum, avg, min, max, bool_and, bool_or, array_agg, string_agg, jsonb_agg, json_agg,
    percentile_cont, percentile_disc or mode. ``fraction`` is a percentile's, of the values in their order.
    ``argument`` is None for ``count(*)``. Rows for which ``condition`` isn't true don't count.
    """

    function: str
    argument: Expression | None
    type: SqlType
    is_distinct: bool = False
    order: tuple[SortKey, ...] = ()
    condition: Expression | None = None
    separator: str = ""
    fraction: float = 0.0
    is_descending: bool = False


def refs(expression: Expression | None) -> Iterator[Ref]:
    """The columns that an expression reads, some perhaps twice."""
    match expression:
        case Ref():
            yield expression
        case Call():
            for argument in expression.arguments:
                yield from refs(argument)


def aggregate_refs(aggregate: Aggregate) -> Iterator[Ref]:
    """The columns that an aggregate reads."""
    yield from refs(aggregate.argument)
    yield from refs(aggregate.condition)
    for key in aggregate.order:
        yield from refs(key.expression)


def rewritten(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with parts of it replaced, from the top down; None leaves a part as it is."""
    if (other := change(expression)) is not None:
        return other
    if isinstance(expression, Call):
        return replace(expression, arguments=tuple(rewritten(argument, change) for argument in expression.arguments))
    return expression
