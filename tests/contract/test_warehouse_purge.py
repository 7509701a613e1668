"""Deleted rows that are removed for good, from a real PostgreSQL: which ones, what keeps them gone, who waits."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.model.table import TableName
from sinks.contract import OpenedSink, Progress
from sinks.warehouse import generations
from sinks.warehouse.purged import PORTION
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import batch, delete, progress, table, upsert

pytestmark = pytest.mark.live

Open = Callable[..., OpenedSink]
LSN = 0x1000000
AT_ONCE = 1e-9  # of a day
GONE = [delete({"id": number}, number) for number in range(1, 4)]
OTHER = table(name=TableName("public", "other"))


def up_to(commit: int, **changes: Any) -> Progress:
    """All of the ``commit``-th transaction is applied, and nothing more."""
    return replace(progress(LSN + commit * 8 + 1), epoch=1, **changes)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saved progress purges."""
    monkeypatch.setattr(generations, "PURGE_S", 0.0)
    monkeypatch.setattr(generations, "IDLE_S", 0.0)


@pytest.fixture
def open_sink(endpoints: Any, name: str) -> Iterator[Open]:
    opened = []

    def open_(generation: int = 1, *, days: float = AT_ONCE, **more: Any) -> OpenedSink:
        settings = WarehouseSettings(
            **{
                "url": SecretStr(endpoints.warehouse_url),
                "lock_timeout_s": 0.3,
                "synced_at": True,
                "purge_deleted_after_days": days,
                **more,
            }
        )
        opened.append(open_warehouse(name, settings, generation))
        return opened[-1]

    yield open_
    for each in opened:
        each.sink.close()


@pytest.fixture
def stored(warehouse: Any, name: str) -> Callable[[], list[tuple[int, bool]]]:
    """The rows of generation 1 with whether they are deleted."""
    return lambda: warehouse.execute(f"select id, _deleted from {name}_g1.orders order by id").fetchall()


def test_what_is_deleted_long_enough_and_below_the_watermark_goes_and_the_rest_stays(
    open_sink: Open, stored: Any
) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    opened.sink.apply(batch(*GONE, upsert({"id": 4, "note": "a"}, 1)))
    opened.generations.save_progress(up_to(2))
    assert stored() == [(3, True), (4, False)], "transaction 3 is beyond the watermark"
    patient = open_sink(days=1)
    patient.generations.load_progress()
    patient.generations.save_progress(up_to(9))
    assert stored() == [(3, True), (4, False)], "not old enough"


def test_an_event_that_comes_late_brings_no_purged_row_back(open_sink: Open, stored: Any, warehouse: Any) -> None:
    opened = open_sink()
    opened.sink.prepare([table(), OTHER])
    opened.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 8, "note": "kept"}, 1)))
    opened.sink.apply(batch(delete({"id": 1}, 2), delete({"id": 2}, 3)))
    opened.generations.save_progress(up_to(3))
    assert stored() == [(8, False)]
    late = (upsert({"id": 1, "note": "a"}, 1), delete({"id": 1}, 2), upsert({"id": 2, "note": "b"}, 2))
    for sink in (opened.sink, open_sink(days=0).sink):  # purging may have been switched off since
        for event in late:
            assert sink.apply(batch(event)).stale == 1
    assert stored() == [(8, False)]
    # What is newer is applied, also of a row that is there, and tables have nothing to do with each other.
    newer = (upsert({"id": 1, "note": "again"}, 4), upsert({"id": 8, "note": "b"}, 2))
    assert opened.sink.apply(batch(*newer, upsert({"id": 1, "note": "a"}, 1, of=OTHER))).applied == 3
    assert stored() == [(1, False), (8, False)]


def test_the_log_read_again_from_its_beginning_ends_the_same(open_sink: Open, stored: Any) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
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
    opened.generations.save_progress(up_to(6))
    before = stored()
    assert before == [(1, False), (3, False)]
    for event in log:
        assert opened.sink.apply(batch(event)).stale == 1
        assert stored() == before, "not even for a moment"


def test_a_rejected_version_that_is_retried_is_applied_however_old_it_is(open_sink: Open, stored: Any) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    opened.sink.apply(batch(delete({"id": 1}, 5)))
    opened.generations.save_progress(up_to(6))
    retried = replace(batch(upsert({"id": 2, "note": "mended"}, 3)), overwrite_equal_tags=True, never_applied=True)
    assert opened.sink.apply(retried).applied == 1
    assert stored() == [(2, False)]


@pytest.mark.parametrize("left", [{"skipped": {("t", 0): 5}}, {"left_at_ms": {"t": 5}}, {"watermark_lsn": 0}])
@pytest.mark.soak
def test_nothing_is_purged_while_a_part_of_the_log_is_left_out(
    open_sink: Open, stored: Any, left: dict[str, Any]
) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    opened.sink.apply(batch(*GONE))
    opened.generations.save_progress(replace(up_to(9), **left))
    assert len(stored()) == 3


@pytest.mark.soak
def test_a_table_of_which_a_part_is_left_out_keeps_its_deletes_and_no_other_one_does(
    open_sink: Open, stored: Any, warehouse: Any, name: str
) -> None:
    """Else one that has left capture for good would keep all of them."""
    opened = open_sink()
    opened.sink.prepare([table(), OTHER])
    opened.sink.apply(batch(*GONE, upsert({"id": 1, "note": "a"}, 1, of=OTHER)))
    opened.sink.apply(batch(delete({"id": 1}, 2, of=OTHER)))
    behind = replace(up_to(9), left_at_ms={"its topic": 5})
    opened.generations.save_progress(behind, whole=[table().name])
    others = f"select count(*) from {name}_g1.{OTHER.name.name}"
    assert (stored(), warehouse.execute(others).fetchone()) == ([], (1,))
    opened.generations.save_progress(behind, whole=[OTHER.name])
    assert warehouse.execute(others).fetchone() == (0,)


@pytest.mark.soak
def test_it_goes_a_portion_at_a_time_and_never_beside_a_batch(
    endpoints: Any, open_sink: Open, stored: Any, name: str
) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    many = PORTION + 10
    opened.sink.apply(batch(*(delete({"id": number}, 1) for number in range(many))))
    with closing(psycopg.connect(endpoints.warehouse_dsn)) as writer:
        # As a batch does that is under way.
        writer.execute("select 1 from lockstep.writer where view_schema = %s for share", (name,))
        opened.generations.save_progress(up_to(5))
        assert len(stored()) == many
        writer.rollback()
    opened.generations.save_progress(up_to(6))
    assert len(stored()) == many - PORTION
    opened.generations.save_progress(up_to(7))
    assert stored() == []


def test_a_writer_that_was_replaced_purges_nothing(open_sink: Open, stored: Any) -> None:
    old = open_sink()
    old.sink.prepare([table()])
    fence = old.sink.claim()
    old.sink.apply(replace(batch(*GONE), fence=fence))
    newer = open_sink()
    newer.sink.claim()
    with pytest.raises(Exception, match="another job has become the writer"):
        old.generations.save_progress(up_to(9))
    assert len(stored()) == 3
