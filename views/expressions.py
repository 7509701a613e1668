"""Typed expressions over the rows of a plan. A column is a number that means the same in the whole plan."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from views.values import BOOL, INTEGERS, SqlType, Value


@dataclass(frozen=True, slots=True)
class Ref:
    """A column of some node of the plan. Its number is unique in the plan."""

    id: int
    type: SqlType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant in the form of values inside a view."""

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
"""Calls that make a document from their arguments. An object's arguments are names and values alternately. Never null.
"""

LENIENT: Final = DOCUMENTS | {
    "and", "or", "is_null", "is_true", "is_false", "is_distinct", "case", "coalesce",
    "attempt", "possible", "failure", "checked",
}  # fmt: skip
"""Calls that handle nulls themselves. All others are null if an argument is null.

Four of them handle expressions that fail for some rows, such as a division: ``attempt`` is null if its argument fails,
``possible`` is true then, and ``failure`` is the reason why a condition fails, or a value of a row that meets it.
``checked`` fails if its first argument, a reason, isn't null; otherwise it is its second argument.
"""

_NEVER_FAILS: Final = LENIENT | {
    "=", "<>", "<", "<=", ">", ">=", "not", "||", "length", "same", "integer_to_text", "bool_to_text", "stored_text",
    "lower", "upper", "day_of", "float_order", "float4_order",
}  # fmt: skip
"""Functions that have a result for all values. All others count as able to fail."""


@dataclass(frozen=True, slots=True)
class SortKey:
    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of a group's rows. ``function`` is count, sum, avg, min, max, bool_and, bool_or, array_agg,
    string_agg, jsonb_agg, json_agg, percentile_cont, percentile_disc or mode. ``fraction`` is the percentile.
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


def can_fail(expression: Expression) -> bool:
    """Whether it fails for some values, as in a division by zero or beyond a type's range."""
    if not isinstance(expression, Call) or expression.name in ("attempt", "possible", "failure"):
        return False
    return expression.name == "checked" or not _is_total(expression) or any(map(can_fail, expression.arguments))


def _is_total(call: Call) -> bool:
    match call.name:
        case "to_integer":
            kind = call.arguments[0].type.kind
            return kind in INTEGERS and INTEGERS.index(kind) <= INTEGERS.index(call.type.kind)
        case "number_order":
            return call.arguments[0].type.kind in INTEGERS or isinstance(call.arguments[0], Literal)
        case "like":
            return isinstance(call.arguments[1], Literal)
    return call.name in _NEVER_FAILS or call.name.startswith(("date_trunc:", "date_bin:"))


def conjuncts(condition: Expression) -> Iterator[Expression]:
    """The conditions that all have to be true."""
    if isinstance(condition, Call) and condition.name == "and":
        for argument in condition.arguments:
            yield from conjuncts(argument)
    else:
        yield condition


def all_of(conditions: Sequence[Expression]) -> Expression:
    """One condition for several; there must be at least one."""
    return conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions), BOOL)


def aggregate_refs(aggregate: Aggregate) -> Iterator[Ref]:
    yield from refs(aggregate.argument)
    yield from refs(aggregate.condition)
    for key in aggregate.order:
        yield from refs(key.expression)


def rewritten(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """The expression with parts replaced, from the top down. If ``change`` returns None, a part stays."""
    if (other := change(expression)) is not None:
        return other
    if isinstance(expression, Call):
        return replace(expression, arguments=tuple(rewritten(argument, change) for argument in expression.arguments))
    return expression
