"""An application that puts rows from a real PostgreSQL into a real Valkey, between the changes that remove them."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson
import psycopg
import pytest
from pydantic import SecretStr
from redis import Redis

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.tag import Tag
from sinks.redis.refill import LATEST_S, Query, ReadPosition, Refill
from sinks.redis.settings import RedisSettings
from sinks.redis.tables import RedisTables
from stack.stack import Stack
from tests.builders import batch, table, upsert
from tests.contract.beside import RedisParts, generations_of
from tests.databases import Database, until
from tests.services import temporary_directory

pytestmark = pytest.mark.live

ROW: dict[str, JsonValue] = {"id": 42, "note": "from the source"}


def changed(lsn: int, *, epoch: int = 1) -> RowEvent:
    return upsert({"id": 42, "note": "changed"}, str(Tag(epoch, lsn, 1)))


class Cache:
    """A sink of mode ``invalidate``, and an application beside it with a clock of its own."""

    def __init__(self, url: str, **chosen: Any) -> None:
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self.settings = RedisSettings(url=SecretStr(url), mode="invalidate", **chosen)
        self.client: Any = Redis.from_url(url)
        self.sink = RedisParts(RedisTables(self.name, self.settings, 1))
        self.sink.prepare([table()])
        self.now = 0.0
        self.refill = self.application()

    def application(self) -> Refill:
        return Refill(self.client, self.name, self.settings, monotonic=self._tick)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def put(self, position: ReadPosition) -> bool:
        return self.refill.put("public.orders", {"id": 42}, ROW, position)

    def value(self) -> Any:
        value = self.client.hget(f"{self.name}:g1:public.orders:42", "v")
        return None if value is None else orjson.loads(value)

    def change(self, lsn: int, *, epoch: int = 1) -> None:
        assert not self.sink.apply(batch(changed(lsn, epoch=epoch))).rejections

    def close(self) -> None:
        self.sink.close()
        self.client.close()


@pytest.fixture
def caches(endpoints: Any) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(**chosen: Any) -> Cache:
            cache = Cache(endpoints.redis_url, **chosen)
            stack.callback(cache.close)
            return cache

        yield make


def asking(connection: psycopg.Connection[Any]) -> Query:
    def query(statement: str) -> Sequence[Any]:
        row: Sequence[Any] | None = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row

    return query


def at(lsn: int) -> ReadPosition:
    return ReadPosition(1, lsn, 1.0)


def test_a_row_is_there_until_a_change_that_it_has_not_got(caches: Any) -> None:
    cache = caches()
    assert cache.put(at(0x100))
    assert cache.value() == ROW
    cache.change(0xF8)
    assert cache.value() == ROW
    cache.change(0x100)  # that commit's record begins where the WAL ended
    assert cache.value() is None
    assert not cache.put(at(0x100))
    assert cache.put(at(0x108))
    assert cache.value() == ROW
    cache.change(0x50, epoch=2)
    assert not cache.put(at(0x200))


@pytest.mark.parametrize(
    "chosen",
    [{"values": "fields"}, {"ttl_s": {"public.orders": 100}}, {"keys": {"public.orders": "order:{id}"}}],
    ids=["fields", "ttl", "keys"],
)
def test_rows_are_put_where_and_as_the_sink_has_them(caches: Any, chosen: Any) -> None:
    cache = caches(**chosen)
    assert cache.put(at(0x100))
    (stored,) = cache.sink.scan(table())
    assert (stored.row, stored.tag) == (ROW, str(Tag(1, 0x100, 0)))
    assert (len(cache.client.keys(f"{cache.name}:g1:order:42")) == 1) == ("keys" in chosen)
    assert all(
        cache.client.ttl(key) <= 100 for key in cache.client.scan_iter(f"{cache.name}:g1:*") if "ttl_s" in chosen
    )
    cache.change(0x108)
    assert list(cache.sink.scan(table())) == []
    assert not cache.put(at(0x108))


def test_what_is_late_is_not_put(caches: Any) -> None:
    cache = caches()
    cache.now = LATEST_S
    assert cache.put(ReadPosition(1, 0x100, 2.0))
    assert not cache.put(ReadPosition(1, 0x108, 1.0))
    brief = caches(tombstone_ttl_s=10)
    brief.now = 6.5
    assert not brief.put(ReadPosition(1, 0x100, 2.0))


@pytest.mark.soak
def test_rows_go_where_readers_look(caches: Any) -> None:
    cache = caches()
    second = RedisParts(RedisTables(cache.name, cache.settings, 2))
    second.prepare([table()])
    generations_of(second).switch()
    assert cache.put(at(0x100))
    assert cache.value() is None
    assert [stored.row for stored in second.scan(table())] == [ROW]
    with pytest.raises(LockstepError, match="not prepared"):
        cache.refill.put("public.other", {"id": 1}, ROW, at(0x100))
    second.close()


def test_a_position_waits_for_transactions_that_were_running(caches: Any, database: Database) -> None:
    cache = caches()
    cache.change(8)
    database.execute("create table t (id int)")
    query = asking(database.connection)
    before = until(lambda: cache.refill.position(query))
    with psycopg.connect(database.dsn) as writer:
        writer.execute("insert into t values (1)")
        noted = database.value("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        fresh = cache.application()
        for _ in range(3):
            assert fresh.position(query) is None
            stuck = cache.refill.position(query)
            assert before.lsn <= stuck.lsn <= noted
            assert stuck.found_at > before.found_at
        writer.commit()
    assert until(lambda: (position_now := cache.refill.position(query)).lsn >= noted and position_now)
    assert until(lambda: fresh.position(query)).lsn >= noted


def test_a_commit_that_nobody_sees_yet_is_not_overtaken(endpoints: Any) -> None:
    """It waits for a standby: its change is in the log and removes the row, while the source shows the old row."""
    with temporary_directory() as directory, ExitStack() as closing:
        own = Stack(directory, durable=False, light=True)
        closing.callback(own.remove)
        own.up(["postgres"])
        dsn = _address(own)
        reader = closing.enter_context(psycopg.connect(dsn, autocommit=True))
        for statement in (
            "create table orders (id int primary key, note text)",
            "insert into orders values (42, 'old')",
            "alter system set synchronous_standby_names = 'nobody'",
            "select pg_reload_conf()",
        ):
            reader.execute(statement.encode())
        until(lambda: reader.execute("show synchronous_standby_names").fetchone() == ("nobody",))
        cache = Cache(endpoints.redis_url)
        closing.callback(cache.close)
        cache.change(8)
        query = asking(reader)
        end_of_wal = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
        (before,) = query(end_of_wal)

        def write() -> None:
            with psycopg.connect(dsn, autocommit=True) as writer:
                writer.execute("update orders set note = 'new' where id = 42")

        writing = threading.Thread(target=write)
        writing.start()
        try:
            until(lambda: query("select count(*) from pg_stat_activity where wait_event = 'SyncRep'")[0])
            (after,) = query(end_of_wal)
            committed = after - 8
            assert before < committed
            cache.change(committed)
            assert query("select note from orders where id = 42") == ("old",)
            (naive,) = query(end_of_wal)
            assert str(Tag(1, naive, 0)) > str(Tag(1, committed, 1)), "the end of the WAL would put the old row there"
            for _ in range(3):
                position = cache.refill.position(query)
                assert position is None or not cache.put(position)
        finally:
            reader.execute("alter system reset synchronous_standby_names")
            reader.execute("select pg_reload_conf()")
            writing.join(300)
        position = until(
            lambda: (position_now := cache.refill.position(query)) and position_now.lsn > committed and position_now
        )
        assert query("select note from orders where id = 42") == ("new",)
        assert cache.put(position)


def _address(stack: Stack) -> str:
    (address,) = [server.address for server in stack.status() if server.name == "postgres"]
    return address
