"""sinks.opensearch.mapping"""

from typing import Any

import pytest

from cdc.model.table import Column
from sinks.columns.shape import Shape
from sinks.opensearch.mapping import copy_targets, field_mapping, field_name, field_of, mapping
from tests.builders import column, table


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("a", "a"),
        ("a.b", "a%2eb"),
        ("a%2eb", "a%252eb"),
        ("_tag", "%5ftag"),
        ("_id", "%5fid"),
        ("_deleted", "%5fdeleted"),
        ("_x", "_x"),
        (" ", "%20"),
    ],
)
def test_field_name(name: str, field: str) -> None:
    assert field_name(name) == field


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (column("c", "int4"), "integer"),
        (column("c", "int8"), "long"),
        (column("c", "numeric"), "double"),
        (column("c", "text"), "text"),
        (column("c", "text", type_name="order_status"), "keyword"),
        (column("c", "varchar", type_name="character varying(20)"), "text"),
        (column("c", "uuid"), "keyword"),
        (column("c", "bool"), "boolean"),
        (column("c", "bool", is_array=True), "keyword"),
        (column("c", "timestamptz"), "date"),
        (column("c", "jsonb"), "flat_object"),
        (column("c", "jsonb", is_array=True), "keyword"),
        (column("c", "int4range"), "integer_range"),
        (column("c", "tstzrange", is_array=True), "date_range"),
        (column("c", "nummultirange"), "double_range"),
        (column("c", "text", type_name="float_range"), "keyword"),
        (column("c", "timestamp", is_array=True), "date"),
    ],
)
def test_field_mapping(of: Column, kind: str) -> None:
    assert field_mapping(of)["type"] == kind


def test_a_value_that_does_not_fit_an_integer_is_never_ignored() -> None:
    assert "ignore_malformed" not in field_mapping(column("c", "int4"))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"type": "keyword"}, {"type": "keyword"}),
        ({"index": False}, {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 1024}},
         "index": False}),
        ({"fields": {"de": {"type": "text"}}},
         {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 1024}, "de": {"type": "text"}}}),
        ({"enabled": False}, {"type": "object", "enabled": False}),
    ],
)  # fmt: skip
def test_what_is_said_without_a_type_is_added_to_the_columns_own(how: dict[str, Any], expected: dict[str, Any]) -> None:
    assert field_of(column("c"), how) == expected


def test_what_is_copied_to_is_a_field_of_its_own() -> None:
    fields = {"id": {"copy_to": ["all", "numbers"]}, "note": {"copy_to": "all"}, "numbers": {"type": "keyword"}}
    assert copy_targets(fields) == ["all", "numbers"]
    properties = mapping(Shape.of(table()), fields)["properties"]
    assert (properties["all"], properties["numbers"]) == ({"type": "text"}, {"type": "keyword"})
    assert properties["id"] == {"type": "long", "copy_to": ["all", "numbers"]}


def test_text_of_ranges_is_kept_where_there_are_ranges() -> None:
    spans = Shape.of(table(column("id", "int8"), column("span", "int4range")))
    assert mapping(spans)["properties"]["_ranges"] == {"type": "object", "enabled": False}
    assert "_ranges" not in mapping(spans, {"span": {"type": "keyword"}})["properties"]
    assert "_ranges" not in mapping(Shape.of(table()))["properties"]


def test_a_routed_index_wants_routing() -> None:
    assert mapping(Shape.of(table()), is_routed=True)["_routing"] == {"required": True}
    assert "_routing" not in mapping(Shape.of(table()))
