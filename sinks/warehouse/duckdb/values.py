"""Values of events <-> columns of a DuckDB table. Pure.

==============================  ===========================================================================
type                            in the table
==============================  ===========================================================================
bool, int2, int4, int8, oid     BOOLEAN, SMALLINT, INTEGER, BIGINT, BIGINT
float4, float8                  FLOAT, DOUBLE
numeric(p,s), p up to 38        DECIMAL(p,s)
numeric without p, or above 38  VARCHAR, with every digit
date, time                      DATE, TIME: BC, ``infinity`` and 24:00:00 included
timestamp, timestamptz          TIMESTAMP, TIMESTAMPTZ: microseconds, BC and ``infinity`` included
uuid, bytea, jsonb              UUID, BLOB, JSON
arrays                          lists of these, of one dimension
everything else                 VARCHAR: PostgreSQL's own text (json, interval, timetz, ranges, enums, ...)
==============================  ===========================================================================

If the column can't hold a value, the column is null and ``_exact`` holds it (``sinks.columns.arrow_columns``): ``NaN``
in a decimal, years above 294246, arrays of several dimensions or with explicit bounds.

In a key, floats, numerics and arrays are VARCHAR: different texts are different keys in the log.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from cdc.model.calendar import DAYS_TO_2000, date_of, days_of
from cdc.model.event import JsonValue
from cdc.model.table import Column
from sinks.columns.arrow_columns import (
    BOUNDS,
    CLOCK,
    DOUBLE_WHOLE_MAX,
    FLOAT_WHOLE_MAX,
    YEARS,
    Form,
    Rows,
    Unfit,
    Written,
    decimal,
    decimal_digits,
    floating,
    integer,
    read_array,
    read_bytes,
    read_json,
    read_plain,
    write_array,
    write_bool,
    write_bytes,
    write_json,
    write_text,
)
from sinks.columns.shape import Shape

# pyarrow creates most of its functions at import, so type checkers don't see them.
_compute: Any = pyarrow.compute

_UUID: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_MOMENT: Final = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?P<zone>Z?)(?P<before> BC)?"
)
_DAY_US: Final = 86_400_000_000
# Days since 1970 of the first and last day that arrow can print: 0001-01-01 and 9999-12-31.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_INFINITE: Final = {"infinity": 1, "-infinity": -1}


@dataclass(frozen=True, slots=True)
class Stored:
    """A column's type in DuckDB, and how its values are written and read."""

    sql: str
    form: Form


def stored_as(column: Column, *, is_key: bool) -> Stored:
    if column.is_array:
        if is_key:
            return Stored("VARCHAR", Form(pa.string(), write_array, read_array))
        element = _single(column, is_key=False)
        if element.sql == "JSON":
            element = _TEXT
        return Stored(f"{element.sql}[]", _list(element.form))
    return _single(column, is_key=is_key)


def rows_of(shape: Shape) -> Rows:
    key = shape.table.key
    return Rows(shape, {column.name: stored_as(column, is_key=column.name in key).form for column in shape.columns})


def _single(column: Column, *, is_key: bool) -> Stored:
    value_type = column.value_type
    if value_type in ("float4", "float8", "numeric") and is_key:
        return _NUMBER_IN_A_KEY if value_type != "numeric" else _TEXT
    if value_type == "numeric":
        digits = decimal_digits(column.type_modifier)
        return _TEXT if digits is None else Stored(f"DECIMAL({digits[0]},{digits[1]})", decimal(*digits))
    stored = _STORED.get(value_type, _TEXT)
    if is_key and value_type in ("timestamp", "timestamptz"):
        return Stored(stored.sql, _whole(stored.form))
    return stored


def _whole(form: Form) -> Form:
    """For a key column, which has to hold every value by itself."""

    def write(values: Sequence[JsonValue]) -> Written:
        array, exact = form.write(values)
        if exact:
            raise Unfit(exact, "a time that this warehouse can't hold in a key")
        return array, exact

    return Form(form.type, write, form.read)


def _write_uuid(values: Sequence[JsonValue]) -> Written:
    texts, _ = write_text(values)
    matches = _compute.match_substring_regex(texts, _UUID)
    if _compute.all(matches, skip_nulls=True).as_py() is False:
        raise Unfit([index for index, does in enumerate(matches.to_pylist()) if does is False], "no uuid")
    return texts, {}


