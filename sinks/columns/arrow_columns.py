"""Values of events <-> Arrow columns of a destination. Values that a column's type can't hold exactly go beside it
(pure).

``_exact`` is nearly always null. If a column can't return the very value, ``_exact`` is a JSON object that holds it by
the column's name, and the column itself holds null or the same number. Each destination chooses its columns' types.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute

from cdc.model.errors import NeedsRebuild
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table
from sinks.columns.shape import Shape, unknown_column
from sinks.contract import Rejection, StoredRow

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"
EXACT_COLUMN: Final = "_exact"

# pyarrow creates most of its functions at import, so type checkers don't see them.
_compute: Any = pyarrow.compute

DECIMAL_DIGITS_MAX: Final = 38
# PostgreSQL prints larger whole numbers with an exponent.
DOUBLE_WHOLE_MAX: Final = 1e15
FLOAT_WHOLE_MAX: Final = 1e6
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})

BOUNDS: Final = re.compile(r"\[-?\d+:")
"""An array with explicit bounds is PostgreSQL's text. No JSON begins like that."""

YEARS: Final = r"^\d{4}-\d\d-\d\d"
CLOCK: Final = r"T\d\d:\d\d:\d\d(\.\d{0,5}[1-9])?"

Written = tuple[pa.Array, dict[int, JsonValue]]
"""A column, and by their indexes the values that it can't return exactly."""


class Unfit(Exception):
    """The values at these indexes can be stored neither in a column nor beside it."""

    def __init__(self, indexes: Iterable[int], why: str) -> None:
        super().__init__(why)
        self.indexes = frozenset(indexes)
        self.why = why


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are stored. ``write`` raises Unfit."""

    type: pa.DataType
    write: Callable[[Sequence[JsonValue]], Written]
    read: Callable[[pa.Array], list[JsonValue]]


class Rows:
    """The rows of one table as columns of a destination. The key columns alone must tell keys apart."""

    def __init__(self, shape: Shape, forms: Mapping[str, Form]) -> None:
        """``forms`` are those of the shape's columns, by name and in the shape's order."""
        self.shape = shape
        self._key = frozenset(shape.table.key)
        self._forms = forms
        self.schema = pa.schema(
            [
                *(pa.field(name, form.type) for name, form in self._forms.items()),
                pa.field(EXACT_COLUMN, pa.string()),
                pa.field(TAG_COLUMN, pa.string()),
                pa.field(DELETED_COLUMN, pa.bool_()),
            ]
        )

    def unknown(self, events: Sequence[RowEvent]) -> str | None:
        """A column of these events that the table doesn't have, or None."""
        known = self._forms.keys()
        for event in events:
            if event.row is not None and not event.row.keys() <= known:
                return next(name for name in event.row if name not in known)
        return None

    def encode(self, events: Sequence[RowEvent]) -> tuple[pa.Table, list[Rejection]]:
        """Events as rows, and those that are rejected. Raises LockstepError for a column that the table lacks."""
        if (name := self.unknown(events)) is not None:
            raise unknown_column(self.shape.table.name, name)
        data, refused = self.encode_those_that_fit(events)
        return data, [Rejection(events[index], reason) for index, reason in refused.items()]

    def encode_those_that_fit(self, events: Sequence[RowEvent]) -> tuple[pa.Table, dict[int, str]]:
        """Events as rows in their order, and why others have none, by index. All columns must be known."""
        refused: dict[int, str] = {}
        indexes = list(range(len(events)))
        while True:
            given = [events[index] for index in indexes]
            columns: list[pa.Array] = []
            exact: dict[int, dict[str, JsonValue]] = {}
            try:
                for name, form in self._forms.items():
                    array, beside = self._column(name, form, given)
                    columns.append(array)
                    for index, value in beside.items():
                        exact.setdefault(index, {})[name] = value
            except Unfit as unfit:
                refused |= {indexes[index]: f"column {name!r}: {unfit.why}" for index in sorted(unfit.indexes)}
                indexes = [index for index in indexes if index not in refused]
                continue
            texts = [orjson.dumps(exact[index]).decode() if index in exact else None for index in range(len(given))]
            columns += [
                pa.array(texts, pa.string()),
                pa.array([event.tag for event in given], pa.string()),
                pa.array([event.row is None for event in given], pa.bool_()),
            ]
            return pa.Table.from_arrays(columns, schema=self.schema), refused

    def filling(self, values: Mapping[str, JsonValue]) -> pa.Table:
        """One row with the values of these new columns, for the rows that existed before them. Raises LockstepError."""
        arrays: dict[str, pa.Array] = {}
        exact: dict[str, JsonValue] = {}
        for name, value in values.items():
            try:
                arrays[name], beside = self._forms[name].write([value])
            except Unfit as unfit:
                raise NeedsRebuild(
                    f"column {name!r} of table {self.shape.table.name} can't get its default in this sink: {unfit.why}",
                    hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
                ) from None
            exact |= dict.fromkeys([name] if beside else [], value)
        text = orjson.dumps(exact).decode() if exact else None
        return pa.table({**arrays, EXACT_COLUMN: pa.array([text], pa.string()), DELETED_COLUMN: pa.array([False])})

    def key_arrays(self, keys: Sequence[Mapping[str, JsonValue]]) -> dict[str, pa.Array]:
        """The key columns of these keys as stored, without keys that the table can't hold: they have no row."""
        remaining = list(keys)
        while True:
            try:
                return {
                    name: self._forms[name].write([key[name] for key in remaining])[0] for name in self.shape.table.key
                }
            except Unfit as unfit:
                remaining = [key for index, key in enumerate(remaining) if index not in unfit.indexes]

    def columns_for(self, table: Table) -> list[str]:
        """The columns that ``decode`` needs for this table of the source."""
        return [*(column.name for column in table.columns if column.name in self._forms), EXACT_COLUMN, TAG_COLUMN]

    def decode(self, batch: pa.RecordBatch, table: Table) -> Iterator[StoredRow]:
        names = [column.name for column in table.columns]
        nothing: list[JsonValue] = [None] * batch.num_rows
        columns = [self._forms[name].read(batch.column(name)) if name in self._forms else nothing for name in names]
        exact, tags = batch.column(EXACT_COLUMN).to_pylist(), batch.column(TAG_COLUMN).to_pylist()
        for index, (tag, beside) in enumerate(zip(tags, exact, strict=True)):
            row = {name: column[index] for name, column in zip(names, columns, strict=True)}
            if beside is not None:
                row |= {name: value for name, value in orjson.loads(beside).items() if name in row}
            yield StoredRow({name: row[name] for name in table.key}, row, tag)

    def _column(self, name: str, form: Form, events: Sequence[RowEvent]) -> Written:
        is_key = name in self._key
        values: list[JsonValue] = (
            [event.key[name] for event in events]
            if is_key
            else [None if event.row is None else event.row.get(name) for event in events]
        )
        if is_key and None in values:
            raise Unfit([index for index, value in enumerate(values) if value is None], "a key is never null")
        return form.write(values)


