"""sinks.redis.scripts: which script a table has, and its arguments. tests/contract has what the scripts do."""

import orjson
import pytest

from cdc.model.event import JsonValue
from cdc.model.table import TableName
from sinks.redis.layout import TableLayout, Template
from sinks.redis.scripts import PLAIN, RICH, arguments_for, guarded, script_for
from tests.builders import tag

NAME = TableName("public", "orders")
ROW: dict[str, JsonValue] = {"id": 1, "note": "a", "customer": None}
TEXT = orjson.dumps(ROW)


def test_a_table_without_layout_settings_has_the_faster_script() -> None:
    script, shared = script_for(
        TableLayout(NAME), tombstone_ttl_s=5, overwrite_equal_tags=True, rows="shop:g1:", memos="shop:g1.tags:"
    )
    assert (script, shared) == (PLAIN, (5000, "1"))
    arguments = arguments_for(TableLayout(NAME))
    assert (list(arguments(tag(1), TEXT)), list(arguments(tag(1), None))) == (
        [tag(1).encode() + TEXT],
        [tag(1).encode()],
    )


def test_the_other_script_gets_the_ttl_and_the_prefix_of_memos() -> None:
    layout = TableLayout(NAME, ttl_s=7, has_fields=True)
    script, shared = script_for(
        layout, tombstone_ttl_s=5, overwrite_equal_tags=False, rows="shop:g1:", memos="shop:g1.tags:"
    )
    assert (script, shared) == (RICH, (5000, "0", 7000, ":", "shop:g1:", "shop:g1.tags:"))


@pytest.mark.parametrize(
    ("layout", "arguments"),
    [
        (TableLayout(NAME, ttl_s=7), [tag(1), 2, "v", TEXT]),
        (TableLayout(NAME, has_fields=True), [tag(1), 6, "id", b"1", "note", "a", ":n", b'["customer"]']),
        (
            TableLayout(NAME, sets=tuple(map(Template.parse, ("n:{note}", "c:{customer}", "i:{id}")))),
            [tag(1) + "n:a\ni:1", 2, "v", TEXT],
        ),
    ],
    ids=["ttl", "fields", "sets"],
)
def test_a_row_comes_with_its_sets_and_fields(layout: TableLayout, arguments: list[object]) -> None:
    assert arguments_for(layout)(tag(1), TEXT) == arguments
    assert arguments_for(layout)(tag(1), None) == [tag(1), 0]


@pytest.mark.parametrize("script", [PLAIN, RICH], ids=["plain", "rich"])
def test_a_guarded_script_compares_the_fence_before_it_looks_at_a_row(script: str) -> None:
    guard, _, rest = guarded(script).partition(script)
    assert rest == ""
    assert "ARGV[#ARGV]" in guard
