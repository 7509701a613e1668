"""``[views.NAME]`` of ``lockstep.toml``: one more sink, with every error at once."""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from lockstep.config import read
from sinks.redis.settings import RedisSettings
from sinks.registry import changed_settings, definition, with_definition
from views.sql.tables_read import tables_read

VALID = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=lockstep"
tables = ["public.orders", "public.items", "crm.people"]
[kafka]
bootstrap_servers = "kafka:9092"
[sinks.cache]
type = "redis"
url = "redis://cache:6379/3"
login = { password_file = "cache" }
tables = ["public.orders"]
prefix = "shop"
keys = { "public.orders" = "o:{id}" }
schema_changes = "keep"
[views.totals]
sink = "cache"
key = ["person"]
sql = "select p.id as person, count(*) as n from orders o join crm.people p on p.id = o.person group by p.id"
top = { per = ["person"], order = "n desc", n = 3 }
"""


def written(directory: Path, text: str = VALID) -> Path:
    path = directory / "lockstep.toml"
    path.write_text(text)
    return path


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        read(written(directory, text))
    return list(refused.value.problems)


def test_a_sink_of_which_nobody_takes_the_address_is_applied_or_removed(tmp_path: Path) -> None:
    assert problems(tmp_path, VALID.split("[views.totals]", maxsplit=1)[0] + "apply = false\n") == [
        "sinks.cache.apply is false, and nothing names the sink, as a view does: name it in one, or remove it"
    ]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            'tables = ["public.orders", "public.gone"]',
            "sinks.cache.tables names tables that aren't captured with a key: public.gone",
        ),
        (
            'where = { "public.gone" = "id > 0" }',
            "sinks.cache names tables that aren't captured with a key: public.gone",
        ),
        ('exclude = ["nonsense"]', "sinks.cache.exclude: "),
    ],
)
def test_a_sink_that_gets_no_table_is_checked_as_if_it_got_some(tmp_path: Path, setting: str, problem: str) -> None:
    """Else a slip shows only on the day on which it is applied."""
    text = VALID.replace('tables = ["public.orders"]\nprefix', f"apply = false\n{setting}\nprefix")
    (told,) = problems(tmp_path, text)
    assert told.startswith(problem)


def test_the_query_is_part_of_what_a_generation_is_built_with(tmp_path: Path) -> None:
    view = read(written(tmp_path)).sinks["totals"]
    other = read(written(tmp_path, VALID.replace("count(*)", "count(o.id)") + "max_value_bytes = 700\n")).sinks[
        "totals"
    ]
    assert {name for name, value in definition(view).items() if value != definition(other)[name]} == {"view"}
    assert changed_settings(definition(other), definition(view)) == ["sql"]
    rebuilt = with_definition(other, definition(view))
    assert isinstance(rebuilt, RedisSettings)
    assert (rebuilt.view, rebuilt.max_value_bytes) == (view.view, 700)


def test_which_rows_count_is_part_of_what_a_generation_is_built_with(tmp_path: Path) -> None:
    retain = 'retain = [{ table = "orders", column = "at", age = "90d" }]\n'
    before = read(written(tmp_path)).sinks["totals"]
    after = read(written(tmp_path, VALID + retain)).sinks["totals"]
    longer = read(written(tmp_path, VALID + retain.replace("90", "91"))).sinks["totals"]
    for one, other in ((before, after), (after, longer)):
        assert changed_settings(definition(one), definition(other)) == ["retain"]
    of_earlier_version = definition(before) | {"view": {**definition(before)["view"]}}
    del of_earlier_version["view"]["retain"]
    assert changed_settings(of_earlier_version, definition(before)) == []
    assert after.view is not None
    (orders,) = after.view.retain or ()
    assert (orders.table_name, orders.hours) == (TableName("public", "orders"), 90 * 24)
    assert with_definition(before, definition(after)).view == after.view


def test_views_that_are_no_section_hide_no_other_problem(tmp_path: Path) -> None:
    text = "views = 3\n" + VALID.split("[views.totals]", maxsplit=1)[0] + "nonsense = 1\n"
    assert problems(tmp_path, text) == [
        "views: must be a section, or a table in { }",
        "sinks.cache.nonsense: unknown setting: check its spelling and its section",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('sink = "cache"', 'sink = "nowhere"', "views.totals.sink: there is no section [sinks.nowhere]"),
        ('sink = "cache"\n', "", "views.totals.sink: is missing"),
        ("[views.totals]", "[views.cache]", "views.cache and sinks.cache have one name"),
        ("[views.totals]", "[views.Totals]", "sinks and views have names of a lower-case letter"),
        ("[views.totals]", f"[views.{'v' * 42}]", "followed by up to 40"),
        ("crm.people", "crm.persons", "views.totals.sql reads tables that aren't captured: crm.persons"),
        ("from orders", "form orders", "views.totals.sql: it can't be parsed"),
        ('key = ["person"]', "key = []", "views.totals.key: must not be empty"),
        ('key = ["person"]', "key = [1]", "views.totals.key.0: must be a text"),
        ('key = ["person"]', 'key = ["person", "person"]', "views.totals.key: names a column twice: person"),
        ("top = {", 'topic = "yes"\ntop = {', "views.totals.topic: must be true or false, without quotes"),
        ("top = {", "apply = false\ntop = {", "views.totals.apply: a view is always applied"),
        ("top = {", 'type = "warehouse"\ntop = {', "views.totals.type: a view has the store of its sink"),
        ("n = 3", "n = 0", "views.totals.top.n: "),
        (
            "top = {",
            'retain = [{ table = "orders", column = "at", age = "90" }]\ntop = {',
            "isn't an age of days and hours",
        ),
        ("top = {", 'retain = [{ table = "a.b.c", column = "at", age = "1d" }]\ntop = {', "not a table name"),
        (
            "top = {",
            'retain = [{ table = "orders", column = "at", age = "1d", weeks = 1 }]\ntop = {',
            "retain.0.weeks: ",
        ),
        ("top = {", 'retain = [{ table = "orders", column = "at", age = "-1d" }]\ntop = {', "retain.0.age: "),
        ("top = {", 'mask = { "views.totals.n" = "null" }\ntop = {', "views.totals.mask: a view has no such setting"),
        ("top = {", 'mode = "invalidate"\ntop = {', "views.totals.mode: a view has no such setting"),
        ("top = {", 'tables = ["public.orders"]\ntop = {', "views.totals.tables: a view has no such setting"),
        ("top = {", "sort = 1\ntop = {", "views.totals.sort: unknown setting"),
        ("top = {", 'keys = { "public.orders" = "x:{id}" }\ntop = {', "views.totals: this sink has no table"),
        ("top = {", 'prefix = "shop"\ntop = {', "sinks.cache and views.totals write to the same place"),
        ("schema_changes", "apply = 1\nschema_changes", "sinks.cache.apply: true or false"),
    ],
)
def test_what_is_wrong_is_told_where_it_is(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = VALID.replace(old, new) if old != "crm.people" else VALID.replace("join crm.people", f"join {new}")
    told = problems(tmp_path, text)
    assert len(told) == 1
    assert problem in told[0]


OVER = (
    VALID.replace("top = {", "# top = {")
    + """
