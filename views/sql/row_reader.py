"""Expressions over single rows of a table -> their plan, or all reasons against it."""

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp
from sqlglot.expressions import Expr as Tree

from cdc.model.table import Table
from views.expressions import Expression, Ref, refs
from views.failures import Refusal, Refused
from views.plan import RowPlan
from views.sql.expression_reader import ExpressionReader, converted
from views.sql.refusals import Refuse, refuse
from views.sql.tables_read import identifier_text, misread, parsed
from views.values import Kind, SqlType, type_of


def read_row_plan(table: Table, columns: Mapping[str, tuple[str, SqlType]], where: str | None) -> RowPlan:
    """The plan of a condition and of computed columns with their types. Raises Refused with all reasons against it."""
    own = {column.name: Ref(place, type_of(column)) for place, column in enumerate(table.columns)}
    reader = _RowReader(table, own)
    outputs = []
    for name, (sql, of) in columns.items():
        expression = reader.read(f"computed column {table.name}.{name}", sql, of)
        outputs.append((name, expression))
    condition = None if where is None else reader.read(f"where of {table.name}", where, None)
    if reader.refusals:
        raise Refused(reader.refusals)
    read = {ref.id for expression in (condition, *(each for _, each in outputs)) for ref in refs(expression)}
    used = {name: ref for name, ref in own.items() if ref.id in read}
    return RowPlan(tuple(used), tuple(used.values()), condition, tuple((name, each) for name, each in outputs if each))


class _RowReader:
    """Reads expressions over one table's columns, and collects refusals."""

    def __init__(self, table: Table, own: Mapping[str, Ref]) -> None:
        self._table = table.name
        self._own = own
        self._reader = ExpressionReader(self._resolved)
        self.refusals: list[Refusal] = []

    def read(self, what: str, sql: str, of: SqlType | None) -> Expression | None:
        """The expression with this type, or a condition if ``of`` is None. Returns None if it is refused."""
        try:
            tree = _tree(sql)
            refusals = misread(sql)
            if not refusals:
                return self._reader.condition(tree) if of is None else _assigned(tree, self._reader.read(tree), of)
        except Refuse as refused:
            refusals = [refused.refusal]
        self.refusals += [replace(refusal, clause=f"{what}: {refusal.clause}") for refusal in refusals]
        return None

    def _resolved(self, column: exp.Column) -> Expression:
        of = (column.args.get("db"), column.args.get("table"))
        named = [None if part is None else identifier_text(part) for part in of]
        is_own = named[1] in (None, self._table.name) and named[0] in (None, self._table.schema)
        name = identifier_text(column.this) if isinstance(column.this, exp.Identifier) else "*"
        if not is_own or name not in self._own:
            refuse(column, f"the table has no column {name!r}", f"name one of {', '.join(self._own)}")
        return self._own[name]


def _tree(sql: str) -> Tree:
    try:
        trees = parsed(sql)
    except ValueError as error:
        refuse(sql, f"not an expression: {error}", "try it in psql: `select ... from the table`")
    if len(trees) != 1:
        refuse(sql, "not an expression", "write one expression, as in a select list")
    return trees[0]


def _assigned(tree: Tree, expression: Expression, of: SqlType) -> Expression:
    """The expression as a value of its column, as PostgreSQL assigns it."""
    try:
        return converted(tree, expression, of)
    except Refuse:
        if expression.type.kind is Kind.UNKNOWN:
            raise
        refuse(
            tree,
            f"it is of type {expression.type.name}, and its column of type {of.name}",
            "set `type` of the column, or cast the expression",
        )