def _list(element: Form) -> Form:
    """Arrays of one dimension. Other arrays, and those with items that the element can't hold, go beside the column."""

    def write(values: Sequence[JsonValue]) -> Written:
        exact: dict[int, JsonValue] = {}
        lists: list[list[JsonValue] | None] = []
        bad = []
        for index, value in enumerate(values):
            is_plain = isinstance(value, list) and not any(isinstance(item, list) for item in value)
            lists.append(value if is_plain else None)  # type: ignore[arg-type]  # it is a list then
            if value is not None and not is_plain:
                if isinstance(value, list) or (isinstance(value, str) and BOUNDS.match(value)):
                    exact[index] = value
                else:
                    bad.append(index)
        if bad:
            raise Unfit(bad, "a value that is no array")
        while True:
            owners = [index for index, of in enumerate(lists) for _ in of or ()]
            try:
                flat, beside = element.write([item for of in lists for item in of or ()])
            except Unfit as unfit:
                raise Unfit({owners[index] for index in unfit.indexes}, unfit.why) from None
            if not beside:
                break
            for owner in {owners[index] for index in beside}:
                exact[owner] = values[owner]
                lists[owner] = None
        ends = list(accumulate((len(of or ()) for of in lists), initial=0))
        offsets = pa.array(ends, pa.int32())
        mask = pa.array([of is None for of in lists], pa.bool_())
        return pa.ListArray.from_arrays(offsets, flat, type=pa.list_(element.type), mask=mask), exact

    def read(array: pa.Array) -> list[JsonValue]:
        flat = element.read(array.flatten())
        ends = accumulate((length or 0 for length in _compute.list_value_length(array).to_pylist()), initial=0)
        return [
            flat[begin:end] if is_there else None
            for (begin, end), is_there in zip(pairwise(ends), array.is_valid().to_pylist(), strict=True)
        ]

    return Form(pa.list_(element.type), write, read)


@dataclass(frozen=True)
class _Moments:
    """Dates and timestamps. Arrow reads and prints most; Python handles the rare rest."""

    kind: pa.DataType
    pattern: str
    """Texts that Arrow reads as DuckDB does."""

    zone: str
    """The end of a text, "" or "Z"."""

    @cached_property
    def is_date(self) -> bool:
        return bool(pa.types.is_date(self.kind))

    @property
    def number(self) -> pa.DataType:
        return pa.int32() if self.is_date else pa.int64()

    @cached_property
    def infinite(self) -> int:
        """The number that stands for infinity in DuckDB."""
        return int((1 << self.number.bit_width - 1) - 1)

    @property
    def unit(self) -> int:
        """A day as a number of this type."""
        return 1 if self.is_date else _DAY_US

    @property
    def form(self) -> Form:
        return Form(self.kind, self.write, self.read)

    def _parse(self, text: str) -> int | None:
        """The number of a moment; None if DuckDB has none for it. Raises ValueError."""
        if text in _INFINITE:
            return _INFINITE[text] * self.infinite
        moment = _MOMENT.fullmatch(text)
        if moment is None or moment["zone"] != self.zone or (moment[4] is None) is not self.is_date:
            raise ValueError
        year, month, day = map(int, moment.group(1, 2, 3))
        days = days_of(1 - year if moment["before"] else year, month, day) + DAYS_TO_2000
        if self.is_date:
            return days if abs(days) < self.infinite else None
        value = days * _DAY_US + _clock(f"{moment[4]}:{moment[5]}:{moment[6]}.{moment[7] or ''}")
        return value if abs(value) < self.infinite else None

    def _print(self, value: int) -> str:
        if abs(value) == self.infinite:
            return "infinity" if value > 0 else "-infinity"
        days, clock = divmod(value, self.unit)
        year, month, day = date_of(days - DAYS_TO_2000)
        text = f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}"
        if not self.is_date:
            text += f"T{_clock_text(clock)}"
        return f"{text}{self.zone}{'' if year > 0 else ' BC'}"

    def write(self, values: Sequence[JsonValue]) -> Written:
        texts, _ = write_text(values)
        matches = _compute.match_substring_regex(texts, self.pattern)
        if _compute.all(matches, skip_nulls=True).as_py() is not False:
            try:
                return texts.cast(self.kind), {}
            except pa.ArrowInvalid:
                matches = pa.array([value is None for value in values])  # no such day in the month: Python finds it
        return self._write_odd(values, [index for index, does in enumerate(matches.to_pylist()) if does is False])

    def _write_odd(self, values: Sequence[JsonValue], odd: list[int]) -> Written:
        """Writes the values at ``odd``, which Arrow can't read, one by one."""
        others = set(odd)
        plain = pa.array([None if index in others else value for index, value in enumerate(values)], pa.string())
        try:
            numbers = plain.cast(self.kind).cast(self.number).to_pylist()
        except pa.ArrowInvalid:
            numbers, odd = [None] * len(values), [index for index, value in enumerate(values) if value is not None]
        exact: dict[int, JsonValue] = {}
        bad = []
        for index in odd:
            try:
                numbers[index] = self._parse(str(values[index]))
            except ValueError:
                bad.append(index)
            else:
                if numbers[index] is None:
                    exact[index] = values[index]
        if bad:
            raise Unfit(bad, "no date" if self.is_date else "no timestamp")
        return pa.array(numbers, self.number).cast(self.kind), exact

    def read(self, array: pa.Array) -> list[JsonValue]:
        numbers = array.cast(self.number)
        low, high = _FIRST_DAY * self.unit, (_LAST_DAY + 1) * self.unit
        ends = _compute.min_max(numbers)
        if ends["min"].as_py() is None or low <= ends["min"].as_py() <= ends["max"].as_py() < high:
            texts = numbers.cast(self.kind).cast(pa.string())  # DuckDB returns the zone of its session
            if not self.is_date:
                texts = _compute.replace_substring_regex(texts, r"\.?0*(Z?)$", r"\1")
                texts = _compute.replace_substring_regex(texts, r"^(.{10}) ", r"\1T")
            return texts.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
        return [None if value is None else self._print(value) for value in numbers.to_pylist()]


