"""What can't be kept is refused, all at once, with the clause, the reason and the remedy; and what is known of keys."""

from collections.abc import Sequence

import pytest

from cdc.model.append_only import stored_tables
from cdc.model.table import TableName
from tests.view_queries import TABLES, column, shape
from views.failures import Refusal, Refused
from views.plan import Scan, ViewPlan, nodes
from views.sql.reader import RetainedRows, TopRows, read_view

ODD = {
    **TABLES,
    **{
        table.name: table
        for table in (
            shape(
                "odd", ["id"], column("id", "int4"), column("x", "float8"), column("j", "jsonb"),
                column("s", "mood", "text", 90000), column("z", "timestamptz"), column("day", "date"),
                column("Big", "text"), column("p", "character(4)", "bpchar"), column("u", "uuid"),
            ),
            shape("log", [], column("at", "timestamptz")),
        )
    },
}  # fmt: skip


EVENTS = stored_tables({TableName("public", "log"): shape("log", [], column("at", "timestamptz"))})
"""An append-only table, as views read it."""


def refusals(sql: str, key: Sequence[str] = ("id",), top: TopRows | None = None) -> tuple[Refusal, ...]:
    with pytest.raises(Refused) as refused:
        read_view(sql, ODD, key=key, top=top)
    return refused.value.refusals


