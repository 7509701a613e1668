"""Which columns of a table both sides have, with the same meaning. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.model.table import Column, Table, TableName
from lockstep.verify.sides.sink_view import SinkView
from sinks.registry import SinkSettings, projection_of
from sinks.wrappers.projection import parse_column

NOT_IN_LOG: Final = "no event has it yet: no row was changed since it was added or renamed"
"""The sink lacks such a column as well."""

LeftOut = tuple[tuple[str, str], ...]
"""Columns that aren't compared though a side has them, each with the reason."""


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table with the columns that are compared, and those that aren't. ``not_comparable`` is the reason if nothing of
    it can be compared."""

    table: Table
    left_out: LeftOut
    not_comparable: str = ""


def compared_table(
    origin: Table, logged: Table, view: SinkView, *, ours: SinkSettings, theirs: SinkSettings, against: str
) -> ComparedTable:
    """The columns of a table that are compared. ``origin`` is its shape on the expected side, ``logged`` the newest one
    in the log. ``ours`` are the sink's settings, ``theirs`` those of the other side, which is called ``against``."""
    name = origin.name
    compared, reasons = compared_columns(
        _with(origin, view.computed(name)),
        _with(logged, view.computed(name)),
        _excluded(ours, name),
        _excluded(theirs, name),
        against=against,
    )
    different = differently_made(ours, theirs, name)
    seen_by_sink = view.table(origin)
    return ComparedTable(
        replace(
            seen_by_sink, columns=tuple(seen_by_sink.column(column) for column in compared if column not in different)
        ),
        (*reasons, *((column, f"{against} was built with another mask or expression of it") for column in different)),
    )


def compared_columns(
    origin: Table, logged: Table, ours: frozenset[str], theirs: frozenset[str], *, against: str
) -> tuple[list[str], LeftOut]:
    """The columns that both sides have, and those that aren't compared although a side has them, with the reason.

    ``origin`` is the table's shape on the expected side, ``logged`` the newest one in the log. ``ours`` and ``theirs``
    are the columns that the sink's settings and the expected side's leave out.
    """
    logged_names = {column.name for column in logged.columns}
    compared, reasons = [], []
    for name in (column.name for column in origin.columns):
        if name not in logged_names:
            reasons.append((name, NOT_IN_LOG))
        elif name in ours or name in theirs:
            reasons.append((name, f"{'the sink' if name in ours else against} was built without it (setting exclude)"))
        else:
            compared.append(name)
    return compared, tuple(reasons)


def has_all_columns(origin: Table, logged: Table) -> bool:
    """Whether a table has every column that the log knows of it, by name and type."""
    now = {column.name: (column.type_oid, column.type_modifier) for column in origin.columns}
    return all(now.get(column.name) == (column.type_oid, column.type_modifier) for column in logged.columns)


def differently_made(ours: SinkSettings, theirs: SinkSettings, table: TableName) -> list[str]:
    """Columns that two sinks have with different values: masked or computed in another way."""
    our_ways, their_ways = _ways(ours, table), _ways(theirs, table)
    return sorted(
        column for column in our_ways.keys() | their_ways.keys() if our_ways.get(column) != their_ways.get(column)
    )


def _ways(settings: SinkSettings, table: TableName) -> dict[str, list[object]]:
    ways: dict[str, list[object]] = {}
    for text, way in (*settings.mask.items(), *settings.computed.items()):
        name, column = parse_column(text)
        if name == table:
            ways.setdefault(column, []).append(way)
    return ways


def _with(table: Table, computed: Sequence[Column]) -> Table:
    return replace(table, columns=(*table.columns, *computed))


def _excluded(settings: SinkSettings, table: TableName) -> frozenset[str]:
    return projection_of(settings).excluded.get(table, frozenset())
