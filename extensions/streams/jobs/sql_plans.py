"""Plans of queries in Spark SQL over streams, the rules for such queries, and the result as a table."""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from cdc.model.table import ReplicaIdentity, Table
from extensions.streams.jobs.frames import events
from extensions.streams.settings import TYPES, StreamSettings, column_of, result_name
from jobs.spark.jvm import REFUSALS, text_of
from sinks.warehouse.names import DELETED_COLUMN, NAME_BYTES_MAX, SYNCED_COLUMN, TAG_COLUMN

_NAMED_QUERY: Final = "CTERelationRef"
"""The operator that reads a query of `with`, at each place that names it."""

_BY_CHANCE: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sample"})
_CLOCKS: Final = frozenset({"CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp"})

_SYSTEM_COLUMNS: Final = ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid")
_TAKEN: Final = frozenset({TAG_COLUMN, DELETED_COLUMN, SYNCED_COLUMN, *_SYSTEM_COLUMNS})
"""Names that a column of a result in PostgreSQL can't have."""

_SOME_TIME_MS: Final = 1_000_000_000_000
"""Any time that the bridge converts to a long of Java's."""


class QueryRefused(Exception):
    """A query that Spark can't run, or whose result can't be maintained, with every reason, a sentence each."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems


Sources = Mapping[str, tuple[DataFrame, StreamSettings]]
"""A streaming frame of Kafka's source for each stream, by name."""


def planned_sql(spark: SparkSession, sql: str, sources: Sources) -> tuple[DataFrame, list[str]]:
    """The query over these streams: its streaming frame, and the streams that it reads. ``spark`` must be a session of
    this query's own: the streams are views in it. Raises QueryRefused.
    """

    def name_streams(*, are_ordered: bool) -> None:
        for stream, (records, settings) in sources.items():
            events(records, settings, is_ordered=are_ordered).createOrReplaceTempView(stream)

    # Spark refuses a sorted stream, even if it is sorted only within each batch. So it checks the query without the
    # sort, and the session that runs it has UNCHECKED.
    name_streams(are_ordered=False)
    try:
        _check_is_query(spark, sql)
        frame = spark.sql(sql)
        classic: Any = frame
        if not frame.isStreaming:
            raise QueryRefused("sql: it reads no stream; name streams of [streams.NAME] in its from")
        logical = classic._jdf.queryExecution().analyzed()
        streams, problems = _read_by(logical, sources)
        problems += _growing_joins(spark, logical)
        problems += [f"sql: {problem}" for problem in undetermined(logical)]
        jvm: Any = spark._jvm
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(logical, jvm.org.apache.spark.sql.streaming.OutputMode.Append())
    except REFUSALS as error:
        raise QueryRefused(f"sql: {first_line(error)}") from None
    if problems:
        raise QueryRefused(*problems)
    name_streams(are_ordered=True)
    return spark.sql(sql), streams


UNCHECKED: Final[Mapping[str, str]] = {"spark.sql.streaming.unsupportedOperationCheck": "false"}
"""Settings of a session in which frames of queries run."""


def _check_is_query(spark: SparkSession, sql: str) -> None:
    """Raise QueryRefused for a statement with an effect: Spark would execute it at once."""
    session: Any = spark
    parsed = session._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    plans = session._jvm.org.apache.spark.util.Utils
    for kind in ("Command", "ParsedStatement"):
        if plans.classForName(f"org.apache.spark.sql.catalyst.plans.logical.{kind}", True, False).isInstance(parsed):
            raise QueryRefused("sql: it is a statement and no query: begin it with select or with")