def kept(sql: str, key: Sequence[str] = ("id",), top: TopRows | None = None) -> ViewPlan:
    return read_view(sql, ODD, key=key, top=top)


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("id, now() as n", "its result changes"),
        ("id, random() as n", "its result changes"),
        ("id, current_date as n", "its result changes"),
        ("id, clock_timestamp() as n", "its result changes"),
        ("id, lower(t) as n", "locale"),
        ("id, t ilike 'a' as n", "locale"),
        ("id, row_number() over (order by id) as n", "window functions"),
        ("id, (select max(y) from b) as n", "no equality with the query around it"),
        ("id, exists (select 1 from b) as n", "no equality with the query around it"),
        ("id, (select max(y) from b where b.id > a.b_id) as n", "takes equalities"),
        ("id, (select max(y) from b where b.id = a.b_id and y > g) as n", "takes equalities"),
        ("id, (select y from b where b.c_k = a.g) as n", "more than one row"),
        ("id, (select y, n from b where b.id = a.b_id) as n", "more than one column"),
        ("id, (select y + g from b where b.id = a.b_id) as n", "can stand in its `where` only"),
        ("id, (select max(y) + max(b.id) + g from b where b.id = a.b_id) as n", "isn't in `group by`"),
        ("id, (select max(y) from b where b.id = a.b_id limit 1) as n", "no order"),
        ("id, (select max(y) from b where b.id = a.b_id group by b.t) as n", "'group' isn't supported"),
        ("id, (select max(x.id) from a x where x.u = a.u) as n", "equal numerics"),
        ("id, (select b.id from b where b.id = a.b_id union select 1) as n", "this subquery isn't supported"),
        ("id, exists (select count(*) from b where b.id = a.b_id) as n", "an aggregate gives a row also of no rows"),
        ("id, exists (select max(b.y) + 1 as m from b where b.id = a.b_id) as n", "an aggregate gives a row"),
        ("id, exists (select nothing from b where b.id = a.b_id) as n", "no column 'nothing'"),
        ("id, exists (select unnest(array[1]) from b where b.id = a.b_id) as n", "isn't supported"),
        ("id, (select count(a.g) from b where b.id = a.b_id) as n", "an aggregate can't read a column of the query"),
        (
            "id, (select sum(b.y + a.g) from b where b.id = a.b_id) as n",
            "an aggregate can't read a column of the query",
        ),
        (
            "id, (select count(*) filter (where a.f) from b where b.id = a.b_id) as n",
            "an aggregate can't read a column",
        ),
        (
            "id, exists (select 1 from b join c on c.k = b.c_k and c.v = a.g where b.id = a.b_id) as n",
            "a join inside can't read a column of the query",
        ),
        ("id, g in (select y from b) as n", "`in` with a subquery"),
        ("id, g = any (select y from b) as n", "a subquery can't be kept here"),
        ("id, jsonb_build_object('a') as n", "a name has no value"),
        ("id, jsonb_build_object(t, 1) as n", "a name isn't a literal"),
        ("id, '{'::jsonb as n", "isn't read as jsonb"),
        ("id, '[NaN]'::jsonb as n", "isn't read as jsonb"),
        ("id, t::jsonb as n", "cast of text to jsonb"),
        ("id, t < 'a' as n", "collation"),
        ("id, t < 'a' collate \"de_DE\" as n", "only the collation C"),
        ("id, g + t as n", "stand together"),
        ("id, d + interval '1 day' as n", "intervals"),
        ("id, g between 1 and 2 = f as n", "which operator comes first"),
        ("id, date_trunc('decade', d) as n", "isn't supported"),
        ("id, date_bin('1 month', d, '2000-01-01') as n", "its width isn't a literal"),
        ("id, date_bin('0 s', d, '2000-01-01') as n", "its width isn't a literal"),
        ("id, date_bin('5 minutes', g, '2000-01-01') as n", "isn't a timestamp"),
        ("id, date_bin('5 minutes', d, d) as n", "isn't read as timestamp"),
        ("id, date_bin('5 minutes', d, date_trunc('day', d)) as n", "its origin isn't a literal"),
        ("id, date_bin('5 minutes', d, timestamp 'infinity') as n", "its origin isn't a literal"),
        ("id, d::date::text as n", "can have another result"),
        ("id, g as n, t as n", "two columns"),
        ("id, g + 1", "no name"),
        ("id, nothing", "no column 'nothing'"),
        ("id, a.*", "two columns"),
        ("id, t::varchar(2) as n", "this cast isn't supported"),
        ("id, 1e400 as n", "this number"),
        ("id, pg_sleep(1) as n", "isn't supported"),
        ("id, count(*) as n", "whole table"),
    ],
)
def test_what_a_select_list_cant_have(select: str, reason: str) -> None:
    found = refusals(f"select {select} from a")
    assert any(reason in refusal.reason for refusal in found), found
    assert all(refusal.clause and refusal.remedy for refusal in found)


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("id, x = s as n", "mood stands beside float8"),
        ("id, x = 'big' as n", "isn't read as float8"),
        ("id, x = '1e400' as n", "isn't read as float8"),
        ("id, coalesce(x, 1) as n", "stand together"),
        ("id, x % x as n", "arithmetic with float8"),
        ("id, j = '{}' as n", "equality of jsonb"),
        ("id, s = 'calm' as n", "equality of mood"),
        ("id, p < 'a' as n", "collation"),
        ("id, coalesce(p, 'a') as n", "text of another length"),
        ("id, p = u as n", "uuid stands beside character(4)"),
        ("id, z::date as n", "time zone"),
        ("id, date_trunc('hour', z) as n", "time zone"),
        ("id, date_bin('1 hour', z, '2000-01-01') as n", "isn't read as timestamptz"),
        ("id, z at time zone 'Europe/Berlin' as n", "rules of time zones"),
        ("id, z = '2024-01-01 00:00:00' as n", "isn't read as timestamptz"),
        ("id, day = 'tomorrow' as n", "isn't read as date"),
        ("id, u = 'A' as n", "isn't read as uuid"),
        ("id, jsonb_build_object('s', s) as n", "how mood looks inside jsonb"),
        ("id, json_build_object('x', x) as n", "how float8 looks inside json"),
    ],
)
def test_types_of_which_too_little_is_known(select: str, reason: str) -> None:
    assert reason in refusals(f"select {select} from odd")[0].reason


