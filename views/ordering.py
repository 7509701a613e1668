"""Rows as bytes whose order is the order of the rows in SQL: every key of the state is made of these. Pure.

A part begins with whether the value is null. No encoded part is the beginning of another one of its type, so the bytes
of several columns follow each other without a separator.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

from views.numerics import decimal_of
from views.values import Kind, SqlType, Value

Encoder = Callable[[Value], bytes]

_NULL_FIRST, _VALUE, _NULL_LAST = b"\x00", b"\x01", b"\x02"
_SIGN: Final = 1 << 63
_INVERTED: Final = bytes(255 - byte for byte in range(256))
_BELOW_ZERO, _ZERO, _ABOVE_ZERO = b"\x00", b"\x01", b"\x02"
_EXPONENT_BIAS: Final = 1 << 31


def encoder(of: SqlType, *, descending: bool = False, nulls_first: bool = False) -> Encoder:
    """The function that encodes one column. Text is in the order of collation C, which is that of its code points.

    Raises AssertionError for a type that has no order here.
    """
    plain = _plain(of)
    null = _NULL_FIRST if nulls_first else _NULL_LAST
    if descending:
        return lambda value: null if value is None else _VALUE + plain(value).translate(_INVERTED)
    return lambda value: null if value is None else _VALUE + plain(value)


def row_encoder(types: Sequence[SqlType]) -> Callable[[Sequence[Value]], bytes]:
    """The function that encodes several columns, all ascending."""
    encoders = [encoder(of) for of in types]
    if len(encoders) == 1:
        only = encoders[0]
        return lambda values: only(values[0])
    return lambda values: b"".join([encode(value) for encode, value in zip(encoders, values, strict=True)])


def _plain(of: SqlType) -> Encoder:
    match of.kind:
        case Kind.BOOL:
            return lambda value: b"\x01" if value else b"\x00"
        case Kind.INT2 | Kind.INT4 | Kind.INT8 | Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return lambda value: (value + _SIGN).to_bytes(8, "big")  # type: ignore[operator]  # an int
        case Kind.NUMERIC:
            return lambda value: numeric_key(decimal_of(value))  # type: ignore[arg-type]  # text
        case Kind.TEXT | Kind.UUID:
            return _text
        case _:
            raise AssertionError(f"{of.name} has no order")


def _text(value: Value) -> bytes:
    assert isinstance(value, str)
    return value.encode() + b"\x00"  # PostgreSQL's text holds no such byte


def numeric_key(number: Decimal) -> bytes:
    """A finite number, whatever its scale: 1.0 and 1.00 are the same bytes."""
    if not number:
        return _ZERO
    sign, digits, _ = number.as_tuple()
    magnitude = (number.adjusted() + _EXPONENT_BIAS).to_bytes(4, "big") + bytes(
        digit + 1 for digit in _stripped(digits)
    )
    magnitude += b"\x00"
    return _BELOW_ZERO + magnitude.translate(_INVERTED) if sign else _ABOVE_ZERO + magnitude


def _stripped(digits: tuple[int, ...]) -> tuple[int, ...]:
    """Without zeros at both ends; the exponent is that of the first digit that isn't zero."""
    start, end = 0, len(digits)
    while digits[start] == 0:
        start += 1
    while digits[end - 1] == 0:
        end -= 1
    return digits[start:end]
