"""A view's query as PostgreSQL can run it: by itself, with every table's schema, and with ``top`` as SQL has it."""

from collections.abc import Iterator

import sqlglot
from sqlglot import exp

from cdc.model.append_only import OWN_COLUMNS
from cdc.model.table import quote_identifier
from views.plan import ViewPlan
from views.sql.reader import TopRows
from views.sql.tables_read import identifier_text, is_part_of_with
from views.values import Kind

_RANK = "lockstep_rank"


def statement(sql: str) -> str:
    """The query alone, with ``public`` before each table that has no schema. It must be one that ``read_view`` takes.

    So it means the same whatever the session's search path is, and no function outside of pg_catalog is found.
    """
    tokens = sqlglot.tokenize(sql, read="postgres")
    while tokens[-1].text == ";":
        tokens.pop()
    text = sql[: tokens[-1].end + 1]
    for start in sorted(_without_schema(text), reverse=True):
        text = f'{text[:start]}"public".{text[start:]}'
    return text


def _without_schema(sql: str) -> Iterator[int]:
    """Where the names of such tables begin."""
    for table in sqlglot.parse_one(sql, dialect="postgres").find_all(exp.Table):
        name = table.this
        if table.args.get("db") is None and not is_part_of_with(table, identifier_text(name)):
            yield name.meta["start"]


def reads_events(sql: str) -> bool:
    """Whether the query names a column that only the log has of an append-only table, so no server can run it."""
    return any(
        identifier_text(column.this) in OWN_COLUMNS
        for column in sqlglot.parse_one(sql, dialect="postgres").find_all(exp.Column)
        if isinstance(column.this, exp.Identifier)
    )


def whole_statement(plan: ViewPlan, sql: str, top: TopRows | None) -> str:
    """The query whose result the view of this plan holds."""
    text = statement(sql)
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
    return ' collate "C"' if kind is Kind.TEXT else ""
