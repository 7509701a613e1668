"""PostgreSQL's numeric: exact digits, and the scale that PostgreSQL gives each operation's result. Pure. Values are
PostgreSQL's text. ``NaN`` and the infinities raise EvaluationError: views only pass them on.
"""

from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation
from typing import Final

from views.failures import EvaluationError

DIGITS_MAX: Final = 131_072
"""The most digits that a numeric has before the point."""

_SCALE_MAX: Final = 16_383
_DIVISION_SCALE_MAX: Final = 1000
_SIGNIFICANT_DIGITS_MIN: Final = 16
_DIGITS_PER_WORD: Final = 4
_EXACT: Final = Context(
    prec=400_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Inexact]
)
_ROUNDING: Final = Context(prec=400_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP, traps=[InvalidOperation])


def decimal_of(text: str) -> Decimal:
    """Raises EvaluationError for NaN and the infinities."""
    number = Decimal(text)
    if not number.is_finite():
        raise EvaluationError("a numeric is NaN or infinite, with which views don't compute")
    return number


def scale_of(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "finite"
    return max(0, -exponent)


def text_of(number: Decimal) -> str:
    """PostgreSQL's text: no exponent, zero without a sign. Raises EvaluationError if the number is too large."""
    if not number:
        return format(number.copy_abs(), "f")
    if number.adjusted() >= DIGITS_MAX:
        raise EvaluationError("a numeric is too large")
    return format(number, "f")


def add(left: Decimal, right: Decimal) -> Decimal:
    return _EXACT.add(left, right)


def subtract(left: Decimal, right: Decimal) -> Decimal:
    return _EXACT.subtract(left, right)


def multiply(left: Decimal, right: Decimal) -> Decimal:
    product = _EXACT.multiply(left, right)
    return rounded(product, _SCALE_MAX) if scale_of(product) > _SCALE_MAX else product


def divide(left: Decimal, right: Decimal) -> Decimal:
    """The quotient with PostgreSQL's scale: at least 16 significant digits. Raises EvaluationError."""
    if not right:
        raise EvaluationError("division by zero")
    scale = _division_scale(left, right)
    # Integers keep every digit, so numerator and denominator are brought to one scale first.
    common = max(scale_of(left), scale_of(right))
    numerator = int(_EXACT.scaleb(left, common)) * 10**scale
    denominator = int(_EXACT.scaleb(right, common))
    quotient, rest = divmod(abs(numerator), abs(denominator))
    if 2 * rest >= abs(denominator):
        quotient += 1
    signed = -quotient if (numerator < 0) != (denominator < 0) else quotient
    return _EXACT.scaleb(Decimal(signed), -scale)


def remainder(left: Decimal, right: Decimal) -> Decimal:
    """The remainder has the dividend's sign and the greater scale. Raises EvaluationError."""
    if not right:
        raise EvaluationError("division by zero")
    common = max(scale_of(left), scale_of(right))
    a, b = int(_EXACT.scaleb(left, common)), int(_EXACT.scaleb(right, common))
    rest = abs(a) % abs(b)
    return _EXACT.scaleb(Decimal(-rest if a < 0 else rest), -common)


def rounded(number: Decimal, scale: int) -> Decimal:
    """Rounds half away from zero."""
    return number.quantize(Decimal((0, (1,), -scale)), rounding=ROUND_HALF_UP, context=_ROUNDING)


def fitted(number: Decimal, precision: int, scale: int) -> Decimal:
    """As ``numeric(precision,scale)``. Raises EvaluationError if it has too many digits."""
    result = rounded(number, scale)
    if result and result.adjusted() >= precision - scale:
        raise EvaluationError(f"a numeric has too many digits for numeric({precision},{scale})")
    return result


def _first_word(number: Decimal) -> tuple[int, int]:
    """Weight and value of the first group of four digits, as PostgreSQL stores them. Zero is (0, 0)."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _DIGITS_PER_WORD
    digits = "".join(map(str, number.as_tuple().digits))
    leading = number.adjusted() - weight * _DIGITS_PER_WORD + 1
    return weight, int(digits[:leading].ljust(leading, "0"))


def _division_scale(left: Decimal, right: Decimal) -> int:
    # As select_div_scale() in PostgreSQL's numeric.c.
    weight_left, first_left = _first_word(left)
    weight_right, first_right = _first_word(right)
    weight = weight_left - weight_right
    if first_left <= first_right:
        weight -= 1
    scale = _SIGNIFICANT_DIGITS_MIN - weight * _DIGITS_PER_WORD
    return min(max(scale, scale_of(left), scale_of(right), 0), _DIVISION_SCALE_MAX)
