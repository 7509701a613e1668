"""What a Delta sink removes for good, when a row was written last, and what it has not."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE, event_id, stored_table
from cdc.model.table import TableName
from sinks.contract import OpenedSink
from sinks.delta import generations
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from tests.builders import batch, column, delete, progress, table, tag, upsert

LSN = 0x1000000
AT_ONCE = 1e-9  # of a day
OTHER = table(name=TableName("public", "other"))

Open = Callable[..., OpenedSink]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saved progress purges."""
    monkeypatch.setattr(generations, "PURGE_S", 0.0)


@pytest.fixture
def open_sink(tmp_path: Path) -> Open:
    def open_(generation: int = 1, *, synced_at: bool = True, days: float = AT_ONCE, **more: Any) -> OpenedSink:
        settings = DeltaSettings(root=str(tmp_path), synced_at=synced_at, purge_deleted_after_days=days, **more)
        return open_delta("shop", settings, generation)

    return open_


def stored(root: Path, name: str = "orders", generation: int = 1) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(root / f"shop_g{generation}" / name)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: str(row.get("id")))


def kept(root: Path, name: str = "orders") -> list[tuple[int, bool]]:
    return [(row["id"], row["_deleted"]) for row in stored(root, name)]


def save(opened: OpenedSink, commit: int, **more: Any) -> None:
    """All of the ``commit``-th transaction is applied, and nothing more."""
    opened.generations.load_progress()
    opened.generations.save_progress(replace(progress(LSN + commit * 8 + 1), epoch=1), **more)


def test_what_is_deleted_long_enough_and_below_the_watermark_goes_and_nothing_late_brings_it_back(
    tmp_path: Path, open_sink: Open
) -> None:
    opened = open_sink()
    opened.sink.prepare([table(), OTHER])
    opened.sink.apply(batch(*(delete({"id": key}, key) for key in (1, 2, 3)), upsert({"id": 4, "note": "a"}, 1)))
    opened.sink.apply(batch(delete({"id": 1}, 1, of=OTHER)))
    save(open_sink(days=1), 9)
    assert len(kept(tmp_path)) == 4, "not old enough"
    save(opened, 2, whole=[table().name])
    assert kept(tmp_path) == [(3, True), (4, False)], "transaction 3 is beyond the watermark"
    assert kept(tmp_path, "other") == [(1, True)], "of this one a part is left out"
    save(opened, 3)
    assert kept(tmp_path, "other") == []
    for late in (upsert({"id": 1, "note": "late"}, 1), delete({"id": 2}, 2)):
        assert open_sink(days=0).sink.apply(batch(late)).stale == 1
    assert opened.sink.apply(batch(upsert({"id": 1, "note": "newer"}, 4))).applied == 1
    assert kept(tmp_path) == [(1, False), (4, False)]


@pytest.mark.parametrize("left", [{"skipped": {("t", 0): 5}}, {"left_at_ms": {"t": 5}}, {"watermark_lsn": 0}])
@pytest.mark.soak
def test_nothing_is_purged_while_a_part_of_the_log_is_left_out(
    tmp_path: Path, open_sink: Open, left: dict[str, Any]
) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    opened.sink.apply(batch(delete({"id": 1}, 1)))
    opened.generations.save_progress(replace(progress(LSN + 100), epoch=1, **left))
    assert kept(tmp_path) == [(1, True)]


def test_a_kill_after_its_first_commit_loses_nothing(
    tmp_path: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_sink()
    opened.sink.prepare([table()])
    opened.sink.apply(batch(delete({"id": 1}, 1), upsert({"id": 2, "note": "a"}, 1)))

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "delete", die)
        with pytest.raises(SystemExit):
            save(opened, 5)
    again = open_sink()
    assert again.sink.apply(batch(upsert({"id": 1, "note": "late"}, 0))).stale == 1
    save(again, 6)
    assert kept(tmp_path) == [(2, False)]


def test_a_row_has_the_time_of_its_last_write_and_what_is_repeated_does_not_move_it(
    tmp_path: Path, open_sink: Open
) -> None:
    opened = open_sink(days=0)
    opened.sink.prepare([table()])
    opened.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 1)))

    def times() -> dict[int, datetime]:
        return {row["id"]: row["_synced_at"] for row in stored(tmp_path)}

    first = times()
    assert opened.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))).stale == 1
    assert times() == first
    opened.sink.apply(batch(delete({"id": 2}, 3)))
    assert times()[1] == first[1]
    assert times()[2] > first[2]
    assert [stored_row.row for stored_row in opened.sink.scan(table())] == [{"id": 1, "note": "a"}]
    grown = replace(table(), columns=(*table().columns, column("size", "int8")))
    before = times()
    opened.sink.prepare([grown], added={table().name: {"size": 7}})
    assert times() == before
    assert opened.sink.apply(batch(upsert({"id": 1, "note": "b", "size": 8}, 5, of=grown))).applied == 1
    assert times()[1] > before[1]


LOG = stored_table(table(column("note"), name=TableName("public", "log"), key=()))


def test_what_a_truncate_takes_away_has_its_time(tmp_path: Path, open_sink: Open) -> None:
    opened = open_sink()
    opened.sink.prepare([LOG])
    line = {EVENT_COLUMN: event_id(tag(1), 0), OPERATION_COLUMN: "insert", "note": "a"}
    opened.sink.apply(batch(upsert(line, 1, of=LOG)))
    (before,) = stored(tmp_path, "log")
    truncate = {EVENT_COLUMN: event_id(tag(2), 0), OPERATION_COLUMN: TRUNCATE}
    opened.sink.apply(batch(upsert(truncate, 2, of=LOG)))
    after = next(row for row in stored(tmp_path, "log") if row["note"] == "a")
    assert (after["_deleted"], after["_synced_at"] > before["_synced_at"]) == (True, True)
    save(opened, 9)
    assert len(stored(tmp_path, "log")) == 2, "an append-only table keeps what it has"
