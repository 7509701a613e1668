"""sinks.redis.settings"""

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from sinks.redis.connection import RedisConnection
from sinks.redis.keys import RedisKeys
from sinks.redis.settings import RedisSettings


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"keys": {"orders": "o:{id}"}}, ["not a table name: 'orders'"]),
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


@pytest.mark.parametrize(
    "url", ["secret-word", "http://h", "redis://", "redis://h:secret-word", "redis://h:99999", "redis://h/secret-word"]
)
def test_a_wrong_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        RedisSettings(url=SecretStr(url))
    assert all("secret-word" not in error["msg"] for error in raised.value.errors())


@pytest.mark.parametrize("url", ["redis://h", "rediss://h:1/", "redis://[::1]:1/15", "unix:///run/redis.sock?db=1"])
def test_an_address_has_a_host_and_perhaps_a_database(url: str) -> None:
    assert RedisSettings(url=SecretStr(url)).url.get_secret_value() == url


@pytest.mark.parametrize(
    ("url", "sentinels", "told"),
    [
        ("redis://shop:6379/0", ("a:26379",), "sentinels say where the primary is"),
        ("unix:///run/redis.sock", ("a:26379",), "sentinels say where the primary is"),
        ("redis://shop/0", ("redis://a:26379",), "a Sentinel's address looks like host:26379"),
        ("redis://shop/0", ("a:26379/0",), "a Sentinel's address looks like host:26379"),
        ("redis://shop/0", ("secret-word@a",), "a Sentinel's address looks like host:26379"),
        ("redis://shop/0", ("",), "an address looks like host:26379"),
    ],
)
def test_with_sentinels_the_address_is_the_primarys_name(url: str, sentinels: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RedisSettings(url=SecretStr(url), sentinels=sentinels)


def test_what_sentinels_know_is_one_place_however_they_are_named() -> None:
    settings = RedisSettings(url=SecretStr("rediss://me@Shop_1/2"), sentinels=("A:1", "[::1]", "b"))
    assert settings.primary == "Shop_1"
    assert settings.sentinel_addresses == [("a", 1), ("::1", 26379), ("b", 26379)]
    other = RedisSettings(url=SecretStr("redis://Shop_1/2"), sentinels=("B.:26379", "c"))
    assert settings.places("s") & other.places("s")
    assert not settings.places("s") & RedisSettings(url=SecretStr("redis://shop_1/2"), sentinels=("b",)).places("s")
    assert settings.server == "Shop_1 of the Sentinels A:1, [::1], b"


def test_what_the_client_does_not_know_of_an_address_is_a_configuration_error() -> None:
    connection = RedisConnection("cache", RedisSettings(url=SecretStr("redis://h:1/0?colour=blue")), RedisKeys("c", 1))
    with pytest.raises(ConfigurationError, match=r"sinks\.cache\.url"), connection.talking():
        pass


def test_rows_may_be_missing_where_they_expire_or_are_not_kept() -> None:
    name = TableName("public", "a")
    assert not RedisSettings().may_lack_rows(name)
    assert RedisSettings(ttl_s={"public.a": 5}).may_lack_rows(name)
    assert not RedisSettings(ttl_s={"public.b": 5}).may_lack_rows(name)
    assert RedisSettings(mode="invalidate").may_lack_rows(name)
