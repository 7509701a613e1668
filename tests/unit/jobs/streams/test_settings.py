"""Settings of streams: what is refused before anything is read."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from jobs.streams.settings import StreamSettings, column_of, duration_ms, name_problems, result_name, spark_type

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


def test_the_offset_of_the_clock_is_a_column_only_where_one_is_computed() -> None:
    columns = SEARCHES["columns"] | {"clock_offset_ms": "int8"}
    StreamSettings.model_validate(SEARCHES | {"columns": columns})
    with pytest.raises(ValidationError, match="clock_offset_ms: the stream has this column already"):
        StreamSettings.model_validate(SEARCHES | {"columns": columns, "sent": "at"})


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


def test_names_are_names_in_sql() -> None:
    assert name_problems("streams", ["searches"]) == []
    (problem,) = name_problems("streams", ["Web-Searches"])
    assert problem.startswith("streams.Web-Searches: a name is a lower-case letter")
