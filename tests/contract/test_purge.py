"""Deleted rows that are removed for good: which ones, what keeps them gone, and who waits."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE, event_id, stored_table
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.warehouse.purged import PORTION
from tests.builders import batch, column, delete, table, tag, upsert
from tests.contract.typed_stores import ALL, AT_ONCE, POSTGRESQL, Store, save

pytestmark = pytest.mark.usefixtures("at_each_progress")

GONE = [delete({"id": number}, number) for number in range(1, 4)]
OTHER = table(name=TableName("public", "other"))


@pytest.fixture
def purging(store: Store) -> Iterator[Store]:
    """Its rows are removed as soon as they may be."""
    store.settings = {"synced_at": True, "purge_deleted_after_days": AT_ONCE}
    return store


def kept(store: Store, name: str = "orders") -> list[tuple[int, bool]]:
    """The rows with whether they are deleted."""
    return [(row["id"], row["_deleted"]) for row in store.rows(name)]


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_what_is_deleted_long_enough_and_below_the_watermark_goes_and_the_rest_stays(purging: Store) -> None:
    opened = purging.open(table(), OTHER)
    opened.sink.apply(batch(*GONE, upsert({"id": 4, "note": "a"}, 1)))
    opened.sink.apply(batch(delete({"id": 1}, 1, of=OTHER)))
    save(purging.open(purge_deleted_after_days=1), 9)
    assert (len(kept(purging)), len(kept(purging, "other"))) == (4, 1), "not old enough"
    save(opened, 9)
    assert (kept(purging), kept(purging, "other")) == ([(4, False)], [])


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_what_is_beyond_the_watermark_stays_and_tables_of_which_a_part_is_left_out(purging: Store) -> None:
    """Otherwise a table that has left capture for good would keep the deletes of all."""
    opened = purging.open(table(), OTHER)
    opened.sink.apply(batch(*GONE, delete({"id": 1}, 1, of=OTHER)))
    behind = {"left_at_ms": {"its topic": 5}}
    save(opened, 2, whole=[table().name], **behind)
    assert kept(purging) == [(3, True)], "transaction 3 is beyond the watermark"
    assert kept(purging, "other") == [(1, True)]
    save(opened, 3, whole=[OTHER.name], **behind)
    assert (kept(purging), kept(purging, "other")) == ([(3, True)], [])


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_an_event_that_comes_late_brings_no_purged_row_back(purging: Store) -> None:
    opened = purging.open(table(), OTHER)
    opened.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 8, "note": "kept"}, 1)))
    opened.sink.apply(batch(delete({"id": 1}, 2), delete({"id": 2}, 3)))
    save(opened, 3)
    assert kept(purging) == [(8, False)]
    late = (upsert({"id": 1, "note": "a"}, 1), delete({"id": 1}, 2), upsert({"id": 2, "note": "b"}, 2))
    for sink in (opened.sink, purging.open(purge_deleted_after_days=0).sink):  # it may have been switched off since
        for event in late:
            assert sink.apply(batch(event)).stale == 1
    assert kept(purging) == [(8, False)]
    # Newer events are applied, even to a row that is there, and tables don't affect each other.
    newer = (upsert({"id": 1, "note": "again"}, 4), upsert({"id": 8, "note": "b"}, 2))
    assert opened.sink.apply(batch(*newer, upsert({"id": 1, "note": "a"}, 1, of=OTHER))).applied == 3
    assert kept(purging) == [(1, False), (8, False)]


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_the_log_read_again_from_its_beginning_ends_the_same(purging: Store) -> None:
    opened = purging.open(table())
    log = [
        upsert({"id": 1, "note": "a"}, 1),
        upsert({"id": 2, "note": "a"}, 2),
        delete({"id": 1}, 3),
        upsert({"id": 1, "note": "b"}, 4),
        delete({"id": 2}, 5),
        upsert({"id": 3, "note": "a"}, 6),
    ]
    for event in log:
        opened.sink.apply(batch(event))
    save(opened, 6)
    before = kept(purging)
    assert before == [(1, False), (3, False)]
    for event in log:
        assert opened.sink.apply(batch(event)).stale == 1
        assert kept(purging) == before, "not even for a moment"


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_rejected_version_that_is_retried_is_applied_however_old_it_is(purging: Store) -> None:
    opened = purging.open(table())
    opened.sink.apply(batch(delete({"id": 1}, 5)))
    save(opened, 6)
    retried = replace(batch(upsert({"id": 2, "note": "mended"}, 3)), overwrite_equal_tags=True, never_applied=True)
    assert opened.sink.apply(retried).applied == 1
    assert kept(purging) == [(2, False)]


@pytest.mark.parametrize("left", [{"skipped": {("t", 0): 5}}, {"left_at_ms": {"t": 5}}, {"watermark_lsn": 0}])
@pytest.mark.parametrize("store", ALL, indirect=True)
@pytest.mark.soak
def test_nothing_is_purged_while_a_part_of_the_log_is_left_out(purging: Store, left: dict[str, Any]) -> None:
    opened = purging.open(table())
    opened.sink.apply(batch(*GONE))
    save(opened, 9, **left)
    assert len(kept(purging)) == 3


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_writer_that_was_replaced_purges_nothing(purging: Store) -> None:
    old = purging.open(table())
    fence = old.sink.claim()
    old.sink.apply(replace(batch(*GONE), fence=fence))
    purging.open().sink.claim()
    with pytest.raises(LockstepError, match="another job has become the writer"):
        save(old, 9)
    assert len(kept(purging)) == 3


def test_it_goes_a_portion_at_a_time_and_not_where_nobody_knows_since_when(purging: Store) -> None:
    opened = purging.open(table())
    opened.sink.apply(batch(*(delete({"id": number}, 1) for number in range(PORTION + 10))))
    save(opened, 5)
    assert len(kept(purging)) == 10
    save(opened, 6)
    assert kept(purging) == []
    plain = purging.open(table(), generation=2, synced_at=False)
    plain.sink.apply(batch(*GONE))
    save(plain, 9)
    assert len(purging.rows(generation=2)) == 3


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
@pytest.mark.soak
def test_it_never_goes_beside_a_batch(purging: Store, endpoints: Any) -> None:
    opened = purging.open(table())
    opened.sink.apply(batch(*GONE))
    with closing(psycopg.connect(endpoints.warehouse_dsn)) as writer:
        # Like a batch that is under way.
        writer.execute("select 1 from lockstep.writer where view_schema = %s for share", (purging.name,))
        save(opened, 5)
        assert len(kept(purging)) == 3
        writer.rollback()
    save(opened, 6)
    assert kept(purging) == []


@pytest.mark.parametrize("store", ["delta"], indirect=True)
def test_a_kill_after_its_first_commit_loses_nothing(purging: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = purging.open(table())
    opened.sink.apply(batch(delete({"id": 1}, 1), upsert({"id": 2, "note": "a"}, 1)))

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "delete", die)
        with pytest.raises(SystemExit):
            save(opened, 5)
    again = purging.open()
    assert again.sink.apply(batch(upsert({"id": 1, "note": "late"}, 0))).stale == 1
    save(again, 6)
    assert kept(purging) == [(2, False)]


@pytest.mark.parametrize("store", ["delta"], indirect=True)
def test_what_a_truncate_takes_away_has_its_time_and_is_not_purged(purging: Store) -> None:
    log = stored_table(table(column("note"), name=TableName("public", "log"), key=()))
    opened = purging.open(log)
    line = {EVENT_COLUMN: event_id(tag(1), 0), OPERATION_COLUMN: "insert", "note": "a"}
    opened.sink.apply(batch(upsert(line, 1, of=log)))
    (before,) = purging.rows("log")
    truncate = {EVENT_COLUMN: event_id(tag(2), 0), OPERATION_COLUMN: TRUNCATE}
    opened.sink.apply(batch(upsert(truncate, 2, of=log)))
    (after,) = (row for row in purging.rows("log") if row["note"] == "a")
    assert (after["_deleted"], after["_synced_at"] > before["_synced_at"]) == (True, True)
    save(opened, 9)
    assert len(purging.rows("log")) == 2, "an append-only table keeps what it has"