_TIME: Final = r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{0,5}[1-9])?$|^24:00:00$"


def _write_time(values: Sequence[JsonValue]) -> Written:
    """24:00:00 is the end of a day, which differs from the beginning of the next."""
    texts, _ = write_text(values)
    matches = _compute.match_substring_regex(texts, _TIME)
    if _compute.all(matches, skip_nulls=True).as_py() is False:
        raise Unfit([index for index, does in enumerate(matches.to_pylist()) if does is False], "no time of day")
    numbers = [None if value is None else _clock(str(value)) for value in values]
    return pa.array(numbers, pa.int64()).cast(pa.time64("us")), {}


def _clock(text: str) -> int:
    fraction = text[9:].ljust(6, "0")
    return ((int(text[:2]) * 60 + int(text[3:5])) * 60 + int(text[6:8])) * 1_000_000 + int(fraction)


def _read_time(array: pa.Array) -> list[JsonValue]:
    return [None if number is None else _clock_text(number) for number in array.cast(pa.int64()).to_pylist()]


def _clock_text(number: int) -> str:
    seconds, fraction = divmod(number, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:06}".rstrip("0") if fraction else "")


_TEXT: Final = Stored("VARCHAR", Form(pa.string(), write_text, read_plain))
_NUMBER_IN_A_KEY: Final = Stored("VARCHAR", Form(pa.string(), write_json, read_json))
_STORED: Final = {
    "bool": Stored("BOOLEAN", Form(pa.bool_(), write_bool, read_plain)),
    "int2": Stored("SMALLINT", integer(16)),
    "int4": Stored("INTEGER", integer(32)),
    "int8": Stored("BIGINT", integer(64)),
    "oid": Stored("BIGINT", integer(64)),
    "float4": Stored("FLOAT", floating(pa.float32(), FLOAT_WHOLE_MAX)),
    "float8": Stored("DOUBLE", floating(pa.float64(), DOUBLE_WHOLE_MAX)),
    "date": Stored("DATE", _Moments(pa.date32(), f"{YEARS}$", "").form),
    "time": Stored("TIME", Form(pa.time64("us"), _write_time, _read_time)),
    "timestamp": Stored("TIMESTAMP", _Moments(pa.timestamp("us"), f"{YEARS}{CLOCK}$", "").form),
    "timestamptz": Stored("TIMESTAMPTZ", _Moments(pa.timestamp("us", "UTC"), f"{YEARS}{CLOCK}Z$", "Z").form),
    "uuid": Stored("UUID", Form(pa.string(), _write_uuid, read_plain)),
    "bytea": Stored("BLOB", Form(pa.binary(), write_bytes, read_bytes)),
    "jsonb": Stored("JSON", Form(pa.string(), write_text, read_plain)),
}
