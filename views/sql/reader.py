"""A view's settings -> its plan, or all reasons why it can't be maintained."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cdc.model.append_only import OWN_COLUMNS
from cdc.model.table import Table, TableName
from views.expressions import Expression, SortKey, refs
from views.failures import Refusal, Refused
from views.plan import Node, Scan, Top, ViewPlan, nodes, pruned, renumbered, reordered
from views.retention import KINDS, Retained
from views.sql.expression_reader import ExpressionReader
from views.sql.query_reader import QueryReader
from views.sql.refusals import Refuse, refuse
from views.sql.relations import Relation, settled
from views.sql.tables_read import misread, query_tree, tables_in
from views.values import type_of


@dataclass(frozen=True, slots=True)
class TopRows:
    """The first ``n`` rows for each value of ``per``, in an order in SQL: ``created_at desc``. Rows that are equal in
    the order are ordered by the view's key.
    """

    per: tuple[str, ...]
    order: str
    n: int


@dataclass(frozen=True, slots=True)
class RetainedRows:
    """Rows of this table count for this many hours after the time in this column."""

    table: TableName
    column: str
    hours: int


def read_view(
    sql: str,
    tables: Mapping[TableName, Table],
    *,
    key: Sequence[str],
    top: TopRows | None = None,
    retain: Sequence[RetainedRows] = (),
) -> ViewPlan:
    """The plan of a query over captured tables. ``key`` names the columns that identify a row of the result. Raises
    Refused with all reasons why the view can't be maintained.
    """
    tree = query_tree(sql)
    reader = QueryReader(tables)
    refusals = reader.refusals
    refusals += misread(sql)
    retained, of_retain = _retained(retain, tables_in(tree), tables)
    try:
        relation = settled(reader.read(tree))
        if not refusals:
            view = replace(_view(relation, tuple(key), top, of_retain), retained=retained)
            refusals += _unread(view)
        if not refusals:
            return view
    except Refuse as refused:
        refusals.append(refused.refusal)
    raise Refused(list(dict.fromkeys([*refusals, *of_retain])))


def _retained(
    retain: Sequence[RetainedRows], read: Collection[TableName], tables: Mapping[TableName, Table]
) -> tuple[tuple[Retained, ...], list[Refusal]]:
    """The valid entries of ``retain``, whose tables are among ``read``, and refusals of the others."""
    retained: dict[TableName, Retained] = {}
    refusals: list[Refusal] = []
    for rows in retain:
        clause = f"retain of {rows.table} by {rows.column!r}"
        columns = {column.name: column for column in tables[rows.table].columns} if rows.table in tables else {}
        if rows.table not in read:
            known = ", ".join(map(str, sorted(read)))
            refusals.append(Refusal(clause, "the query doesn't read this table", f"name one of {known}, or remove it"))
        elif rows.table in retained:
            refusals.append(Refusal(clause, "something was said of this table before", "say it once for each table"))
        elif rows.column not in columns:
            if columns:  # the query's refusals name a table that isn't captured
                refusals.append(Refusal(clause, "the table has no such column", f"name one of {', '.join(columns)}"))
        elif (kind := type_of(columns[rows.column]).kind) not in KINDS:
            of_type = columns[rows.column].type_name
            reason = f"the column is of type {of_type}, which doesn't say when a row was"
            refusals.append(Refusal(clause, reason, "name a column of type timestamptz, timestamp or date"))
        else:
            retained[rows.table] = Retained(rows.table, rows.column, rows.hours, kind)
    return tuple(retained.values()), refusals


def _unread(view: ViewPlan) -> list[Refusal]:
    """Refusals of ``retain`` for tables that the query names but the plan doesn't scan."""
    scanned = {node.table for node in nodes(view.root) if isinstance(node, Scan)}
    remedy = f"name one of {', '.join(map(str, sorted(scanned)))}, or remove it"
    reason = "the query reads this table in a part of `with` alone that nothing uses"
    return [
        Refusal(f"retain of {each.table} by {each.column!r}", reason, remedy)
        for each in view.retained
        if each.table not in scanned
    ]


def _view(relation: Relation, key: tuple[str, ...], top: TopRows | None, refusals: list[Refusal]) -> ViewPlan:
    _check_key(relation, key, refusals)
    refusals += [
        Refusal(f"{name} in the select list", "sinks need that name for themselves", f"write `{name} as` another name")
        for name in relation.names
        if name in OWN_COLUMNS
    ]
    node: Node = relation.node
    if top is not None:
        try:
            node = _top(relation, key, top)
        except Refuse as refused:
            refusals.append(refused.refusal)
    if refusals:
        raise Refused(refusals)
    outputs = tuple(relation.names.items())
    needed = {ref.id for _, made in outputs for ref in refs(made)}
    return renumbered(ViewPlan(pruned(reordered(node), needed), outputs, key))


def _check_key(relation: Relation, key: tuple[str, ...], refusals: list[Refusal]) -> None:
    clause = f"key = [{', '.join(key)}]"
    missing = [name for name in key if name not in relation.names]
    if missing or not key:
        what = f"the query has no column {missing[0]!r}" if missing else "it names no column"
        refusals.append(Refusal(clause, what, f"name some of {', '.join(relation.names)}"))
        return
    twice = [name for name, count in Counter(key).items() if count > 1]
    if twice:
        refusals.append(Refusal(clause, f"it names {twice[0]!r} twice", "name each column once"))
        return
    for name in key:
        expression = relation.names[name]
        if not expression.type.has_one_form:
            refusals.append(
                Refusal(
                    clause, f"equality of {name!r}, of type {expression.type.name}, isn't known", "use another column"
                )
            )
        elif not relation.is_never_null(expression):
            refusals.append(Refusal(clause, f"{name!r} can be null", f"add `where {name} is not null`, or coalesce it"))
    if not relation.is_unique(key):
        refusals.append(
            Refusal(
                clause,
                "two rows of the result may have the same values in it",
                "add the keys of the joined tables to the select list and to the key, or group by the key",
            )
        )


def _top(relation: Relation, key: tuple[str, ...], top: TopRows) -> Top:
    clause = f"top = {{ per = [{', '.join(top.per)}], order = {top.order!r}, n = {top.n} }}"
    if top.n < 1:
        refuse(clause, "n is less than 1", "write how many rows each has at most")
    per: list[Expression] = []
    for name in top.per:
        if name not in relation.names or not relation.names[name].type.is_comparable:
            refuse(clause, f"the query has no column {name!r} that can be compared", "name columns of its select list")
        per.append(relation.names[name])

    def resolve(column: exp.Column) -> Expression:
        name = column.name if column.this.args.get("quoted") else column.name.lower()
        if name not in relation.names or column.table:
            refuse(clause, f"the query has no column {name!r}", "name columns of its select list")
        return relation.names[name]

    try:
        tree = sqlglot.parse_one(f"select 1 order by {top.order}", dialect="postgres")
    except SqlglotError:
        refuse(clause, "its order can't be parsed", "write it as after `order by`")
    ordered = tree.args.get("order")
    if ordered is None:
        refuse(clause, "its order is empty", "write it as after `order by`")
    sort = ExpressionReader(resolve)
    order = [sort.sort_key(part) for part in ordered.expressions]
    order += [SortKey(relation.names[name], descending=False, nulls_first=False) for name in key]
    return Top(relation.node, tuple(per), tuple(order), top.n)
