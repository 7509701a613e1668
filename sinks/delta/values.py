"""Values of events <-> the columns of a Delta table. Values that a column can't hold exactly go beside it (pure).

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

``_exact`` is nearly always null. It is a JSON object that holds, by the column's name, values that a column can't
return: ``infinity``, BC, years beyond 9999, ``NaN`` in a decimal. The column itself holds null or the same number.

Key columns identify rows, so they never need ``_exact``: floats, numerics and times are strings in a key.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute

from cdc.model.event import JsonValue
from cdc.model.json_numbers import FLOATS
from cdc.model.table import Column
from sinks.columns.arrow_columns import (
    CLOCK,
    DOUBLE_WHOLE_MAX,
    YEARS,
    Form,
    Rows,
    Unfit,
    Written,
    decimal,
    decimal_digits,
    floating,
    integer,
    matching,
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

_INTEGER_BITS: Final = {"int2": 16, "int4": 32, "int8": 64, "oid": 64}

# Of a file's name, which most file systems limit to 255 bytes; it includes the column's name and "=".
_PARTITION_BYTES_MAX: Final = 255

# Texts that are read as null in a partition.
_NULL_PARTITIONS: Final = frozenset({"", "__HIVE_DEFAULT_PARTITION__"})


def rows_of(shape: Shape, partitions: Sequence[str] = ()) -> Rows:
    forms = {column.name: form_of(column, is_key=column.name in shape.table.key) for column in shape.columns}
    for name in partitions:
        if pa.types.is_string(forms[name].type):
            forms[name] = _partitioned(name, forms[name], is_key=name in shape.table.key)
    return Rows(shape, forms)


def form_of(column: Column, *, is_key: bool) -> Form:
    """The form of a column's values. For a key, the stored value alone must tell all keys apart."""
    value_type = column.value_type
    if column.is_array:
        return Form(pa.string(), write_array, read_array)
    if value_type == "bool":
        return Form(pa.bool_(), write_bool, read_plain)
    if value_type in _INTEGER_BITS:
        return integer(_INTEGER_BITS[value_type])
    if value_type == "bytea":
        return Form(pa.binary(), write_bytes, read_bytes)
    if value_type in FLOATS:
        return Form(pa.string(), write_json, read_json) if is_key else floating(pa.float64(), DOUBLE_WHOLE_MAX)
    if not is_key:
        if value_type == "numeric" and (digits := decimal_digits(column.type_modifier)) is not None:
            return decimal(*digits)
        if value_type == "date":
            return _time(pa.date32(), f"{YEARS}$")
        if value_type == "timestamp":
            return _time(pa.timestamp("us"), f"{YEARS}{CLOCK}$")
        if value_type == "timestamptz":
            return _time(pa.timestamp("us", "UTC"), f"{YEARS}{CLOCK}Z$")
    return Form(pa.string(), write_text, read_plain)


def may_partition(column: Column, *, is_key: bool) -> bool:
    """Whether a table may be partitioned by this column: every reader has to find the same value in a path."""
    form = form_of(column, is_key=is_key)
    return not column.is_array and (
        pa.types.is_boolean(form.type)
        or pa.types.is_integer(form.type)
        or pa.types.is_date(form.type)
        or (pa.types.is_string(form.type) and column.value_type not in FLOATS)
    )


def _partitioned(name: str, form: Form, *, is_key: bool) -> Form:
    """The form of a text column by which the table is partitioned."""

    def write(values: Sequence[JsonValue]) -> Written:
        array, exact = form.write(values)
        _check_partition(name, array, is_key=is_key)
        exact.update({index: value for index, value in enumerate(values) if value in _NULL_PARTITIONS})
        return array, exact

    return Form(form.type, write, form.read)


def _check_partition(name: str, array: pa.Array, *, is_key: bool) -> None:
    def is_long(text: str) -> bool:
        return len(quote(f"{name}={text}", safe="")) > _PARTITION_BYTES_MAX

    texts = array.to_pylist()
    long = {text for text in set(texts) if text is not None and is_long(text)}
    if long:
        raise Unfit([index for index, text in enumerate(texts) if text in long], "too long for a partition's name")
    if is_key and not _NULL_PARTITIONS.isdisjoint(texts):
        null = [index for index, text in enumerate(texts) if text in _NULL_PARTITIONS]
        raise Unfit(null, "a key that is null as a partition")


def _time(kind: pa.DataType, pattern: str) -> Form:
    def read(array: pa.Array) -> list[JsonValue]:
        texts = array.cast(pa.string())
        if not pa.types.is_date(kind):
            texts = _compute.replace_substring_regex(texts, r"\.?0*(Z?)$", r"\1")
            texts = _compute.replace_substring_regex(texts, r"^(.{10}) ", r"\1T")
        return texts.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types

    return Form(kind, matching(kind, pattern, lambda _: None), read)
