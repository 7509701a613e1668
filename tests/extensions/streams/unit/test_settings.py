"""Settings of streams: what is refused before anything is read."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from extensions.streams.settings import (
    PatternSettings,
    StreamQuerySettings,
    StreamSettings,
    column_of,
    duration_ms,
    result_name,
    spark_type,
)

SEARCHES: dict[str, Any] = {
    "topic": "web.searches",
    "columns": {"id": "text", "at": "timestamptz"},
    "time": "at",
    "late": "10 minutes",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 millisecond", 1),
        ("30 seconds", 30_000),
        ("10 minutes", 600_000),
        ("1 hour", 3_600_000),
        ("2 days", 172_800_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10 months", "-1 minutes", "10  minutes", "1.5 hours"])
def test_a_text_of_another_form_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a number and a unit"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"time": "id"}, "time: 'id' is no column of type timestamptz"),
        ({"time": "when"}, "time: 'when' is no column of type timestamptz"),
        ({"sent": "id"}, "sent: 'id' is no column of type timestamptz"),
        ({"id": ["nr"]}, "id: 'nr' is no column of the stream"),
        ({"rows_of": {"public.t": ["id", "id"]}}, "rows_of.public.t: names 'id' twice"),
        ({"late": "soon"}, "a number and a unit"),
        ({"columns": {"at": "timestamptz", "ip": "inet"}}, "columns.ip: 'inet' is none of bool"),
        ({"columns": {"at": "timestamptz", "n": "numeric(39,2)"}}, "columns.n: 'numeric\\(39,2\\)' is none of"),
        ({"columns": {"at": "timestamptz", "received_at": "text"}}, "columns.received_at: the stream has this column"),
        ({"columns": {"at": "timestamptz", "a.b": "text"}}, "columns.a.b: a column's name has up to 63 letters"),
        ({"columns": {"at": "timestamptz", "a`b": "text"}}, "columns.a`b: a column's name has up to 63 letters"),
        ({"columns": {"at": "timestamptz", "": "text"}}, "columns.: a column's name has up to 63 letters"),
        ({"columns": {"at": "timestamptz", "n" * 64: "text"}}, "a column's name has up to 63 letters"),
        ({"columns": {"at": "timestamptz", "__lockstep_time": "text"}}, "begin with __lockstep_ are Lockstep's own"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_their_name(changes: dict[str, Any], problem: str) -> None:
    StreamSettings.model_validate(SEARCHES)
    with pytest.raises(ValidationError, match=problem):
        StreamSettings.model_validate(SEARCHES | changes)


@pytest.mark.parametrize(
    "name", ["kind", "userId", "AT", "Received_At", "@timestamp", "user-id", "$type", "value", "topic"]
)
def test_members_of_json_have_names_of_other_forms_too(name: str) -> None:
    columns = {"at": "timestamptz", name: "text"}
    assert name in StreamSettings.model_validate(SEARCHES | {"columns": columns, "id": [name]}).columns


@pytest.mark.parametrize("name", ["bool", "int2", "int4", "int8", "float8", "text", "date", "timestamp", "timestamptz"])
def test_a_type_is_the_same_on_its_way_to_spark_and_back(name: str) -> None:
    spark_name = spark_type(name)
    assert spark_name is not None
    column = column_of("x", spark_name)
    assert column is not None
    assert (column.name, column.type_name, column.value_type) == ("x", name, name)


def test_a_numeric_keeps_its_precision_and_scale() -> None:
    assert spark_type("numeric(10,2)") == "decimal(10,2)"
    column = column_of("x", "decimal(10,2)")
    assert column is not None
    assert (column.type_name, column.value_type, column.type_modifier) == (
        "numeric(10,2)",
        "numeric",
        (10 << 16 | 2) + 4,
    )


@pytest.mark.parametrize("spark_name", ["struct<start:timestamp,end:timestamp>", "array<int>", "binary", "float"])
def test_a_result_has_no_column_of_another_type(spark_name: str) -> None:
    assert column_of("x", spark_name) is None


def test_a_result_is_a_table_under_its_querys_name() -> None:
    assert result_name("search_clicks") == TableName("stream_queries", "search_clicks")


CART: dict[str, Any] = {"name": "cart", "stream": "carts"}
PAID: dict[str, Any] = {"name": "paid", "stream": "payments"}
ABANDONED: dict[str, Any] = {"per": ["user_id"], "within": "1 hour", "steps": [CART, {**PAID, "without": True}]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"per": []}, "at least 1 item"),
        ({"per": ["id", "id"]}, "names a column twice: id"),
        ({"per": ["began_at"]}, "per.began_at: the result has this column already"),
        ({"steps": [{**CART, "name": f"n{n}"} for n in range(21)]}, "at most 20 items"),
        ({"within": "0 minutes"}, "must be more than 0"),
        ({"within": "soon"}, "a number and a unit"),
        ({"steps": []}, "at least 1 item"),
        ({"steps": [CART]}, "steps: it is a single event: write a query as `sql`, or add a step"),
        ({"steps": [CART, CART]}, "steps: two are called 'cart'"),
        ({"steps": [{**CART, "without": True}, PAID]}, "steps.cart: a pattern begins with an event"),
        ({"steps": [CART, {**PAID, "without": True, "times": 2}]}, "steps.paid: `times` doesn't fit with `without`"),
        ({"steps": [{**CART, "name": "user_id"}, PAID]}, "steps.user_id: the result has this column already"),
        ({"steps": [{**CART, "name": "The cart"}, PAID]}, "steps.The cart: a name is a lower-case letter"),
        ({"steps": [{**CART, "times": 101}]}, "less than or equal to 100"),
        ({"select": {"began_at": "cart.at"}}, "select.began_at: the result has this column already"),
        ({"select": {"A": "cart.at"}}, "select.A: a name is a lower-case letter"),
    ],
)
def test_a_pattern_that_says_nothing_is_refused_with_the_reason(changes: dict[str, Any], problem: str) -> None:
    PatternSettings.model_validate(ABANDONED)
    with pytest.raises(ValidationError, match=problem):
        PatternSettings.model_validate(ABANDONED | changes)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({}, "it needs `sql` with `key`, or a `pattern`, and not both"),
        ({"key": ["id"]}, "it needs `sql` with `key`, or a `pattern`, and not both"),
        ({"sql": "select 1", "key": ["id"], "pattern": ABANDONED}, "and not both"),
        ({"sql": "select 1"}, "key: is missing"),
        ({"pattern": ABANDONED, "key": ["user_id"]}, "key: user_id, began_at identify a match"),
    ],
)
def test_a_query_is_sql_with_a_key_or_a_pattern_without(query: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        StreamQuerySettings.model_validate(query)


def test_a_pattern_is_over_streams_that_have_its_columns_in_one_type() -> None:
    pattern = PatternSettings.model_validate(ABANDONED)
    columns = {"at": "timestamptz", "user_id": "int8"}
    streams = {
        name: StreamSettings.model_validate(SEARCHES | {"topic": name, "columns": columns})
        for name in ("carts", "payments")
    }
    assert pattern.problems(streams) == []
    assert pattern.problems({"carts": streams["carts"]}) == ["steps.paid: there is no section [streams.payments]"]
    other = StreamSettings.model_validate(SEARCHES | {"columns": columns | {"user_id": "text"}})
    assert pattern.problems(streams | {"payments": other}) == [
        "per: 'user_id' is int8 in 'carts', text in 'payments': give it one type"
    ]
    without = StreamSettings.model_validate(SEARCHES)
    assert pattern.problems(streams | {"carts": without}) == ["per: stream 'carts' has no column 'user_id'"]