@pytest.mark.parametrize(
    "select",
    [
        "id, x, j, s, p, z", "id, s::text = 'calm' as n", "id, date_trunc('hour', z, 'UTC') as n",
        "id, date_bin('1 hour', z, '2000-01-01T00:00:00Z') as n",
        "id, date_bin(interval '5 minutes', z, timestamptz '2000-01-01 00:00:00+00') as n",
        "id, (z at time zone 'UTC')::date as n", "id, z = '2024-01-01T00:00:00Z' as n",
        "id, day - date '2024-01-01' as n",
        "id, u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' as n", 'id, "Big" as n', "id, x is null as n",
        "id, coalesce(x, x) as n", "id, case when day > '2024-01-01' then x end as n",
    ],
)  # fmt: skip
def test_types_that_are_passed_on_or_cast(select: str) -> None:
    assert kept(f"select {select} from odd").key == ("id",)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select a.id from a cross join b", "cross join"),
        ("select a.id from a, b where a.b_id = b.id", "cross join"),
        ("select a.id from a natural join b", "natural"),
        ("select a.id from a join b on a.id < b.id", "no equality"),
        ("select a.id from a full join b on a.b_id = b.id", "FULL joins"),
        ("select a.id from a right join b on a.b_id = b.id", "RIGHT joins"),
        ("select a.id from a left join b on a.b_id = b.id and a.g = 1", "a left join takes"),
        ("select id from missing", "isn't captured"),
        ("select id from other.a", "isn't captured"),
        ("select at as id from log", "has no key"),
        ("select id from a limit 3", "no order"),
        (
            "select a.id, s.y from a left join lateral (select y from b where b.id = a.b_id) s on s.y = 1",
            "no condition",
        ),
        (
            "select a.id, s.y from a right join lateral (select y from b where b.id = a.b_id) s on true",
            "isn't supported",
        ),
        (
            "select a.id, s.y from a cross join lateral (select max(y) as y from b) s",
            "no equality with the query around",
        ),
        (
            "select a.id, s.v from a join lateral (select y + g as v from b where b.id = a.b_id) s on true",
            "`where` only",
        ),
        ("select id from a order by id", "no order"),
        ("select distinct on (g) id from a", "isn't supported"),
        ("select id from a for update", "isn't supported"),
        ("select id from a intersect select id from b", "isn't a query"),
        ("with recursive r as (select 1 as id) select id from r", "recursive"),
        ("select 1 as id", "reads no table"),
        ("select id from a; select id from b", "2 statements"),
        ("delete from a", "isn't a query"),
        ("select from where", "can't be parsed"),
        ("select g as id, t from a group by g", "isn't in `group by`"),
        ("select u as id, count(*) as n from a group by u", "equal numerics can look different"),
        ("select id from a where count(*) > 1", "aggregate can't stand here"),
        ("select coalesce(g, 1) as id, array_agg(t) as n from a group by 1", "order of its elements"),
        ("select coalesce(g, 1) as id, array_agg(t order by n) as n from a group by 1", "order of its elements"),
        ("select coalesce(g, 1) as id, jsonb_agg('x' order by t collate \"C\") as n from a group by 1", "isn't known"),
        ("select coalesce(g, 1) as id, max(t) as n from a group by 1", "collation"),
        ("select coalesce(g, 1) as id, sum(distinct g) as n from a group by 1", "distinct isn't kept for sum"),
        ("select b_id as id, mode() within group (order by t) as n from a group by 1", "collation"),
        ("select b_id as id, mode() within group (order by u) as n from a group by 1", "equal numerics"),
        ("select b_id as id, percentile_cont(2) within group (order by g) as n from a group by 1", "greater than 1"),
        ("select b_id as id, percentile_cont(0.5) within group (order by t) as n from a group by 1", "collation"),
        ("select b_id as id, percentile_cont(0.5) within group (order by d) as n from a group by 1", "isn't kept"),
        ("select b_id as id, percentile_cont(array[0.5]) within group (order by g) as n from a group by 1", "literal"),
        ("select b_id as id, rank(1) within group (order by g) as n from a group by 1", "isn't supported"),
        ("select id, sum(x) as n from odd group by id", "depends on the order of its rows"),
        ("select coalesce(g, 1) as id from a group by rollup(g)", "isn't supported"),
    ],
)
def test_what_a_query_cant_have(sql: str, reason: str) -> None:
    found = refusals(sql)
    assert any(reason in refusal.reason for refusal in found), found


def test_all_refusals_are_told_at_once() -> None:
    found = refusals("select id, now() as n, lower(t) as l from a where random() > 0.5 order by id")
    assert [refusal.clause for refusal in found] == ["ORDER BY id", "RANDOM()", "CURRENT_TIMESTAMP", "LOWER(t)"]


