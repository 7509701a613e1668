"""A plan as people read it: each operator as a line of SQL, and what it stores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from cdc.model.table import TableName
from views.expressions import Aggregate, Call, Expression, Literal, Ref, SortKey
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union, ViewPlan, nodes, sources
from views.retention import Retained, period_text
from views.values import INTEGERS, Kind, micros_text, to_event

_INFIX: Final = {"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "like", "->", "->>"}
_INFIX_NAMES: Final = {"date_plus": "+", "date_minus": "-", "days_between": "-", "is_distinct": "is distinct from"}
_SUFFIXES: Final = {"is_null": "is null", "is_true": "is true", "is_false": "is false"}
_CASTS: Final = {
    "numeric_to_integer",
    "integer_to_text",
    "bool_to_text",
    "stored_text",
    "day_of",
    "midnight_of",
    "to_float8",
    "text_to_integer",
    "text_to_numeric",
}
_UNWRITTEN: Final = {
    "same",
    "to_integer",
    "attempt",
    "possible",
    "float_order",
    "float4_order",
    "number_order",
    "float4_to_float8",
}
_CALLS: Final = {"coalesce", "case", "abs", "length", "lower", "upper"}
"""Parts that need no parentheses, neither around them nor around their arguments. Others count as operators."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """An operator of a plan. ``number`` is its position in ``plan.nodes``. ``keeps`` says what it stores of rows, or is
    empty. ``sources`` are the operators that it reads.
    """

    number: int
    operator: str
    text: str
    keeps: str
    sources: tuple["PlanStep", ...]


def plan_steps(plan: ViewPlan) -> PlanStep:
    """The plan's last operator, with all that come before it."""
    names = column_names(plan)
    numbers = {id(node): number for number, node in enumerate(nodes(plan.root))}
    aliases = _aliases(plan.root)
    retained = {each.table: each for each in plan.retained}
    first: dict[object, int] = {}
    for node in nodes(plan.root):
        if isinstance(node, Scan):
            first.setdefault(node.table, id(node))

    def step(node: Node) -> PlanStep:
        operator, text, keeps = _described(node, names, aliases, retained)
        if isinstance(node, Scan) and first[node.table] != id(node):
            keeps = ""  # all scans of a table share one copy
        return PlanStep(numbers[id(node)], operator, text, keeps, tuple(map(step, sources(node))))

    return step(plan.root)


def column_names(plan: ViewPlan) -> dict[int, str]:
    """A text for each column of the plan: a table's column by name, any other by its expression."""
    aliases = _aliases(plan.root)
    is_plain = len(aliases) == 1
    names: dict[int, str] = {}
    for node in reversed(list(nodes(plan.root))):  # sources before their readers
        match node:
            case Scan():
                alias = "" if is_plain else f"{aliases[id(node)]}."
                names |= {column.id: alias + name for name, column in zip(node.names, node.columns, strict=True)}
            case Project():
                names |= {column.id: expression_text(made, names) for column, made in node.expressions}
            case Union():
                _, made_of = node.branches[0]
                pairs = zip(node.values, made_of, strict=True)
                names |= {column.id: expression_text(made, names) for column, made in pairs}
                names[node.identity.id] = "row of a part"
            case Group():
                names |= {column.id: expression_text(made, names) for column, made in node.by}
                names |= {column.id: aggregate_text(made, names) for column, made in node.aggregates}
            case Filter() | Join() | Top():
                pass
            case _:
                assert_never(node)
    return names


def _aliases(root: Node) -> dict[int, str]:
    aliases: dict[int, str] = {}
    taken: set[str] = set()
    for node in nodes(root):
        if isinstance(node, Scan):
            plain = node.table.name
            alias, count = plain, 1
            while alias in taken:
                count += 1
                alias = f"{plain}_{count}"
            taken.add(alias)
            aliases[id(node)] = alias
    return aliases


def _described(
    node: Node, names: Mapping[int, str], aliases: Mapping[int, str], retained: Mapping[TableName, Retained]
) -> tuple[str, str, str]:
    match node:
        case Scan():
            alias = aliases[id(node)]
            table = str(node.table) if alias == node.table.name else f"{node.table} as {alias}"
            where = "" if node.condition is None else f" where {expression_text(node.condition, names)}"
            kept, age = dict.fromkeys(node.names), ""
            if (of := retained.get(node.table)) is not None:
                age = f" of the last {period_text(of.hours)} by {of.column}"
                kept.setdefault(of.column)
            return "scan", f"{table}{age}{where}", f"each row of the table{age}: {', '.join(kept)}, and its tag"
        case Filter():
            return "filter", f"where {expression_text(node.condition, names)}", ""
        case Project():
            made = ", ".join(expression_text(made, names) for _, made in node.expressions)
            return "project", f"select {made}", ""
        case Join():
            pairs = zip(node.left_on, node.right_on, strict=True)
            on = " and ".join(f"{expression_text(a, names)} = {expression_text(b, names)}" for a, b in pairs)
            kind = "left join" if node.keeps_left else "join"
            return kind, f"{kind} on {on}", "the rows of both sides, by the joined columns"
        case Union():
            return "union all", f"union all of {len(node.branches)} parts", ""
        case Group():
            return _group(node, names)
        case Top():
            per = ", ".join(expression_text(made, names) for made in node.per)
            order = ", ".join(_sort_text(key, names) for key in node.order)
            text = f"the first {node.limit}" + (f" per {per}" if per else "") + f" by {order}"
            return "top", text, "all of its rows in this order"
        case _:
            assert_never(node)


