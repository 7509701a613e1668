"""Columns and queries of the views that show a generation's tables to readers, for every dialect (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.append_only import OPERATION_COLUMN, TRUNCATE, is_append_only
from cdc.model.table import Table, quote_identifier
from sinks.columns.shape import Shape
from sinks.warehouse.history import COMMITTED, FROM, OPERATION, TO, WORDS
from sinks.warehouse.names import DELETED_COLUMN, HISTORY_SUFFIX, SYNCED_COLUMN, TAG_COLUMN, listed, qualified
from sinks.warehouse.stored_table import StoredTable

# Our columns come first, since a view can only get new columns at its end.
_HISTORY_COLUMNS = (TAG_COLUMN, FROM, TO, OPERATION)


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    columns: tuple[str, ...]
    query: str


def views_of(held: StoredTable, schema: str) -> dict[str, ViewDefinition]:
    views = {held.name: live_view(qualified(schema, held.name), held)}
    if held.has_history:
        relation = held.name + HISTORY_SUFFIX
        views[relation] = history_view(qualified(schema, relation), held.shape)
    return views


def live_condition(target: str, table: Table, *, of: str = "") -> str:
    """The SQL condition for rows that readers see. ``of`` qualifies the table's columns, such as ``known.``.

    A truncation of an append-only table is a row of it. So an earlier row counts as deleted, whenever it arrives.
    """
    deleted, tag, operation = map(quote_identifier, (DELETED_COLUMN, TAG_COLUMN, OPERATION_COLUMN))
    if not is_append_only(table):
        return f"not {of}{deleted}"
    emptied = f"select coalesce(max({tag}), '') from {target} where {operation} = '{TRUNCATE}'"
    return f"not {of}{deleted} and {of}{operation} <> '{TRUNCATE}' and {of}{tag} >= ({emptied})"


def live_rows_sql(target: str, table: Table, columns: Sequence[str]) -> str:
    return f"select {listed(columns)} from {target} where {live_condition(target, table)}"


def live_view(target: str, held: StoredTable) -> ViewDefinition:
    ours = (SYNCED_COLUMN,) if held.has_synced_at else ()
    columns = (*ours, *(column.name for column in held.shape.columns))
    return ViewDefinition(columns, live_rows_sql(target, held.shape.table, columns))


def history_view(target: str, shape: Shape) -> ViewDefinition:
    key = shape.table.key
    columns = tuple(column.name for column in shape.columns)
    committed, operation, valid_from = map(quote_identifier, (COMMITTED, OPERATION, FROM))
    words = " ".join(f"when '{letter}' then '{word}'" for letter, word in WORDS.items())
    # A column that was added with a value has it in all rows, deletions included.
    values = [
        quote_identifier(name)
        if name in key
        else f"case when {operation} <> 'd' then {quote_identifier(name)} end as {quote_identifier(name)}"
        for name in columns
    ]
    query = (
        f"select {quote_identifier(TAG_COLUMN)}, {valid_from}, "
        f"case when {operation} = 'd' then {valid_from} when {TO} is not null then greatest({valid_from}, {TO}) end as "
        f"{TO}, "
        f"case {operation} {words} end as {operation}, {', '.join(values)} "
        f"from (select {listed(columns)}, {quote_identifier(TAG_COLUMN)}, {operation}, "
        f"max({committed}) over (versions rows unbounded preceding) as {valid_from}, lead({committed}) over versions "
        f"as {TO} "
        f"from {target} window versions as (partition by {listed(key)} order by {quote_identifier(TAG_COLUMN)})) as "
        "version"
    )
    return ViewDefinition((*_HISTORY_COLUMNS, *columns), query)
