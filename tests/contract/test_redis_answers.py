"""What a real Valkey answers where the sink depends on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from redis import Redis

from cdc.model.errors import LockstepError, Unavailable
from sinks.redis.settings import RedisSettings
from sinks.redis.tables import RedisTables
from tests.builders import batch, delete, table, tag, upsert
from tests.contract.beside import RedisParts, generations_of

pytestmark = pytest.mark.live


@pytest.fixture
def client(endpoints: Any) -> Iterator[Redis]:
    client = Redis.from_url(endpoints.redis_url)
    yield client
    client.close()


@pytest.fixture
def sink(endpoints: Any, name: str) -> Iterator[RedisParts]:
    sink = RedisParts(RedisTables(name, RedisSettings(url=SecretStr(endpoints.redis_url), tombstone_ttl_s=100), 1))
    sink.prepare([table()])
    yield sink
    sink.close()


@pytest.mark.parametrize("newest", ["row", "deletion"])
def test_a_key_that_comes_twice_at_once_has_the_newer_event(
    client: Any, sink: RedisParts, name: str, newest: str
) -> None:
    """Like a key that has changed its type, when a copy of the table deletes the earlier keys."""
    row, deletion = upsert({"id": 42, "note": "a"}, 2 if newest == "row" else 1), delete({"id": "42"}, 1)
    if newest == "deletion":
        deletion = delete({"id": "42"}, 2)
    sink.apply(batch(*((row, deletion) if newest == "row" else (deletion, row))))
    stored = client.hgetall(f"{name}:g1:public.orders:42")
    assert (stored[b"t"].decode(), b"v" in stored, b"x" in stored) == (tag(2), newest == "row", newest == "deletion")


def test_the_code_of_the_docs_reads_the_live_generation_before_and_after_a_switch(
    endpoints: Any, sink: RedisParts, name: str
) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "sinks" / "redis.md").read_text()
    code, call = page.partition("```python\n")[2].partition("```")[0].split("\n\n\n")
    assert call.strip() == 'row(client, "public.orders:42")'
    names: dict[str, Any] = {}
    exec(code, names)  # what an application's author copies
    second = RedisParts(RedisTables(name, RedisSettings(url=SecretStr(endpoints.redis_url)), 2))
    second.prepare([table()], go_live=False)
    application = Redis.from_url(endpoints.redis_url, decode_responses=True)
    try:
        sink.apply(batch(upsert({"id": 42, "note": "first"}, 1)))
        second.apply(batch(upsert({"id": 42, "note": "second"}, 1)))
        assert orjson.loads(names["row"](application, "public.orders:42", prefix=name))["note"] == "first"
        generations_of(second).switch()
        assert orjson.loads(names["row"](application, "public.orders:42", prefix=name))["note"] == "second"
        assert names["row"](application, "public.orders:43", prefix=name) is None
    finally:
        application.close()
        second.close()


def test_a_deletion_is_remembered_for_a_while_and_a_new_row_for_ever(client: Any, sink: RedisParts, name: str) -> None:
    key = f"{name}:g1:public.orders:42"
    sink.apply(batch(upsert({"id": 42, "note": "a"}, 1)))
    sink.apply(batch(delete({"id": 42}, 2)))
    assert client.hgetall(key) == {b"t": tag(2).encode(), b"x": b"1"}
    assert 0 < client.ttl(key) <= 100
    sink.apply(batch(upsert({"id": 42, "note": "b"}, 3)))
    assert (client.ttl(key), client.hget(key, "x")) == (-1, None)


@pytest.mark.soak
def test_scripts_that_the_server_forgot_are_loaded_again(client: Any, sink: RedisParts) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    client.script_flush()
    assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2), upsert({"id": 2, "note": "b"}, 2))).applied == 2


def test_a_key_of_another_type_is_a_rejection(client: Any, sink: RedisParts, name: str) -> None:
    client.set(f"{name}:g1:public.orders:1", "somebody's")
    outcome = sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 1)))
    assert (outcome.applied, [rejection.event.key for rejection in outcome.rejections]) == (1, [{"id": 1}])
    assert "WRONGTYPE" in outcome.rejections[0].reason


# It changes the whole server, which others use at the same time.
@pytest.mark.alone
def test_a_full_memory_stops_the_job(client: Any, sink: RedisParts) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(LockstepError, match="maxmemory") as raised:
            sink.apply(batch(upsert({"id": 2, "note": "b"}, 2)))
        assert not isinstance(raised.value, Unavailable)
    finally:
        client.config_set("maxmemory", "0")


def test_what_is_not_a_row_of_ours_is_not_read(client: Any, sink: RedisParts, name: str) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    client.set(f"{name}:g1:public.orders:2", "somebody's")
    assert [stored.key for stored in sink.scan(table())] == [{"id": 1}]
    assert [stored.key for stored in sink.rows(table(), [{"id": 1}, {"id": 2}])] == [{"id": 1}]