def _group(node: Group, names: Mapping[int, str]) -> tuple[str, str, str]:
    by = ", ".join(expression_text(made, names) for _, made in node.by)
    if not node.aggregates:
        return "distinct", f"distinct {by}", "how many rows each group has"
    aggregates = ", ".join(aggregate_text(made, names) for _, made in node.aggregates)
    listed = [aggregate_text(made, names) for _, made in node.aggregates if keeps_values(made)]
    keeps = "each group's counts and sums"
    if listed:
        keeps += f"; the values of {', '.join(listed)}, in order"
    return "group", f"group by {by}: {aggregates}", keeps


def keeps_values(aggregate: Aggregate) -> bool:
    """Whether all of a group's values are stored, not only the aggregate."""
    return aggregate.argument is not None and (
        aggregate.is_distinct or aggregate.function not in ("count", "sum", "avg", "bool_and", "bool_or")
    )


def aggregate_text(aggregate: Aggregate, names: Mapping[int, str]) -> str:
    argument = "*" if aggregate.argument is None else expression_text(aggregate.argument, names)
    order = ", ".join(_sort_text(key, names) for key in aggregate.order)
    inside = f"{'distinct ' if aggregate.is_distinct else ''}{argument}" + (f" order by {order}" if order else "")
    condition = aggregate.condition
    where = "" if condition is None else f" filter (where {expression_text(condition, names)})"
    return f"{aggregate.function}({inside}){where}"


def _sort_text(key: SortKey, names: Mapping[int, str]) -> str:
    text = expression_text(key.expression, names)
    if key.descending:
        text += " desc"
    if key.nulls_first is not key.descending:  # PostgreSQL's default: nulls are greater than everything
        text += f" nulls {'first' if key.nulls_first else 'last'}"
    return text


def expression_text(expression: Expression, names: Mapping[int, str]) -> str:
    match expression:
        case Ref():
            return names.get(expression.id, f"column {expression.id}")
        case Literal():
            return _literal_text(expression)
        case Call():
            return _call_text(expression, names)
        case _:
            assert_never(expression)


def _literal_text(literal: Literal) -> str:
    value = to_event(literal.type)(literal.value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if literal.type.kind in (*INTEGERS, Kind.NUMERIC):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def _call_text(call: Call, names: Mapping[int, str]) -> str:
    texts = list(_operands(call, names))
    name = call.name.removeprefix("float8 ")
    match name:
        case "and" | "or":
            return f" {name} ".join(texts)
        case "not":
            return f"not {texts[0]}"
        case "negate":
            return f"-{texts[0]}"
        case "case":
            *branches, otherwise = texts
            whens = " ".join(
                f"when {when} then {then}" for when, then in zip(branches[::2], branches[1::2], strict=True)
            )
            return f"case {whens} else {otherwise} end"
        case "fit":
            return f"{texts[0]}::numeric({texts[1][1:-1]})"
    if name == "checked":
        return texts[1]
    if name in _UNWRITTEN or (name == "integer_to_text" and call.type.kind is not Kind.TEXT):
        return texts[0]  # not in the user's query, and without effect on the value
    if name in _CASTS:
        return f"{texts[0]}::{call.type.name}"
    if name in _SUFFIXES:
        return f"{texts[0]} {_SUFFIXES[name]}"
    if (name in _INFIX or name in _INFIX_NAMES) and len(texts) >= 2:
        return f"{texts[0]} {_INFIX_NAMES.get(name, name)} {texts[1]}"
    if name.startswith("date_trunc:"):
        return f"date_trunc('{name.removeprefix('date_trunc:')}', {texts[0]})"
    if name.startswith("date_bin:"):
        _, stride, origin = name.split(":")
        return f"date_bin('{int(stride) / 1_000_000:g} seconds', {texts[0]}, '{micros_text(int(origin))}')"
    return f"{name}({', '.join(texts)})"


def _operands(call: Call, names: Mapping[int, str]) -> Iterator[str]:
    """The arguments' texts, in parentheses where needed."""
    for argument in call.arguments:
        text = expression_text(argument, names)
        yield f"({text})" if " " in text and isinstance(argument, Call) and _needs_parentheses(argument, call) else text


def _needs_parentheses(argument: Call, inside: Call) -> bool:
    if argument.name == inside.name:
        return inside.name not in ("and", "or")
    connects = inside.name in ("and", "or") and argument.name not in ("and", "or")
    return not (connects or _is_function(inside) or _is_function(argument))


def _is_function(call: Call) -> bool:
    return call.name in _CALLS or call.name.startswith(("date_trunc:", "date_bin:"))
