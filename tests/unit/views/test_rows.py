"""The rows that PostgreSQL has: what each query here gives was once another one in a view."""

from collections.abc import Mapping
from typing import Any

import pytest

from cdc.model.event import JsonValue
from tests.view_queries import TABLES, KeptView, Question, RowWrite
from views.evaluation import compiled
from views.expressions import Call, Literal
from views.failures import EvaluationError, Refused
from views.sql.keys import shortest_key
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.values import BOOL, TEXT, Kind, Value

BLANK: dict[str, dict[str, JsonValue]] = {
    table.name.name: {column.name: None for column in table.columns} for table in TABLES.values()
}


def row(table: str, **values: Any) -> RowWrite:
    key = {"a": ("id",), "b": ("id",), "c": ("k", "l")}[table]
    return table, {name: values[name] for name in key}, {**BLANK[table], **values}


def kept(sql: str, *rows: RowWrite, key: tuple[str, ...] = ("id",)) -> list[Mapping[str, JsonValue]]:
    """The result, in the order of its key: the same step by step as built at once."""
    view = KeptView(Question(sql, key), MemoryState())
    for each in rows:
        view.step([each])
    assert view.built_anew([list(rows)]).rows == view.rows
    return [view.rows[at] for at in sorted(view.rows, key=repr)]


# --- columns that are joined by name ---


@pytest.mark.parametrize(
    ("from_", "g"),
    [
        ("a left join (select id as i, n as g from b) s using (g)", "2"),
        ("(select id as i, n as g from b) s left join a using (g)", "2.00"),
        ("a join (select id as i, n::numeric(5) as g from b) s using (g)", "2"),
        ("a join (select id as i, c_k as g from b) s using (g)", 2),
    ],
)
def test_a_column_that_is_joined_by_name_has_the_type_of_both(from_: str, g: JsonValue) -> None:
    rows = [row("a", id=1, g=2), row("b", id=1, c_k=2, n="2.00", y=0)]
    sql = f"select id, i, g from {from_} where id is not null and i is not null"
    assert kept(sql, *rows, key=("id", "i")) == [{"id": 1, "i": 1, "g": g}]


@pytest.mark.parametrize("from_", ["a join (select id as i, n as g from b) s using (g)",
                                   "(select id as i, u as n from a) s join b using (n)"])  # fmt: skip
def test_numerics_of_different_scales_are_not_joined_by_name(from_: str) -> None:
    """Which of both PostgreSQL has depends on more than is known of them here."""
    with pytest.raises(Refused, match="equal numerics can look different"):
        read_view(f"select id, i from {from_}", TABLES, key=("id", "i"))


def test_the_sum_of_a_column_that_is_joined_by_name_is_that_of_its_type() -> None:
    sql = "select id, sum(g) as n from a join (select id as i, y::bigint as g from b) s using (g) group by id"
    assert kept(sql, row("a", id=1, g=2), row("b", id=1, y=2)) == [{"id": 1, "n": "2"}]


# --- left joins on several equalities ---

OF_TENANTS = "select distinct a.g, c.k from a left join c on c.k = a.g and c.l = a.t"


def test_a_left_joins_equality_alone_says_nothing_of_the_right_row() -> None:
    """One a has a partner, the other one of the same g has none: they are two rows of the distinct."""
    sql = (
        f"select b.id, count(*) as n from ({OF_TENANTS}) s join b on b.c_k = s.g join a on a.b_id = b.id group by b.id"
    )
    rows = [row("a", id=1, g=7, t="x"), row("a", id=2, g=7, t="y", b_id=1), row("b", id=1, c_k=7)]
    assert kept(sql, *rows, row("c", k=7, l="x")) == [{"id": 1, "n": 2}]


def test_a_part_of_what_a_left_join_compares_is_no_key() -> None:
    sql = f"select s.g, b.id from ({OF_TENANTS} where a.g is not null) s join b on b.c_k = s.g"
    assert shortest_key(sql, TABLES) is None
    with pytest.raises(Refused, match="can't be kept"):
        read_view(sql, TABLES, key=("g", "id"))


def test_all_that_a_left_join_compares_says_what_the_right_row_is() -> None:
    sql = "select a.g, a.t, c.l, count(*) as n from a left join c on c.k = a.g and c.l = a.t {} group by a.g, a.t, c.l"
    where = "where a.g is not null and a.t is not null"
    assert kept(
        f"select s.g, s.t, s.n from ({sql.format(where)}) s",
        row("a", id=1, g=7, t="x"), row("a", id=2, g=7, t="y"), row("c", k=7, l="x"),
        key=("g", "t"),
    ) == [{"g": 7, "t": "x", "n": 1}, {"g": 7, "t": "y", "n": 1}]  # fmt: skip


