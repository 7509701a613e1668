"""sqlglot's tree of an expression -> a typed expression. Anything that isn't known here is refused. Types are resolved
as in PostgreSQL: integers widen, integers beside a numeric become numeric, and a literal in quotes takes the type of
its neighbour.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from sqlglot import exp
from sqlglot.expressions import Expr as Tree

from views.documents import document, has_json, jsonb_text
from views.evaluation import TRUNCATIONS, compiled
from views.expressions import Aggregate, Call, Expression, Literal, SortKey
from views.failures import EvaluationError
from views.numerics import decimal_of, fitted, scale_of, text_of
from views.sql.refusals import Refuse, only, refuse, refused
from views.values import (
    BOOL,
    DATE,
    FLOAT8,
    FLOATS,
    INFINITY,
    INT4,
    INT8,
    INTEGERS,
    JSON,
    JSONB,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    JsonForm,
    Kind,
    SqlType,
    parse_days,
    parse_micros,
    sql_type,
)

MakeAggregate = Callable[[Aggregate], Expression]

_COMPARISONS: Final[dict[type[Tree], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: Final[dict[type[Tree], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_LOOSE: Final = (
    *_COMPARISONS, exp.Is, exp.Not, exp.And, exp.Or, exp.In, exp.Between, exp.Like, exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip
"""Operators that bind so loosely that nesting them needs parentheses to mean the same everywhere."""

_CAST_KINDS: Final = {
    exp.DataType.Type.SMALLINT: sql_type(Kind.INT2),
    exp.DataType.Type.INT: INT4,
    exp.DataType.Type.BIGINT: INT8,
    exp.DataType.Type.DECIMAL: NUMERIC,
    exp.DataType.Type.TEXT: TEXT,
    exp.DataType.Type.VARCHAR: replace(TEXT, name="character varying"),
    exp.DataType.Type.BOOLEAN: BOOL,
    exp.DataType.Type.DATE: DATE,
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMPTZ,
    exp.DataType.Type.UUID: UUID,
    exp.DataType.Type.JSONB: JSONB,
    exp.DataType.Type.JSON: JSON,
    exp.DataType.Type.DOUBLE: FLOAT8,
}
_DOCUMENTS: Final = {f"{of}_build_{what}": f"{of}_{what}" for of in ("jsonb", "json") for what in ("object", "array")}
_WITHIN_GROUP: Final[dict[type[Tree], str]] = {
    exp.PercentileCont: "percentile_cont", exp.PercentileDisc: "percentile_disc", exp.Mode: "mode",
}  # fmt: skip
_INT4_LIMIT, _INT8_LIMIT = 1 << 31, 1 << 63
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_INTEGER_LIMITS: Final = {Kind.INT2: 1 << 15, Kind.INT4: _INT4_LIMIT, Kind.INT8: _INT8_LIMIT}
_NUMERIC = re.compile(r"[+-]?\d{1,1000}(\.\d{1,1000})?")
_NON_DETERMINISTIC: Final = (
    exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.Localtime, exp.Localtimestamp, exp.Rand,
    exp.CurrentUser, exp.Uuid,
)  # fmt: skip
_NON_DETERMINISTIC_NAMES: Final = frozenset(
    {"clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "nextval", "currval", "uuidv4",
     "uuidv7", "txid_current", "pg_current_xact_id"}
)  # fmt: skip
_FUNCTIONS_WITHOUT_CALL: Final = frozenset({"user", "current_role", "system_user"})
"""Functions that sqlglot takes for columns."""

_AGGREGATES: Final[dict[type[Tree], str]] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or", exp.ArrayAgg: "array_agg", exp.GroupConcat: "string_agg", exp.JSONArrayAgg: "json_agg",
}  # fmt: skip
_NAMED_AGGREGATES: Final = {"every": "bool_and", "jsonb_agg": "jsonb_agg"}
_NEVER_KEPT: Final[tuple[tuple[tuple[type[Tree], ...], str, str], ...]] = (
    (
        _NON_DETERMINISTIC,
        "its result changes without a change of a table",
        "store the value in a column, or filter where the view is read",
    ),
    ((exp.Window,), "window functions can't be kept", "use `top` of the view for the first rows of each key"),
    ((exp.Subquery, exp.Select, exp.Exists, exp.Any, exp.All), "a subquery can't be kept here", "write it as a join"),
    ((exp.Interval,), "arithmetic with intervals isn't supported", "add days to dates as integers"),
    (
        (exp.Lower, exp.Upper, exp.ILike, exp.Initcap),
        "upper and lower case depend on the database's locale",
        'write `lower(text collate "C")`, which changes ASCII letters, or store it in a column',
    ),
)
"""What is refused, why, and the remedy. The first row that fits counts."""


@dataclass(frozen=True)
class ExpressionReader:
    """Reads expressions of one clause.

    ``resolve`` finds a column. ``make_aggregate`` takes an aggregate and returns the column with its value; None where
    aggregates aren't allowed. ``settles_order`` says whether equal sort keys imply an equal argument. ``join_subquery``
    joins a subquery and returns the column with its value; None where subqueries aren't allowed.
    """

    resolve: Callable[[exp.Column], Expression]
    make_aggregate: MakeAggregate | None = None
    settles_order: Callable[[Expression, Sequence[SortKey]], bool] = lambda argument, order: False
    join_subquery: Callable[[Tree], Expression] | None = None

    def read(self, tree: Tree) -> Expression:
        """Raises Refuse for the part that can't be maintained."""
        read = _READ.get(type(tree)) or _READ_NAMED.get(_name(tree))
        if read is not None:
            return read(self, tree)
        if isinstance(tree, exp.Subquery | exp.Exists) and self.join_subquery is not None:
            return self.join_subquery(tree)
        raise _never_kept(tree)

    def condition(self, tree: Tree) -> Expression:
        return self.typed(tree, self.read(tree), BOOL)

    def typed(self, tree: Tree, expression: Expression, wanted: SqlType) -> Expression:
        """The expression with the wanted type, which only a literal may lack."""
        if expression.type.kind is Kind.UNKNOWN:
            return _known(tree, expression, wanted)
        if expression.type.kind is not wanted.kind:
            refuse(tree, f"it is of type {expression.type.name}, not {wanted.name}", f"write `::{wanted.name}`")
        return expression

    def text(self, tree: Tree) -> Expression:
        return self.typed(tree, self.read(tree), TEXT)

    def operand(self, tree: Tree) -> Expression:
        if isinstance(tree, _LOOSE):
            refuse(tree, "which operator comes first isn't clear", "put it in parentheses")
        return self.read(tree)

    def sort_key(self, tree: Tree) -> SortKey:
        if not isinstance(tree, exp.Ordered):
            refuse(tree, "this isn't supported", "order by an expression")
        only(tree, "desc", "nulls_first")
        if isinstance(tree.this, exp.Literal):
            refuse(tree, "a position in an order isn't supported", "write the expression")
        expression = self.read(tree.this)
        require_order(tree.this, expression.type, is_c=is_in_c(tree.this))
        return SortKey(expression, bool(tree.args.get("desc")), bool(tree.args.get("nulls_first")))