def decimal_digits(type_modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric whose finite values all fit a decimal of 38 digits; else None."""
    if type_modifier < 4:
        return None
    precision = (type_modifier - 4) >> 16 & 0xFFFF
    scale = ((type_modifier - 4 & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
    return (precision, scale) if precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision else None


def check_kinds(values: Sequence[JsonValue], kinds: frozenset[type]) -> None:
    """Raise Unfit for values of other kinds."""
    if not kinds.issuperset(map(type, values)):
        raise Unfit(
            [index for index, value in enumerate(values) if type(value) not in kinds], "a value of another type"
        )


TEXT: Final[frozenset[type]] = frozenset({str, type(None)})
_WHOLE: Final[frozenset[type]] = frozenset({int, type(None)})
_BOOL: Final[frozenset[type]] = frozenset({bool, type(None)})
_NUMBER: Final[frozenset[type]] = frozenset({int, float, str, type(None)})


def read_plain(array: pa.Array) -> list[JsonValue]:
    return array.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def write_bool(values: Sequence[JsonValue]) -> Written:
    check_kinds(values, _BOOL)
    return pa.array(values, pa.bool_()), {}


def integer(bits: int) -> Form:
    """Integers of this many bits. Its ``write`` raises Unfit for larger ones."""
    kind = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    limit = 1 << (bits - 1)

    def write(values: Sequence[JsonValue]) -> Written:
        check_kinds(values, _WHOLE)
        try:
            return pa.array(values, kind), {}
        except (pa.ArrowInvalid, OverflowError):
            out = [
                index for index, value in enumerate(values) if isinstance(value, int) and not -limit <= value < limit
            ]
            raise Unfit(out, f"a number that doesn't fit {bits} bits") from None

    return Form(kind, write, read_plain)


def write_text(values: Sequence[JsonValue]) -> Written:
    """Raises Unfit for values of other kinds, and for text that isn't Unicode."""
    check_kinds(values, TEXT)
    try:
        return pa.array(values, pa.string()), {}
    except UnicodeEncodeError:
        bad = [index for index, value in enumerate(values) if isinstance(value, str) and not _is_utf8(value)]
        raise Unfit(bad, "a text that isn't Unicode") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_json(values: Sequence[JsonValue]) -> Written:
    return pa.array([None if value is None else orjson.dumps(value).decode() for value in values], pa.string()), {}


def read_json(array: pa.Array) -> list[JsonValue]:
    return [None if text is None else orjson.loads(text) for text in array.to_pylist()]


def write_array(values: Sequence[JsonValue]) -> Written:
    """Arrays as JSON, or as PostgreSQL's text. Raises Unfit for other values."""
    texts: list[str | None] = []
    bad = []
    for index, value in enumerate(values):
        if isinstance(value, list):
            texts.append(orjson.dumps(value).decode())
        elif value is None or (isinstance(value, str) and BOUNDS.match(value)):
            texts.append(value)
        else:
            bad.append(index)
    if bad:
        raise Unfit(bad, "a value that is no array")
    return pa.array(texts, pa.string()), {}


def read_array(array: pa.Array) -> list[JsonValue]:
    # No JSON begins with "[0:".
    return [text if text is None or BOUNDS.match(text) else orjson.loads(text) for text in array.to_pylist()]


def write_bytes(values: Sequence[JsonValue]) -> Written:
    """Bytes, given in PostgreSQL's hex form. Raises Unfit for others."""
    check_kinds(values, TEXT)
    decoded: list[bytes | None] = []
    bad = []
    for index, value in enumerate(values):
        data = None
        if isinstance(value, str):
            try:
                data = bytes.fromhex(value[2:])
            except ValueError:
                data = None
            if data is None or value != f"\\x{data.hex()}":
                bad.append(index)
        decoded.append(data)
    if bad:
        raise Unfit(bad, "no bytes in PostgreSQL's hex form")
    return pa.array(decoded, pa.binary()), {}


def read_bytes(array: pa.Array) -> list[JsonValue]:
    return [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()]


def floating(kind: pa.DataType, whole_max: float) -> Form:
    """Numbers as PostgreSQL prints them: whole numbers from ``whole_max`` on have an exponent, as JSON's floats do."""

    def write(values: Sequence[JsonValue]) -> Written:
        check_kinds(values, _NUMBER)
        bad = [index for index, value in enumerate(values) if isinstance(value, str) and value not in _NOT_FINITE]
        if bad:
            raise Unfit(bad, "a value of another type")
        array = pa.array(map(_float, values), kind)
        exact = {
            index: value
            for index, (value, given) in enumerate(zip(values, read(array), strict=True))
            if type(given) is not type(value) or given != value
        }
        return array, exact

    def read(array: pa.Array) -> list[JsonValue]:
        numbers: list[float | None] = array.to_pylist()
        if kind != pa.float64():  # a float4 converted to a double has more digits
            numbers = [None if text is None else float(text) for text in array.cast(pa.string()).to_pylist()]
        return [None if number is None else _float_json(number, whole_max) for number in numbers]

    return Form(kind, write, read)


def _float(value: Any) -> float | None:
    """A number, also from its text; None if it is null or too large."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


def _float_json(number: float, whole_max: float) -> JsonValue:
    """A float as in an event: a whole number has no decimal point."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    is_whole = number.is_integer() and abs(number) < whole_max
    return int(number) if is_whole and (number or math.copysign(1, number) > 0) else number


def decimal(precision: int, scale: int) -> Form:
    kind = pa.decimal128(precision, scale)
    before = rf"(0|[1-9]\d{{0,{precision - scale - 1}}})" if precision > scale else "0"
    pattern = f"^-?{before}" + (rf"\.\d{{{scale}}}$" if scale else "$")
    context = Context(prec=2 * DECIMAL_DIGITS_MAX)
    unit = Decimal(1).scaleb(-scale)

    def nearest(text: str) -> str | None:
        """The same number with this scale, if it fits."""
        try:
            number = Decimal(text)
            if not number.is_finite():
                return None
            scaled = number.quantize(unit, context=context)
        except InvalidOperation:
            return None
        fits = scaled == number and len(scaled.as_tuple().digits) <= precision
        return f"{scaled:f}" if fits else None

    def read(array: pa.Array) -> list[JsonValue]:
        return [None if number is None else f"{number:f}" for number in array.to_pylist()]

    return Form(kind, matching(kind, pattern, nearest), read)


def matching(
    kind: pa.DataType, pattern: str, otherwise: Callable[[str], str | None]
) -> Callable[[Sequence[JsonValue]], Written]:
    """Write texts that match by a cast, which must preserve the text.

    ``otherwise`` turns any other text into one that can be cast, or None; the text itself is stored beside the column.
    """

    def write(values: Sequence[JsonValue]) -> Written:
        texts, _ = write_text(values)
        matches = _compute.match_substring_regex(texts, pattern)
        if _compute.all(matches, skip_nulls=True).as_py() is not False:
            return texts.cast(kind), {}
        exact = {index: values[index] for index, does in enumerate(matches.to_pylist()) if does is False}
        replaced = [otherwise(str(value)) if index in exact else value for index, value in enumerate(values)]
        return pa.array(replaced, pa.string()).cast(kind), exact

    return write
