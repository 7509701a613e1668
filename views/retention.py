"""Retention by event time: rows of a table count for a period after the time in one of their columns. Pure. A view's
time is the greatest commit time that it has taken in, in whole minutes. A row counts while its column is later than the
view's time minus the period. So only the log decides when a row ages out, and the result is reproducible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from cdc.model.table import TableName, quote_identifier
from views.values import Kind, Value, micros_text

KINDS: Final = (Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE)
"""Kinds of columns that can give a row's time. Those without a time zone are taken as UTC."""

_MINUTE_MS: Final = 60_000
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Rows of a table count for this many hours after the time in ``column``, which has this kind."""

    table: TableName
    column: str
    hours: int
    kind: Kind

    def limit(self, time_ms: int) -> int:
        """The greatest value of the column, as inside a view, whose row no longer counts at this time of the view."""
        limit_us = (time_ms - _EPOCH_MS) * 1000 - self.hours * _HOUR_US
        # A date counts as its midnight.
        return limit_us // _DAY_US if self.kind is Kind.DATE else limit_us

    def is_over(self, value: Value, time_ms: int) -> bool:
        """Whether a row with this value no longer counts at this time of the view. A row with null always counts."""
        return value is not None and value <= self.limit(time_ms)  # type: ignore[operator]  # an int

    def condition(self, time_ms: int) -> str:
        """An SQL condition for the rows that count at this time of the view, whatever the session's time zone."""
        column = quote_identifier(self.column)
        zone = "+00" if self.kind is Kind.TIMESTAMPTZ else ""
        limit_us = (time_ms - _EPOCH_MS) * 1000 - self.hours * _HOUR_US
        of_type = "timestamptz" if self.kind is Kind.TIMESTAMPTZ else "timestamp"
        return f"{column} is null or {column} > {of_type} '{micros_text(limit_us, zone, ' ')}'"


def period_text(hours: int) -> str:
    """``90 days``, ``1 day and 12 hours``."""
    parts = [(hours // 24, "day"), (hours % 24, "hour")]
    return " and ".join(f"{count} {unit}{'s' * (count != 1)}" for count, unit in parts if count)


def whole_minutes(time_ms: int) -> int:
    """The start of a moment's minute, in milliseconds since 1970."""
    return time_ms - time_ms % _MINUTE_MS


@dataclass(frozen=True, slots=True)
class NotedTime:
    """The view's time as of which the sink has the result, in milliseconds since 1970; 0 before the first. While the
    result is being brought to a later time, ``next_ms`` is that time; otherwise it equals ``time_ms``. The record is
    stored with the sink: a query of the source for the same result needs it, and a new state goes on from there.
    """

    time_ms: int = 0
    next_ms: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether all rows are as of one time."""
        return self.time_ms == self.next_ms

    def to_json(self) -> str:
        return orjson.dumps({"time_ms": self.time_ms, "next_ms": self.next_ms}).decode()

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """The inverse of ``to_json``. Without a record, the view has no time yet."""
        if text is None:
            return cls()
        facts: dict[str, Any] = orjson.loads(text)
        return cls(facts["time_ms"], facts["next_ms"])


def noted_name(generation: int, shard: int | None = None) -> str:
    """The name of the destination's record of the time of a generation or of one of its shards."""
    return f"g{generation}.view_time" + ("" if shard is None else f".{shard}")


def noted_together(times: Sequence[NotedTime]) -> NotedTime:
    """The time of a divided view, from those of its shards: settled once all are as of one time."""
    return NotedTime(min(time.time_ms for time in times), max(time.next_ms for time in times))