@pytest.mark.parametrize(
    ("sql", "key", "reason"),
    [
        ("select g, t from a", ["g"], "can be null"),
        ("select j ->> 'a' as k, count(*) as n from odd where j is not null group by 1", ["k"], "can be null"),
        (
            "select ('{}'::jsonb -> 'a') ->> 0 as k from a union select t from b where t is not null",
            ["k"],
            "can be null",
        ),
        ("select g, t from a where g is not null", ["g"], "two rows"),
        ("select id, t from a", ["missing"], "no column 'missing'"),
        ("select id, t from a", [], "names no column"),
        ("select id, t from a", ["id", "id"], "names 'id' twice"),
        ("select a.id from a join b on a.g = b.y", ["id"], "two rows"),
        ("select a.id, b.id as other from a left join b on a.b_id = b.id", ["id", "other"], "can be null"),
        ("select u from a where u is not null", ["u"], "equality of 'u'"),
        ("select id from a union all select id from b", ["id"], "two rows"),
        ("select 1 as part, id from a union all select 1 as part, id from b", ["part", "id"], "two rows"),
        ("select k, v from c", ["k"], "two rows"),
    ],
)
def test_keys_that_dont_tell_rows_apart(sql: str, key: list[str], reason: str) -> None:
    assert any(reason in refusal.reason for refusal in refusals(sql, key))


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("select a.id, b.t from a join b on a.b_id = b.id", ["id"]),
        ("select a.id, b.t from a left join b on a.b_id = b.id", ["id"]),
        ("select a.id, b.t from a left join b using (id)", ["id"]),
        ("select b.id as x, b.t from a join b on a.b_id = b.id join a as z on z.id = b.id where a.id = 1", ["x"]),
        ("select g, count(*) as n from a where g > 0 group by g", ["g"]),
        ("select distinct g, t from a where g = 1 and t is not null", ["t"]),
        ("select k, v from c where l = 'x'", ["k"]),
        ("select s.g, b.id from (select g from a where g is not null group by g) s join b on b.id = s.g", ["g"]),
        ("select 1 as part, id from a union all select 2 as part, id from b", ["part", "id"]),
        ("select id from a union select id from b", ["id"]),
        ("with w as (select id, g from a) select w.id, b.n from w join b on b.id = w.g", ["id"]),
    ],
)
def test_keys_that_follow_from_the_tables(sql: str, key: list[str]) -> None:
    assert kept(sql, key).key == tuple(key)


@pytest.mark.parametrize(
    ("select", "key"),
    [
        ("a.id, (select b.t from b where b.id = a.b_id) as n from a", ["id"]),
        ("a.id, (select max(b.y) from b where b.c_k = a.g + 1) as n from a", ["id"]),
        ("a.id, coalesce(s.n, 0) as n from a left join lateral (select count(*) as n from b where b.c_k = g) s on true",
         ["id"]),
        ("a.id, s.n from a cross join lateral (select count(*) as n from b where b.c_k = g) s where s.n > 1", ["id"]),
        ("a.id, s.id as b from a join lateral (select b.id from b where b.c_k = g) s on true", ["id", "b"]),
        ("a.id from a where exists (select 1 from b where b.c_k = a.g)", ["id"]),
        ("a.id from a where exists (select from b where b.c_k = a.g)", ["id"]),
        ("a.id from a where exists (select b.*, *, a.g + 1 as n from b where b.c_k = a.g)", ["id"]),
        ("a.id from a where exists (select 1 from b join c on c.k = b.c_k where b.id = a.b_id and c.v = a.g)", ["id"]),
        ("a.id, jsonb_build_object('b', (select b.n from b where b.id = a.b_id)) as d from a", ["id"]),
    ],
)  # fmt: skip
def test_subqueries_that_are_joined_leave_the_key_as_it_is(select: str, key: list[str]) -> None:
    assert kept(f"select {select}", key).key == tuple(key)


@pytest.mark.parametrize(
    ("top", "reason"),
    [
        (TopRows(("g",), "t", 1), "collation"),
        (TopRows(("missing",), "id", 1), "no column 'missing'"),
        (TopRows(("g",), "missing", 1), "no column 'missing'"),
        (TopRows(("g",), "id", 0), "less than 1"),
        (TopRows(("g",), "id id id", 1), "can't be parsed"),
        (TopRows(("g",), "", 1), "can't be parsed"),
    ],
)
def test_a_top_that_cant_be_kept(top: TopRows, reason: str) -> None:
    assert any(reason in refusal.reason for refusal in refusals("select id, g, t from a", top=top))


