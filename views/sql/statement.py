"""A view's query for PostgreSQL: with every table's schema, and with ``top`` in SQL."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import sqlglot
from sqlglot import exp

from cdc.model.append_only import OWN_COLUMNS
from cdc.model.table import TableName, quote_identifier
from views.plan import ViewPlan
from views.sql.reader import TopRows
from views.sql.tables_read import identifier_text, is_part_of_with
from views.values import Kind

_RANK = "lockstep_rank"


_ALL: Final[Mapping[TableName, str]] = MappingProxyType({})


def statement(sql: str, conditions: Mapping[TableName, str] = _ALL) -> str:
    """The query with ``public`` before each table without a schema. ``read_view`` must accept the query. It means the
    same with any search path, and finds no function outside of pg_catalog. Of a table in ``conditions``, only rows for
    which the condition is true are read, wherever the table stands.
    """
    tokens = sqlglot.tokenize(sql, read="postgres")
    while tokens[-1].text == ";":
        tokens.pop()
    text = sql[: tokens[-1].end + 1]
    for start, end, instead in sorted(_replaced(text, conditions), reverse=True):
        text = text[:start] + instead + text[end:]
    return text


def _replaced(sql: str, conditions: Mapping[TableName, str]) -> Iterator[tuple[int, int, str]]:
    """Where a replacement begins and ends, and its text."""
    for table in sqlglot.parse_one(sql, dialect="postgres").find_all(exp.Table):
        schema, name = table.args.get("db"), table.this
        if schema is None and is_part_of_with(table, identifier_text(name)):
            continue
        start, end = (name if schema is None else schema).meta["start"], name.meta["end"] + 1
        of = TableName("public" if schema is None else identifier_text(schema), identifier_text(name))
        if of in conditions:
            alias = "" if table.args.get("alias") is not None else f" as {quote_identifier(of.name)}"
            yield start, end, f"(select * from {of.sql} where {conditions[of]}){alias}"
        elif schema is None:
            yield start, start, '"public".'


def reads_events(sql: str) -> bool:
    """Whether the query reads a column of an append-only table that only the log has, so that no server can run it."""
    return any(
        identifier_text(column.this) in OWN_COLUMNS
        for column in sqlglot.parse_one(sql, dialect="postgres").find_all(exp.Column)
        if isinstance(column.this, exp.Identifier)
    )


def whole_statement(plan: ViewPlan, sql: str, top: TopRows | None, *, time_ms: int = 0) -> str:
    """The query whose result the view of this plan holds at this time, in milliseconds since 1970."""
    text = statement(sql, {retained.table: retained.condition(time_ms) for retained in plan.retained})
    if top is None:
        return text
    per = ", ".join(map(quote_identifier, top.per))
    types = {name: made.type for name, made in plan.outputs}
    order = ", ".join([top.order, *(quote_identifier(name) + _collation(types[name].kind) for name in plan.key)])
    part = f"partition by {per} " if per else ""
    ranked = f"select q.*, row_number() over ({part}order by {order}) as {_RANK} from ({text}\n) as q"
    columns = ", ".join(quote_identifier(name) for name, _ in plan.outputs)
    return f"select {columns} from ({ranked}) as ranked where {_RANK} <= {top.n}"


def _collation(kind: Kind) -> str:
    return ' collate "C"' if kind in (Kind.TEXT, Kind.CHAR) else ""
