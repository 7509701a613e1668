"""Views over views: the other view's query stands where its name was."""

import pytest

from cdc.model.table import TableName
from tests.view_queries import TABLES
from views.failures import Refused
from views.sql.over_views import NamedQuery, over_tables
from views.sql.reader import read_view

QUERIES = {
    "big": NamedQuery("select id, g, n from a where n > 1 ; -- the end"),
    "sums": NamedQuery("select g, sum(n) as s from views.big where g > 0 group by g"),
    "newest": NamedQuery("select id from a", beyond="top"),
    "one": NamedQuery("select id from views.other"),
    "other": NamedQuery("select id from views.one"),
    "self": NamedQuery("select id from views.self"),
    "broken": NamedQuery("select from where"),
    "two": NamedQuery("select id from a; select 1"),
}
VIEWS = {TableName("views", name): query for name, query in QUERIES.items()}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from a", "select id from a"),
        ("explain select id from a", "explain select id from a"),
        ("select id from views.big", 'select id from (select id, g, n from "public".a where n > 1\n) as "big"'),
        (
            "select b.id from Views . Big as b join a on a.id = b.id -- views.big",
            'select b.id from (select id, g, n from "public".a where n > 1\n) as b join a on a.id = b.id -- views.big',
        ),
        (
            "select s from views.sums",
            'select s from (select g, sum(n) as s from (select id, g, n from "public".a where n > 1\n) as "big"'
            ' where g > 0 group by g\n) as "sums"',
        ),
        ("select id from big join views.table on true", "select id from big join views.table on true"),
    ],
)
def test_a_view_stands_in_from_as_its_query_does(sql: str, expected: str) -> None:
    assert over_tables(sql, VIEWS) == expected


def test_a_with_around_it_means_nothing_inside() -> None:
    sql = over_tables("with a as (select id from b) select v.id from views.big v join a on a.id = v.id", VIEWS)
    plan = read_view(sql, TABLES, key=["id"])
    assert plan.tables == (TableName("public", "a"), TableName("public", "b"))


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("select id from views.self", [("from views.self", "in a circle: views.self -> views.self")]),
        ("select id from views.one", [("from views.one", "in a circle: views.one -> views.other -> views.one")]),
        ("select id from views.newest", [("from views.newest", "has a `top`")]),
        ("select id from views.broken", [("from views.broken", "can't be parsed")]),
        ("select id from views.two", [("from views.two", "2 statements")]),
        (
            "select id from views.self union select id from views.newest",
            [("from views.newest", "has a `top`"), ("from views.self", "in a circle")],
        ),
    ],
)
def test_what_cant_be_read_is_told_with_every_reason(sql: str, told: list[tuple[str, str]]) -> None:
    with pytest.raises(Refused) as refused:
        over_tables(sql, VIEWS)
    found = refused.value.refusals
    assert [(each.clause, reason in each.reason) for each, (_, reason) in zip(found, told, strict=True)] == [
        (clause, True) for clause, _ in told
    ]