def _never_kept(tree: Tree) -> Refuse:
    for types, reason, remedy in _NEVER_KEPT:
        if (
            isinstance(tree, types)
            or (types is _NON_DETERMINISTIC and _name(tree) in _NON_DETERMINISTIC_NAMES)
            or (exp.Select in types and tree.find(exp.Select))
        ):
            return refused(tree, reason, remedy)
    return refused(
        tree,
        "this isn't supported",
        "store its result in a column that a trigger fills, or compute it where it is read",
    )


def _column(reader: ExpressionReader, tree: exp.Column) -> Expression:
    name = tree.this
    if tree.args.get("table") is None and not name.args.get("quoted") and name.name.lower() in _FUNCTIONS_WITHOUT_CALL:
        refuse(tree, f"to PostgreSQL {name.name} is who asks, and no column", f'write "{name.name.lower()}" in quotes')
    return reader.resolve(tree)


def _in_parentheses(reader: ExpressionReader, tree: exp.Paren) -> Expression:
    only(tree)
    return reader.read(tree.this)


def _both(reader: ExpressionReader, tree: exp.Connector) -> Expression:
    only(tree)
    name = "and" if isinstance(tree, exp.And) else "or"
    return Call(name, (reader.condition(tree.this), reader.condition(tree.expression)), BOOL)


def _not(reader: ExpressionReader, tree: exp.Not) -> Expression:
    only(tree)
    return Call("not", (reader.condition(tree.this),), BOOL)


def _collated(reader: ExpressionReader, tree: exp.Collate) -> Expression:
    collation = tree.expression
    if not isinstance(collation, exp.Identifier) or collation.name not in ("C", "POSIX"):
        refuse(tree, "only the collation C is the same everywhere", 'write `collate "C"`')
    operand = reader.read(tree.this)
    return operand if operand.type.kind is Kind.CHAR else reader.typed(tree.this, operand, TEXT)


# --- conditions ---


def _comparison(reader: ExpressionReader, tree: Tree) -> Expression:
    only(tree)
    return compared(
        tree,
        _COMPARISONS[type(tree)],
        reader.operand(tree.this),
        reader.operand(tree.expression),
        is_c=is_in_c(tree.this) or is_in_c(tree.expression),
    )


def _is(reader: ExpressionReader, tree: exp.Is) -> Expression:
    only(tree, "negate")
    operand = reader.operand(tree.this)
    match tree.expression:
        case exp.Null():
            result = Call("is_null", (operand,), BOOL)
        case exp.Boolean():
            name = "is_true" if tree.expression.this else "is_false"
            result = Call(name, (reader.typed(tree, operand, BOOL),), BOOL)
        case _:
            refuse(tree, "this isn't supported", "use `is null`, `is true` or `is false`")
    return Call("not", (result,), BOOL) if tree.args.get("negate") else result


def _is_distinct(reader: ExpressionReader, tree: Tree) -> Expression:
    only(tree)
    left, right = reader.operand(tree.this), reader.operand(tree.expression)
    if not _has_own_equality((left, right)):
        left, right = united(tree, [left, right])
    distinct = Call("is_distinct", (left, right, compared(tree, "=", left, right)), BOOL)
    return distinct if isinstance(tree, exp.NullSafeNEQ) else Call("not", (distinct,), BOOL)


def _in(reader: ExpressionReader, tree: exp.In) -> Expression:
    if tree.args.get("query") or tree.args.get("field") or tree.args.get("unnest"):
        refuse(tree, "`in` with a subquery can't be kept", "write `exists (select 1 ... where a = b)`, or a join")
    only(tree, "expressions")
    operand, *members = [reader.operand(tree.this), *map(reader.read, tree.expressions)]
    if operand.type.json_form is JsonForm.FLOAT4:
        refuse(tree, "members of the list are rounded like the column", "write comparisons with `or`")
    if not _has_own_equality([operand]):
        operand, *members = united(tree, [operand, *members])
    return Call("or", tuple(compared(tree, "=", operand, member) for member in members), BOOL)


