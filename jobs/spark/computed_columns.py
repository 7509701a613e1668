"""Computed columns and row filters: Spark SQL over the source's row, before a sink gets to see it.

Spark evaluates each expression so that its failure is a fact about one row and not the end of a batch (``TryEval``).
The results travel beside the record as JSON, which ``computed_row`` reads. They are the values of the computed columns,
whether the row meets its condition, and which expressions failed.

Columns have these types in expressions. Integers, booleans, floats, ``date``, ``timestamp`` (``timestamp_ntz``) and
``timestamptz`` (``timestamp``) have the natural ones. ``numeric(p,s)`` is ``decimal(p,s)``, and ``numeric`` without a
size is ``decimal(38,18)``. Everything else, arrays and jsonb included, is a string in the form that it has in events.
Spark's types can't hold some values (``NaN``, ``infinity``, a year beyond 9999, more digits). For a row with one, the
expressions fail that use its column.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as ClassicColumn

from cdc.model.errors import ConfigurationError
from cdc.model.table import Column as SourceColumn
from cdc.model.table import Table, TableName
from jobs.executor.computed_row import COMPUTED, condition_name
from jobs.executor.shape_history import TableHistory
from jobs.settings import SparkSettings
from jobs.spark.jvm import REFUSALS, questions, text_of
from jobs.spark.session import open_session
from sinks.table_settings import Expressions

_PRIVATE: Final = "__lockstep_"
"""Columns of the frame whose names begin so are in no expression's reach."""

_TYPES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}

_FORMS: Final[Mapping[str, str]] = {
    "date": r"^\d{4}-\d\d-\d\d$",
    "timestamp": r"^\d{4}-\d\d-\d\dT[\d:.]+$",
    "timestamptz": r"^\d{4}-\d\d-\d\dT[\d:.]+Z$",
}

_DECIMAL_MAX: Final = 38
_DECIMAL: Final = (38, 18)

# What an expression of a computed type is turned into, before it becomes text.
_RESULTS: Final[Mapping[str, str]] = {
    **_TYPES,
    "numeric": "decimal(38,18)",
    "text": "string",
    "jsonb": "string",
}

_CHANGING: Final = re.compile(
    r"(?i)\b(now|current_\w+|localtimestamp|curdate|unix_timestamp(?=\s*\(\s*\))|rand|randn|random|uuid|shuffle|randstr"
    r"|uniform|monotonically_increasing_id|input_file_\w+|user|session_user|spark_partition_id)\s*\("
)
_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"")
"""Names and texts in which such a word means nothing."""

_DAY: Final = re.compile(r"(?i)\b(date|timestamp\w*)\s*['\"]\s*(now|today|tomorrow|yesterday)")
"""A literal that Spark takes for the day on which it is read."""


@dataclass(frozen=True)
class TablePlan:
    """What is evaluated of one table's rows, by the names that its newest shape has."""

    table: Table
    expressions: Expressions
    history: TableHistory | None = None


def checked_plans(
    spark: SparkSession,
    expressions: Mapping[TableName, Expressions],
    tables: Mapping[TableName, Table],
    histories: Mapping[TableName, TableHistory] | None = None,
) -> dict[TableName, TablePlan]:
    """The plans of those tables that have expressions. Raises ConfigurationError with everything wrong in them."""
    plans = {
        name: TablePlan(tables[name], table_expressions, (histories or {}).get(name))
        for name, table_expressions in expressions.items()
        if name in tables
    }
    problems = expression_problems(spark, plans)
    if problems:
        raise ConfigurationError(
            "expressions of this sink can't be evaluated",
            problems=problems,
            hint="mend computed and where: Spark SQL over the columns that the source's table has; a generation"
            " that was built with them takes `lockstep rebuild SINK --switch`",
        )
    return plans


def expression_problems(spark: SparkSession, plans: Mapping[TableName, TablePlan]) -> list[str]:
    """Everything that is wrong in the expressions of these plans, a sentence each. No row is needed for it."""
    with questions():
        return [problem for plan in plans.values() for problem in _problems(spark, plan)]


