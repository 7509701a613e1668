"""Which queries over streams are refused before anything is read, and with which words."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from extensions.streams.jobs.planning import examined
from extensions.streams.settings import StreamQuerySettings, StreamSettings

pytestmark = [pytest.mark.live, pytest.mark.busy]

STREAMS = {
    name: StreamSettings.model_validate(
        {
            "topic": name,
            "columns": {
                "id": "text",
                "search_id": "text",
                "at": "timestamptz",
                "n": "numeric(10,2)",
                "kind": "text",
                "user-id": "text",
                "@version": "text",
            },
            "time": "at",
            "late": "10 minutes",
            "id": ["id", "user-id"],
        }
    )
    for name in ("searches", "clicks")
}
JOIN = "select s.id from searches s join clicks c on c.search_id = s.id"


@pytest.mark.parametrize(
    ("sql", "streams"),
    [
        *(
            pytest.param(sql, streams, marks=pytest.mark.soak)
            for sql, streams in (
                ("select id, n, received_at from searches where n > 1", ["searches"]),
                ("select id, search_id as ID from searches", ["searches"]),
                ("select id, kind, `user-id`, `@version` from searches", ["searches"]),
                (
                    f"{JOIN} and c.at >= s.at - interval '1 second' and c.at <= s.at + interval '10 minutes'",
                    ["clicks", "searches"],
                ),
                ("with recent as (select id, at from searches) select id from recent", ["searches"]),
            )
        ),
        (f"{JOIN} and c.at between s.at and s.at + interval '10 minutes'", ["clicks", "searches"]),
        (
            "select search_id as id, window(at, '1 hour').start as since, count(*) as n from searches"
            " group by search_id, window(at, '1 hour')",
            ["searches"],
        ),
    ],
)
def test_a_query_that_spark_keeps_in_bounds_is_taken(spark: SparkSession, sql: str, streams: list[str]) -> None:
    query = StreamQuerySettings(sql=sql, key=("id",))
    assert examined(spark.newSession(), "q", query, STREAMS) == ([], streams)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (JOIN, "sql: a join has no bounds in time for both sides"),
        (f"{JOIN} and c.at >= s.at", "sql: a join has no bounds in time for both sides"),
        (JOIN.replace("join", "left join"), "sql: Stream-stream LeftOuter join between two streaming"),
        ("select search_id as id, count(*) from searches group by search_id", "sql: [STREAMING_OUTPUT_MODE"),
        ("select id from searches order by id", "sql: Sorting is not supported"),
        ("select id, rand() as r from searches", "sql: its values must follow from the events alone"),
        ("select id, current_timestamp() as r from searches", "sql: it asks for the time of now"),
        ("select id from searches where at > now() - interval '1 day'", "sql: it asks for the time of now"),
        ("select id from searches limit 5", "sql: which rows limit, offset and tablesample leave is left to chance"),
        ("select id from searches where id in (select '1' as one)", "sql: it has a query within an expression"),
        ("select id from searches clicks", "sql: an alias is called as a stream is"),
        (
            "select a.id from searches a join searches clicks on a.id = clicks.id and a.at = clicks.at",
            "sql: an alias is called as a stream is",
        ),
        ("select id from nothing", "sql: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("select 1 as id", "sql: it reads no stream"),
        ("select a.id from searches a join searches b on a.id = b.id and a.at = b.at", "sql: it reads a stream twice"),
        (
            "with s as (select id, at from searches) select a.id from s a join s b on a.id = b.id and a.at = b.at",
            "sql: it reads a stream twice",
        ),
        ("select at from searches", "key: the result has no column 'id'"),
        ("select id, search_id as id from searches", "sql: two columns are called 'id'"),
        ("select id from Searches", "sql: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("select id as ID from searches", "key: the result has no column 'id'"),
        ("select id, at as _tag from searches", "sql: PostgreSQL or Lockstep has a column '_tag' of its own"),
        ("select id, at as xmin from searches", "sql: PostgreSQL or Lockstep has a column 'xmin' of its own"),
        (f"select id, at as {'a' * 64} from searches", "sql: the name of column 'aaaa"),
        ("select id, array(at) as times from searches", "sql: column 'times' has the type array<timestamp>"),
        ("create table t (id int)", "sql: it is a statement and no query"),
        ("insert into t select id from searches", "sql: it is a statement and no query"),
        ("set spark.sql.ansi.enabled = false", "sql: it is a statement and no query"),
    ],
)
@pytest.mark.soak
def test_a_query_that_can_not_be_kept_is_refused_with_the_reason(spark: SparkSession, sql: str, problem: str) -> None:
    query = StreamQuerySettings(sql=sql, key=("id",))
    problems, _ = examined(spark.newSession(), "q", query, STREAMS)
    assert [each for each in problems if each.startswith(problem)], problems


PAYMENTS = StreamSettings.model_validate(
    {
        "topic": "payments",
        "columns": {"search_id": "text", "paid_at": "timestamptz", "amount": "numeric(10,2)", "at": "text"},
        "time": "paid_at",
        "late": "1 minute",
    }
)
SEARCH, PAYMENT = {"name": "search", "stream": "searches"}, {"name": "paid", "stream": "payments"}


def pattern_problems(spark: SparkSession, **changes: Any) -> list[str]:
    pattern = {"per": ["search_id"], "within": "1 hour", "steps": [SEARCH, PAYMENT], **changes}
    query = StreamQuerySettings.model_validate({"pattern": pattern})
    problems, _ = examined(spark.newSession(), "q", query, {**STREAMS, "payments": PAYMENTS})
    return problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"steps": [SEARCH, {**SEARCH, "name": "a", "stream": "b"}]},
            "pattern.steps.a: there is no section [streams.b]",
        ),
        ({"per": ["id"]}, "pattern.per: stream 'payments' has no column 'id'"),
        ({"per": ["at"]}, "pattern.per: 'at' is timestamptz in 'searches', text in 'payments': give it one type"),
        ({"steps": [{**SEARCH, "where": "n"}, PAYMENT]}, "pattern.steps.search.where: [DATATYPE_MISMATCH"),
        ({"steps": [{**SEARCH, "where": "m > 1"}, PAYMENT]}, "pattern.steps.search.where: [UNRESOLVED_COLUMN"),
        ({"steps": [{**SEARCH, "where": "rand() > 1"}, PAYMENT]}, "pattern.steps.search.where: its values must follow"),
        ({"steps": [{**SEARCH, "where": "at > now()"}, PAYMENT]}, "pattern.steps.search.where: it asks for the time"),
        ({"steps": [{**SEARCH, "where": "count(*) > 1"}, PAYMENT]}, "pattern.steps.search.where: [INVALID_WHERE"),
        ({"select": {"a": "paid.nothing"}}, "pattern.select.a: [FIELD_NOT_FOUND]"),
        ({"select": {"a": "other.id"}}, "pattern.select.a: [UNRESOLVED_COLUMN"),
        ({"select": {"a": "max(paid.amount)"}}, "pattern.select.a: it must be an expression over the events of one"),
        (
            {"select": {"a": "explode(array(1, 2))"}},
            "pattern.select.a: it must be an expression over the events of one",
        ),
        ({"select": {"a": "uuid()"}}, "pattern.select.a: its values must follow from the events alone"),
        ({"select": {"a": "paid"}}, "pattern: column 'a' has the type struct<"),
        (
            {"steps": [SEARCH, {**PAYMENT, "without": True}], "select": {"a": "paid.amount"}},
            "pattern.select.a: [UNRESOLVED_COLUMN",
        ),
    ],
)
@pytest.mark.soak
def test_a_pattern_that_can_not_be_kept_is_refused_with_the_reason(
    spark: SparkSession, changes: dict[str, Any], problem: str
) -> None:
    problems = pattern_problems(spark, **changes)
    assert [each for each in problems if each.startswith(problem)], problems
