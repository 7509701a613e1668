"""A sink's expressions and its tables' shapes -> what tasks and comparisons compute of each row."""

from collections.abc import Mapping

from cdc.model.errors import ConfigurationError, LockstepError, NeedsRebuild
from cdc.model.table import Table, TableName
from sinks.table_settings import Expressions
from views.failures import Refused
from views.plan import RowPlan
from views.sql.row_reader import read_row_plan
from views.values import type_of


def row_plan(table: Table, expressions: Expressions) -> RowPlan:
    """The plan of one table. Raises Refused."""
    columns = {name: (how.sql, type_of(how.column(name))) for name, how in expressions.columns.items()}
    return read_row_plan(table, columns, expressions.where)


def row_plans(
    expressions: Mapping[TableName, Expressions], tables: Mapping[TableName, Table]
) -> dict[TableName, RowPlan]:
    """The plans of the tables that have expressions. Raises ConfigurationError with everything wrong in them."""
    plans: dict[TableName, RowPlan] = {}
    problems: list[str] = []
    for name in expressions.keys() & tables.keys():
        try:
            plans[name] = row_plan(tables[name], expressions[name])
        except Refused as refused:
            problems += refused.problems
    if problems:
        raise ConfigurationError(
            "expressions of this sink can't be evaluated",
            problems=sorted(problems),
            hint="mend computed and where: PostgreSQL's SQL over the columns of the source's table; docs/projections.md"
            " lists what it allows. A generation that was built with them takes `lockstep rebuild SINK --switch`",
        )
    return plans


def unevaluated(
    expressions: Mapping[TableName, Expressions], tables: Mapping[TableName, Table]
) -> dict[TableName, LockstepError]:
    """The tables whose expressions can't be evaluated, each with its error."""
    errors: dict[TableName, LockstepError] = {}
    for name, table in tables.items():
        try:
            row_plans(expressions, {name: table})
        except ConfigurationError as refused:
            errors[name] = NeedsRebuild("; ".join(refused.problems), hint=refused.hint)
    return errors
