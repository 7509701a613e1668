"""Indexes that a sink declares, in a real PostgreSQL: when they are made, what they survive, whom they hold up."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from sinks.contract import OpenedSink
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import batch, table, upsert

pytestmark = pytest.mark.live

Open = Callable[..., OpenedSink]
Indexes = Callable[[int], list[str]]

BY_NOTE = {"columns": ["note"]}
LOWER = {"expression": "lower(note)", "where": "id > 0"}


@pytest.fixture
def open_sink(endpoints: Any, name: str) -> Iterator[Open]:
    opened = []

    def open_(*declared: dict[str, Any], generation: int = 1, **more: Any) -> OpenedSink:
        settings = WarehouseSettings(
            **{
                "url": SecretStr(endpoints.warehouse_url),
                "lock_timeout_s": 0.3,
                "indexes": {"public.orders": declared},
                **more,
            }
        )
        opened.append(open_warehouse(name, settings, generation))
        return opened[-1]

    yield open_
    for each in opened:
        each.sink.close()


@pytest.fixture
def indexes(warehouse: Any, name: str) -> Indexes:
    """What own indexes of a generation's table are on, in SQL."""

    def of(generation: int) -> list[str]:
        rows = warehouse.execute(
            "select indexdef from pg_indexes where schemaname = %s and starts_with(indexname, %s) order by indexdef",
            (f"{name}_g{generation}", NAME_PREFIX),
        )
        return sorted(str(row[0]).partition(" USING ")[2] for row in rows)

    return of


ALL = ["btree (lower(note)) WHERE (id > 0)", "btree (note)"]


def test_a_new_generation_has_them_after_its_load_and_the_next_one_too(open_sink: Open, indexes: Indexes) -> None:
    first = open_sink(BY_NOTE, LOWER)
    first.sink.prepare([table()])
    assert indexes(1) == ALL
    first.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    second = open_sink(BY_NOTE, LOWER, generation=2)
    second.sink.prepare([table()], go_live=False)
    second.generations.begin_bulk()
    assert indexes(2) == [], "a load is the slower for each"
    second.sink.prepare([table()], go_live=False)  # as a build does that is begun again
    assert indexes(2) == []
    second.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    second.sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))  # two rows of one key: the table is made anew
    second.generations.end_bulk()
    assert indexes(2) == ALL, "before anybody reads it"
    second.generations.switch()
    assert indexes(1) == ALL, "for the way back"


def test_a_generation_that_is_there_gets_and_loses_them_at_the_next_start(open_sink: Open, indexes: Indexes) -> None:
    first = open_sink(BY_NOTE)
    first.sink.prepare([table()])
    first.sink.apply(batch(*(upsert({"id": number, "note": "a"}, number) for number in range(1, 100))))
    open_sink(LOWER).sink.prepare([table()])
    assert indexes(1) == ["btree (lower(note)) WHERE (id > 0)"]
    open_sink().sink.prepare([table()])
    assert indexes(1) == []


def test_readers_go_on_while_one_is_made_and_one_that_is_read_is_dropped_later(
    endpoints: Any, open_sink: Open, indexes: Indexes, name: str
) -> None:
    open_sink(BY_NOTE).sink.prepare([table()])
    with psycopg.connect(endpoints.warehouse_dsn) as reader:
        reader.execute(f"select * from {name}.orders")  # and the transaction goes on
        open_sink(LOWER).sink.prepare([table()])
        assert indexes(1) == ALL, "the old one waits for the reader, and nobody waits for that"
        assert reader.execute(f"select * from {name}.orders").fetchall() == []
    open_sink(LOWER).sink.prepare([table()])
    assert indexes(1) == ["btree (lower(note)) WHERE (id > 0)"]


@pytest.mark.soak
def test_two_that_start_at_once_make_one_each_once(open_sink: Open, indexes: Indexes) -> None:
    open_sink().sink.prepare([table()])
    failures: list[BaseException] = []

    def start(sink: OpenedSink) -> None:
        try:
            sink.sink.prepare([table()])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(open_sink(BY_NOTE, LOWER, lock_timeout_s=30),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, indexes(1)) == ([], ALL)


@pytest.mark.soak
def test_a_value_that_an_index_cannot_hold_ends_a_load_before_anybody_reads_it(
    open_sink: Open, indexes: Indexes
) -> None:
    long = "".join(chr(0x100 + number * 7919 % 20_000) for number in range(4_000))
    build = open_sink(BY_NOTE)
    build.sink.prepare([table()], go_live=False)
    build.generations.begin_bulk()
    build.sink.apply(batch(upsert({"id": 1, "note": long}, 1)))
    with pytest.raises(LockstepError, match=r"54000") as refused:
        build.generations.end_bulk()
    assert long[:20] not in str(refused.value)
    mended = open_sink({"expression": "md5(note)"})
    mended.generations.end_bulk()
    assert indexes(1) == ["btree (md5(note))"]
