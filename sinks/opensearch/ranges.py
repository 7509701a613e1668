"""PostgreSQL's text of ranges -> what OpenSearch's range types index (pure).

These are copies for searching. A range that OpenSearch can't express has none: an empty one, or a bound that is NaN, BC
or beyond the year 9999. ``infinity`` is no bound. Instants are indexed to the millisecond, ``numrange`` as doubles. If
rounding leaves nothing between the bounds, the bounds are included, since OpenSearch refuses an empty range.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

FIELD_TYPES: Final[Mapping[str, str]] = {
    "int4range": "integer_range",
    "int8range": "long_range",
    "numrange": "double_range",
    "daterange": "date_range",
    "tsrange": "date_range",
    "tstzrange": "date_range",
    "int4multirange": "integer_range",
    "int8multirange": "long_range",
    "nummultirange": "double_range",
    "datemultirange": "date_range",
    "tsmultirange": "date_range",
    "tstzmultirange": "date_range",
}
"""PostgreSQL's built-in ranges -> OpenSearch's types."""

_RANGE: Final = re.compile(r"(?P<first>[\[(])(?P<low>[^,]*),(?P<high>[^\])]*)(?P<last>[\])])")
_NUMBER: Final = re.compile(r"-?\d{1,300}(?:\.\d+)?")
_MOMENT: Final = re.compile(r"(?P<day>(?!0000)\d{4}-\d\d-\d\d)(?: (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)(?P<zone>\+00)?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDLESS: Final = frozenset({"", "infinity", "-infinity", "Infinity", "-Infinity"})


def searchable_range(value: Any, value_type: str) -> Any:
    """A range as an object of its bounds, a multirange or array as a list of these; None if nothing can be indexed."""
    if isinstance(value, list):
        copies = [searchable_range(element, value_type) for element in value]
        return [element for element in copies if element is not None] or None
    if not isinstance(value, str):
        return None
    ranges = [_bounds(match, value_type) for match in _RANGE.finditer(value)]
    indexed = [bounds for bounds in ranges if bounds is not None]
    if "multirange" in value_type:
        return indexed or None
    return indexed[0] if indexed else None


def _bounds(match: re.Match[str], value_type: str) -> dict[str, str] | None:
    bounds = {}
    for text, name in (
        (match["low"], "gte" if match["first"] == "[" else "gt"),
        (match["high"], "lte" if match["last"] == "]" else "lt"),
    ):
        plain = text.strip('"')
        if plain in _ENDLESS:
            continue
        bound = _bound(plain, value_type)
        if bound is None:
            return None
        bounds[name] = bound
    if len(bounds) == 2 and not _has_inside(bounds, value_type):
        low, high = bounds.values()
        return {"gte": low, "lte": high}
    return bounds


def _has_inside(bounds: Mapping[str, str], value_type: str) -> bool:
    """Whether a range that OpenSearch has rounded still contains anything."""
    (first, low), (last, high) = bounds.items()
    if value_type.startswith("int"):
        return True  # PostgreSQL prints these without an exclusive lower bound, and empty ones as a word
    if value_type.startswith("num"):
        lowest = math.nextafter(float(low), math.inf) if first == "gt" else float(low)
        return lowest <= (math.nextafter(float(high), -math.inf) if last == "lt" else float(high))
    return _milliseconds(low) + (first == "gt") <= _milliseconds(high) - (last == "lt")


def _milliseconds(moment: str) -> int:
    instant = datetime.fromisoformat(moment)
    return (instant.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _bound(text: str, value_type: str) -> str | None:
    if value_type.startswith(("int", "num")):
        return text if _NUMBER.fullmatch(text) else None
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    return f"{match['day']}T{match['time']}Z" if match["time"] else match["day"]
