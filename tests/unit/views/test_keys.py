"""The shortest key of a query's result, for who names none."""

import pytest

from tests.view_queries import TABLES
from views.sql.keys import shortest_key


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("select t, id from a", ("id",)),
        ("select b.id as b, a.id as a from a join b on a.b_id = b.id", ("a",)),
        ("select x.id as one, y.id as other from a x join a y on x.g = y.g", ("one", "other")),
        ("select g, count(*) as n from a where g is not null group by g", ("g",)),
        ("select 1 as part, id from a union all select 2 as part, id from b", ("part", "id")),
        ("select count(*) as n, g from a group by g", None),
        ("select t from a", None),
        ("select id from missing", None),
        ("select", None),
        ("not sql at all (", None),
    ],
)
def test_the_shortest_key(sql: str, key: tuple[str, ...] | None) -> None:
    assert shortest_key(sql, TABLES) == key
