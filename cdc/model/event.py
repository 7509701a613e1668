"""An event as a sink sees it: a row's newest state or its deletion, and the tag that decides which event is newer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, overload

import orjson

from cdc.model.errors import LockstepError
from cdc.model.table import TableName

_JsonScalar = str | int | float | bool | None
JsonValue = _JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]
"""A column's value in an event. Numbers that JSON can't hold exactly are text; see docs/types.md."""


def value_text(value: JsonValue) -> str:
    """A text as it is, anything else in JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


Headers = list[tuple[str, bytes]]
"""A record's headers."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an event is in the log. For progress and diagnosis; never a version."""

    topic: str
    partition: int
    offset: int

    def located(self, error: LockstepError) -> LockstepError:
        """The error of the record at this position, with the position added."""
        return LockstepError(
            f"{error.message} (topic {self.topic}, partition {self.partition}, offset {self.offset})", hint=error.hint
        )


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One row at one source position.

    ``key`` maps the key columns in key order to their values. ``row`` maps all columns to theirs, key columns included;
    None says that the row is deleted. ``tag`` is the 28-digit text: compare it as text.
    """

    table: TableName
    key: Mapping[str, JsonValue]
    tag: str
    row: Mapping[str, JsonValue] | None
    position: Position


@dataclass(frozen=True, slots=True, eq=False)
class TableEvents(Sequence[RowEvent]):
    """Events of one table, stored by column in the log's own JSON. Each element is parsed on access. ``keys`` are JSON
    objects of the key columns in key order. ``rows`` have all columns; None is a deletion. A sink should use the JSON
    where it can: parsing and writing a row costs more than most destinations' own work."""

    table: TableName
    keys: list[bytes]
    tags: list[str]
    rows: list[bytes | None]
    event_at: Callable[[int], RowEvent]
    """The event at an index."""

    @classmethod
    def of(cls, table: TableName, events: Sequence[RowEvent]) -> Self:
        """Already parsed events, all of this table."""
        rows: list[bytes | None] = [None if event.row is None else orjson.dumps(event.row) for event in events]
        keys = [orjson.dumps(event.key) for event in events]
        return cls(table, keys, [event.tag for event in events], rows, events.__getitem__)

    @classmethod
    def from_log(
        cls,
        table: TableName,
        keys: list[bytes],
        tags: list[str],
        rows: list[bytes | None],
        position_at: Callable[[int], Position],
    ) -> Self:
        """Events in the log's own JSON. Accessing an element that isn't JSON raises LockstepError."""

        def event_at(index: int) -> RowEvent:
            row, at = rows[index], position_at(index)
            try:
                key, columns = parse_key(keys[index]), None if row is None else parse_object(row)
            except LockstepError as error:
                raise at.located(error) from None
            return RowEvent(table, key, tags[index], columns, at)

        return cls(table, keys, tags, rows, event_at)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> RowEvent: ...

    @overload
    def __getitem__(self, index: slice) -> "TableEvents": ...

    def __getitem__(self, index: int | slice) -> "RowEvent | TableEvents":
        if isinstance(index, int):
            return self.event_at(range(len(self))[index])
        return self.select(range(len(self))[index])

    def __iter__(self) -> Iterator[RowEvent]:
        return map(self.event_at, range(len(self)))

    def select(self, indexes: Sequence[int]) -> "TableEvents":
        """The events at these indexes, in this order."""

        def event_at(index: int) -> RowEvent:
            return self.event_at(indexes[index])

        return TableEvents(
            self.table,
            list(map(self.keys.__getitem__, indexes)),
            list(map(self.tags.__getitem__, indexes)),
            list(map(self.rows.__getitem__, indexes)),
            event_at,
        )

    def key_values(self) -> list[list[JsonValue]]:
        """Each event's key values, in key order. Raises LockstepError for a key that isn't JSON."""
        return list(map(self.key_values_at, range(len(self))))

    def key_values_at(self, index: int) -> list[JsonValue]:
        """The key values of one event. Raises as ``key_values``."""
        return list(self.key_at(index).values())

    def key_at(self, index: int) -> dict[str, JsonValue]:
        """The key of one event. Raises LockstepError if it isn't JSON."""
        try:
            return parse_key(self.keys[index])
        except LockstepError:
            self.event_at(index)  # its error has the position
            raise


class Events(Sequence[RowEvent]):
    """Events of several tables, grouped in ``tables``, each table once."""

    __slots__ = ("tables",)

    def __init__(self, tables: Iterable[TableEvents]) -> None:
        self.tables = [events for events in tables if len(events)]

    @classmethod
    def of(cls, events: Sequence[RowEvent]) -> "Events":
        """Group any events by table, tables in order of first appearance. Each table's events keep their order."""
        if isinstance(events, Events):
            return events
        by_table: dict[TableName, list[RowEvent]] = {}
        for event in events:
            by_table.setdefault(event.table, []).append(event)
        return cls(TableEvents.of(table, table_events) for table, table_events in by_table.items())

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    @overload
    def __getitem__(self, index: int) -> RowEvent: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RowEvent]: ...

    def __getitem__(self, index: int | slice) -> RowEvent | Sequence[RowEvent]:
        if isinstance(index, slice):
            return list(self)[index]
        remaining = range(len(self))[index]
        for events in self.tables:
            if remaining < len(events):
                return events[remaining]
            remaining -= len(events)
        raise IndexError(index)

    def __iter__(self) -> Iterator[RowEvent]:
        return chain.from_iterable(self.tables)


def parse_key(key: bytes) -> dict[str, JsonValue]:
    """The JSON of a key. Raises LockstepError if it isn't an object."""
    try:
        return parse_object(key)
    except LockstepError:
        raise LockstepError(
            "a record on a table's topic has a key that is no JSON object",
            hint="only Lockstep may write to its topics; find out who else does",
        ) from None


def parse_object(text: bytes) -> dict[str, JsonValue]:
    """The JSON of a row. Raises LockstepError, which doesn't quote the text, if it isn't an object."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise LockstepError(
            "a record on a table's topic holds no row",
            hint="only Lockstep may write to its topics; find out who else does",
        )
    return parsed
