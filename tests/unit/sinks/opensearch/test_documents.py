"""sinks.opensearch.documents"""

from typing import Any

import orjson
import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent, TableEvents
from cdc.model.table import Table
from cdc.model.tag import Tag
from sinks.columns.shape import Shape
from sinks.opensearch.documents import Target, searchable_json
from sinks.opensearch.ids import IdTemplate
from tests.builders import column, delete, table, upsert


def test_a_delete_is_a_delete_or_a_marker() -> None:
    event = delete({"id": 1}, 1)
    events = TableEvents.of(event.table, [event])
    written = [Target("w", Shape.of(table()), markers).lines(events, 0) for markers in (False, True)]
    assert written[0].startswith(b'{"delete":')
    assert written[0].count(b"\n") == 1
    assert written[1].startswith(b'{"index":')
    assert b'"_deleted":true' in written[1]


@pytest.mark.parametrize("at", [Tag(1, 1 << 50, 1), Tag(16, 8, 1)])
def test_a_position_without_a_version_says_a_way_out_that_helps(at: Tag) -> None:
    event = upsert({"id": 1}, str(at))
    target = Target("w", Shape.of(table()), False)
    with pytest.raises(LockstepError, match="no room for this position of the source") as raised:
        target.lines(TableEvents.of(event.table, [event]), 0)
    assert "filled from a dump" in (raised.value.hint or "")


def test_json_for_searching_is_left_out_where_it_cannot_be_indexed() -> None:
    deep = '{"a":' * 21 + "1" + "}" * 21
    long = '{"a":"' + "x" * 40_000 + '"}'
    many = "{" + ",".join(f'"k{n}":"{"x" * 100}"' for n in range(400)) + "}"
    for text in ("[1]", "1", '"x"', "null", deep, long):
        assert searchable_json(text, "jsonb") is None
    for text in ('{"a":1.0}', " {}", many):
        assert searchable_json(text, "jsonb") is not None
    assert searchable_json('{"a":1,"a":2}', "json") == {"a": 2}


def _parsed(target: Target, event: RowEvent) -> list[Any]:
    return [orjson.loads(line) for line in target.lines(TableEvents.of(event.table, [event]), 0).splitlines()]


def test_a_document_has_its_id_and_routing_from_its_key() -> None:
    orders = table(column("region"), column("id", "int8"), column("note"), key=("region", "id"))
    target = Target("w", Shape.of(orders), id_template=IdTemplate.parse("{region}/{id}"), routing=("region",))
    row: dict[str, JsonValue] = {"region": "eu/1", "id": 7, "note": "n"}
    for event in (upsert(row, 1, of=orders), delete({"region": "eu/1", "id": 7}, 2, of=orders)):
        ((action, head),) = _parsed(target, event)[0].items()
        assert action in ("index", "delete")
        assert (head["_id"], head["routing"]) == ("eu%2f1/7", "eu/1")
    assert target.identity({"region": "", "id": 1})["routing"].startswith("sha256:")


SPANS = table(column("id", "int8"), column("span", "int4range"), column("days", "daterange", is_array=True))


def _span(of: Table, **properties: dict[str, str]) -> tuple[Target, Any]:
    target = Target("w", Shape.of(of), properties=properties or None)
    row: dict[str, JsonValue] = {"id": 1, "span": "[1,5)", "days": ["empty"]}
    document = _parsed(target, upsert(row, 1, of=of))[1]
    assert target.stored(document, of).row == row
    return target, document


def test_a_range_is_indexed_as_one_and_comes_back_as_its_text() -> None:
    _, document = _span(SPANS)
    assert document["span"] == {"gte": "1", "lt": "5"}
    assert "days" not in document
    assert document["_ranges"] == {"span": "[1,5)", "days": ["empty"]}


def test_an_index_that_holds_ranges_as_text_goes_on_so() -> None:
    _, document = _span(SPANS, span={"type": "keyword"}, days={"type": "date_range"})
    assert (document["span"], document["_ranges"]) == ("[1,5)", {"days": ["empty"]})
