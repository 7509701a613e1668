"""Values of events <-> the columns of a Delta table. Exact: what a column's own type can't hold stands beside it. Pure.

==============================  ===========================================================================
type                            in the table
==============================  ===========================================================================
bool, int2, int4, int8, oid     boolean, short, integer, long, long
float4, float8                  double: with the digits that PostgreSQL prints
numeric(p,s), p up to 38        decimal(p,s)
numeric without p, or above 38  string, with every digit
date, timestamp, timestamptz    date, timestamp_ntz, timestamp: microseconds
bytea                           binary
arrays                          string: JSON as in the event, or PostgreSQL's text where it has explicit bounds
everything else                 string: PostgreSQL's own text (json, jsonb, uuid, interval, time, ranges, enums, ...)
==============================  ===========================================================================

``_exact`` is null nearly always. Where a column can't give back the very value - ``infinity``, BC, years beyond 9999, ``NaN`` in a
decimal - it is a JSON object that holds it, by the column's name. The column itself is null then, or the same number.

Key columns decide which row is meant, so they never need ``_exact``: floats, numerics and times are strings in a key.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table
from sinks.shape import Shape, unknown_column
from sinks.sink import Rejection, StoredRow

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"
EXACT_COLUMN: Final = "_exact"

# pyarrow makes most of its functions when it is loaded, which type checkers don't see.
_compute: Any = pyarrow.compute

_DECIMAL_DIGITS_MAX: Final = 38
_INTEGER_BITS: Final = {"int2": 16, "int4": 32, "int8": 64, "oid": 64}
_FLOATS: Final = frozenset({"float4", "float8"})
# PostgreSQL prints a larger double with an exponent, which JSON readers take for a float.
_WHOLE_MAX: Final = 1e15
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})

_BOUNDS = re.compile(r"\[-?\d+:")
_YEARS: Final = r"^\d{4}-\d\d-\d\d"
_CLOCK: Final = r"T\d\d:\d\d:\d\d(\.\d{0,5}[1-9])?"

# Of a file's name, which most file systems limit to 255 bytes; the column's own name and "=" are part of it.
_PARTITION_BYTES_MAX: Final = 255

# Texts that are read as null where they are a partition's.
_NULL_PARTITIONS: Final = frozenset({"", "__HIVE_DEFAULT_PARTITION__"})

Written = tuple[pa.Array, dict[int, JsonValue]]
"""A column, and the values by their places that it can't give back exactly."""


class _Unfit(Exception):
    """A column can't hold the values at these places, not even beside it."""

    def __init__(self, places: Iterable[int], why: str) -> None:
        super().__init__(why)
        self.places = frozenset(places)
        self.why = why


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are stored. ``write`` raises _Unfit."""

    type: pa.DataType
    write: Callable[[Sequence[JsonValue]], Written]
    read: Callable[[pa.Array], list[JsonValue]]


def form_of(column: Column, *, is_key: bool) -> Form:
    """The form of a column's values. A key's are told apart by what is stored, whatever they are."""
    value_type = column.value_type
    if column.is_array:
        return Form(pa.string(), _write_array, _read_array)
    if value_type == "bool":
        return Form(pa.bool_(), _write_bool, _read_plain)
    if value_type in _INTEGER_BITS:
        return _integer(_INTEGER_BITS[value_type])
    if value_type == "bytea":
        return Form(pa.binary(), _write_bytes, _read_bytes)
    if value_type in _FLOATS:
        return Form(pa.string(), _write_json, _read_json) if is_key else Form(pa.float64(), _write_float, _read_float)
    if not is_key:
        if value_type == "numeric" and (digits := _digits(column.type_modifier)) is not None:
            return _decimal(*digits)
        if value_type == "date":
            return _time(pa.date32(), f"{_YEARS}$")
        if value_type == "timestamp":
            return _time(pa.timestamp("us"), f"{_YEARS}{_CLOCK}$")
        if value_type == "timestamptz":
            return _time(pa.timestamp("us", "UTC"), f"{_YEARS}{_CLOCK}Z$")
    return Form(pa.string(), _write_text, _read_plain)


def may_partition(column: Column, *, is_key: bool) -> bool:
    """Whether the values of a column may be a partition's: every reader has to find the same value in a path."""
    form = form_of(column, is_key=is_key)
    return not column.is_array and (
        pa.types.is_boolean(form.type)
        or pa.types.is_integer(form.type)
        or pa.types.is_date(form.type)
        or (pa.types.is_string(form.type) and column.value_type not in _FLOATS)
    )


