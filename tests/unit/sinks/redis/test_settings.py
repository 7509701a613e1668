"""sinks.redis.settings"""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from sinks.redis.settings import RedisSettings
from sinks.registry import definition, with_definition


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"names": {"orders": "o"}}, ["not a table name: 'orders'"]),
        (
            {"keys": {"public.orders": "order"}, "sets": {"public.orders": ["a", "b{"]}},
            ["names no column", "'b{' can't"],
        ),
        (
            {"keys": {"public.a": "x:{id}", "public.b": "x:{id}"}},
            ["the keys of table public.b and the keys of table public.a"],
        ),
        ({"keys": {"public.a": "x:{id}"}, "sets": {"public.a": ["x:{note}"]}}, ["a set of table public.a"]),
        ({"ttl_s": {"public.a": 0}}, ["ttl_s: 0 s of table public.a"]),
        ({"mode": "invalidate", "sets": {"public.a": ["x:{note}"]}}, ["sets can't be kept"]),
        ({"tables": ["public.a"], "ttl_s": {"public.b": 5}}, ["this sink has no table public.b"]),
        ({"values": "columns"}, ["'json' or 'fields'"]),
        ({"mode": "other"}, ["'materialise' or 'invalidate'"]),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_every_problem(settings: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        RedisSettings(**settings)
    assert all(problem in str(raised.value) for problem in problems)


def test_a_generation_keeps_the_layout_that_it_was_built_with() -> None:
    chosen = RedisSettings(
        names={"public.a": "a"},
        keys={"public.b": "b:{id}"},
        values="fields",
        sets={"public.b": ("b:by_note:{note}",)},
        ttl_s={"public.b": 60},
    )
    kept = definition(chosen)
    assert {"names", "keys", "values", "sets", "ttl_s", "mode"} <= kept.keys()
    again = with_definition(RedisSettings(), kept)
    assert isinstance(again, RedisSettings)
    assert again.layout == chosen.layout
    assert definition(with_definition(chosen, {})) == definition(RedisSettings())


def test_rows_may_be_missing_where_they_expire_or_are_not_kept() -> None:
    name = TableName("public", "a")
    assert not RedisSettings().may_lack_rows(name)
    assert RedisSettings(ttl_s={"public.a": 5}).may_lack_rows(name)
    assert not RedisSettings(ttl_s={"public.b": 5}).may_lack_rows(name)
    assert RedisSettings(mode="invalidate").may_lack_rows(name)
