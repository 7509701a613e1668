"""What a file has to say so that tables leave capture: applied as told, it is a file that leaves them out."""

import tomllib
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
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


def _as_told(text: str, changes: FileChanges) -> Config:
    """The settings of the file in which somebody has done what is told."""
    document = tomllib.loads(text)
    for section, lines in changes.settings.items():
        at = document
        for part in section.split("."):
            at = at[part]
        at |= tomllib.loads("\n".join(lines))
    for section, names in changes.dropped.items():
        at = document
        for part in _parts(section):
            at = at[part]
        for name in names:
            del at[name]
    for section in changes.removed:
        *outer, last = _parts(section)
        at = document
        for part in outer:
            at = at[part]
        del at[last]
    config, problems = validated(document)
    assert config is not None, problems
    return config


def _parts(section: str) -> list[str]:
    parts, at = [], tomllib.loads(f"[{section}]")
    while at:
        ((name, at),) = at.items()
        parts.append(name)
    return parts


@pytest.mark.parametrize("text", [NAMED, PATTERNS])
def test_a_file_that_is_changed_as_told_leaves_the_table_out_and_nothing_else(text: str) -> None:
    changes = _changes(text, ITEMS)
    assert changes.problems == []
    _, before = _config(text)
    after = _as_told(text, changes)
    names = (ITEMS, ORDERS, TableName("public", "Old one"), TableName("sales", "x"))
    assert [after.source.may_have(name) for name in names] == [
        name != ITEMS and before.source.may_have(name) for name in names
    ]
    assert (sorted(after.sinks), after.sinks["cache"].tables) == (["all", "cache"], ("public.orders",))


def test_a_table_that_is_named_and_matched_leaves_both_lists() -> None:
    assert _changes(PATTERNS, ITEMS).settings["source"] == [
        'tables = ["public.*", "sales.*", "public.\\"Old one\\""]',
        'exclude_tables = ["public.items"]',
    ]
    options = '[source.options."public.items"]\nkey = ["code"]\n'
    already = PATTERNS.replace(options, 'exclude_tables = ["public.*_old"]\n')
    assert _changes(already, ORDERS).settings["source"] == ['exclude_tables = ["public.*_old", "public.orders"]']


def test_a_sink_that_names_only_the_table_goes_since_an_empty_list_is_all_tables() -> None:
    changes = _changes(NAMED, ITEMS)
    assert "sinks.items" in changes.removed
    assert changes.settings["sinks.cache"] == ['tables = ["public.orders"]']


@pytest.mark.parametrize("borrows", ["view", "stream query", "view that goes too"])
def test_a_sink_whose_store_others_have_stays_without_a_table_of_its_own(borrows: str) -> None:
    reads = "items" if borrows == "view that goes too" else "orders"
    section = f'[views.few]\nsink = "items"\nsql = "select id from public.{reads}"\nkey = ["id"]\n'
    if borrows == "stream query":
        section = (
            '[stream_queries.few]\nsink = "items"\nsql = "select page, count(*) as n from clicks group by page"\n'
            'key = ["page"]\n'
            '[streams.clicks]\ntopic = "clicks"\ncolumns = { page = "text", at = "timestamptz" }\ntime = "at"\n'
            'late = "1 day"\n'
        )
    items = '[sinks.items]\ntype = "warehouse"\nurl = "postgresql+psycopg://warehouse/items"\n'
    text = NAMED.replace('[sinks.items]\ntype = "redis"\nprefix = "items"\n', items, 1) + section
    changes = _changes(text, ITEMS)
    if borrows == "view that goes too":
        assert {"sinks.items", "views.few"} <= changes.removed.keys()
        return
    assert (changes.problems, "sinks.items" in changes.removed) == ([], False)
    assert (changes.settings["sinks.items"], changes.dropped) == (["apply = false"], {"sinks.items": ["tables"]})
    assert "    remove tables from the section [sinks.items]" in changes.lines()
    after = _as_told(text, changes)
    assert ("items" in after.sinks, "few" in {*after.sinks, *after.stream_queries}) == (False, True)


def test_a_view_that_reads_the_table_is_named() -> None:
    assert "public.items" in _changes(NAMED, ITEMS).removed["views.totals"]


def test_what_the_file_would_still_be_refused_for_is_told() -> None:
    masked = NAMED.replace("[sinks.cache]\n", '[sinks.cache]\nwhere = { "public.items" = "id > 0" }\n', 1)
    assert _changes(masked, ITEMS).problems == [
        "the file as a whole: sinks.cache names tables that aren't captured with a key: public.items"
    ]


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
