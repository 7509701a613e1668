"""What PostgreSQL's SQL over one row gives: computed columns, rows that aren't to be seen, and what fails."""

from collections.abc import Mapping

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from jobs.executor.computed_row import ComputedRow, RowComputer
from jobs.query.row_plan import row_plans
from sinks.table_settings import Computed, Expressions
from tests.builders import column, table

T = table(
    column("id", "int8"),
    column("total", "numeric"),
    column("price", "numeric", type_modifier=(10 << 16 | 2) + 4),
    column("name"),
    column('Odd "n.ame'),
    column("at", "timestamptz"),
    column("local", "timestamp"),
    column("day", "date"),
    column("share", "float8"),
    column("ratio", "float4"),
    column("tags", is_array=True),
    column("doc", "jsonb"),
    column("status", type_name="mood"),
    column("user"),
    name=TableName("public", "things"),
)
ROW: Mapping[str, JsonValue] = {
    "id": 2, "total": "10.50", "price": "1.10", "name": "x", 'Odd "n.ame': "odd", "at": "2026-01-02T03:04:05.123456Z",
    "local": "2026-01-02T03:04:05", "day": "2026-01-31", "share": 0.5, "ratio": 0.1, "tags": ["a", "b"],
    "doc": '{"a": {"b": "text"}, "list": [1, 2.50, null], "é.x": true}', "status": "draft",
    "user": "u",
}  # fmt: skip


def computer(computed: Mapping[str, Computed], where: str | None = None) -> RowComputer:
    [plan] = row_plans({T.name: Expressions(computed, where)}, {T.name: T}).values()
    return RowComputer(plan)


def values(computed: Mapping[str, Computed], **row: JsonValue) -> Mapping[str, JsonValue]:
    whole = computer(computed).computed({**ROW, **row})
    assert not whole.refused, whole.refused
    assert whole.row is not None
    return {name: whole.row[name] for name in computed}


