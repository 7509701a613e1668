"""Expressions -> Python functions of a row, with PostgreSQL's semantics: three-valued logic, its errors, its rounding.
A function raises EvaluationError where PostgreSQL raises an error. The query reader refuses everything whose result
might differ from PostgreSQL's.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import orjson

from cdc.model.calendar import date_of, days_of
from views import numerics
from views.documents import array_writer, document, json_member, json_member_text, object_writer
from views.expressions import DOCUMENTS, Call, Expression, Literal, Ref, conjuncts
from views.failures import EvaluationError
from views.numerics import decimal_of, text_of
from views.values import INFINITY, Kind, Row, SqlType, Value, float_json, float_order

Evaluate = Callable[[Row], Value]
_Function = Callable[..., Any]

_RANGES: Final = {Kind.INT2: 15, Kind.INT4: 31, Kind.INT8: 63}
_DAY_US: Final = 86_400_000_000
_DAYS_MAX: Final = 2_145_031_948
_DAYS_MIN: Final = -2_451_545
_MICROS_MAX: Final = 9_223_371_331_200_000_000
_MICROS_MIN: Final = -211_813_488_000_000_000


def compiled(expression: Expression, columns: Sequence[Ref]) -> Evaluate:
    """A function of rows with these columns. Raises KeyError when the expression reads another column."""
    return _compiled(expression, {column.id: position for position, column in enumerate(columns)})


def compiled_condition(condition: Expression, columns: Sequence[Ref]) -> Callable[[Row], bool]:
    """A function that says whether a condition is true for a row. If one part of the condition rejects the row,
    failures of other parts don't count, because PostgreSQL chooses the order of evaluation. Otherwise a failing part
    raises EvaluationError.
    """
    return _met(condition, {column.id: position for position, column in enumerate(columns)})


def _met(condition: Expression, positions: Mapping[int, int]) -> Callable[[Row], bool]:
    first, *others = [_compiled(part, positions) for part in conjuncts(condition)]
    if not others:
        return lambda row: first(row) is True
    parts = (first, *others)

    def is_met(row: Row) -> bool:
        failed: EvaluationError | None = None
        for part in parts:
            try:
                if part(row) is not True:
                    return False
            except EvaluationError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return True

    return is_met


def compiled_all(expressions: Sequence[Expression], columns: Sequence[Ref]) -> Callable[[Row], Row]:
    positions = {column.id: position for position, column in enumerate(columns)}
    if all(isinstance(expression, Ref) for expression in expressions):
        # Tuned: most rows consist of other rows' columns.
        places = [positions[expression.id] for expression in expressions if isinstance(expression, Ref)]
        if places == list(range(len(columns))):
            return lambda row: row
        if len(places) > 1:
            return itemgetter(*places)
        return lambda row: tuple([row[place] for place in places])
    functions = [_compiled(expression, positions) for expression in expressions]
    return lambda row: tuple([function(row) for function in functions])


def _compiled(expression: Expression, positions: Mapping[int, int]) -> Evaluate:
    match expression:
        case Ref():
            position = positions[expression.id]
            return lambda row: row[position]
        case Literal():
            value = expression.value
            return lambda row: value
    if expression.name in DOCUMENTS:
        return _document(expression, positions)
    if expression.name == "failure":
        return _failure(expression, positions)
    arguments = [_compiled(argument, positions) for argument in expression.arguments]
    if (lenient := _LENIENT.get(expression.name)) is not None:
        return lenient(arguments)
    return _strict(_function(expression), arguments)


def _document(call: Call, positions: Mapping[int, int]) -> Evaluate:
    parts = call.arguments
    if call.name.endswith("_object"):
        names, parts = parts[::2], parts[1::2]
        write = object_writer(
            [str(name.value) for name in names if isinstance(name, Literal)], [part.type for part in parts], call.type
        )
    else:
        write = array_writer([part.type for part in parts])
    functions = [_compiled(part, positions) for part in parts]
    return lambda row: document(write([function(row) for function in functions]))


def _failure(call: Call, positions: Mapping[int, int]) -> Evaluate:
    """The reason why the first argument, a condition, fails; if it is true, why one of the other arguments fails."""
    is_met = _met(call.arguments[0], positions)
    values = [_compiled(value, positions) for value in call.arguments[1:]]

    def evaluate(row: Row) -> Value:
        try:
            if is_met(row):
                for value in values:
                    value(row)
        except EvaluationError as error:
            return error.reason
        return None

    return evaluate


def _strict(function: _Function, arguments: list[Evaluate]) -> Evaluate:
    """Null if an argument is null."""
    if len(arguments) == 1:
        (only,) = arguments

        def unary(row: Row) -> Value:
            value = only(row)
            return None if value is None else function(value)

        return unary
    left, right = arguments

    def binary(row: Row) -> Value:
        a, b = left(row), right(row)
        return None if a is None or b is None else function(a, b)

    return binary


# --- functions that look at nulls themselves ---


def _until(decisive: bool) -> Callable[[list[Evaluate]], Evaluate]:
    """``decisive`` if any argument is that; otherwise null if any argument is null; otherwise the opposite."""

    def of(arguments: list[Evaluate]) -> Evaluate:
        def evaluate(row: Row) -> Value:
            result: Value = not decisive
            for argument in arguments:
                value = argument(row)
                if value is decisive:
                    return decisive
                if value is None:
                    result = None
            return result

        return evaluate

    return of


def _is_null(arguments: list[Evaluate]) -> Evaluate:
    (only,) = arguments
    return lambda row: only(row) is None


def _is_true(arguments: list[Evaluate]) -> Evaluate:
    (only,) = arguments
    return lambda row: only(row) is True


def _is_false(arguments: list[Evaluate]) -> Evaluate:
    (only,) = arguments
    return lambda row: only(row) is False


def _is_distinct(arguments: list[Evaluate]) -> Evaluate:
    left, right, are_equal = arguments

    def evaluate(row: Row) -> Value:
        a, b = left(row), right(row)
        return a is not b if a is None or b is None else are_equal(row) is False

    return evaluate


def _case(arguments: list[Evaluate]) -> Evaluate:
    """Arguments: conditions and results alternately, then the result if no condition is true."""
    *branches, otherwise = arguments
    pairs = list(zip(branches[::2], branches[1::2], strict=True))

    def evaluate(row: Row) -> Value:
        for condition, result in pairs:
            if condition(row) is True:
                return result(row)
        return otherwise(row)

    return evaluate


def _coalesce(arguments: list[Evaluate]) -> Evaluate:
    def evaluate(row: Row) -> Value:
        for argument in arguments:
            value = argument(row)
            if value is not None:
                return value
        return None

    return evaluate


def _attempt(arguments: list[Evaluate]) -> Evaluate:
    return _or_when_failing(arguments, None)


def _possible(arguments: list[Evaluate]) -> Evaluate:
    return _or_when_failing(arguments, True)


def _or_when_failing(arguments: list[Evaluate], instead: Value) -> Evaluate:
    (only,) = arguments

    def evaluate(row: Row) -> Value:
        try:
            return only(row)
        except EvaluationError:
            return instead

    return evaluate


def _checked(arguments: list[Evaluate]) -> Evaluate:
    failure, value = arguments

    def evaluate(row: Row) -> Value:
        reason = failure(row)
        if reason is not None:
            raise EvaluationError(str(reason))
        return value(row)

    return evaluate


_LENIENT: Final[dict[str, Callable[[list[Evaluate]], Evaluate]]] = {
    "and": _until(False),
    "or": _until(True),
    "is_null": _is_null,
    "is_true": _is_true,
    "is_false": _is_false,
    "is_distinct": _is_distinct,
    "case": _case,
    "coalesce": _coalesce,
    "attempt": _attempt,
    "possible": _possible,
    "checked": _checked,
}

# --- strict functions ---

_COMPARISONS: Final[dict[str, _Function]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _function(call: Call) -> _Function:
    name, kind = call.name, call.type.kind
    if name in _COMPARISONS:
        compare = _COMPARISONS[name]
        if call.arguments[0].type.kind is Kind.NUMERIC:
            return lambda a, b: compare(decimal_of(a), decimal_of(b))
        return compare
    if name in _NUMERIC_ARITHMETIC and kind is Kind.NUMERIC:
        return _numeric(_NUMERIC_ARITHMETIC[name])
    if name in _INTEGER_ARITHMETIC and kind in _RANGES:
        return _in_range(_INTEGER_ARITHMETIC[name], kind)
    if name in _CASTS:
        return _CASTS[name](call.type)
    if name == "like":
        return _like
    if name.startswith("date_trunc:"):
        return _TRUNCATIONS[name.removeprefix("date_trunc:")]
    if name.startswith("date_bin:"):
        _, stride, origin = name.split(":")
        return _binning(int(stride), int(origin))
    return _PLAIN[name]


def _numeric(function: Callable[..., Decimal]) -> _Function:
    return lambda *values: text_of(function(*map(decimal_of, values)))


def _in_range(function: Callable[..., int], kind: Kind) -> _Function:
    limit = 1 << _RANGES[kind]

    def checked(*values: int) -> int:
        result = function(*values)
        if not -limit <= result < limit:
            raise EvaluationError(f"a number is out of range for {kind.value}")
        return result

    return checked


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _remainder(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


_INTEGER_ARITHMETIC: Final[dict[str, Callable[..., int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _quotient,
    "%": _remainder,
    "negate": lambda a: -a,
    "abs": abs,
}
_NUMERIC_ARITHMETIC: Final[dict[str, Callable[..., Decimal]]] = {
    "+": numerics.add,
    "-": numerics.subtract,
    "*": numerics.multiply,
    "/": numerics.divide,
    "%": numerics.remainder,
    "negate": lambda a: a.copy_negate(),
    "abs": lambda a: a.copy_abs(),
}


def _to_integer(of: SqlType) -> _Function:
    return _in_range(lambda value: value, of.kind)


def _numeric_to_integer(of: SqlType) -> _Function:
    return _in_range(lambda value: int(numerics.rounded(decimal_of(value), 0)), of.kind)


def _text_to_integer(of: SqlType) -> _Function:
    return _in_range(lambda text: int(_plain_number(text, _INTEGER)), of.kind)


def _text_to_numeric(_: SqlType) -> _Function:
    return lambda text: text_of(Decimal(_plain_number(text, _NUMERIC)))


def _plain_number(text: str, form: re.Pattern[str]) -> str:
    """Only the plain form is accepted, since versions of PostgreSQL differ in what else they accept as a number."""
    if (match := form.fullmatch(text)) is None:
        raise EvaluationError("a text isn't a number in its plain form")
    return match[1]


_INTEGER: Final = re.compile(r"[ \t\n\r\f\v]*([+-]?[0-9]{1,1000})[ \t\n\r\f\v]*")
_NUMERIC: Final = re.compile(r"[ \t\n\r\f\v]*([+-]?[0-9]{1,1000}(?:\.[0-9]{0,1000})?)[ \t\n\r\f\v]*")

_CASTS: Final[dict[str, Callable[[SqlType], _Function]]] = {
    "text_to_integer": _text_to_integer,
    "text_to_numeric": _text_to_numeric,
    "to_integer": _to_integer,
    "numeric_to_integer": _numeric_to_integer,
}


def _fit(value: str, precision_and_scale: str) -> str:
    precision, _, scale = precision_and_scale.partition(",")
    return text_of(numerics.fitted(decimal_of(value), int(precision), int(scale)))


def _day_of(micros: int) -> int:
    return micros if abs(micros) == INFINITY else micros // _DAY_US


def _midnight_of(days: int) -> int:
    if abs(days) == INFINITY:
        return days
    return _timestamp_in_range(days * _DAY_US)


def _timestamp_in_range(micros: int) -> int:
    if not _MICROS_MIN <= micros < _MICROS_MAX:
        raise EvaluationError("a timestamp is out of range")
    return micros


def _date_plus(days: int, added: int) -> int:
    if abs(days) == INFINITY:
        return days
    result = days + added
    if not _DAYS_MIN <= result <= _DAYS_MAX:
        raise EvaluationError("a date is out of range")
    return result


def _days_between(later: int, earlier: int) -> int:
    if INFINITY in (abs(later), abs(earlier)):
        raise EvaluationError("an infinite date can't be subtracted")
    return _in_range(lambda value: value, Kind.INT4)(later - earlier)  # type: ignore[no-any-return]


def _float_order(text: str) -> int:
    """The sort position of a float8 in the form of events."""
    return float_order(float(orjson.loads(text)))


def _float4_order(text: str) -> int:
    """The sort position of a float4, whose digits stand for another number than the same digits of a float8."""
    number = float(orjson.loads(text))
    return float_order(_exact4(number))


def _exact4(number: float) -> float:
    (exact,) = struct.unpack("f", struct.pack("f", number))
    return float(exact)


def _number_order(value: int | str) -> int:
    """The sort position that an integer or a numeric has as a float."""
    return float_order(_float8(value))


def _float8(value: int | str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    is_named = isinstance(value, str) and value[-1].isalpha()  # NaN and the infinities
    if (math.isinf(number) and not is_named) or (number == 0 and decimal_of(str(value)) != 0):
        raise EvaluationError("a number is out of range for double precision")
    return number


def _float8_arithmetic(function: Callable[[float, float], float]) -> _Function:
    """Arithmetic of floats in the form of events. Overflow and underflow fail, as in PostgreSQL."""

    def of_texts(left: str, right: str) -> str:
        a, b = float(orjson.loads(left)), float(orjson.loads(right))
        result = function(a, b)
        if math.isinf(result) and not (math.isinf(a) or math.isinf(b)):
            raise EvaluationError("a number is out of range for double precision")
        return float_json(result)

    return of_texts


def _product(a: float, b: float) -> float:
    if (result := a * b) == 0 and a != 0 and b != 0:
        raise EvaluationError("a number is out of range for double precision")
    return result


def _float8_quotient(a: float, b: float) -> float:
    if math.isnan(a):
        return a
    if b == 0:
        raise EvaluationError("division by zero")
    if (result := a / b) == 0 and a != 0 and not math.isinf(b):
        raise EvaluationError("a number is out of range for double precision")
    return result


def _like(text: str, pattern: str) -> bool:
    """Takes time proportional to text length times pattern length: no part is searched for again further on."""
    first, middle, last = _pattern(pattern)
    if (begin := first.match(text)) is None:
        return False
    if last is None:
        return begin.end() == len(text)
    at = begin.end()
    for part in middle:
        if (found := part.search(text, at)) is None:
            return False
        at = found.end()
    pattern_of_end, length = last
    return len(text) - length >= at and pattern_of_end.match(text, len(text) - length) is not None


_Like = tuple[re.Pattern[str], list[re.Pattern[str]], tuple[re.Pattern[str], int] | None]
"""How a text begins, the parts that follow in this order, and how it ends, with the length of that. The end is None for
a pattern without ``%``, which has only a beginning.
"""

_PATTERNS: dict[str, _Like] = {}
_PATTERNS_MAX: Final = 1000


def _pattern(pattern: str) -> _Like:
    if pattern not in _PATTERNS:
        if len(_PATTERNS) >= _PATTERNS_MAX:
            _PATTERNS.clear()
        parts: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == "\\":
                escaped = next(characters, None)
                if escaped is None:
                    raise EvaluationError("a LIKE pattern ends with a backslash")
                parts[-1].append(re.escape(escaped))
            elif character == "%":
                parts.append([])
            else:
                parts[-1].append("." if character == "_" else re.escape(character))
        compiled_parts = [re.compile("".join(part), re.DOTALL) for part in parts]
        last = None if len(parts) == 1 else (compiled_parts[-1], len(parts[-1]))
        middle = [made for made, part in zip(compiled_parts[1:-1], parts[1:-1], strict=True) if part]
        _PATTERNS[pattern] = compiled_parts[0], middle, last
    return _PATTERNS[pattern]


def _truncating(unit_us: int) -> _Function:
    return lambda micros: micros if abs(micros) == INFINITY else _timestamp_in_range(micros - micros % unit_us)


def _binning(stride_us: int, origin_us: int) -> _Function:
    """The beginning of the interval of width ``stride_us`` around an instant. One interval begins at ``origin_us``."""
    return lambda micros: (
        micros if abs(micros) == INFINITY else _timestamp_in_range(micros - (micros - origin_us) % stride_us)
    )


def _truncated_date(to_first: Callable[[int, int, int], int]) -> _Function:
    def truncate(micros: int) -> int:
        if abs(micros) == INFINITY:
            return micros
        return _timestamp_in_range(to_first(*date_of(micros // _DAY_US)) * _DAY_US)

    return truncate


def _monday(year: int, month: int, day: int) -> int:
    days = days_of(year, month, day)
    return days - (days + 5) % 7  # 2000-01-01 was a Saturday


_TRUNCATIONS: Final[dict[str, _Function]] = {
    "second": _truncating(1_000_000),
    "minute": _truncating(60_000_000),
    "hour": _truncating(3_600_000_000),
    "day": _truncating(_DAY_US),
    "week": _truncated_date(_monday),
    "month": _truncated_date(lambda year, month, day: days_of(year, month, 1)),
    "quarter": _truncated_date(lambda year, month, day: days_of(year, (month - 1) // 3 * 3 + 1, 1)),
    "year": _truncated_date(lambda year, month, day: days_of(year, 1, 1)),
}
TRUNCATIONS: Final = frozenset(_TRUNCATIONS)
"""The units that ``date_trunc`` accepts here."""

_PLAIN: Final[dict[str, _Function]] = {
    "not": lambda a: not a,
    "||": lambda a, b: a + b,
    "length": len,
    "same": lambda a: a,
    "integer_to_text": str,
    "bool_to_text": lambda a: "true" if a else "false",
    "stored_text": orjson.loads,
    "lower": lambda text: text.encode().lower().decode(),  # only ASCII letters, as in the collation C
    "upper": lambda text: text.encode().upper().decode(),
    "->": json_member,
    "->>": json_member_text,
    "to_float8": lambda value: float_json(_float8(value)),
    "float4_to_float8": lambda text: float_json(_exact4(float(orjson.loads(text)))),
    "float8 +": _float8_arithmetic(lambda a, b: a + b),
    "float8 -": _float8_arithmetic(lambda a, b: a - b),
    "float8 *": _float8_arithmetic(_product),
    "float8 /": _float8_arithmetic(_float8_quotient),
    "float_order": _float_order,
    "float4_order": _float4_order,
    "number_order": _number_order,
    "fit": _fit,
    "day_of": _day_of,
    "midnight_of": _midnight_of,
    "date_plus": _date_plus,
    "date_minus": lambda days, subtracted: _date_plus(days, -subtracted),
    "days_between": _days_between,
}