def _between(reader: ExpressionReader, tree: exp.Between) -> Expression:
    only(tree, "low", "high")
    operand, low, high = reader.operand(tree.this), reader.operand(tree.args["low"]), reader.operand(tree.args["high"])
    is_c = any(map(is_in_c, (tree.this, tree.args["low"], tree.args["high"])))
    bounds = (compared(tree, ">=", operand, low, is_c=is_c), compared(tree, "<=", operand, high, is_c=is_c))
    return Call("and", bounds, BOOL)


def _like(reader: ExpressionReader, tree: exp.Like) -> Expression:
    only(tree, "negate")
    result = Call("like", (reader.text(tree.this), reader.text(tree.expression)), BOOL)
    return Call("not", (result,), BOOL) if tree.args.get("negate") else result


def _case(reader: ExpressionReader, tree: exp.Case) -> Expression:
    only(tree, "ifs", "default")
    branches = tree.args["ifs"]
    if tree.this is not None:
        subject = reader.read(tree.this)
        conditions: list[Expression] = [compared(tree, "=", subject, reader.read(branch.this)) for branch in branches]
    else:
        conditions = [reader.condition(branch.this) for branch in branches]
    default = tree.args.get("default")
    results = [reader.read(branch.args["true"]) for branch in branches]
    results.append(Literal(None, UNKNOWN) if default is None else reader.read(default))
    *results, otherwise = united(tree, results)
    arguments = [part for pair in zip(conditions, results, strict=True) for part in pair]
    return Call("case", (*arguments, otherwise), common_type([*results, otherwise]))


def _nullif(reader: ExpressionReader, tree: exp.Nullif) -> Expression:
    only(tree)
    subject, other = reader.read(tree.this), reader.read(tree.expression)
    kinds = {subject.type.kind, other.type.kind}
    if subject.type.kind is Kind.UNKNOWN or (Kind.NUMERIC in kinds and kinds <= {*INTEGERS, Kind.NUMERIC}):
        subject, other = united(tree, [subject, other])  # of two integers, the first keeps its type
    elif _has_own_equality((subject, other)) and subject.type != other.type and other.type.kind is not Kind.UNKNOWN:
        refuse(tree, f"{subject.type.name} stands beside {other.type.name}", "cast one of them")
    return Call("case", (compared(tree, "=", subject, other), Literal(None, subject.type), subject), subject.type)


# --- values ---


def _coalesced(reader: ExpressionReader, tree: exp.Coalesce) -> Expression:
    only(tree, "expressions")
    arguments = united(tree, [reader.read(part) for part in (tree.this, *tree.expressions)])
    return Call("coalesce", tuple(arguments), common_type(arguments))


def _length(reader: ExpressionReader, tree: exp.Length) -> Expression:
    only(tree)
    return Call("length", (reader.text(tree.this),), INT4)


def _in_case(reader: ExpressionReader, tree: exp.Lower | exp.Upper) -> Expression:
    only(tree)
    if not is_in_c(tree.this):
        raise _never_kept(tree)
    return Call("lower" if isinstance(tree, exp.Lower) else "upper", (reader.text(tree.this),), TEXT)


def _unary(reader: ExpressionReader, tree: Tree) -> Expression:
    only(tree)
    operand = reader.read(tree.this)
    if operand.type.kind not in (*INTEGERS, Kind.NUMERIC):
        refuse(tree, f"it isn't kept for {operand.type.name}", "use an integer or numeric column")
    return Call("negate" if isinstance(tree, exp.Neg) else "abs", (operand,), operand.type)


def _arithmetic(reader: ExpressionReader, tree: Tree) -> Expression:
    only(tree, "typed", "safe")
    name = _ARITHMETIC[type(tree)]
    left, right = reader.operand(tree.this), reader.operand(tree.expression)
    kinds = (left.type.kind, right.type.kind)
    if kinds[0] is Kind.DATE and name in "+-" and kinds[1] in INTEGERS[:2]:
        return Call("date_plus" if name == "+" else "date_minus", (left, right), DATE)
    if kinds[1] is Kind.DATE and name == "+" and kinds[0] in INTEGERS[:2]:
        return Call("date_plus", (right, left), DATE)
    if kinds == (Kind.DATE, Kind.DATE) and name == "-":
        return Call("days_between", (left, right), INT4)
    if FLOAT8 in (left.type, right.type) and name != "%":
        sides = (converted(tree.this, left, FLOAT8), converted(tree.expression, right, FLOAT8))
        return Call(f"float8 {name}", sides, FLOAT8)
    left, right = united(tree, [left, right])
    if left.type.kind not in (*INTEGERS, Kind.NUMERIC):
        refuse(
            tree,
            f"arithmetic with {left.type.name} isn't kept exactly",
            "use integer or numeric columns, or store the result in a column that a trigger fills",
        )
    return Call(name, (left, right), _result_type(name, left.type, right.type))


def _concatenated(reader: ExpressionReader, tree: exp.DPipe) -> Expression:
    only(tree, "safe")
    left, right = reader.operand(tree.this), reader.operand(tree.expression)
    return Call("||", (reader.typed(tree.this, left, TEXT), reader.typed(tree.expression, right, TEXT)), TEXT)


def _at_utc(reader: ExpressionReader, tree: exp.AtTimeZone) -> Expression:
    only(tree, "zone")
    operand = reader.read(tree.this)
    if operand.type.kind not in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        refuse(tree, "it isn't a timestamp", "cast it to timestamp")
    _require_utc(tree)
    return Call("same", (operand,), TIMESTAMPTZ if operand.type.kind is Kind.TIMESTAMP else TIMESTAMP)