# --- equal numerics that look different ---


def test_equal_numerics_count_once() -> None:
    sql = "select coalesce(g, 0) as id, count(distinct u) as n from a group by coalesce(g, 0)"
    rows = [row("a", id=1, u="1.0"), row("a", id=2, u="1.00"), row("a", id=3, u="2")]
    assert kept(sql, *rows) == [{"id": 0, "n": 2}]
    assert kept(sql, *rows, ("a", {"id": 1}, None)) == [{"id": 0, "n": 2}]
    assert kept(sql, *rows, ("a", {"id": 1}, None), ("a", {"id": 2}, None)) == [{"id": 0, "n": 1}]


@pytest.mark.parametrize("made", ["array_agg({0} order by {0})", "jsonb_agg({0} order by {0} desc)"])
def test_an_order_that_leaves_equal_numerics_in_any_order_is_refused(made: str) -> None:
    sql = "select coalesce(g, 0) as id, {} as n from a group by coalesce(g, 0)"
    with pytest.raises(Refused, match="can't be kept") as refused:
        read_view(sql.format(made.format("u")), TABLES, key=("id",))
    assert "order of its elements" in refused.value.refusals[0].reason
    for settled in (made.format("u::numeric(8,2)"), "array_agg(u order by u, a.id)"):
        assert read_view(sql.format(settled), TABLES, key=("id",)).key == ("id",)


# --- guards, and rows that nobody asks for ---

A_AND_B = [row("a", id=1, g=0, b_id=0), row("a", id=2, g=3, b_id=1), row("b", id=0, y=0), row("b", id=1, y=5, c_k=0)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from a where g <> 0 and 12 % g = 0", [2]),
        ("select id from a where 12 % g = 0 and g <> 0", [2]),
        ("select g as id from a where g is not null group by g having count(*) <> 1 and 6 / (count(*) - 1) > 1", []),
        ("select a.id from a join b on b.id = a.b_id where b.y <> 0 and 12 % a.g = 0", [2]),
        ("select a.id from a join b on b.id = a.b_id where a.g <> b.y - 5 and 12 % b.y = 2 and b.y <> 0", [2]),
        ("select a.id from a join b on b.id = a.b_id and 10 / b.y = 2 where a.g <> 0", [2]),
        ("select a.id from a left join b on b.id = a.b_id where b.y <> 0 and 10 / a.g = 3", [2]),
        ("select s.id from (select id, 10 / g as q, g, b_id from a where 10 / g > 1) s join b on b.id = s.b_id"
         " and b.y <> 0", [2]),
        ("select a.id from a where a.g <> 0 and exists (select 1 from b where b.id = a.b_id and 10 / b.y = 2)", [2]),
    ],
)  # fmt: skip
def test_a_condition_fails_for_no_row_that_another_one_leaves_out(sql: str, expected: list[int]) -> None:
    assert [row["id"] for row in kept(sql, *A_AND_B)] == expected


@pytest.mark.parametrize(
    "inside",
    [
        "select sum(10 / b.y) from b where b.id = a.b_id",
        "select count(*) + 1 from b where b.id = a.b_id and 10 / b.y = 2",
        "select max(b.id) + 1 from b where b.id = a.b_id and 10 / b.y = 2",
        "select max(2) filter (where 10 / b.y = 2) from b where b.id = a.b_id",
        "select 10 / b.y from b where b.id = a.b_id",
        "select 2 from b where b.id = a.b_id and 10 / b.y = 2",
    ],
)
def test_a_subquery_fails_for_no_row_that_nobody_asks_for(inside: str) -> None:
    guarded = f"select a.id, case when a.g <> 0 then ({inside}) else 0 end as n from a"
    assert [row["n"] for row in kept(guarded, *A_AND_B)] == [0, 2]
    # Nobody asks for that b at all.
    assert [row["n"] for row in kept(f"select a.id, ({inside}) as n from a", *A_AND_B[1:])] == [2]
    with pytest.raises(EvaluationError, match="division by zero"):
        kept(f"select a.id, ({inside}) as n from a", *A_AND_B)


def test_a_left_joins_right_side_fails_only_where_its_row_is_asked_for() -> None:
    of_b = "select id, 10 / y as q from b"
    sql = f"select a.id, case when a.g <> 0 then s.q end as n from a left join ({of_b}) s on s.id = a.b_id"
    assert [row["n"] for row in kept(sql, *A_AND_B)] == [None, 2]
    sql = "select a.id, b.y as n from a left join b on b.id = a.b_id and 10 / b.y = 2"
    assert [row["n"] for row in kept(sql, *A_AND_B[1:])] == [5]
    with pytest.raises(EvaluationError, match="division by zero"):
        kept(sql, *A_AND_B)


