"""The columns and queries of the views through which readers see a generation's tables, for every dialect (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.append_only import OPERATION_COLUMN, TRUNCATE, is_append_only
from cdc.model.table import Table, quote_identifier
from sinks.columns.shape import Shape
from sinks.warehouse.history import COMMITTED, FROM, OPERATION, TO, WORDS
from sinks.warehouse.names import DELETED_COLUMN, HISTORY_SUFFIX, SYNCED_COLUMN, TAG_COLUMN, listed, qualified
from sinks.warehouse.stored_table import StoredTable

# In a view ours come first: a column that is added later can be at the end only.
_HISTORY_COLUMNS = (TAG_COLUMN, FROM, TO, OPERATION)


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """The definition of a view: its columns, in the query's order."""

    columns: tuple[str, ...]
    query: str


def views_of(held: StoredTable, schema: str) -> dict[str, ViewDefinition]:
    """The views of a table that is in this schema, by their names."""
    views = {held.name: live_view(qualified(schema, held.name), held)}
    if held.has_history:
        relation = held.name + HISTORY_SUFFIX
        views[relation] = history_view(qualified(schema, relation), held.shape)
    return views


def live_condition(target: str, table: Table, *, of: str = "") -> str:
    """Of which rows of a table readers see, in SQL; ``of`` is what its columns are called by, as ``known.``.

    What emptied an append-only table is a row of it, so a row from before is deleted whenever it comes.
    """
    deleted, tag, operation = map(quote_identifier, (DELETED_COLUMN, TAG_COLUMN, OPERATION_COLUMN))
    if not is_append_only(table):
        return f"not {of}{deleted}"
    emptied = f"select coalesce(max({tag}), '') from {target} where {operation} = '{TRUNCATE}'"
    return f"not {of}{deleted} and {of}{operation} <> '{TRUNCATE}' and {of}{tag} >= ({emptied})"


def live_rows_sql(target: str, table: Table, columns: Sequence[str]) -> str:
    return f"select {listed(columns)} from {target} where {live_condition(target, table)}"


def live_view(target: str, held: StoredTable) -> ViewDefinition:
    """What readers see of a table."""
    ours = (SYNCED_COLUMN,) if held.has_synced_at else ()
    columns = (*ours, *(column.name for column in held.shape.columns))
    return ViewDefinition(columns, live_rows_sql(target, held.shape.table, columns))


def history_view(target: str, shape: Shape) -> ViewDefinition:
    """What readers see of a history."""
    key = shape.table.key
    columns = tuple(column.name for column in shape.columns)
    committed, operation, valid_from = map(quote_identifier, (COMMITTED, OPERATION, FROM))
    words = " ".join(f"when '{letter}' then '{word}'" for letter, word in WORDS.items())
    # A column that was added with a value has that in all rows, deletions included.
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
