"""Rows as bytes in the order that the rows have in SQL: the state's keys consist of these. Pure. A part begins with a
mark for null. No encoded part is a prefix of another one of its type, so the bytes of several columns follow each other
without a separator.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from views.numerics import decimal_of
from views.values import Kind, SqlType, Value

Encoder = Callable[[Value], bytes]

_NULL_FIRST, VALUE, _NULL_LAST = b"\x00", b"\x01", b"\x02"
SIGN: Final = 1 << 63
NUMBERS: Final = frozenset((Kind.INT2, Kind.INT4, Kind.INT8, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ))
"""Kinds whose values are integers."""
_INVERTED: Final = bytes(255 - byte for byte in range(256))
_BELOW_ZERO, _ZERO, _ABOVE_ZERO = b"\x00", b"\x01", b"\x02"
_EXPONENT_BIAS: Final = 1 << 31


def encoder(of: SqlType, *, descending: bool = False, nulls_first: bool = False) -> Encoder:
    """Encodes one column; text is ordered by code points, as in collation C. Raises AssertionError without an order."""
    plain = _plain(of)
    null = _NULL_FIRST if nulls_first else _NULL_LAST
    if descending:
        return lambda value: null if value is None else VALUE + plain(value).translate(_INVERTED)
    return lambda value: null if value is None else VALUE + plain(value)


@dataclass(frozen=True, slots=True)
class Direction:
    type: SqlType
    descending: bool = False
    nulls_first: bool = False


def row_encoder(types: Sequence[SqlType]) -> Callable[[Sequence[Value]], bytes]:
    """The function that encodes several columns, all ascending."""
    return order_encoder([Direction(of) for of in types])


def order_encoder(directions: Sequence[Direction]) -> Callable[[Sequence[Value]], bytes]:
    """The function that encodes several columns, each in its own direction."""
    encoders = [encoder(of.type, descending=of.descending, nulls_first=of.nulls_first) for of in directions]

    def encode(values: Sequence[Value]) -> bytes:
        return b"".join([encode(value) for encode, value in zip(encoders, values, strict=True)])

    if not directions or any(of.type.kind not in NUMBERS for of in directions):
        return encode
    # Tuned: most keys are integers and not null. This gives the same bytes in one call.
    pack = struct.Struct(">" + "BQ" * len(directions)).pack
    value_mark = VALUE[0]
    if len(directions) == 1 and not directions[0].descending:

        def encode_number(values: Sequence[Value]) -> bytes:
            (value,) = values
            return encode(values) if value is None else pack(value_mark, value + SIGN)  # type: ignore[operator]  # an int

        return encode_number
    if len(directions) == 2 and not any(of.descending for of in directions):

        def encode_two(values: Sequence[Value]) -> bytes:
            one, other = values
            if one is None or other is None:
                return encode(values)
            return pack(value_mark, one + SIGN, value_mark, other + SIGN)  # type: ignore[operator]  # both are ints

        return encode_two
    scales = [(-1, SIGN - 1) if of.descending else (1, SIGN) for of in directions]

    def encode_numbers(values: Sequence[Value]) -> bytes:
        if None in values:
            return encode(values)
        parts: list[int] = []
        for value, (sign, added) in zip(values, scales, strict=True):
            parts += (value_mark, sign * value + added)  # type: ignore[operator]  # an int
        return pack(*parts)

    return encode_numbers


def _plain(of: SqlType) -> Encoder:
    match of.kind:
        case Kind.BOOL:
            return lambda value: b"\x01" if value else b"\x00"
        case kind if kind in NUMBERS:
            return lambda value: (value + SIGN).to_bytes(8, "big")  # type: ignore[operator]  # an int
        case Kind.NUMERIC:
            return lambda value: numeric_key(decimal_of(value))  # type: ignore[arg-type]  # text
        case Kind.TEXT | Kind.UUID | Kind.CHAR:
            return _text
        case _:
            raise AssertionError(f"{of.name} has no order")


def _text(value: Value) -> bytes:
    assert isinstance(value, str)
    return value.encode() + b"\x00"  # PostgreSQL's text never contains this byte


def numeric_key(number: Decimal) -> bytes:
    """A finite number, whatever its scale: 1.0 and 1.00 give the same bytes."""
    if not number:
        return _ZERO
    sign, digits, _ = number.as_tuple()
    magnitude = (number.adjusted() + _EXPONENT_BIAS).to_bytes(4, "big") + bytes(
        digit + 1 for digit in _stripped(digits)
    )
    magnitude += b"\x00"
    return _BELOW_ZERO + magnitude.translate(_INVERTED) if sign else _ABOVE_ZERO + magnitude


def _stripped(digits: tuple[int, ...]) -> tuple[int, ...]:
    """Without zeros at both ends; the exponent belongs to the first digit that isn't zero."""
    start, end = 0, len(digits)
    while digits[start] == 0:
        start += 1
    while digits[end - 1] == 0:
        end -= 1
    return digits[start:end]