def _truncated(reader: ExpressionReader, tree: exp.TimestampTrunc) -> Expression:
    only(tree, "unit", "zone")
    unit = tree.args["unit"].name.lower()
    if unit not in TRUNCATIONS:
        refuse(tree, f"the unit {unit!r} isn't supported", f"use one of {', '.join(sorted(TRUNCATIONS))}")
    operand = reader.read(tree.this)
    if operand.type.kind is Kind.TIMESTAMPTZ:
        if tree.args.get("zone") is None:
            refuse(tree, "it depends on the session's time zone", "write `date_trunc(unit, column, 'UTC')`")
        _require_utc(tree)
    elif operand.type.kind is not Kind.TIMESTAMP or tree.args.get("zone") is not None:
        refuse(tree, "it isn't a timestamp", "cast it: `::timestamp`, or `at time zone 'UTC'`")
    return Call(f"date_trunc:{unit}", (operand,), operand.type)


def _binned(reader: ExpressionReader, tree: exp.DateBin) -> Expression:
    only(tree, "expression", "unit")
    stride = _stride_us(tree.this)
    if not 0 < stride < _INT8_LIMIT:
        refuse(tree, "its width isn't a literal of weeks, days, hours, minutes or seconds", "write '15 minutes'")
    operand = reader.read(tree.expression)
    if operand.type.kind not in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        refuse(tree, "it isn't a timestamp", "cast it: `::timestamp`, or `at time zone 'UTC'`")
    given = tree.args.get("unit")
    if given is None:
        refuse(tree, "it has no origin", "write `date_bin(width, column, origin)`")
    # sqlglot puts the third argument in a unit's place, where a text in quotes is a name.
    origin = Literal(given.name, UNKNOWN) if isinstance(given, exp.Var) else reader.read(given)
    origin = reader.typed(tree, origin, operand.type)
    if not isinstance(origin, Literal) or not isinstance(origin.value, int) or abs(origin.value) == INFINITY:
        refuse(tree, "its origin isn't a literal", "write the beginning of any of the intervals, in quotes")
    return Call(f"date_bin:{stride}:{origin.value}", (operand,), operand.type)


def _cast(reader: ExpressionReader, tree: exp.Cast) -> Expression:
    only(tree, "to")
    target = _CAST_KINDS.get(tree.to.this)
    parameters = [int(parameter.name) for parameter in tree.to.expressions if parameter.name.isdigit()]
    if target is None or (parameters and target.kind is not Kind.NUMERIC):
        refuse(tree, "this cast isn't supported", "cast to text, integer, numeric, date, timestamp or uuid")
    cast = converted(tree, reader.read(tree.this), target)
    return _fitted(tree, cast, parameters) if parameters else cast


def _fitted(tree: exp.Cast, operand: Expression, parameters: list[int]) -> Expression:
    precision, scale = parameters[0], parameters[1] if len(parameters) > 1 else 0
    if len(parameters) != len(tree.to.expressions) or not (1 <= precision <= 1000 and scale <= precision):
        refuse(tree, "this cast isn't supported", "cast to numeric(precision,scale)")
    of = sql_type(Kind.NUMERIC, scale)
    if _is_null(operand):
        return Literal(None, of)
    if isinstance(operand, Literal):
        try:
            return Literal(text_of(fitted(decimal_of(str(operand.value)), precision, scale)), of)
        except EvaluationError as error:
            refuse(tree, error.message, "write a wider type")
    return Call("fit", (operand, Literal(f"{precision},{scale}", TEXT)), of)


def _member(reader: ExpressionReader, tree: exp.JSONExtract | exp.JSONExtractScalar) -> Expression:
    """A member of a jsonb object by name, or an element of an array by position."""
    only(tree, "only_json_types")
    document, path = reader.read(tree.this), tree.expression
    if document.type.json_form is not JsonForm.JSONB:
        refuse(tree, f"{document.type.name} isn't jsonb", "use a jsonb column")
    member = path.expressions[1].this if isinstance(path, exp.JSONPath) and len(path.expressions) == 2 else None
    if isinstance(path, exp.Neg) and isinstance(path.this, exp.Literal) and path.this.is_int:
        member = -int(path.this.name)
    if not isinstance(member, str | int):
        refuse(tree, "its member isn't a literal", "write a name in quotes, or a number")
    of = TEXT if isinstance(tree, exp.JSONExtractScalar) else JSONB
    literal = Literal(member, TEXT if isinstance(member, str) else INT4)
    return Call("->>" if of is TEXT else "->", (document, literal), of)


def _document(reader: ExpressionReader, tree: Tree) -> Expression:
    name = _DOCUMENTS[_name(tree)]
    of = JSONB if name.startswith("jsonb") else JSON
    only(tree, "expressions")
    is_object = name.endswith("_object")
    parts: list[Expression] = []
    if is_object and len(tree.expressions) % 2:
        refuse(tree, "a name has no value", "write names and values by turns")
    for place, part in enumerate(tree.expressions):
        if is_object and place % 2 == 0:
            if not isinstance(part, exp.Literal) or not part.is_string:
                refuse(tree, "a name isn't a literal", "write it as text in quotes")
            parts.append(Literal(str(part.this), TEXT))
        else:
            read = reader.read(part)
            parts.append(_json_part(part, _known(part, read, TEXT) if read.type.kind is Kind.UNKNOWN else read, of))
    return Call(name, tuple(parts), of)


# --- aggregates ---


def _aggregate(reader: ExpressionReader, tree: Tree) -> Expression:
    if reader.make_aggregate is None:
        refuse(tree, "an aggregate can't stand here", "move it to the select list or to `having`")
    condition = None
    inside = replace(reader, make_aggregate=None)
    whole = tree
    if isinstance(tree, exp.Filter):
        only(tree)
        condition = inside.condition(tree.expression.this)
        tree = tree.this
    made = _aggregate_of(inside, tree)
    return reader.make_aggregate(replace(made, condition=condition) if whole is not tree else made)