def test_a_failure_that_goes_away_lets_the_view_go_on() -> None:
    sql = "select a.id, (select sum(10 / b.y) from b where b.id = a.b_id) as n from a"
    assert kept(sql, row("b", id=1, y=0), row("b", id=1, y=2), row("a", id=1, b_id=1)) == [{"id": 1, "n": 5}]


def test_a_condition_that_fails_for_a_row_of_the_result_stops_the_view() -> None:
    for sql in (
        "select id from a where 10 / g = 1",
        "select a.id from a join b on b.id = a.b_id where 10 / b.y = 2",
        "select a.id from a where exists (select 1 from b where b.id = a.b_id and 10 / b.y = 2)",
    ):
        with pytest.raises(EvaluationError, match="division by zero") as failed:
            kept(sql, *A_AND_B)
        assert "Change the row in the source" in str(failed.value.hint)


# --- like ---


@pytest.mark.parametrize(
    ("text", "pattern", "is_like"),
    [
        ("abc", "abc", True), ("abc", "ab", False), ("abc", "a%", True), ("abc", "%c", True), ("abc", "%b%", True),
        ("abc", "_b_", True), ("abc", "____", False), ("aba", "ab%ba", False), ("abba", "ab%ba", True),
        ("", "%", True), ("", "_", False), ("a\nb", "a%b", True), ("50%", "50\\%", True), ("500", "50\\%", False),
        ("a.c", "a_c", True), ("abc", "a.c", False), ("aXbXc", "a%b_c", True), ("ab", "%a%b%%", True),
    ],
)  # fmt: skip
def test_like_is_postgresqls(text: str, pattern: str, is_like: bool) -> None:
    assert like(text, pattern) is is_like


def test_like_of_a_long_text_ends() -> None:
    """A pattern that is tried at every place for every place before it doesn't, within a day."""
    assert like("a" * 100_000, "%a_a%a%a%a%a%a%a%b") is False


def like(text: str, pattern: str) -> Value:
    call = Call("like", (Literal(text, TEXT), Literal(pattern, TEXT)), BOOL)
    return compiled(call, ())(())


# --- what the parser has otherwise, and types ---


@pytest.mark.parametrize(
    ("selected", "reason"),
    [
        ("date '2024-01-01'::timestamp", "a type stands before"),
        ("numeric(8, 2) '1.55'::int", "a type stands before"),
        ("timestamp with time zone '2024-01-01'::text", "a type stands before"),
        ("date_trunc(hour, d)", "its unit isn't a literal"),
        ('date_trunc("day", d)', "its unit isn't a literal"),
        ("'2147483648'::int", "out of range"),
        ("'-9223372036854775809'::bigint", "out of range"),
    ],
)
def test_what_would_have_another_value_is_refused(selected: str, reason: str) -> None:
    with pytest.raises(Refused, match="can't be kept") as refused:
        read_view(f"select id, {selected} as v from a", TABLES, key=("id",))
    assert reason in refused.value.refusals[0].reason


@pytest.mark.parametrize(
    ("selected", "kind", "value"),
    [
        ("nullif(g, 2.50)", Kind.NUMERIC, "3"),
        ("nullif(g, b_id)", Kind.INT4, 3),
        ("nullif('4', g)", Kind.INT4, 4),
        ("'9223372036854775807'::bigint", Kind.INT8, 2**63 - 1),
        ("'-9223372036854775808'::bigint", Kind.INT8, -(2**63)),
        ("('2024-01-01'::date)::timestamp", Kind.TIMESTAMP, "2024-01-01T00:00:00"),
        ("date_trunc('DAY', timestamp '2024-01-01 10:00:00')", Kind.TIMESTAMP, "2024-01-01T00:00:00"),
    ],
)
def test_a_value_has_postgresqls_type(selected: str, kind: Kind, value: JsonValue) -> None:
    sql = f"select id, {selected} as v from a"
    outputs = dict(read_view(sql, TABLES, key=("id",)).outputs)
    assert outputs["v"].type.kind is kind
    assert kept(sql, row("a", id=1, g=3)) == [{"id": 1, "v": value}]


def test_a_function_in_from_is_refused() -> None:
    for sql in (
        "select a.id from a join generate_series(1, 3) g(n) on g.n = a.id",
        "select id from generate_series(1, 3) as id",
    ):
        with pytest.raises(Refused, match="can't be kept") as refused:
            read_view(sql, TABLES, key=("id",))
        assert "a function in `from`" in str(refused.value.refusals)
