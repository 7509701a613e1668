"""The Gregorian calendar beyond Python's range of years, in PostgreSQL's day numbers. Pure."""

from datetime import date
from typing import Final

_EPOCH_DAY: Final = date(2000, 1, 1).toordinal()
_YEARS_400_DAYS: Final = 146_097

DAYS_TO_2000: Final = 10_957
"""Days from 1970-01-01 to 2000-01-01."""


def days_of(year: int, month: int, day: int) -> int:
    """The date as days since 2000-01-01. The year before 1 is 0. Raises ValueError if there is no such date."""
    shift = 0
    if not 1 <= year <= 9999:  # the calendar repeats itself every 400 years
        shift = (year - 2000) // 400
        year -= shift * 400
    return date(year, month, day).toordinal() - _EPOCH_DAY + shift * _YEARS_400_DAYS


def date_of(days: int) -> tuple[int, int, int]:
    """Days since 2000-01-01 -> year, month, day."""
    shift, rest = 0, days + _EPOCH_DAY
    if not 1 <= rest <= 3_652_059:
        shift = days // _YEARS_400_DAYS
        rest = days - shift * _YEARS_400_DAYS + _EPOCH_DAY
    at = date.fromordinal(rest)
    return at.year + shift * 400, at.month, at.day