def _aggregate_of(reader: ExpressionReader, tree: Tree) -> Aggregate:
    if isinstance(tree, exp.WithinGroup):
        return _within_group(reader, tree)
    only(tree, "big_int", "separator", "expressions" if _name(tree) else "", "nulls_excluded")
    function, argument_tree = _function_and_argument(tree)
    if isinstance(argument_tree, exp.Star):
        return Aggregate("count", None, INT8)
    order: tuple[SortKey, ...] = ()
    is_distinct = False
    if isinstance(argument_tree, exp.Order):
        order = tuple(reader.sort_key(key) for key in argument_tree.expressions)
        argument_tree = argument_tree.this
    if isinstance(argument_tree, exp.Distinct):
        if len(argument_tree.expressions) != 1 or argument_tree.args.get("on"):
            refuse(tree, "distinct takes one expression here", "count one expression")
        is_distinct = function not in ("min", "max", "bool_and", "bool_or")
        argument_tree = argument_tree.expressions[0]
    argument = reader.read(argument_tree)
    if argument.type.kind is Kind.UNKNOWN:
        if function in ("jsonb_agg", "json_agg"):
            refuse(tree, "the type of its element isn't known", "write `::text` after it")
        argument = _known(argument_tree, argument, TEXT)
    if is_distinct and function != "count":
        refuse(tree, f"distinct isn't kept for {function}", "select distinct rows in a subquery first")
    if is_distinct and not argument.type.is_comparable:
        refuse(tree, f"equality of {argument.type.name} isn't known here", "cast it to text if it is an enum")
    result = _aggregate_type(tree, function, argument.type, is_c=is_in_c(argument_tree))
    separator = ""
    if function in ("array_agg", "string_agg", "jsonb_agg", "json_agg"):
        if not reader.settles_order(argument, order):
            refuse(
                tree,
                "the order of its elements isn't settled",
                "add `order by` inside, ending with the element itself or the key of its table",
            )
        if function == "string_agg":
            separator = _separator(tree)
        return Aggregate(function, argument, result, order=order, separator=separator)
    return Aggregate(function, argument, result, is_distinct)


def _within_group(reader: ExpressionReader, tree: exp.WithinGroup) -> Aggregate:
    only(tree)
    function = _WITHIN_GROUP.get(type(tree.this))
    order = tree.expression.expressions
    if function is None or len(order) != 1:
        refuse(tree, "this aggregate isn't supported", "use percentile_cont, percentile_disc or mode of one column")
    fraction = 0.0
    if function != "mode":
        only(tree.this)
        literal = tree.this.this
        if not isinstance(literal, exp.Literal) or literal.is_string or not _NUMERIC.fullmatch(str(literal.this)):
            refuse(tree, "its fraction isn't a literal", "write it as a number from 0 to 1")
        fraction = float(str(literal.this))
        if fraction > 1:
            refuse(tree, "its fraction is greater than 1", "write it as a number from 0 to 1")
    key = reader.sort_key(order[0])
    argument = key.expression
    if function == "percentile_cont":
        if argument.type.kind not in (*INTEGERS, Kind.NUMERIC):
            refuse(tree, f"it isn't kept for {argument.type.name}", "use an integer or numeric column")
        of = FLOAT8
    else:
        if not argument.type.has_one_form:
            refuse(tree, "equal numerics can look different", "cast it to numeric(precision,scale)")
        of = argument.type
    return Aggregate(function, argument, of, fraction=fraction, is_descending=key.descending)


def _separator(tree: Tree) -> str:
    separator = tree.args.get("separator")
    if not isinstance(separator, exp.Literal) or not separator.is_string:
        refuse(tree, "its separator isn't a literal", "write it as text in quotes")
    return str(separator.this)


def _name(tree: Tree) -> str:
    """The name of a function that sqlglot has no class for."""
    return str(tree.this).lower() if isinstance(tree, exp.Anonymous) else ""


def _function_and_argument(tree: Tree) -> tuple[str, Tree]:
    if (function := _AGGREGATES.get(type(tree))) is not None:
        if tree.args.get("expressions"):
            refuse(tree, "it takes one expression here", "aggregate one expression")
        return function, tree.this
    function = _NAMED_AGGREGATES.get(_name(tree))
    if function is None or len(tree.expressions) != 1:
        refuse(tree, "this aggregate isn't supported", "use count, sum, avg, min, max, bool_and, array_agg, string_agg")
    return function, tree.expressions[0]


_READ: Final[dict[type[Tree], Callable[[ExpressionReader, Any], Expression]]] = {
    exp.Paren: _in_parentheses,
    exp.Column: _column,
    exp.Literal: lambda _, tree: _literal(tree),
    exp.Null: lambda _, tree: Literal(None, UNKNOWN),
    exp.Boolean: lambda _, tree: Literal(bool(tree.this), BOOL),
    exp.Collate: _collated,
    exp.And: _both,
    exp.Or: _both,
    exp.Not: _not,
    exp.Is: _is,
    exp.NullSafeEQ: _is_distinct,
    exp.NullSafeNEQ: _is_distinct,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Case: _case,
    exp.Coalesce: _coalesced,
    exp.Nullif: _nullif,
    exp.Neg: _unary,
    exp.Abs: _unary,
    exp.DPipe: _concatenated,
    exp.Length: _length,
    exp.Lower: _in_case,
    exp.Upper: _in_case,
    exp.JSONExtract: _member,
    exp.JSONExtractScalar: _member,
    exp.Cast: _cast,
    exp.AtTimeZone: _at_utc,
    exp.TimestampTrunc: _truncated,
    exp.DateBin: _binned,
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys((*_AGGREGATES, exp.WithinGroup, exp.Filter), _aggregate),
}
"""The reader of each part that can be maintained."""

