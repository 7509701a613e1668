"""What a file has to say so that tables leave capture: applied as told, it is a file that leaves them out."""

import tomllib
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from cdc.postgres.settings import SourceSettings
from lockstep.config import Config, validated
from lockstep.table_removal import FileChanges, Removal, file_changes, kept_of, removal_of

NAMED = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=lockstep"
tables = ["public.orders", "public.items", 'public."Old one"']
[source.options."public.items"]
key = ["code"]
[kafka]
bootstrap_servers = "kafka:9092"
[sinks.all]
type = "warehouse"
url = "postgresql+psycopg://warehouse/shop"
[sinks.cache]
type = "redis"
tables = ["public.orders", "public.items"]
[sinks.items]
type = "redis"
prefix = "items"
tables = ["public.items"]
[views.totals]
sink = "all"
sql = "select o.id, count(*) as items from public.orders o join public.items i on i.order_id = o.id group by o.id"
key = ["id"]
"""

PATTERNS = NAMED.replace('["public.orders", "public.items"', '["public.*", "sales.*", "public.items"', 1)

ITEMS, ORDERS = TableName("public", "items"), TableName("public", "orders")


def _config(text: str) -> tuple[dict[str, Any], Config]:
    document = tomllib.loads(text)
    config, problems = validated(document)
    assert config is not None, problems
    return document, config


def _changes(text: str, *tables: TableName) -> FileChanges:
    document, config = _config(text)
    return file_changes(document, config, tables)


@pytest.mark.parametrize("text", [NAMED, PATTERNS])
def test_a_source_that_is_changed_as_told_leaves_the_table_out_and_nothing_else(text: str) -> None:
    changes = _changes(text, ITEMS)
    document, before = _config(text)
    source = document["source"] | tomllib.loads("\n".join(changes.source))
    assert changes.removed == ["source.options.'public.items'"]
    del source["options"]["public.items"]
    after = SourceSettings.model_validate(source)
    names = (ITEMS, ORDERS, TableName("public", "Old one"), TableName("sales", "x"))
    assert [after.may_have(name) for name in names] == [
        name != ITEMS and before.source.may_have(name) for name in names
    ]


def test_a_table_that_is_named_and_matched_leaves_both_lists() -> None:
    assert _changes(PATTERNS, ITEMS).source == [
        'tables = ["public.*", "sales.*", "public.\\"Old one\\""]',
        'exclude_tables = ["public.items"]',
    ]
    options = '[source.options."public.items"]\nkey = ["code"]\n'
    already = PATTERNS.replace(options, 'exclude_tables = ["public.*_old"]\n')
    assert _changes(already, ORDERS).source == ['exclude_tables = ["public.*_old", "public.orders"]']


def test_what_the_file_would_still_be_refused_for_is_told() -> None:
    """Whoever does it has a file that is taken: the sink that names the table, and the view that reads it."""
    changes = _changes(NAMED, ITEMS)
    (problem,) = changes.problems
    for place in ("sinks.cache.tables names", "sinks.items.tables names", "views.totals.sql reads"):
        assert place in problem
    assert "an empty list means all" in changes.lines()[-1]
    alone = NAMED[: NAMED.index("[sinks.cache]")]
    assert _changes(alone, ITEMS).problems == []


def test_the_last_tables_can_not_leave() -> None:
    with pytest.raises(ConfigurationError, match="all the tables"):
        _changes(NAMED, ITEMS, ORDERS, TableName("public", "Old one"))


def test_how_far_a_table_is() -> None:
    _, config = _config(NAMED)
    gone = TableName("public", "gone")
    assert removal_of(ITEMS, config, []) is removal_of(ITEMS, config, [ITEMS]) is Removal.CONFIGURED
    assert (removal_of(gone, config, [gone]), removal_of(gone, config, [ITEMS])) == (Removal.CAPTURED, Removal.OUT)


def test_what_stays_names_the_topic_and_the_sinks() -> None:
    _, config = _config(NAMED)
    topic, sinks = kept_of(config, [ITEMS])
    assert "shop.public.items" in topic
    assert "as all, cache, items, keep" in sinks
