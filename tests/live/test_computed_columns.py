"""What Spark makes of the expressions of computed columns and filters."""

from dataclasses import replace

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc.model.table import TableName
from jobs.executor.computed_row import COMPUTED, computed_row
from jobs.executor.shape_history import TableHistory
from jobs.spark.computed_columns import RowComputer, TablePlan, checked_plans, with_computed
from sinks.table_settings import Computed, Expressions, TableSettings
from tests.builders import column, table

pytestmark = [pytest.mark.live, pytest.mark.busy]

T = table(
    column("id", "int8"),
    column("total", "numeric"),
    column("price", "numeric", type_modifier=(10 << 16 | 2) + 4),
    column("name"),
    column("Odd `n.ame"),
    column("at", "timestamptz"),
    column("local", "timestamp"),
    column("day", "date"),
    column("share", "float8"),
    column("tags", is_array=True),
    name=TableName("public", "things"),
)
ROW = {
    "id": 2, "total": "10.50", "price": "1.10", "name": "x", "Odd `n.ame": "odd", "at": "2026-01-02T03:04:05.123456Z",
    "local": "2026-01-02T03:04:05", "day": "2026-01-31", "share": 0.5, "tags": ["a", "b"],
}  # fmt: skip


def computed_rows(
    spark: SparkSession, computed: dict[str, Computed], *rows: dict[str, object], where: str | None = None
) -> list[object]:
    """Each row's computed values; None where it isn't to be seen, and the reason where it is refused."""
    plans = checked_plans(spark, {T.name: Expressions(computed, where)}, {T.name: T})
    texts = [orjson.dumps({**ROW, **row}) for row in rows]
    columns = (
        TableSettings(computed={f"public.things.{name}": how for name, how in computed.items()})
        .projection()
        .computed.get(T.name, ())
    )
    results: list[object] = []
    for text, result in zip(texts, RowComputer(spark, plans).compute(T.name, texts), strict=True):
        shown = computed_row(text, result, columns)
        row = None if shown.row is None else orjson.loads(shown.row)
        results.append(shown.refused or (None if row is None else {name: row[name] for name in computed}))
    return results


def test_columns_have_natural_types_and_results_the_form_of_events(spark: SparkSession) -> None:
    computed = {
        "gross": Computed(sql="total * 1.19", type="numeric"),
        "whole": Computed(sql="price * 100", type="numeric"),
        "upper": Computed(sql="upper(name)"),
        "next": Computed(sql="date_add(day, 1)", type="date"),
        "later": Computed(sql="at + interval 1 hour", type="timestamptz"),
        "sooner": Computed(sql="local - interval 1 second", type="timestamp"),
        "half": Computed(sql="share / 2", type="float8"),
        "odd": Computed(sql="`Odd ``n.ame`"),
        "twice": Computed(sql="id * 2", type="int4"),
        "much": Computed(sql="total > 10", type="bool"),
        "random": Computed(sql="concat('now() random', `name`)"),
        "first": Computed(sql="get(from_json(tags, 'array<string>'), 0)"),
    }
    [result] = computed_rows(spark, computed, {})
    assert result == {
        "gross": "12.495", "whole": "110", "upper": "X", "next": "2026-02-01", "later": "2026-01-02T04:04:05.123456Z",
        "sooner": "2026-01-02T03:04:04", "half": 0.25, "odd": "odd", "twice": 4, "much": True,
        "random": "now() randomx", "first": "a",
    }  # fmt: skip
    [nulls] = computed_rows(spark, computed, dict.fromkeys(ROW))
    assert nulls == dict.fromkeys(computed)


@pytest.mark.soak
def test_what_fails_for_one_row_fails_for_that_row_alone(spark: SparkSession) -> None:
    computed = {"inverse": Computed(sql="1 / id", type="float8"), "name_": Computed(sql="name")}
    assert computed_rows(spark, computed, {"id": 0}, {"id": 4, "name": "n"}) == [
        "expression: computed column 'inverse' can't be evaluated for this row",
        {"inverse": 0.25, "name_": "n"},
    ]


def test_a_value_that_spark_cannot_hold_is_never_taken_for_null(spark: SparkSession) -> None:
    computed = {f"c_{name}": Computed(sql=sql) for name, sql in _OF_ONE_COLUMN.items()}
    rows: list[dict[str, object]] = [
        {"total": "NaN"},
        {"total": "1.1234567890123456789"},
        {"total": "1" * 21},
        {"price": "Infinity"},
        {"at": "infinity"},
        {"day": "0044-03-15 BC"},
        {"local": "0044-03-15T00:00:00 BC"},
        {"name": "x"},
    ]
    assert computed_rows(spark, computed, *({"name": "1", **row} for row in rows)) == [
        f"expression: computed column 'c_{name}' can't be evaluated for this row" for row in rows for name in row
    ]
    # Who doesn't use the column doesn't mind.
    assert computed_rows(spark, {"c": Computed(sql="id")}, *rows) == [{"c": "2"}] * len(rows)


_OF_ONE_COLUMN = {
    "total": "total + 1",
    "price": "price + 1",
    "at": "at",
    "day": "day",
    "local": "local",
    "name": "cast(name as int)",
}


@pytest.mark.soak
def test_a_condition_takes_rows_away(spark: SparkSession) -> None:
    results = computed_rows(spark, {}, {"name": "a"}, {"name": "b"}, {"name": None}, where="name <> 'b'")
    assert results == [{}, None, None]


@pytest.mark.soak
def test_rows_of_earlier_shapes_have_the_values_that_they_are_carried_over_with(spark: SparkSession) -> None:
    carry = (("id", "id", None), ("name", "title", None), ("total", None, "7"))
    history = TableHistory(T.name, ("id",), {"old": carry, T.schema_id: ()})
    plan = TablePlan(T, Expressions({"c": Computed(sql="concat(name, '-', total)")}, None), history)
    values = [
        b'{"after":{"id":1,"title":"a","name":"wrong"},"source":{"schema_id":"old"}}',
        b'{"after":{"id":1,"name":"b","total":"8"},"source":{"schema_id":"%b"}}' % T.schema_id.encode(),
        b'{"after":null,"source":{"schema_id":"old"}}',
        None,
    ]
    records = pa.table({"place": range(4), "topic": ["t"] * 4, "value": pa.array(values, pa.binary())})
    frame = with_computed(spark.createDataFrame(records), {"t": plan, "other": replace(plan, history=None)})
    by_index = {row.place: row[COMPUTED] for row in frame.select("place", COMPUTED).collect()}
    assert by_index == {
        0: '{"c":{"v":"a-7.000000000000000000"}}',
        1: '{"c":{"v":"b-8.000000000000000000"}}',
        2: None,
        3: None,
    }
