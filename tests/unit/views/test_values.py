"""Values of events and values inside a view, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.event import JsonValue
from tests.view_queries import column
from views.failures import EvaluationError
from views.numerics import decimal_of, divide, fitted, multiply, remainder, text_of
from views.values import (
    DATE,
    INT4,
    INTEGERS,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    days_text,
    float_json,
    from_event,
    micros_text,
    parse_days,
    parse_micros,
    to_event,
    type_of,
)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("int4", 7), ("text", "é"), ("bool", False), ("numeric", "1.10"), ("float8", 1.5), ("float8", -0.0),
        ("float8", "NaN"), ("jsonb", '{"a": 1}'), ("date", "2024-02-29"), ("date", "0044-03-15 BC"),
        ("date", "5874897-12-31"), ("date", "infinity"), ("timestamp", "2024-02-29T13:51:30.123456"),
        ("timestamp", "0001-12-31T23:59:59 BC"), ("timestamp", "294276-12-31T23:59:59.999999"),
        ("timestamp", "4714-11-24T00:00:00 BC"), ("timestamptz", "0044-02-01T10:00:00Z BC"),
        ("timestamptz", "-infinity"), ("timestamptz", "2024-01-01T00:00:00.5Z"), ("int4", None), ("date", None),
    ],
)  # fmt: skip
def test_a_value_is_the_same_afterwards(type_name: str, value: JsonValue) -> None:
    of = type_of(column("v", type_name))
    assert repr(to_event(of)(from_event(of)(value))) == repr(value)


@given(st.integers(-2_000_000, 2_145_031_948))
def test_days_are_the_same_afterwards(days: int) -> None:
    assert parse_days(days_text(days)) == days


@given(st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999))
def test_microseconds_are_the_same_afterwards(micros: int) -> None:
    assert parse_micros(micros_text(micros)) == micros
    assert parse_micros(micros_text(micros, "Z")) == micros


@pytest.mark.parametrize(
    "text", ["2023-02-29T00:00:00", "2024-01-01T24:00:00Z", "2024-01-01T00:60:00", "2024-01-01T00:00:00.1234567"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_micros(text)


def test_instants_are_in_order() -> None:
    texts = ["-infinity", "0044-02-01T10:00:00Z BC", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.1Z",
             "2024-01-01T00:00:01Z", "21016-01-01T00:00:00Z", "infinity"]  # fmt: skip
    instants = [from_event(TIMESTAMPTZ)(text) for text in texts]
    assert instants == sorted(instants)


@pytest.mark.parametrize(
    ("of", "value"), [(INT4, "7"), (INT4, True), (DATE, "2024-13-01"), (TIMESTAMP, "now"), (TIMESTAMP, 5)]
)
def test_a_value_of_another_form_stops(of, value: JsonValue) -> None:
    with pytest.raises(EvaluationError, match="another form"):
        from_event(of)(value)


@pytest.mark.parametrize(
    ("described", "kind", "scale"),
    [
        (column("v", "numeric(8,2)"), Kind.NUMERIC, 2),
        (column("v", "numeric(8)"), Kind.NUMERIC, 0),
        (column("v", "numeric"), Kind.NUMERIC, None),
        (column("v", "character varying(5)", "varchar", 1043), Kind.TEXT, None),
        (column("v", "mood", "text", 90000), Kind.OPAQUE, None),
        (column("v", "character(4)", "bpchar"), Kind.CHAR, 4),
        (column("v", "bpchar"), Kind.OPAQUE, None),
        (column("v", "int8"), Kind.INT8, None),
    ],
)
def test_types_are_those_whose_values_are_known(described, kind: Kind, scale: int | None) -> None:
    assert (type_of(described).kind, type_of(described).scale) == (kind, scale)
    assert (type_of(described).kind in INTEGERS) == (kind is Kind.INT8)


@pytest.mark.parametrize(
    ("left", "right", "quotient"),
    [
        ("1", "3", "0.33333333333333333333"),
        ("10", "3", "3.3333333333333333"),
        ("-2", "3", "-0.66666666666666666667"),
        ("6", "2", "3.0000000000000000"),
        ("0", "7", "0.00000000000000000000"),
        ("1.10", "2", "0.55000000000000000000"),
    ],
)
def test_a_quotient_has_postgresqls_scale(left: str, right: str, quotient: str) -> None:
    assert text_of(divide(decimal_of(left), decimal_of(right))) == quotient


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.5"), (3.0, "3"), (-0.0, "-0.0"), (0.0, "0"), (1e15, "1000000000000000.0"), (-7.0, "-7"),
     (1e300 * 1e10, '"Infinity"'), (-1e300 * 1e10, '"-Infinity"')],
)  # fmt: skip
def test_a_float_is_as_in_an_event(number: float, text: str) -> None:
    assert float_json(number) == text


def test_what_numerics_refuse() -> None:
    with pytest.raises(EvaluationError, match="division by zero"):
        divide(decimal_of("1"), decimal_of("0.00"))
    with pytest.raises(EvaluationError, match="division by zero"):
        remainder(decimal_of("1"), decimal_of("0"))
    with pytest.raises(EvaluationError, match="NaN"):
        decimal_of("NaN")
    with pytest.raises(EvaluationError, match="too many digits"):
        fitted(decimal_of("99.995"), 4, 2)
    with pytest.raises(EvaluationError, match="too large"):
        text_of(multiply(decimal_of("1" + "0" * 70_000), decimal_of("1" + "0" * 70_000)))
