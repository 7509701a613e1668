"""When a row was written last, in a warehouse and in a file: who moves that, and who doesn't."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pydantic import SecretStr

from sinks.contract import OpenedSink
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import batch, column, delete, table, upsert

pytestmark = pytest.mark.live


@dataclass
class Warehouse:
    """A sink with the column; ``times`` are those of the rows that readers see, by their notes."""

    open: Callable[..., OpenedSink]
    query: Callable[[str], list[Any]]
    name: str

    def times(self) -> dict[str, datetime]:
        return dict(self.query(f"select note, _synced_at from {self.name}.orders"))


@pytest.fixture(params=["postgresql", "duckdb"])
def kept(request: pytest.FixtureRequest, endpoints: Any, name: str, tmp_path: Path) -> Iterator[Warehouse]:
    file = tmp_path / "dwh.duckdb"
    url = endpoints.warehouse_url if request.param == "postgresql" else f"duckdb:///{file}"
    opened = []

    def open_(generation: int = 1, *, synced_at: bool = True, **more: Any) -> OpenedSink:
        settings = WarehouseSettings(url=SecretStr(url), synced_at=synced_at, **more)
        opened.append(open_warehouse(name, settings, generation))
        return opened[-1]

    def query(text: str) -> list[Any]:
        if request.param == "duckdb":
            with duckdb.connect(str(file), read_only=True) as connection:
                return [tuple(row.values()) for row in connection.sql(text).to_arrow_table().to_pylist()]
        with closing(psycopg.connect(endpoints.warehouse_dsn, autocommit=True)) as connection:
            return connection.execute(text).fetchall()

    yield Warehouse(open_, query, name)
    for each in opened:
        each.sink.close()


def test_what_is_newer_moves_it_and_what_is_repeated_or_late_does_not(kept: Warehouse) -> None:
    sink = kept.open().sink
    sink.prepare([table()])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 2)))
    first = kept.times()
    repeated = (upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "late"}, 1))
    assert sink.apply(batch(*repeated)).stale == 2
    assert kept.times() == first
    sink.apply(batch(upsert({"id": 2, "note": "c"}, 3)))
    times = kept.times()
    assert times["a"] == first["a"]
    assert times["c"] > first["b"]


def test_a_deletion_has_a_time_as_well(kept: Warehouse) -> None:
    sink = kept.open().sink
    sink.prepare([table()])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    first = kept.times()
    sink.apply(batch(delete({"id": 1}, 2)))
    assert kept.times() == {}
    ((deleted, at),) = kept.query(f"select _deleted, _synced_at from {kept.name}_g1.orders")
    assert (deleted, at > first["a"]) == (True, True)


def test_a_build_has_its_own_times_and_its_newest_rows_keep_theirs(kept: Warehouse) -> None:
    first = kept.open()
    first.sink.prepare([table()])
    first.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    before = kept.times()
    second = kept.open(2)
    second.sink.prepare([table()], go_live=False)
    second.generations.begin_bulk()
    second.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "old"}, 1)))
    second.sink.apply(batch(upsert({"id": 2, "note": "new"}, 2)))
    second.generations.end_bulk()
    second.generations.switch()
    built = kept.times()
    assert sorted(built) == ["a", "new"]
    assert before["a"] < built["a"] < built["new"]
    second.sink.apply(batch(upsert({"id": 1, "note": "b"}, 3)))
    assert kept.times()["b"] > built["new"]


@pytest.mark.soak
def test_a_new_column_of_the_source_leaves_it_where_it_is(kept: Warehouse) -> None:
    sink = kept.open().sink
    sink.prepare([table()])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    before = kept.times()
    grown = replace(table(), columns=(*table().columns, column("size", "int8")))
    sink.prepare([grown], added={table().name: {"size": 7}})
    assert kept.times() == before
    assert kept.query(f"select size, note from {kept.name}.orders") == [(7, "a")]
    sink.apply(batch(upsert({"id": 1, "note": "b", "size": 8}, 2, of=grown)))
    assert kept.times()["b"] > before["a"]


@pytest.mark.soak
def test_a_comparison_does_not_see_it(kept: Warehouse) -> None:
    sink = kept.open().sink
    sink.prepare([table()])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    (scanned,) = sink.scan(table())
    (found,) = sink.rows(table(), [{"id": 1}])
    assert scanned == found
    assert scanned.row == {"id": 1, "note": "a"}
