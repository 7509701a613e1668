"""Rows as fields, under keys of one's own, in sets, for a while: what an application finds in a real Valkey."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from redis import Redis

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import TableName
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import RedisSink
from sinks.redis.tables import RedisTables
from tests.builders import batch, column, delete, table, tag, upsert
from tests.examples import examples
from tests.threads import at_once, beside

pytestmark = pytest.mark.live

ORDERS = table(column("id", "int8"), column("customer_id", "int8"), column("note"), column("paid", "bool"))
OTHERS = table(column("id", "int8"), column("note"), name=TableName("public", "others"))
OF_CUSTOMER = "orders:by_customer:{customer_id}"

Open = Callable[..., RedisSink]


@pytest.fixture
def client(endpoints: Any) -> Iterator[Any]:
    client = Redis.from_url(endpoints.redis_url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def opened(endpoints: Any, name: str) -> Iterator[Open]:
    """Opens sinks with these settings, prepared for both tables."""
    sinks: list[RedisSink] = []

    def open_(generation: int = 1, **chosen: Any) -> RedisSink:
        sink = RedisSink(RedisTables(name, RedisSettings(url=SecretStr(endpoints.redis_url), **chosen), generation))
        sinks.append(sink)
        sink.prepare([ORDERS, OTHERS])
        return sink

    yield open_
    for sink in sinks:
        sink.close()


def order(number: int, at: int | str, customer: int | None = 7, **others: JsonValue) -> RowEvent:
    row: dict[str, JsonValue] = {"id": number, "customer_id": customer, "note": f"n{number}", "paid": None, **others}
    return upsert(row, at, of=ORDERS)


def gone(number: int, at: int | str) -> RowEvent:
    return delete({"id": number}, at, of=ORDERS)


# Keys and fields


def test_a_row_is_at_the_key_that_its_template_makes(client: Any, opened: Open, name: str) -> None:
    sink = opened(keys={"public.orders": "order:{id}", "public.others": "other:{id}"})
    sink.apply(batch(order(42, 1), upsert({"id": 1, "note": "b"}, 1, of=OTHERS)))
    assert sorted(client.scan_iter(f"{name}:g1:*")) == [f"{name}:g1:order:42", f"{name}:g1:other:1"]
    assert client.hget(f"{name}:g1:other:1", "v") == '{"id":1,"note":"b"}'


@pytest.mark.soak
def test_a_column_is_a_field_of_its_name_and_text_is_plain(client: Any, opened: Open, name: str) -> None:
    sink = opened(values="fields")
    key = f"{name}:g1:public.orders:42"
    sink.apply(batch(order(42, 1, note='a "b"', paid=True)))
    assert client.hgetall(key) == {":t": tag(1), "id": "42", "customer_id": "7", "note": 'a "b"', "paid": "true"}
    sink.apply(batch(upsert({"id": 42, "note": "c"}, 2, of=ORDERS)))
    assert client.hgetall(key) == {":t": tag(2), "id": "42", "note": "c"}
    sink.apply(batch(gone(42, 3)))
    assert client.hgetall(key) == {":t": tag(3), ":x": "1"}
    assert 0 < client.ttl(key) <= 24 * 60 * 60
    sink.apply(batch(order(42, 4, customer=None)))
    assert client.hgetall(key) == {":t": tag(4), "id": "42", "note": "n42", ":n": '["customer_id","paid"]'}
    assert client.ttl(key) == -1


def test_a_reader_never_sees_a_row_without_its_columns(client: Any, opened: Open, name: str) -> None:
    """The script replaces all fields in one step."""
    sink = opened(values="fields")
    sink.apply(batch(order(1, 1)))
    seen: list[Any] = []

    def poll(over: threading.Event) -> None:
        while not over.is_set():
            seen.append(client.hmget(f"{name}:g1:public.orders:1", ":t", "note"))

    with beside(poll):
        for at in range(2, 200):
            sink.apply(batch(order(1, at, note=tag(at))))
    assert all(note in (held_note, "n1") for held_note, note in seen)


# Sets


def members(client: Any, name: str, customer: int | str, generation: int = 1) -> set[str]:
    prefix = f"{name}:g{generation}:"
    return {key.removeprefix(prefix) for key in client.smembers(f"{prefix}orders:by_customer:{customer}")}


@pytest.mark.parametrize("values", ["json", "fields"])
@pytest.mark.parametrize("ttl_s", [{}, {"public.orders": 1000}], ids=["", "ttl"])
def test_a_set_holds_the_keys_of_the_rows(client: Any, opened: Open, name: str, values: str, ttl_s: Any) -> None:
    chosen = {"keys": {"public.orders": "order:{id}"}, "sets": {"public.orders": [OF_CUSTOMER]}}
    sink = opened(values=values, ttl_s=ttl_s, **chosen)
    sink.apply(batch(order(1, 1), order(2, 1), order(3, 1, customer=None), order(4, 1, customer=8)))
    assert (members(client, name, 7), members(client, name, 8)) == ({"order:1", "order:2"}, {"order:4"})
    sink.apply(batch(order(1, 3, customer=8), gone(2, 3), order(3, 3), order(4, 3, customer=None)))
    assert (members(client, name, 7), members(client, name, 8)) == ({"order:3"}, {"order:1"})
    assert sink.apply(batch(order(1, 2), order(2, 2), gone(3, 2), order(4, 3))).stale == 4
    assert (members(client, name, 7), members(client, name, 8)) == ({"order:3"}, {"order:1"})
    sink.apply(batch(gone(1, 4), gone(3, 4)))
    assert client.keys(f"{name}:g1:orders:*") == []


def test_a_row_of_the_same_tag_changes_its_sets_where_it_is_replayed(client: Any, opened: Open, name: str) -> None:
    sink = opened(sets={"public.orders": [OF_CUSTOMER, "orders:by_note:{note}"]})
    sink.apply(batch(order(1, 1, note="a")))
    again = batch(order(1, 1, customer=8, note="b\nc:d"))
    assert sink.apply(type(again)(again.events, overwrite_equal_tags=True)).applied == 1
    assert (members(client, name, 7), members(client, name, 8)) == (set(), {"public.orders:1"})
    assert sorted(client.keys(f"{name}:g1:orders:by_note:*")) == [f"{name}:g1:orders:by_note:b%0Ac%3Ad"]


# It changes the whole server, which others use at the same time.
@pytest.mark.alone
def test_a_full_memory_leaves_row_and_sets_as_they_were(client: Any, opened: Open, name: str) -> None:
    chosen = {"sets": {"public.orders": [OF_CUSTOMER]}, "ttl_s": {"public.orders": 1000, "public.others": 1000}}
    sink = opened(**chosen)
    sink.apply(batch(order(1, 1), upsert({"id": 1, "note": "a"}, 1, of=OTHERS)))
    before = _content(client, name)
    client.config_set("maxmemory", "1")
    try:
        for event in (
            order(1, 2, customer=8),
            order(1, 2, customer=None),
            upsert({"id": 1, "note": "b"}, 2, of=OTHERS),
        ):
            with pytest.raises(LockstepError, match="maxmemory"):
                sink.apply(batch(event))
    finally:
        client.config_set("maxmemory", "0")
    assert _content(client, name) == before


def _content(client: Any, name: str) -> dict[str, Any]:
    read = {"hash": client.hgetall, "set": client.smembers}
    return {key: read[client.type(key)](key) for key in client.scan_iter(f"{name}:g1:*")}


@st.composite
def _histories(draw: st.DrawFn) -> tuple[dict[int, int | None], list[list[RowEvent]]]:
    """Where rows end, None if they are gone or nobody's, and batches with all events at least once, in any order."""
    changes = draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["delete", None, 7, 8, 9])), min_size=1, max_size=10)
    )
    events = [
        gone(number, n + 1) if customer == "delete" else order(number, n + 1, customer)  # type: ignore[arg-type]
        for n, (number, customer) in enumerate(changes)
    ]
    ends = {number: None if customer == "delete" else customer for number, customer in changes}
    shuffled = draw(st.permutations(events + draw(st.lists(st.sampled_from(events), max_size=6))))
    batches: list[list[RowEvent]] = [[]]
    for event in shuffled:
        if draw(st.booleans()) or any(other.key == event.key for other in batches[-1]):
            batches.append([])
        batches[-1].append(event)
    return ends, batches  # type: ignore[return-value]