@pytest.mark.parametrize(
    ("from_", "order"),
    [
        ("b join c on c.k = b.c_k join a on a.id = b.y", ["b", "a", "c"]),
        ("b join c on c.k = b.c_k left join a on a.id = b.y", ["b", "a", "c"]),
        ("b left join c on c.k = b.c_k join a on a.id = b.y", ["b", "a", "c"]),
        ("c join b on c.k = b.c_k left join a on a.id = b.y", ["c", "b", "a"]),
        ("c left join b on c.k = b.c_k join a on a.id = b.y", ["c", "b", "a"]),
        ("b join a on a.id = b.y join c on c.k = b.c_k", ["b", "a", "c"]),
        ("b join c on c.k = b.c_k join a x on x.g = b.y", ["b", "c", "a"]),
    ],
)
def test_joins_that_multiply_rows_come_last(from_: str, order: list[str]) -> None:
    plan = kept(f"select coalesce(b.id, 0) as id, count(*) as n from {from_} group by 1")
    assert [node.table.name for node in nodes(plan.root) if isinstance(node, Scan)] == order


def test_columns_that_are_joined_by_name_are_compared_as_others_are() -> None:
    """Floats as PostgreSQL compares them."""
    query = "select a.id, b.id as other from odd a join odd b {}"
    by_name, by_condition = (kept(query.format(how), ["id", "other"]) for how in ("using (x)", "on a.x = b.x"))
    assert by_name.root == by_condition.root


def test_names_are_in_lower_case_unless_they_are_quoted() -> None:
    plan = kept('select ID, "Big", A.t as "T" from odd join a using (id)')
    assert [name for name, _ in plan.outputs] == ["id", "Big", "T"]


# --- append-only tables ---


def test_a_table_without_a_key_is_known_by_its_events_where_it_is_append_only() -> None:
    assert [refusal.remedy for refusal in refusals("select at from log", ["at"])] == [
        "give it a primary key, or set `append_only` for it"
    ]
    plan = read_view("select l._event as event, l.* from log l", EVENTS, key=["event"])
    assert [name for name, _ in plan.outputs] == ["event", "at"]  # as PostgreSQL's system columns, it isn't in `*`


def test_a_result_has_no_column_that_sinks_need_for_themselves() -> None:
    with pytest.raises(Refused) as refused:
        read_view("select _event, _operation, at from log", EVENTS, key=["_event"])
    assert [(refusal.clause, refusal.remedy) for refusal in refused.value.refusals] == [
        ("_event in the select list", "write `_event as` another name"),
        ("_operation in the select list", "write `_operation as` another name"),
    ]


def test_every_wrong_retention_is_told_beside_what_is_wrong_with_the_query() -> None:
    retain = [
        RetainedRows(TableName("public", table), name, 24)
        for table, name in (("odd", "z"), ("odd", "day"), ("a", "d"), ("b", "id"), ("b", "gone"), ("nowhere", "at"))
    ]
    with pytest.raises(Refused) as refused:
        read_view("select o.id, lower(b.t) as n from odd o join b on b.id = o.id", ODD, key=["id"], retain=retain)
    told = [(refusal.clause, refusal.reason) for refusal in refused.value.refusals]
    assert "locale" in told[0][1]
    assert told[1:] == [
        ("retain of public.odd by 'day'", "something was said of this table before"),
        ("retain of public.a by 'd'", "the query doesn't read this table"),
        ("retain of public.b by 'id'", "the column is of type int8, which doesn't say when a row was"),
        ("retain of public.b by 'gone'", "the table has no such column"),
        ("retain of public.nowhere by 'at'", "the query doesn't read this table"),
    ]
    assert all(refusal.remedy for refusal in refused.value.refusals)


def test_retention_of_a_table_in_an_unused_part_of_with_is_refused() -> None:
    retain = [RetainedRows(TableName("public", "odd"), "z", 24)]
    with pytest.raises(Refused) as refused:
        read_view("with unused as (select id from odd) select id from b", ODD, key=["id"], retain=retain)
    (refusal,) = refused.value.refusals
    assert (refusal.clause, refusal.reason, refusal.remedy) == (
        "retain of public.odd by 'z'",
        "the query reads this table in a part of `with` alone that nothing uses",
        "name one of public.b, or remove it",
    )