[views.many]
sink = "cache"
key = ["person"]
sql = "select t.person, u.name from views.totals t join items u on u.id = t.person where t.n > 3"
"""
)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("# top", "top", ["views.many.sql: from views.totals: it has a `top`, which isn't part of its query"]),
        (
            "# top",
            'retain = [{ table = "orders", column = "at", age = "9d" }] # top',
            ["views.many.sql: from views.totals: it has a `retain`, which isn't part of its query"],
        ),
        (
            "views.totals t",
            "views.total t",
            ["views.many.sql reads views.total, and there is no section [views.total]"],
        ),
        (
            "from orders o",
            "from views.many o",
            [
                "views.totals.sql: from views.many: views read each other in a circle:",
                "views.many.sql: from views.totals: views read each other in a circle:",
            ],
        ),
        ('sql = "select p', 'sql = 3 # "select p', ["views.totals.sql: must be a text"]),
    ],
)
def test_what_is_wrong_between_views_is_told(tmp_path: Path, old: str, new: str, told: list[str]) -> None:
    found = problems(tmp_path, OVER.replace(old, new))
    assert len(found) == len(told)
    assert all(words in problem for words, problem in zip(told, found, strict=True)), found


@pytest.mark.parametrize("lends_only", ["", "apply = false\n"])
def test_what_a_view_has_taken_over_is_told_of_once_and_where_it_stands(tmp_path: Path, lends_only: str) -> None:
    text = VALID.replace('tables = ["public.orders"]\nprefix', f'{lends_only}adress = "x"\nprefix')
    assert problems(tmp_path, text) == ["sinks.cache.adress: unknown setting: check its spelling and its section"]


@pytest.mark.parametrize("lends_only", ["", "apply = false\n"])
@pytest.mark.parametrize(
    ("type_line", "problem"), [('type = "reddis"\n', "'reddis' is none of"), ("", "is missing: "), ("type = 5\n", "")]
)
def test_a_type_that_is_none_is_told_of_the_sink_whose_store_a_view_takes(
    tmp_path: Path, lends_only: str, type_line: str, problem: str
) -> None:
    text = VALID.replace('type = "redis"\n', type_line + lends_only)
    [told] = problems(tmp_path, text)
    assert told.startswith(f"sinks.cache.type: {problem}")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from a", "public.a"),
        ('select * from A join "B"."C" on true', 'public.a "B"."C"'),
        ("with a as (select * from b) select * from a", "public.b"),
        ("with a as (select * from a) select * from a", "public.a"),
        ("with a as (select 1 from x), b as (select 1 from a) select * from b join s.a on true", "public.x s.a"),
        ("select * from (select * from a union all select * from b) q where x in (select y from c)",
         "public.a public.b public.c"),
    ],
)  # fmt: skip
def test_the_tables_of_a_query_are_known_from_its_text(sql: str, expected: str) -> None:
    assert sorted(map(str, tables_read(sql))) == sorted(expected.split())