def result_table(name: str, frame: DataFrame, *, key: tuple[str, ...], said_in: str) -> Table:
    """A query's result as a table, with columns from the setting ``said_in``. Raises QueryRefused."""
    problems, columns = [], []
    for field in frame.schema.fields:
        kind = field.dataType.simpleString()
        column = column_of(field.name, kind)
        if column is None:
            problems.append(
                f"{said_in}: column {field.name!r} has the type {kind}, and a result has {TYPES}: cast it, or select a"
                " member"
            )
        else:
            columns.append(column)
    names = [column.name for column in columns]
    problems += [
        f"{said_in}: PostgreSQL or Lockstep has a column {each!r} of its own in each table: name it `as` something else"
        for each in names
        if each in _TAKEN
    ]
    problems += [
        f"{said_in}: the name of column {each[:80]!r} is empty or longer than {NAME_BYTES_MAX} bytes: name it `as`"
        for each in names
        if not 0 < len(each.encode()) <= NAME_BYTES_MAX or "\0" in each
    ]
    problems += [
        f"{said_in}: two columns are called {each!r}: name one `as`" for each in {*names} if names.count(each) > 1
    ]
    if not problems:
        problems += [f"key: the result has no column {each!r}" for each in key if each not in names]
    if problems:
        raise QueryRefused(*problems)
    return Table(result_name(name), tuple(columns), key, ReplicaIdentity.DEFAULT)


def nodes_of(logical: Any) -> list[Any]:
    """All operators of a plan, the root first."""
    found = [logical]
    for node in found:
        found += elements(node.children())
    return found


def elements(of: Any) -> list[Any]:
    return [of.apply(index) for index in range(of.size())]


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _read_by(logical: Any, sources: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """The streams that a plan reads, and problems of what it reads."""
    nodes = nodes_of(logical)
    streams = [str(node.alias()) for node in nodes if kind_of(node) == "SubqueryAlias" and str(node.alias()) in sources]
    leaves = [kind_of(node) for node in nodes if node.children().size() == 0 and kind_of(node) != _NAMED_QUERY]
    named = [node.cteId() for node in nodes if kind_of(node) == _NAMED_QUERY]
    problems = []
    if others := sorted({kind for kind in leaves if not kind.startswith("StreamingRelation")}):
        problems.append(f"sql: it reads something that is no stream ({', '.join(others)})")
    if len(leaves) > len(set(streams)) or len(named) > len(set(named)):
        problems.append("sql: it reads a stream twice; Spark would read each at its own pace")
    elif len(streams) > len(leaves):
        problems.append("sql: an alias is called as a stream is: choose another one")
    return sorted(set(streams)), problems


def undetermined(logical: Any) -> list[str]:
    """Why a plan's result doesn't depend on the events alone, or may differ when a batch is repeated."""
    nodes = nodes_of(logical)
    problems = []
    if any(kind_of(node) in _BY_CHANCE for node in nodes):
        problems.append("which rows limit, offset and tablesample leave is left to chance: remove it")
    if any(node.subqueries().size() for node in nodes):
        problems.append("it has a query within an expression: join the streams instead")
    expressions = [each for node in nodes for each in elements(node.expressions())]
    clocks = {kind_of(leaf) for each in expressions for leaf in elements(each.collectLeaves())} & _CLOCKS
    if clocks:
        problems.append("it asks for the time of now; its values must follow from the events alone")
    if not logical.deterministic():
        problems.append("its values must follow from the events alone; it has a function such as rand()")
    return problems


def _growing_joins(spark: SparkSession, logical: Any) -> list[str]:
    """Joins whose state no time limits. Spark refuses outer ones, but runs inner ones until memory is exhausted."""
    jvm: Any = spark._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    some_time = jvm.scala.Some(_SOME_TIME_MS)
    problems = []
    for node in nodes_of(logical):
        if kind_of(node) != "Join" or helper.isWatermarkInJoinKeys(node):
            continue
        left, right = node.left().outputSet(), node.right().outputSet()
        bounds = [
            helper.getStateValueWatermark(kept, other, node.condition(), some_time)
            for kept, other in ((left, right), (right, left))
        ]
        if any(bound.isEmpty() for bound in bounds):
            problems.append(
                "sql: a join has no bounds in time for both sides, so its state would grow without end; add one, as"
                " `and c.at between s.at and s.at + interval '10 minutes'`"
            )
    return problems


def first_line(error: Exception) -> str:
    return (text_of(error).strip() or type(error).__name__).splitlines()[0][:300]
