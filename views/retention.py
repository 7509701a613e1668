"""Retention by event time: rows of a table count for so long after the time in one of their columns. Pure.

A view's time is the greatest commit time of what it has taken in, in whole minutes. Rows count whose column is later
than that less their time. So nothing but the log says when a row ages out, and the result can be asked for again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from cdc.model.table import TableName, quote_identifier
from views.values import Kind, Value, micros_text

KINDS: Final = (Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE)
"""Of columns that say when a row was. Those without a time zone are taken as of UTC."""

_MINUTE_MS: Final = 60_000
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Rows of a table count for so many hours after the time in this column, which is of this kind."""

    table: TableName
    column: str
    hours: int
    kind: Kind

    def limit(self, time_ms: int) -> int:
        """The greatest value of the column, as inside a view, whose row doesn't count at this time of the view."""
        limit_us = (time_ms - _EPOCH_MS) * 1000 - self.hours * _HOUR_US
        # A day is later than a moment where its midnight is.
        return limit_us // _DAY_US if self.kind is Kind.DATE else limit_us

    def is_over(self, value: Value, time_ms: int) -> bool:
        """Whether a row with this value doesn't count at this time of the view. One without a value always counts."""
        return value is not None and value <= self.limit(time_ms)  # type: ignore[operator]  # an int

    def condition(self, time_ms: int) -> str:
        """The rows that count at this time of the view, as PostgreSQL asks for them, whatever the session's zone is."""
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
    """The minute that a moment is in, in milliseconds since 1970."""
    return time_ms - time_ms % _MINUTE_MS


@dataclass(frozen=True, slots=True)
class NotedTime:
    """As of which time of a view its sink has the result, in milliseconds since 1970; 0 before the first.

    ``next_ms`` is the time that it is being brought to, and the same as ``time_ms`` where it isn't. This is kept with
    the sink: whoever asks for the result on the source needs it, and a new state goes on from there.
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
        """What ``to_json`` has made. Without any, the view has no time yet."""
        if text is None:
            return cls()
        facts: dict[str, Any] = orjson.loads(text)
        return cls(facts["time_ms"], facts["next_ms"])


def noted_name(generation: int, shard: int | None = None) -> str:
    """The name of the destination's record of a generation's time, or of that of one of its shards."""
    return f"g{generation}.view_time" + ("" if shard is None else f".{shard}")


def noted_together(times: Sequence[NotedTime]) -> NotedTime:
    """The time of a view that is divided, by those of its shards: settled once all are as of one time."""
    return NotedTime(min(time.time_ms for time in times), max(time.next_ms for time in times))
