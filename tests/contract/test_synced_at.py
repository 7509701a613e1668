"""When a row was written last: what changes that time, and what doesn't."""

from dataclasses import replace
from datetime import datetime

import pytest

from tests.builders import batch, column, delete, table, upsert
from tests.contract.typed_stores import ALL, Store

pytestmark = pytest.mark.parametrize("store", ALL, indirect=True)


@pytest.fixture(autouse=True)
def _kept(store: Store) -> None:
    store.settings = {"synced_at": True}


def times(store: Store, generation: int = 1) -> dict[str, datetime]:
    """Those of rows that aren't deleted, by their notes."""
    rows = store.rows(generation=generation)
    return {row["note"]: row["_synced_at"] for row in rows if not row["_deleted"]}


def test_what_is_newer_moves_it_and_what_is_repeated_or_late_does_not(store: Store) -> None:
    sink = store.open(table()).sink
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 2)))
    first = times(store)
    repeated = (upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "late"}, 1))
    assert sink.apply(batch(*repeated)).stale == 2
    assert times(store) == first
    sink.apply(batch(upsert({"id": 2, "note": "c"}, 3)))
    now = times(store)
    assert now["a"] == first["a"]
    assert now["c"] > first["b"]


def test_a_deletion_has_a_time_as_well(store: Store) -> None:
    sink = store.open(table()).sink
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    first = times(store)
    sink.apply(batch(delete({"id": 1}, 2)))
    (gone,) = store.rows()
    assert (gone["_deleted"], gone["_synced_at"] > first["a"]) == (True, True)


def test_a_build_has_its_own_times_and_its_newest_rows_keep_theirs(store: Store) -> None:
    store.open(table()).sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    second = store.open(generation=2)
    second.sink.prepare([table()], go_live=False)
    second.bulk.begin_bulk()
    second.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "old"}, 1)))
    second.sink.apply(batch(upsert({"id": 2, "note": "new"}, 2)))
    second.bulk.end_bulk()
    second.generations.switch()
    built = times(store, 2)
    assert sorted(built) == ["a", "new"]
    assert times(store)["a"] < built["a"] < built["new"]
    second.sink.apply(batch(upsert({"id": 1, "note": "b"}, 3)))
    assert times(store, 2)["b"] > built["new"]


@pytest.mark.soak
def test_a_new_column_of_the_source_leaves_it_where_it_is(store: Store) -> None:
    sink = store.open(table()).sink
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    before = times(store)
    grown = replace(table(), columns=(*table().columns, column("size", "int8")))
    sink.prepare([grown], added={table().name: {"size": 7}})
    assert times(store) == before
    assert [(row["size"], row["note"]) for row in store.rows()] == [(7, "a")]
    sink.apply(batch(upsert({"id": 1, "note": "b", "size": 8}, 2, of=grown)))
    assert times(store)["b"] > before["a"]


@pytest.mark.soak
def test_a_comparison_does_not_see_it(store: Store) -> None:
    sink = store.open(table()).sink
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    (scanned,) = sink.scan(table())
    (found,) = sink.rows(table(), [{"id": 1}])
    assert scanned == found
    assert scanned.row == {"id": 1, "note": "a"}