_READ_NAMED: Final[dict[str, Callable[[ExpressionReader, Any], Expression]]] = {
    **dict.fromkeys(_DOCUMENTS, _document),
    **dict.fromkeys(_NAMED_AGGREGATES, _aggregate),
}
"""The same for functions that sqlglot has no class for."""


def is_in_c(tree: Tree) -> bool:
    """Whether text of this expression is explicitly in collation C."""
    while isinstance(tree, exp.Paren | exp.Distinct | exp.Order):
        tree = tree.expressions[0] if isinstance(tree, exp.Distinct) else tree.this
    return isinstance(tree, exp.Collate)


def require_order(tree: Tree, of: SqlType, *, is_c: bool) -> None:
    """Refuse a type whose values can't be sorted as PostgreSQL does."""
    if of.kind in (Kind.TEXT, Kind.CHAR) and not is_c:
        refuse(tree, "the order of text depends on the database's collation", 'write `collate "C"` after it')
    if not of.is_comparable:
        refuse(tree, f"the order of {of.name} isn't known here", 'cast it to text and write `collate "C"`')


def compared(tree: Tree, name: str, left: Expression, right: Expression, *, is_c: bool = False) -> Expression:
    sides = (left, right)
    if any(side.type.json_form in FLOATS for side in sides):
        return Call(name, (_float_place(tree, left, right), _float_place(tree, right, left)), BOOL)
    for side in sides:
        if side.type.kind is Kind.OPAQUE:
            refuse(
                tree,
                f"equality of {side.type.name} isn't known here",
                "cast it to text if it is an enum, or compare where the view is read",
            )
    if any(side.type.kind is Kind.CHAR for side in sides):
        left, right = _without_blanks(tree, left, right), _without_blanks(tree, right, left)
    else:
        left, right = united(tree, [left, right])
    if name not in ("=", "<>"):
        require_order(tree, left.type, is_c=is_c)
    return Call(name, (left, right), BOOL)


def _without_blanks(tree: Tree, side: Expression, other: Expression) -> Expression:
    """A side of a comparison with ``char(n)``: blanks at the end of such values and of literals don't count."""
    if isinstance(side, Literal) and side.type.kind is Kind.UNKNOWN:
        return Literal(None if side.value is None else str(side.value).rstrip(" "), other.type)
    if side.type.kind is Kind.CHAR:
        return Call("same", (side,), TEXT) if other.type.kind is Kind.TEXT else side
    if side.type.kind is not Kind.TEXT or side.type.name != TEXT.name:
        refuse(tree, f"{side.type.name} stands beside {other.type.name}", "cast both to text")
    return side


def _has_own_equality(parts: Sequence[Expression]) -> bool:
    """Whether a value has a type that is compared without a conversion to a common type."""
    return any(part.type.kind is Kind.CHAR or part.type.json_form in FLOATS for part in parts)


def _float_place(tree: Tree, side: Expression, other: Expression) -> Expression:
    """A side of a comparison with a float, as its position in the order of floats."""
    of = side.type
    if of.kind is Kind.UNKNOWN and isinstance(side, Literal):
        if side.value is None:
            return Literal(None, INT8)
        text = str(side.value)
        if not _NUMERIC.fullmatch(text) and text not in ("NaN", "Infinity", "-Infinity"):
            refuse(tree, f"{clause_text(text)} isn't read as {other.type.name} here", "write it with digits")
        side = Literal(orjson.dumps(text).decode(), other.type)
        of = other.type
    if of.json_form is JsonForm.FLOAT4:
        place = Call("float4_order", (side,), INT8)
    elif of.json_form is JsonForm.FLOAT8:
        place = Call("float_order", (side,), INT8)
    elif of.kind in (*INTEGERS, Kind.NUMERIC):
        place = Call("number_order", (side,), INT8)
    else:
        refuse(tree, f"{of.name} stands beside {other.type.name}", "cast one of them")
    if isinstance(side, Literal):
        _check_place(tree, place, side)
    return place


def _check_place(tree: Tree, place: Call, literal: Literal) -> None:
    try:
        compiled(place, ())(())
    except (EvaluationError, OverflowError):
        refuse(tree, f"{clause_text(str(literal.value))} is out of range for a float", "write a number within it")


def united(tree: Tree, parts: Sequence[Expression]) -> list[Expression]:
    """The expressions with one type: the widest of the numbers, or the type that all of them have."""
    kinds = {part.type.kind for part in parts} - {Kind.UNKNOWN}
    names = {part.type.name for part in parts if part.type.kind is not Kind.UNKNOWN}
    if not kinds:
        return [_known(tree, part, TEXT) for part in parts]
    if kinds <= set(INTEGERS):
        kind = max(kinds, key=INTEGERS.index)
        of = sql_type(kind)
        return [_widened(tree, part, of) for part in parts]
    if kinds <= {*INTEGERS, Kind.NUMERIC}:
        return _as_numerics(tree, parts)
    if len(kinds) > 1:
        refuse(tree, f"{' and '.join(sorted(names))} stand together", "cast one of them")
    of = next(part.type for part in parts if part.type.kind is not Kind.UNKNOWN)
    if of.kind is Kind.OPAQUE and len(names) > 1:
        refuse(tree, f"{of.name} stands beside another type", "cast it to text if it is an enum")
    if of.kind is Kind.CHAR and any(part.type.scale != of.scale and not _is_null(part) for part in parts):
        refuse(tree, f"{of.name} stands beside text of another length", "cast both to text")  # each keeps its blanks
    return [_known(tree, part, of) if part.type.kind is Kind.UNKNOWN else part for part in parts]