def with_computed(records: DataFrame, plans: Mapping[str, TablePlan]) -> DataFrame:
    """Records with a column ``COMPUTED`` more, null where there is nothing to evaluate. ``plans`` are by topic."""
    frame = records.select(
        *[f.col(name).alias(_PRIVATE + name) for name in records.columns],
        f.lit(None).cast("string").alias(_PRIVATE + COMPUTED),
    )
    for topic, plan in plans.items():
        frame = _with_results(frame, f.col(_PRIVATE + "topic") == f.lit(topic), plan)
    return frame.select(*[f.col(_PRIVATE + name).alias(name) for name in (*records.columns, COMPUTED)])


def _with_results(frame: DataFrame, concerns: Column, plan: TablePlan) -> DataFrame:
    """The frame with the results for one table's rows, where a record is of that table (``concerns``) and has a row."""
    spark = frame.sparkSession
    columns = [f.col(name) for name in frame.columns]
    used = _used_columns(spark, plan)
    names = _names_in_events(plan, used)
    # Each step in a frame of its own: Spark evaluates once what the next step uses several times. What is parsed is
    # named by its index, since a column may have any name.
    members = ", ".join(f"`{name.replace('`', '``')}` string" for name in names)
    after_type = f"struct<{members}>" if members else "string"
    event = f.from_json(
        f.when(concerns, f.col(_PRIVATE + "value").cast("string")),
        f"after {after_type}, source struct<schema_id string>",
    )
    frame = frame.select(*columns, event.alias(_PRIVATE + "event"))
    row = f.col(_PRIVATE + "event").getField("after")
    indexes = {column.name: index for index, column in enumerate(used)}
    texts = [f.col(f"{_PRIVATE}text_{index}") for index in range(len(used))]
    frame = frame.select(
        *columns,
        row.isNotNull().alias(_PRIVATE + "has_row"),
        *[_text(plan, column).alias(f"{_PRIVATE}text_{index}") for index, column in enumerate(used)],
    )
    frame = frame.select(
        *columns,
        f.col(_PRIVATE + "has_row"),
        *[_typed(column, text).alias(column.name) for column, text in zip(used, texts, strict=True)],
        *[
            _is_lost(column, text).alias(f"{_PRIVATE}lost_{index}")
            for index, (column, text) in enumerate(zip(used, texts, strict=True))
        ],
    )

    def result(sql: str, value_type: str) -> Column:
        lost_flags = [f.col(f"{_PRIVATE}lost_{indexes[name]}") for name in _references(spark, sql)]
        return f.when(reduce(Column.__or__, lost_flags, f.lit(False)), f.lit(None)).otherwise(
            _tried(f.struct(_as_text(sql, value_type).alias("v")))
        )

    results = [result(sql, value_type).alias(name) for name, sql, value_type in _named(plan.expressions)]
    document = f.to_json(f.struct(*results), {"ignoreNullFields": "false"})
    computed = f.when(f.col(_PRIVATE + "has_row"), document).otherwise(f.col(_PRIVATE + COMPUTED))
    return frame.select(*columns[:-1], computed.alias(_PRIVATE + COMPUTED))


def _named(expressions: Expressions) -> list[tuple[str, str, str]]:
    """Name of the result, expression and type."""
    named = [(name, computed.sql, computed.type) for name, computed in expressions.columns.items()]
    return [*named, *([(condition_name(expressions.columns), expressions.where, "bool")] if expressions.where else [])]


def _names_in_events(plan: TablePlan, used: Sequence[SourceColumn]) -> list[str]:
    """The names of the used columns in events of any shape."""
    names = {column.name: None for column in used}
    if plan.history is not None:
        for translation in plan.history.shapes.values():
            names |= {before: None for name, before, _ in translation or () if before is not None and name in names}
    return list(names)