class Rows:
    """The rows of one table as its Delta table holds them."""

    def __init__(self, shape: Shape, partitions: Sequence[str] = ()) -> None:
        self.shape = shape
        self._key = frozenset(shape.table.key)
        self._known = frozenset(column.name for column in shape.columns)
        self._forms = {column.name: form_of(column, is_key=column.name in self._key) for column in shape.columns}
        self._texts = [name for name in partitions if pa.types.is_string(self._forms[name].type)]
        self.schema = pa.schema(
            [
                *(pa.field(name, form.type) for name, form in self._forms.items()),
                pa.field(EXACT_COLUMN, pa.string()),
                pa.field(TAG_COLUMN, pa.string()),
                pa.field(DELETED_COLUMN, pa.bool_()),
            ]
        )

    def encode(self, events: Sequence[RowEvent]) -> tuple[pa.Table, list[Rejection]]:
        """Events as rows, without those that are rejected. Raises LockstepError for a column that the table doesn't have."""
        for event in events:
            if event.row is not None and not self._known.issuperset(event.row):
                raise unknown_column(event.table, next(name for name in event.row if name not in self._known))
        rejections: list[Rejection] = []
        while True:
            columns: list[pa.Array] = []
            exact: dict[int, dict[str, JsonValue]] = {}
            try:
                for name, form in self._forms.items():
                    array, beside = self._column(name, form, events)
                    columns.append(array)
                    for place, value in beside.items():
                        exact.setdefault(place, {})[name] = value
            except _Unfit as unfit:
                rejections += [
                    Rejection(events[place], f"column {name!r}: {unfit.why}") for place in sorted(unfit.places)
                ]
                events = [event for place, event in enumerate(events) if place not in unfit.places]
                continue
            texts = [orjson.dumps(exact[place]).decode() if place in exact else None for place in range(len(events))]
            columns += [
                pa.array(texts, pa.string()),
                pa.array([event.tag for event in events], pa.string()),
                pa.array([event.row is None for event in events], pa.bool_()),
            ]
            return pa.Table.from_arrays(columns, schema=self.schema), rejections

    def filling(self, values: Mapping[str, JsonValue]) -> pa.Table:
        """One row with these columns' values, for rows that were there before the columns. Raises LockstepError."""
        arrays: dict[str, pa.Array] = {}
        exact: dict[str, JsonValue] = {}
        for name, value in values.items():
            try:
                arrays[name], beside = self._forms[name].write([value])
            except _Unfit as unfit:
                raise LockstepError(
                    f"column {name!r} of table {self.shape.table.name} can't get its default in this sink: {unfit.why}",
                    hint="build it anew from the log: lockstep rebuild, with --switch",
                ) from None
            exact |= dict.fromkeys([name] if beside else [], value)
        text = orjson.dumps(exact).decode() if exact else None
        return pa.table({**arrays, EXACT_COLUMN: pa.array([text], pa.string()), DELETED_COLUMN: pa.array([False])})

    def key_arrays(self, keys: Sequence[Mapping[str, JsonValue]]) -> dict[str, pa.Array]:
        """The key columns of these keys as they are stored. A key that the table can't hold has no row: it is left out."""
        remaining = list(keys)
        while True:
            try:
                return {
                    name: self._forms[name].write([key[name] for key in remaining])[0] for name in self.shape.table.key
                }
            except _Unfit as unfit:
                remaining = [key for place, key in enumerate(remaining) if place not in unfit.places]

    def columns_for(self, table: Table) -> list[str]:
        """The columns that ``decode`` needs for these of the source."""
        return [*(column.name for column in table.columns if column.name in self._forms), EXACT_COLUMN, TAG_COLUMN]

    def decode(self, batch: pa.RecordBatch, table: Table) -> Iterator[StoredRow]:
        """Rows in the event's form."""
        names = [column.name for column in table.columns]
        nothing: list[JsonValue] = [None] * batch.num_rows
        columns = [self._forms[name].read(batch.column(name)) if name in self._forms else nothing for name in names]
        exact, tags = batch.column(EXACT_COLUMN).to_pylist(), batch.column(TAG_COLUMN).to_pylist()
        for place, (tag, beside) in enumerate(zip(tags, exact, strict=True)):
            row = {name: column[place] for name, column in zip(names, columns, strict=True)}
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
            raise _Unfit([place for place, value in enumerate(values) if value is None], "a key is never null")
        array, exact = form.write(values)
        if name in self._texts:
            _check_partition(name, array, is_key=is_key)
            exact.update({place: value for place, value in enumerate(values) if value in _NULL_PARTITIONS})
        return array, exact