def _as_numerics(tree: Tree, parts: Sequence[Expression]) -> list[Expression]:
    converted: list[Expression] = []
    for part in parts:
        if part.type.kind is Kind.UNKNOWN:
            converted.append(_known(tree, part, NUMERIC))
        elif part.type.kind is not Kind.NUMERIC:
            converted.append(Call("integer_to_text", (part,), sql_type(Kind.NUMERIC, 0)))
        else:
            converted.append(part)
    return converted


def common_type(parts: Sequence[Expression]) -> SqlType:
    """The type of a column with the values of all these expressions, which are united already."""
    first = parts[0].type
    scales = {part.type.scale for part in parts if not (isinstance(part, Literal) and part.value is None)}
    return replace(first, scale=scales.pop() if len(scales) == 1 else None) if first.kind is Kind.NUMERIC else first


def _widened(tree: Tree, part: Expression, of: SqlType) -> Expression:
    if part.type.kind is Kind.UNKNOWN:
        return _known(tree, part, of)
    return part if part.type.kind is of.kind else Call("to_integer", (part,), of)


def _result_type(name: str, left: SqlType, right: SqlType) -> SqlType:
    if left.kind is not Kind.NUMERIC:
        return left
    if name == "/" or left.scale is None or right.scale is None:
        return NUMERIC
    return sql_type(Kind.NUMERIC, left.scale + right.scale if name == "*" else max(left.scale, right.scale))


def _aggregate_type(tree: Tree, function: str, argument: SqlType, *, is_c: bool) -> SqlType:
    match function:
        case "count":
            return INT8
        case "bool_and" | "bool_or" if argument.kind is Kind.BOOL:
            return BOOL
        case "min" | "max" if argument.kind not in (Kind.BOOL, Kind.UUID):
            require_order(tree, argument, is_c=is_c)
            if not argument.has_one_form:
                refuse(tree, "equal numerics can look different", "cast it to numeric(precision,scale)")
            return argument
        case "sum" if argument.kind in (Kind.INT2, Kind.INT4):
            return INT8
        case "sum" if argument.kind in (Kind.INT8, Kind.NUMERIC):
            return sql_type(Kind.NUMERIC, 0 if argument.kind is Kind.INT8 else argument.scale)
        case "avg" if argument.kind in (*INTEGERS, Kind.NUMERIC):
            return NUMERIC
        case "array_agg" if argument.kind is not Kind.OPAQUE:
            return SqlType(Kind.OPAQUE, f"{argument.name}[]")
        case "string_agg" if argument.kind is Kind.TEXT:
            return TEXT
        case "jsonb_agg" | "json_agg":
            of = JSONB if function == "jsonb_agg" else JSON
            _require_json(tree, argument, of)
            return of
    if argument.name.startswith(("float", "double", "real")):
        refuse(
            tree,
            f"{function} of {argument.name} depends on the order of its rows",
            "make the table's column numeric",
        )
    raise refused(tree, f"{function} isn't kept for {argument.name}", "aggregate another type, or cast it")


def _json_part(tree: Tree, part: Expression, of: SqlType) -> Expression:
    _require_json(tree, part.type, of)
    return part


def _require_json(tree: Tree, part: SqlType, of: SqlType) -> None:
    if not has_json(part, of):
        refuse(
            tree,
            f"how {part.name} looks inside {of.name} isn't known here",
            "cast it to text, or make the table's column jsonb",
        )


def _cast_name(source: SqlType, target: Kind) -> str | None:
    """The function of a cast that gives the same result everywhere; None for other casts."""
    if source.kind is target:
        return "same"
    if source.kind in INTEGERS:
        return {
            **dict.fromkeys(INTEGERS, "to_integer"),
            Kind.NUMERIC: "integer_to_text",
            Kind.TEXT: "integer_to_text",
        }.get(target)
    match source.kind, target:
        case Kind.NUMERIC, Kind.INT2 | Kind.INT4 | Kind.INT8:
            return "numeric_to_integer"
        case Kind.TEXT, Kind.INT2 | Kind.INT4 | Kind.INT8:
            return "text_to_integer"
        case Kind.TEXT, Kind.NUMERIC:
            return "text_to_numeric"
        case ((Kind.NUMERIC | Kind.UUID | Kind.CHAR), Kind.TEXT):
            return "same"
        case Kind.BOOL, Kind.TEXT:
            return "bool_to_text"
        case Kind.OPAQUE, Kind.TEXT if source.is_user_text or source.json_form in (JsonForm.JSONB, JsonForm.JSON):
            return "stored_text"
        case Kind.TIMESTAMP, Kind.DATE:
            return "day_of"
        case Kind.DATE, Kind.TIMESTAMP:
            return "midnight_of"
    return None