def _text(plan: TablePlan, column: SourceColumn) -> Column:
    """A column's text in the row of a record, whatever shape that is of."""
    event = f.col(_PRIVATE + "event")
    row = event.getField("after")
    value = row.getField(column.name)
    if plan.history is None:
        return value
    schema_id = event.getField("source").getField("schema_id")
    for shape, translation in plan.history.shapes.items():
        for name, before, default in translation or ():
            if name == column.name:
                text = f.lit(_text_of(default)).cast("string") if before is None else row.getField(before)
                value = f.when(schema_id == f.lit(shape), text).otherwise(value)
    return value


def _text_of(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def spark_type(column: SourceColumn) -> str:
    """The type that a column has in expressions."""
    if column.is_array:
        return "string"
    if column.value_type == "numeric":
        precision, scale = _size(column)
        return f"decimal({precision},{scale})"
    return _TYPES.get(column.value_type, "string")


def _size(column: SourceColumn) -> tuple[int, int]:
    """Precision and scale of a numeric column."""
    if column.type_modifier >= 4:
        packed = column.type_modifier - 4
        precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
        if 0 <= scale <= precision <= _DECIMAL_MAX:
            return precision, scale
    return _DECIMAL


def _typed(column: SourceColumn, text: Column) -> Column:
    return text if spark_type(column) == "string" else text.try_cast(spark_type(column))


def _is_lost(column: SourceColumn, text: Column) -> Column:
    """Whether a value is there that its type can't hold in Spark."""
    if spark_type(column) == "string":
        return f.lit(False)
    is_lost = text.isNotNull() & text.try_cast(spark_type(column)).isNull()
    if column.value_type == "numeric":
        is_lost = is_lost | (f.length(f.regexp_extract(text, r"\.(\d+)", 1)) > f.lit(_size(column)[1]))
    if column.value_type in _FORMS:
        # Spark overlooks what follows a date: years before Christ would lose their BC.
        is_lost = is_lost | ~text.rlike(_FORMS[column.value_type])
    return f.coalesce(is_lost, f.lit(False))


def _as_text(sql: str, value_type: str) -> Column:
    """An expression's value as text, in the form that its type has in events."""
    value = f.expr(sql).cast(_RESULTS[value_type])
    if value_type == "numeric":
        # Without the zeros that the scale adds; a number of many digits would get an exponent from a shorter way.
        return f.regexp_replace(value.cast("string"), r"\.?0+$", "")
    if value_type in ("timestamp", "timestamptz"):
        text = f.regexp_replace(value.cast("string"), " ", "T")
        return f.concat(text, f.lit("Z")) if value_type == "timestamptz" else text
    return value.cast("string")


def _tried(value: Column) -> Column:
    """The value, or null where evaluating it fails."""
    # Spark has try_ variants of some functions, and this one for all; it has no SQL name. Private; version is pinned.
    jvm: Any = SparkSession.active()._jvm
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    classic: Any = value
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(convert.expression(classic._jc))
    return ClassicColumn(convert.column(tried))


def _used_columns(spark: SparkSession, plan: TablePlan) -> list[SourceColumn]:
    names = {name for _, sql, _ in _named(plan.expressions) for name in _references(spark, sql)}
    return [column for column in plan.table.columns if column.name in names]


def _references(spark: SparkSession, sql: str) -> list[str]:
    """The columns that an expression names. Raises one of REFUSALS when it isn't one."""
    return [name for kind, name in _leaves(spark, sql) if kind == "UnresolvedAttribute"]


def _leaves(spark: SparkSession, sql: str) -> list[tuple[str, str]]:
    session: Any = spark
    leaves = session._jsparkSession.sessionState().sqlParser().parseExpression(sql).collectLeaves()
    names = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        kind = leaf.getClass().getSimpleName()
        names.append((kind, leaf.nameParts().apply(0) if kind == "UnresolvedAttribute" else ""))
    return names


def _problems(spark: SparkSession, plan: TablePlan) -> Iterator[str]:
    known_names = {column.name for column in plan.table.columns}
    for name, sql, value_type in _named(plan.expressions):
        what = (
            f"where of {plan.table.name}"
            if name == condition_name(plan.expressions.columns)
            else f"computed column {plan.table.name}.{name}"
        )
        try:
            leaves = _leaves(spark, sql)
        except REFUSALS as error:
            yield f"{what}: not an expression: {_first_line(error)}"
            continue
        unknown = sorted({column for kind, column in leaves if kind == "UnresolvedAttribute"} - known_names)
        if unknown:
            yield f"{what}: the table has no column {', '.join(map(repr, unknown))}"
            continue
        looks_around = any(kind in ("UnresolvedStar", "UnresolvedRegex") or "Subquery" in kind for kind, _ in leaves)
        if looks_around or _CHANGING.search(_QUOTED.sub("''", sql)) or _DAY.search(sql):
            yield f"{what}: its value must follow from the row alone, the same whenever it is asked for"
            continue
        try:
            columns = [
                f.lit(None).cast(spark_type(column)).alias(column.name)
                for column in plan.table.columns
                if column.name in {c for _, c in leaves}
            ]
            analysed = spark.range(0).select(*columns).select(_as_text(sql, value_type))
            logical: Any = analysed._jdf.queryExecution().analyzed()
            if not logical.deterministic():
                yield f"{what}: its value must follow from the row alone, the same whenever it is asked for"
            elif not _looks_at_one_row(logical):
                yield f"{what}: it may look at one row only"
        except REFUSALS as error:
            yield f"{what}: {_first_line(error)}"


def _looks_at_one_row(logical: Any) -> bool:
    """Whether a plan does nothing but compute columns."""
    while logical.children().size() == 1:
        if logical.getClass().getSimpleName() != "Project":
            return False
        logical = logical.children().apply(0)
    return bool(logical.getClass().getSimpleName() == "Range")


def _first_line(error: Exception) -> str:
    return (text_of(error).strip() or type(error).__name__).splitlines()[0][:300]


class RowComputer:
    """Evaluates the expressions for rows that are at hand, for comparisons and retries."""

    def __init__(self, spark: SparkSession, plans: Mapping[TableName, TablePlan]) -> None:
        self._spark = spark
        self._plans = plans

    def compute(self, table: TableName, rows: Sequence[bytes]) -> list[bytes]:
        """Each row's results, in order, as ``computed_row`` reads them; the rows are JSON of the newest shape."""
        plan = TablePlan(self._plans[table].table, self._plans[table].expressions)
        values = [b'{"after":%b}' % row for row in rows]
        records = pa.table({"index": range(len(rows)), "value": values, "topic": ["" for _ in rows]})
        frame = with_computed(self._spark.createDataFrame(records), {"": plan})
        results: pa.Table = frame.select("index", COMPUTED).toArrow()
        by_index = dict(zip(results.column("index").to_pylist(), results.column(COMPUTED).to_pylist(), strict=True))
        return [by_index[index].encode() for index in range(len(rows))]


@contextmanager
def opened_row_computer(
    settings: SparkSettings, expressions: Mapping[TableName, Expressions], tables: Mapping[TableName, Table]
) -> Iterator[RowComputer]:
    """A RowComputer in this process, whatever cluster the jobs run on.

    A Spark that runs in this process already is used and not stopped. Raises as ``checked_plans`` and ``open_session``.
    """
    with session_here(settings, bulk=True) as spark:
        yield RowComputer(spark, checked_plans(spark, expressions, tables))


@contextmanager
def session_here(settings: SparkSettings, *, bulk: bool) -> Iterator[SparkSession]:
    """A session in this process, whatever cluster the jobs run on. One that runs here already isn't stopped.

    Raises as ``open_session``.
    """
    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if running is not None:
        yield running
        return
    here = settings.model_copy(update={"master": "local[2]", "package": None, "conf": {}})
    spark = open_session(here, name="lockstep expressions", bulk=bulk)
    try:
        yield spark
    finally:
        spark.stop()
