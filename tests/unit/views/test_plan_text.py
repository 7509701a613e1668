"""A plan as people read it: each operator once, with what it keeps, in SQL's words."""

from collections.abc import Iterator, Sequence

from cdc.model.table import TableName
from tests.view_queries import TABLES
from views.plan_text import PlanStep, plan_steps
from views.sql.reader import RetainedRows, TopRows, read_view


def steps(sql: str, key: Sequence[str] = ("id",), top: TopRows | None = None) -> list[PlanStep]:
    def below(step: PlanStep) -> Iterator[PlanStep]:
        yield step
        for source in step.sources:
            yield from below(source)

    return list(below(plan_steps(read_view(sql, TABLES, key=key, top=top))))


def test_operators_come_with_what_they_keep() -> None:
    found = steps(
        "select a.id, b.t from a left join b on b.id = a.b_id where a.g > 1",
        top=TopRows(("t",), "id desc", 2),
    )
    assert [(step.number, step.operator, step.text, step.keeps) for step in found] == [
        (0, "top", "the first 2 per b.t by a.id desc, a.id", "all of its rows in this order"),
        (1, "left join", "left join on a.b_id = b.id", "the rows of both sides, by the joined columns"),
        (2, "scan", "public.a where a.g > 1", "each row of the table: id, g, b_id, and its tag"),
        (3, "scan", "public.b", "each row of the table: id, t, and its tag"),
    ]


def test_a_table_says_which_of_its_rows_count() -> None:
    retain = [RetainedRows(TableName("public", "a"), "d", 36)]
    step = plan_steps(read_view("select id from a where g > 1", TABLES, key=["id"], retain=retain))
    assert step.text == "public.a of the last 1 day and 12 hours by d where g > 1"
    assert step.keeps == "each row of the table of the last 1 day and 12 hours by d: id, g, d, and its tag"


def test_a_table_that_is_read_twice_has_two_names_and_one_copy() -> None:
    found = steps("select x.id, y.id as other from a x join a y on x.g = y.g", ("id", "other"))
    assert [(step.text, bool(step.keeps)) for step in found[1:]] == [("public.a", True), ("public.a as a_2", False)]
    assert found[0].text == "join on a.g = a_2.g"


def test_groups_name_their_aggregates_and_those_whose_values_are_kept() -> None:
    found = steps(
        "select g, count(*) as n, sum(n) filter (where f) as s, max(d) as m,"
        " string_agg(t, ',' order by t collate \"C\") as l, count(distinct b_id) as c"
        " from a where g is not null group by g having count(*) > 1",
        ("g",),
    )
    assert [step.operator for step in found] == ["filter", "group", "scan"]
    assert found[0].text == "where count(*) > 1"
    assert found[1].text.startswith("group by g: count(*), ")
    assert "sum(n) filter (where f)" in found[1].text
    values = found[1].keeps.partition("; the values of ")[2]
    assert "max(d)" in values
    assert "string_agg(t order by t)" in values
    assert "count(distinct b_id)" in values
    assert "sum" not in values


def test_expressions_are_those_of_the_query() -> None:
    (scan,) = steps(
        "select id from a where not (g = 1 or t = 'it''s') and d >= timestamp '2024-01-02 03:04:05'"
        " and coalesce(n, 0) <= 1.50 and f is not true and g in (1, 2) and date_trunc('day', d) is null"
        " and t is distinct from 'x' and -g < abs(g) + 2 and t like 'a%'"
        " and date_bin('90 minutes', d, '2000-01-01') <> d"
    )
    for part in (
        "not (g = 1 or t = 'it''s')", "d >= '2024-01-02T03:04:05'",
        "coalesce(n, 0) <= 1.50", "and not (f is true)", "(g = 1 or g = 2) and",
        "date_trunc('day', d) is null", "t is distinct from 'x'", "t like 'a%'",
        "date_bin('5400 seconds', d, '2000-01-01T00:00:00') <> d",
    ):  # fmt: skip
        assert part in scan.text, scan.text


def test_distinct_and_unions() -> None:
    found = steps("select distinct t as id from (select t from a union all select t from b) q where t is not null")
    assert [step.operator for step in found] == ["distinct", "filter", "union all", "scan", "scan"]
    assert found[0].text == "distinct a.t"
    assert [step.keeps for step in found[1:3]] == ["", ""]