def converted(tree: Tree, operand: Expression, target: SqlType) -> Expression:
    """The cast of an expression to a type. Raises Refuse for a cast whose result may differ elsewhere."""
    source = operand.type
    if source.kind is Kind.UNKNOWN:
        return _known(tree, operand, target)
    if target.json_form is JsonForm.FLOAT8 and source.kind in (*INTEGERS, Kind.NUMERIC):
        return Call("to_float8", (operand,), FLOAT8)
    if target.json_form is JsonForm.FLOAT8 and source.json_form is JsonForm.FLOAT4:
        return Call("float4_to_float8", (operand,), FLOAT8)
    if target.json_form is not JsonForm.UNKNOWN:
        return _as_document(tree, operand, target)
    name = _cast_name(source, target.kind)
    if name is None:
        if Kind.TIMESTAMPTZ in (source.kind, target.kind):
            refuse(tree, "it depends on the session's time zone", "write `at time zone 'UTC'`")
        reason = f"the cast of {source.name} to {target.name} can have another result"
        refuse(tree, reason, "store the result in a column that a trigger fills")
    if target.kind is Kind.NUMERIC:
        return Call(name, (operand,), sql_type(Kind.NUMERIC, 0 if source.kind in INTEGERS else source.scale))
    if source.kind is target.kind:
        return replace(operand, type=replace(source, name=target.name))
    return Call(name, (operand,), target)


def _as_document(tree: Tree, operand: Expression, target: SqlType) -> Expression:
    """A document as the other document type. The text of jsonb is valid json, but not the reverse."""
    if operand.type.json_form is target.json_form:
        return operand
    if operand.type.json_form is not JsonForm.JSONB or target.json_form is not JsonForm.JSON:
        refuse(tree, f"the cast of {operand.type.name} to {target.name} isn't supported", "use a column of that type")
    return Call("same", (operand,), target)


_UNITS_US: Final = {
    "microsecond": 1, "millisecond": 1000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000,
    "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_STRIDE = re.compile(r"\s*(?:\d{1,9}\s*[a-z]+\s*)+", re.IGNORECASE)
_STRIDE_PART = re.compile(r"(\d+)\s*([a-z]+)", re.IGNORECASE)


def _stride_us(tree: Tree) -> int:
    """An interval literal in microseconds; 0 for another form, or for months, which vary in length."""
    unit = tree.args.get("unit") if isinstance(tree, exp.Interval) else None
    literal = tree.this if isinstance(tree, exp.Interval) else tree
    if not isinstance(literal, exp.Literal) or not literal.is_string:
        return 0
    text = f"{literal.this} {unit.name}" if unit is not None else str(literal.this)
    parts = [(int(number), name.lower().removesuffix("s")) for number, name in _STRIDE_PART.findall(text)]
    if not _STRIDE.fullmatch(text) or any(name not in _UNITS_US for _, name in parts):
        return 0
    return sum(number * _UNITS_US[name] for number, name in parts)


def _require_utc(tree: Tree) -> None:
    zone = tree.args.get("zone")
    if not isinstance(zone, exp.Literal) or str(zone.this).upper() != "UTC":
        refuse(tree, "rules of time zones change", "use 'UTC'")


# --- literals ---


def _literal(tree: exp.Literal) -> Expression:
    text = str(tree.this)
    if tree.is_string:
        return Literal(text, UNKNOWN)
    if text.isdecimal() and text.isascii():
        number = int(text)
        if number < _INT8_LIMIT:
            return Literal(number, INT4 if number < _INT4_LIMIT else INT8)
    if not _NUMERIC.fullmatch(text):
        refuse(tree, "this number isn't supported", "write it with digits and at most a point")
    exact = decimal_of(text)
    return Literal(text_of(exact), sql_type(Kind.NUMERIC, scale_of(exact)))


def _known(tree: Tree, expression: Expression, of: SqlType) -> Expression:
    """A literal in quotes, or null, as a type. Refuses forms that PostgreSQL would read depending on settings."""
    if not isinstance(expression, Literal):
        refuse(tree, "its type isn't known", f"write `::{of.name}`")
    if expression.value is None:
        return Literal(None, of)
    text = str(expression.value)
    match of.kind:
        case Kind.TEXT:
            return Literal(text, of)
        case Kind.BOOL if text in ("true", "false"):
            return Literal(text == "true", of)
        case Kind.INT2 | Kind.INT4 | Kind.INT8 if _INTEGER.fullmatch(text):
            limit = _INTEGER_LIMITS[of.kind]
            if not -limit <= int(text) < limit:
                refuse(tree, f"{text} is out of range for {of.name}", "write a wider type")
            return Literal(int(text), of)
        case Kind.NUMERIC if _NUMERIC.fullmatch(text):
            exact = decimal_of(text)
            return Literal(text_of(exact), sql_type(Kind.NUMERIC, scale_of(exact)))
        case Kind.UUID if _UUID.fullmatch(text):
            return Literal(text, of)
        case Kind.OPAQUE if of.json_form in (JsonForm.JSONB, JsonForm.JSON):
            try:
                canonical = jsonb_text(text)
            except (ValueError, EvaluationError):
                refuse(tree, f"{clause_text(text)} isn't read as {of.name} here", "write valid JSON")
            return Literal(document(canonical if of.json_form is JsonForm.JSONB else text), of)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return Literal(_instant(tree, text, of.kind), of)
    raise refused(
        tree, f"{clause_text(text)} isn't read as {of.name} here", "write it in its plain form, as ISO 8601 has it"
    )


def _is_null(part: Expression) -> bool:
    return isinstance(part, Literal) and part.value is None


def clause_text(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _instant(tree: Tree, text: str, kind: Kind) -> int:
    try:
        if kind is Kind.DATE:
            return parse_days(text)
        is_utc = text.endswith(("Z", "+00"))
        if text in ("infinity", "-infinity") or (kind is Kind.TIMESTAMPTZ) == is_utc:
            return parse_micros(text.removesuffix("+00").replace(" ", "T", 1))
    except ValueError:
        pass
    ending = " and ends with Z" if kind is Kind.TIMESTAMPTZ else ""
    raise refused(tree, f"{clause_text(text)} isn't read as {kind.value} here", f"write it as ISO 8601 has it{ending}")