def _check_partition(name: str, array: pa.Array, *, is_key: bool) -> None:
    def is_long(text: str) -> bool:
        return len(quote(f"{name}={text}", safe="")) > _PARTITION_BYTES_MAX

    texts = array.to_pylist()
    long = {text for text in set(texts) if text is not None and is_long(text)}
    if long:
        raise _Unfit([place for place, text in enumerate(texts) if text in long], "too long for a partition's name")
    if is_key and not _NULL_PARTITIONS.isdisjoint(texts):
        null = [place for place, text in enumerate(texts) if text in _NULL_PARTITIONS]
        raise _Unfit(null, "a key that is null as a partition")


def _digits(type_modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric whose every finite value fits a decimal of Delta's."""
    if type_modifier < 4:
        return None
    precision = (type_modifier - 4) >> 16 & 0xFFFF
    scale = ((type_modifier - 4 & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
    return (precision, scale) if precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision else None


def _check_kinds(values: Sequence[JsonValue], kinds: frozenset[type]) -> None:
    if not kinds.issuperset(map(type, values)):
        raise _Unfit(
            [place for place, value in enumerate(values) if type(value) not in kinds], "a value of another type"
        )


_TEXT: Final[frozenset[type]] = frozenset({str, type(None)})
_WHOLE: Final[frozenset[type]] = frozenset({int, type(None)})
_BOOL: Final[frozenset[type]] = frozenset({bool, type(None)})
_NUMBER: Final[frozenset[type]] = frozenset({int, float, str, type(None)})


def _read_plain(array: pa.Array) -> list[JsonValue]:
    return array.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def _write_bool(values: Sequence[JsonValue]) -> Written:
    _check_kinds(values, _BOOL)
    return pa.array(values, pa.bool_()), {}


def _integer(bits: int) -> Form:
    kind = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    limit = 1 << (bits - 1)

    def write(values: Sequence[JsonValue]) -> Written:
        _check_kinds(values, _WHOLE)
        try:
            return pa.array(values, kind), {}
        except (pa.ArrowInvalid, OverflowError):
            out = [
                place for place, value in enumerate(values) if isinstance(value, int) and not -limit <= value < limit
            ]
            raise _Unfit(out, f"a number that doesn't fit {bits} bits") from None

    return Form(kind, write, _read_plain)


def _write_text(values: Sequence[JsonValue]) -> Written:
    _check_kinds(values, _TEXT)
    try:
        return pa.array(values, pa.string()), {}
    except UnicodeEncodeError:
        bad = [place for place, value in enumerate(values) if isinstance(value, str) and not _is_utf8(value)]
        raise _Unfit(bad, "a text that isn't Unicode") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _write_json(values: Sequence[JsonValue]) -> Written:
    return pa.array([None if value is None else orjson.dumps(value).decode() for value in values], pa.string()), {}


def _read_json(array: pa.Array) -> list[JsonValue]:
    return [None if text is None else orjson.loads(text) for text in array.to_pylist()]


def _write_array(values: Sequence[JsonValue]) -> Written:
    texts: list[str | None] = []
    bad = []
    for place, value in enumerate(values):
        if isinstance(value, list):
            texts.append(orjson.dumps(value).decode())
        elif value is None or (isinstance(value, str) and _BOUNDS.match(value)):
            texts.append(value)
        else:
            bad.append(place)
    if bad:
        raise _Unfit(bad, "a value that is no array")
    return pa.array(texts, pa.string()), {}


def _read_array(array: pa.Array) -> list[JsonValue]:
    # No JSON begins with "[0:".
    return [text if text is None or _BOUNDS.match(text) else orjson.loads(text) for text in array.to_pylist()]


def _write_bytes(values: Sequence[JsonValue]) -> Written:
    _check_kinds(values, _TEXT)
    found: list[bytes | None] = []
    bad = []
    for place, value in enumerate(values):
        data = None
        if isinstance(value, str):
            try:
                data = bytes.fromhex(value[2:])
            except ValueError:
                data = None
            if data is None or value != f"\\x{data.hex()}":
                bad.append(place)
        found.append(data)
    if bad:
        raise _Unfit(bad, "no bytes in PostgreSQL's hex form")
    return pa.array(found, pa.binary()), {}


def _read_bytes(array: pa.Array) -> list[JsonValue]:
    return [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()]


def _write_float(values: Sequence[JsonValue]) -> Written:
    _check_kinds(values, _NUMBER)
    bad = [place for place, value in enumerate(values) if isinstance(value, str) and value not in _NOT_FINITE]
    if bad:
        raise _Unfit(bad, "a value of another type")
    numbers: list[float | None] = []
    exact: dict[int, JsonValue] = {}
    for place, value in enumerate(values):
        number = None
        if value is not None:
            try:
                number = float(value)  # type: ignore[arg-type]  # a number or one of three texts, see above
            except OverflowError:
                number = None
            given = None if number is None else _float_json(number)
            if type(given) is not type(value) or given != value:
                exact[place] = value
        numbers.append(number)
    return pa.array(numbers, pa.float64()), exact


def _read_float(array: pa.Array) -> list[JsonValue]:
    return [None if number is None else _float_json(number) for number in array.to_pylist()]


def _float_json(number: float) -> JsonValue:
    """A double as an event has it: as PostgreSQL prints it, which is without a point where there is nothing behind it."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    is_whole = number.is_integer() and abs(number) < _WHOLE_MAX
    return int(number) if is_whole and (number or math.copysign(1, number) > 0) else number


def _decimal(precision: int, scale: int) -> Form:
    kind = pa.decimal128(precision, scale)
    before = rf"(0|[1-9]\d{{0,{precision - scale - 1}}})" if precision > scale else "0"
    pattern = f"^-?{before}" + (rf"\.\d{{{scale}}}$" if scale else "$")
    context = Context(prec=2 * _DECIMAL_DIGITS_MAX)
    unit = Decimal(1).scaleb(-scale)

    def nearest(text: str) -> str | None:
        """The same number with this scale, where it fits."""
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

    return Form(kind, _matching(kind, pattern, nearest), read)


def _time(kind: pa.DataType, pattern: str) -> Form:
    def read(array: pa.Array) -> list[JsonValue]:
        texts = array.cast(pa.string())
        if not pa.types.is_date(kind):
            texts = _compute.replace_substring_regex(texts, r"\.?0*(Z?)$", r"\1")
            texts = _compute.replace_substring_regex(texts, r"^(.{10}) ", r"\1T")
        return texts.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types

    return Form(kind, _matching(kind, pattern, lambda _: None), read)


def _matching(
    kind: pa.DataType, pattern: str, otherwise: Callable[[str], str | None]
) -> Callable[[Sequence[JsonValue]], Written]:
    """For texts that can be cast where they match, and give the same text back then.

    ``otherwise`` turns another text into one that can be cast, or None; the text itself goes beside the column.
    """

    def write(values: Sequence[JsonValue]) -> Written:
        texts, _ = _write_text(values)
        matches = _compute.match_substring_regex(texts, pattern)
        if _compute.all(matches, skip_nulls=True).as_py() is not False:
            return texts.cast(kind), {}
        exact = {place: values[place] for place, does in enumerate(matches.to_pylist()) if does is False}
        replaced = [otherwise(str(value)) if place in exact else value for place, value in enumerate(values)]
        return pa.array(replaced, pa.string()).cast(kind), exact

    return write