def problems(computed: Mapping[str, Computed], where: str | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        computer(computed, where)
    return refused.value.problems


def test_results_are_postgresqls_in_the_form_of_events() -> None:
    computed = {
        "gross": Computed(sql="total * 1.19", type="numeric"),
        "quarter": Computed(sql="total / 4", type="numeric"),
        "label": Computed(sql="name || '-' || id::text"),
        "next": Computed(sql="day + 1", type="date"),
        "hour": Computed(sql="date_trunc('hour', at, 'UTC')", type="timestamptz"),
        "day_of": Computed(sql="(at at time zone 'UTC')::date", type="date"),
        "zoneless": Computed(sql="things.local", type="timestamp"),
        "odd": Computed(sql='public.things."Odd ""n.ame"'),
        "twice": Computed(sql="id * 2", type="int4"),
        "much": Computed(sql="total > 10 and share < 1", type="bool"),
        "size": Computed(sql="case when total > 100 then 'large' else 'small' end"),
        "same": Computed(sql="share", type="float8"),
        "copy": Computed(sql="doc", type="jsonb"),
        "made": Computed(sql="jsonb_build_object('id', id, 'name', name)", type="jsonb"),
        "now": Computed(sql="'now() random'"),
        "known": Computed(sql="status::text"),
        "id_text": Computed(sql="id"),
        "tenth": Computed(sql="share / 10 + id", type="float8"),
        "float": Computed(sql="total", type="float8"),
        "lower": Computed(sql="lower('ÄX' collate \"C\") || upper('éx' collate \"C\")"),
        "inner": Computed(sql="doc -> 'a' ->> 'b'"),
        "second": Computed(sql="(doc -> 'list' ->> 1)::numeric + 1", type="numeric"),
        "part": Computed(sql="doc -> 'a'", type="jsonb"),
        "own": Computed(sql='"user" || things.user'),
        "none": Computed(sql="null::numeric(6,2)", type="numeric"),
    }
    assert values(computed) == {
        "gross": "12.4950", "quarter": "2.6250000000000000", "label": "x-2", "next": "2026-02-01",
        "hour": "2026-01-02T03:00:00Z", "day_of": "2026-01-02", "zoneless": "2026-01-02T03:04:05", "odd": "odd",
        "twice": 4, "much": True, "size": "small", "same": 0.5, "copy": ROW["doc"],
        "made": '{"id": 2, "name": "x"}',
        "now": "now() random", "known": "draft", "id_text": "2",
        "tenth": 2.05, "float": 10.5, "lower": "ÄxéX", "inner": "text", "second": "3.50", "part": '{"b": "text"}',
        "own": "uu", "none": None,
    }  # fmt: skip


def test_null_is_three_valued_and_a_null_condition_is_not_met() -> None:
    computed = {"sum": Computed(sql="total + 1", type="numeric"), "is": Computed(sql="name = 'x'", type="bool")}
    assert values(computed, total=None, name=None) == {"sum": None, "is": None}
    for where in ("name <> 'b'", "not (name = 'b')", "name <> 'b' or id > 2", "null"):
        assert computer({}, where).computed({**ROW, "name": None}) == ComputedRow(None)
    for where in ("name is distinct from 'b'", "name <> 'b' or id = 2", "coalesce(name, '') <> 'b'"):
        assert computer({}, where).computed({**ROW, "name": None}).row is not None


def test_a_row_that_meets_its_condition_is_as_it_was() -> None:
    text = b'{"id":1, "name": "\\u00e9"}'
    assert computer({}, "id = 1").computed_text(text) == (text, "")
    assert computer({}, "id = 2").computed_text(text) == (None, "")
    copied = computer({"n": Computed(sql="name")}).computed_text(text)
    assert copied == (text[:-1] + ',"n":"é"}'.encode(), "")


def test_what_fails_for_one_row_is_named_unless_the_row_is_left_out_anyway() -> None:
    computed = {"inverse": Computed(sql="1 / id", type="int4"), "plain": Computed(sql="name")}
    failing = computer(computed, "total > 1")
    assert failing.computed({**ROW, "id": 0}) == ComputedRow(
        None, "expression: computed column 'inverse' can't be evaluated for this row: division by zero"
    )
    assert failing.computed({**ROW, "id": 0, "total": "1"}) == ComputedRow(None)
    both = failing.computed({**ROW, "id": 0, "total": "NaN"}).refused
    assert both.startswith("expression: the condition of where can't be evaluated for this row")
    assert "computed column 'inverse'" in both
    assert failing.computed(ROW).row is not None


@pytest.mark.parametrize(
    ("sql", "of", "row"),
    [
        ("total + 1", "numeric", {"total": "NaN"}),
        ("price + 1", "numeric", {"price": "Infinity"}),
        ("total", "int4", {"total": "3000000000"}),
        ("id", "int2", {"id": 70_000}),
        ("day + 1", "date", {"day": "5874897-12-31"}),
        ("id * id", "int8", {"id": 2**62}),
        ("total", "numeric", {"total": 1.5}),
        ("name::int", "int4", {"name": "one"}),
        ("share * share", "float8", {"share": 1e200}),
        ("1 / (share - 0.5)", "float8", {"share": 0.5}),
    ],
)
def test_what_postgresql_cannot_compute_is_refused_and_others_go_on(
    sql: str, of: str, row: Mapping[str, JsonValue]
) -> None:
    computed = {"c": Computed.model_validate({"sql": sql, "type": of})}
    refused = computer(computed).computed({**ROW, **row}).refused
    assert refused.startswith("expression: computed column 'c' can't be evaluated for this row")
    # Who doesn't use the column doesn't mind.
    assert values({"other": Computed(sql="local", type="timestamp")}, **row) == {"other": ROW["local"]}


def test_values_that_are_passed_on_may_be_any() -> None:
    computed = {
        "n": Computed(sql="total", type="numeric"), "d": Computed(sql="day", type="date"),
        "t": Computed(sql="at", type="timestamptz"), "f": Computed(sql="share", type="float8"),
        "g": Computed(sql="ratio", type="float4"),
    }  # fmt: skip
    row: Mapping[str, JsonValue] = {
        "total": "NaN", "day": "0044-03-15 BC", "at": "infinity", "share": "NaN", "ratio": 0.1,
    }  # fmt: skip
    assert list(values(computed, **row).values()) == list(row.values())


@pytest.mark.parametrize(
    "sql",
    [
        "random() > 0.5", "current_date > day", "clock_timestamp() > at", "gen_random_uuid() is null",
        "current_user = name", "exists (select 1)", "id in (select 1)", "count(*) > 1", "sum(id) > 1",
        "row_number() over () = 1", "id", "name", "select true", "id > 1; id > 2", "id > 1 as c", "", "*", "things.*",
        "other.id > 1", "pg_sleep(1) is null", "date_trunc('day', at) = at", "name > 'a'", "user = 'u'", "USER = 'u'",
        " or ".join(["id = 1"] * 300), " or ".join(["id = 1"] * 5000), "(" * 200 + "id > 1" + ")" * 200,
    ],
)  # fmt: skip
def test_a_condition_follows_from_the_row_alone(sql: str) -> None:
    assert len(problems({}, sql)) == 1