@pytest.mark.parametrize("ttl_s", [{}, {"public.orders": 1000}], ids=["", "ttl"])
@given(history=_histories())
@settings(deadline=None, max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sets_end_right_in_any_order_and_from_two_writers(
    endpoints: Any, client: Any, ttl_s: Any, history: tuple[dict[int, int | None], list[list[RowEvent]]]
) -> None:
    ends, batches = history
    name = f"t{uuid.uuid4().hex[:12]}"
    chosen = RedisSettings(
        url=SecretStr(endpoints.redis_url), values="fields", sets={"public.orders": (OF_CUSTOMER,)}, ttl_s=ttl_s
    )
    writers = [RedisSink(RedisTables(name, chosen, 1)) for _ in range(2)]
    writers[0].prepare([ORDERS])

    def write(sink: RedisSink, mine: Sequence[list[RowEvent]]) -> None:
        for events in mine:
            sink.apply(batch(*events))

    at_once(partial(write, writers[0], batches), partial(write, writers[1], batches[::-1]))
    for customer in (7, 8, 9):
        expected = {f"public.orders:{number}" for number, held_customer in ends.items() if held_customer == customer}
        assert members(client, name, customer) == expected
    for sink in writers:
        sink.close()


# Rows that expire


def _wait_until_gone(client: Any, key: str) -> None:
    deadline = time.monotonic() + 300
    while client.exists(key):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_row_expires_and_an_older_version_does_not_come_back(client: Any, opened: Open, name: str) -> None:
    sink = opened(ttl_s={"public.orders": 1}, sets={"public.orders": [OF_CUSTOMER]}, tombstone_ttl_s=100)
    sink.apply(batch(order(1, 2), order(2, 2, customer=None), gone(3, 2), upsert({"id": 1, "note": "a"}, 1, of=OTHERS)))
    assert 0 < client.pttl(f"{name}:g1:public.orders:1") <= 1000
    assert client.ttl(f"{name}:g1:public.others:1") == -1
    for number in (1, 2):
        _wait_until_gone(client, f"{name}:g1:public.orders:{number}")
    assert (list(sink.scan(ORDERS)), list(sink.rows(ORDERS, [{"id": 1}]))) == ([], [])
    assert sink.apply(batch(order(1, 1), order(2, 2), order(3, 1))).stale == 3
    assert members(client, name, 7) == {"public.orders:1"}
    memos = f"{name}:g1.tags:public.orders:"
    assert client.ttl(f"{memos}1") == -1
    assert all(0 < client.ttl(f"{memos}{number}") <= 100 for number in (2, 3))
    sink.apply(batch(order(1, 3, customer=8)))
    assert (members(client, name, 7), members(client, name, 8)) == (set(), {"public.orders:1"})
    sink.apply(batch(gone(1, 4)))
    assert client.exists(f"{name}:g1:public.orders:1", f"{name}:g1:orders:by_customer:8") == 0
    assert 0 < client.ttl(f"{memos}1") <= 100


# Rows that aren't kept


def test_a_change_removes_what_is_there_and_leaves_its_tag(client: Any, opened: Open, name: str) -> None:
    sink = opened(mode="invalidate", tombstone_ttl_s=100)
    key = f"{name}:g1:public.orders:1"
    client.hset(key, mapping={"t": tag(1), "v": "{}"})
    assert sink.apply(batch(order(1, 2), gone(2, 2))).applied == 2
    assert client.hgetall(key) == {"t": tag(2), "x": "1"}
    assert 0 < client.ttl(key) <= 100
    assert sink.apply(batch(order(1, 1))).stale == 1
    assert list(sink.scan(ORDERS)) == []
    assert client.get(f"{name}:g1.epoch") == "0001"
    sink.apply(batch(order(1, tag(3, epoch=12))))
    opened(mode="invalidate").apply(batch(order(1, 4)))
    assert client.get(f"{name}:g1.epoch") == "000c"
