"""Indexes that a sink declares, in a real PostgreSQL: when they are made, what they survive, whom they delay."""

from functools import partial
from typing import Any

import psycopg
import pytest

from cdc.model.errors import LockstepError
from sinks.contract import OpenedSink
from sinks.warehouse.own_indexes import NAME_PREFIX
from tests.builders import batch, table, upsert
from tests.contract.typed_stores import POSTGRESQL, Store
from tests.threads import at_once

pytestmark = pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)

BY_NOTE = {"columns": ["note"]}
LOWER = {"expression": "lower(note)", "where": "id > 0"}


def opened(store: Store, *declared: dict[str, Any], **more: Any) -> OpenedSink:
    return store.open(indexes={"public.orders": declared}, **more)


def indexes(store: Store, generation: int) -> list[str]:
    """The expressions of our indexes on a generation's table, in SQL."""
    rows = store.query(
        f"select indexdef from pg_indexes where schemaname = '{store.name}_g{generation}'"
        f" and starts_with(indexname, '{NAME_PREFIX}')"
    )
    return sorted(str(row[0]).partition(" USING ")[2] for row in rows)


ALL = ["btree (lower(note)) WHERE (id > 0)", "btree (note)"]


def test_a_new_generation_has_them_after_its_load_and_the_next_one_too(store: Store) -> None:
    first = opened(store, BY_NOTE, LOWER)
    first.sink.prepare([table()])
    assert indexes(store, 1) == ALL
    first.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    second = opened(store, BY_NOTE, LOWER, generation=2)
    second.sink.prepare([table()], go_live=False)
    second.bulk.begin_bulk()
    assert indexes(store, 2) == [], "a load is the slower for each"
    second.sink.prepare([table()], go_live=False)  # as a build does that begins again
    assert indexes(store, 2) == []
    second.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    second.sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))  # two rows of one key: the table is rebuilt
    second.bulk.end_bulk()
    assert indexes(store, 2) == ALL, "before anybody reads it"
    second.generations.switch()
    assert indexes(store, 1) == ALL, "for the way back"


def test_a_generation_that_is_there_gets_and_loses_them_at_the_next_start(store: Store) -> None:
    first = opened(store, BY_NOTE)
    first.sink.prepare([table()])
    first.sink.apply(batch(*(upsert({"id": number, "note": "a"}, number) for number in range(1, 100))))
    opened(store, LOWER).sink.prepare([table()])
    assert indexes(store, 1) == ["btree (lower(note)) WHERE (id > 0)"]
    opened(store).sink.prepare([table()])
    assert indexes(store, 1) == []


def test_readers_go_on_while_one_is_made_and_one_that_is_read_is_dropped_later(store: Store, endpoints: Any) -> None:
    opened(store, BY_NOTE).sink.prepare([table()])
    with psycopg.connect(endpoints.warehouse_dsn) as reader:
        reader.execute(f"select * from {store.name}.orders")  # and the transaction goes on
        opened(store, LOWER).sink.prepare([table()])
        assert indexes(store, 1) == ALL, "the old one waits for the reader, and nobody waits for that"
        assert reader.execute(f"select * from {store.name}.orders").fetchall() == []
    opened(store, LOWER).sink.prepare([table()])
    assert indexes(store, 1) == ["btree (lower(note)) WHERE (id > 0)"]


@pytest.mark.soak
def test_two_that_start_at_once_make_one_each_once(store: Store) -> None:
    opened(store).sink.prepare([table()])
    sinks = [opened(store, BY_NOTE, LOWER, lock_timeout_s=30).sink for _ in range(4)]
    at_once(*(partial(sink.prepare, [table()]) for sink in sinks))
    assert indexes(store, 1) == ALL


@pytest.mark.soak
def test_a_value_that_an_index_cannot_hold_ends_a_load_before_anybody_reads_it(store: Store) -> None:
    long = "".join(chr(0x100 + number * 7919 % 20_000) for number in range(4_000))
    build = opened(store, BY_NOTE)
    build.sink.prepare([table()], go_live=False)
    build.bulk.begin_bulk()
    build.sink.apply(batch(upsert({"id": 1, "note": long}, 1)))
    with pytest.raises(LockstepError, match=r"54000") as refused:
        build.bulk.end_bulk()
    assert long[:20] not in str(refused.value)
    mended = opened(store, {"expression": "md5(note)"})
    mended.bulk.end_bulk()
    assert indexes(store, 1) == ["btree (md5(note))"]
