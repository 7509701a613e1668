"""An event as a sink sees it: a row's newest state, or that it is gone, with the tag that decides which is newer."""

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.model.table import TableName

_JsonScalar = str | int | float | bool | None
JsonValue = _JsonScalar | list["JsonValue"] | dict[str, "JsonValue"]
"""A column's value as it stands in an event. Numbers that JSON can't hold exactly are text; see the README's table."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an event stands in the log. Progress and evidence, never a version."""

    topic: str
    partition: int
    offset: int


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
