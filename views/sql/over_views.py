"""A query that reads other views -> the same query over tables: each view's name is replaced by its query. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from cdc.model.table import TableName, quote_identifier
from views.failures import Refusal, Refused
from views.sql.statement import statement
from views.sql.tables_read import identifier_text, query_tree, tables_in


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """The query of a view that other views may read. With the setting ``beyond``, the result isn't its query's."""

    sql: str
    beyond: str = ""


def over_tables(sql: str, views: Mapping[TableName, NamedQuery]) -> str:
    """The query with views' queries in place of their names, wherever a name stands in ``from`` with its schema. Raises
    Refused with all reasons: a circle, a view whose result differs from its query's, a query that can't be parsed.
    """
    return _whole(sql, views, ())


def _whole(sql: str, views: Mapping[TableName, NamedQuery], within: tuple[TableName, ...]) -> str:
    refusals: dict[Refusal, None] = {}
    parts: dict[TableName, str] = {}
    for name in sorted(tables_in(query_tree(sql))):
        if name in views:
            try:
                parts[name] = _part(name, views, within)
            except Refused as refused:
                refusals |= dict.fromkeys(refused.refusals)
    if refusals:
        raise Refused(list(refusals))
    return _replaced(sql, parts) if parts else sql


def _part(name: TableName, views: Mapping[TableName, NamedQuery], within: tuple[TableName, ...]) -> str:
    if name in within:
        circle = " -> ".join(map(str, (*within[within.index(name) :], name)))
        reason = f"views read each other in a circle: {circle}"
        raise Refused([Refusal(f"from {name}", reason, "take one of them out of the other's query")])
    if beyond := views[name].beyond:
        reason = f"it has a `{beyond}`, which isn't part of its query"
        raise Refused([Refusal(f"from {name}", reason, f"read the tables, or a view without `{beyond}`")])
    try:
        whole = _whole(views[name].sql, views, (*within, name))
    except Refused as refused:
        at = [_said_where_read(each, name) for each in refused.refusals]
        raise Refused(at) from None
    # With every table's schema, so that the outer query's `with` can't change its meaning.
    return statement(whole)


def _said_where_read(refusal: Refusal, name: TableName) -> Refusal:
    """A refusal of a whole query names the place where the query is read instead."""
    return Refusal(f"from {name}", refusal.reason, refusal.remedy) if refusal.clause == "sql" else refusal


def _replaced(sql: str, parts: Mapping[TableName, str]) -> str:
    found: list[tuple[int, int, str]] = []
    for table in sqlglot.parse_one(sql, dialect="postgres").find_all(exp.Table):
        schema, own = table.args.get("db"), table.this
        if schema is None or not isinstance(own, exp.Identifier):
            continue
        name = TableName(identifier_text(schema), identifier_text(own))
        if name in parts:
            alias = "" if table.args.get("alias") is not None else f" as {quote_identifier(name.name)}"
            found.append((schema.meta["start"], own.meta["end"] + 1, f"({parts[name]}\n){alias}"))
    for begin, end, part in sorted(found, reverse=True):
        sql = sql[:begin] + part + sql[end:]
    return sql
