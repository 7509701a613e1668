"""What a warehouse in a DuckDB file removes for good, and its indexes: as in PostgreSQL, beside the batches."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from cdc.model.event import Events, RowEvent
from cdc.model.table import TableName
from sinks.contract import Batch, TableVersions
from sinks.warehouse import generations
from sinks.warehouse.duckdb import upkeep
from sinks.warehouse.generations import WarehouseGenerations
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.purged import PORTION
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, column, delete, progress, table, tag, upsert
from tests.contract.beside import generations_of
from tests.duckdb_files import Open, read, sinks_of
from tests.examples import examples

LSN = 0x1000000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE = 1e-9  # of a day
OTHER = table(name=TableName("public", "other"))


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saved progress purges and trims."""
    for name in ("PURGE_S", "IDLE_S", "PASS_S"):
        monkeypatch.setattr(generations, name, 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dwh.duckdb"


@pytest.fixture
def open_sink(file: Path) -> Iterator[Open]:
    with sinks_of(file) as open_:
        yield open_


def save(sink: WarehouseSink, commit: int, **changes: Any) -> None:
    """All of the ``commit``-th transaction is applied, and nothing more."""
    reached = replace(progress(LSN + commit * 8 + 1), epoch=1, **changes)
    beside = generations_of(sink)
    beside.load_progress()
    beside.save_progress(reached)


# Deleted rows

PURGING = {"synced_at": True, "purge_deleted_after_days": AT_ONCE}
ROWS = "select id, _deleted from shop_g1.orders order by id"


def test_what_is_deleted_long_enough_and_below_the_watermark_goes_and_nothing_late_brings_it_back(
    file: Path, open_sink: Open
) -> None:
    sink = open_sink(table(), OTHER, **PURGING)
    sink.apply(batch(*(delete({"id": number}, number) for number in (1, 2, 3)), upsert({"id": 4, "note": "a"}, 1)))
    sink.apply(batch(delete({"id": 1}, 1, of=OTHER)))
    patient = open_sink(**(PURGING | {"purge_deleted_after_days": 1}))
    save(patient, 9)
    assert len(read(file, ROWS)) == 4, "not old enough"
    save(sink, 2)
    assert read(file, ROWS) == [(3, True), (4, False)], "transaction 3 is beyond the watermark"
    assert read(file, "select count(*) from shop_g1.other") == [(0,)]
    for late in (upsert({"id": 1, "note": "late"}, 1), delete({"id": 2}, 2)):
        assert patient.apply(batch(late)).stale == 1
    assert patient.apply(batch(upsert({"id": 1, "note": "newer"}, 4))).applied == 1
    assert read(file, ROWS) == [(1, False), (3, True), (4, False)]


def test_it_goes_a_portion_at_a_time_and_not_where_nobody_knows_since_when(file: Path, open_sink: Open) -> None:
    sink = open_sink(table(), **PURGING)
    sink.apply(batch(*(delete({"id": number}, 1) for number in range(PORTION + 10))))
    save(sink, 5)
    assert read(file, "select count(*) from shop_g1.orders") == [(10,)]
    save(sink, 6)
    assert read(file, ROWS) == []
    plain = open_sink(OTHER, generation=2)
    plain.apply(batch(delete({"id": 1}, 1, of=OTHER)))
    save(open_sink(generation=2, purge_deleted_after_days=AT_ONCE), 9)
    assert read(file, "select count(*) from shop_g2.other") == [(1,)]


# Histories


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def with_versions(*events: RowEvent, minutes: list[int]) -> Batch:
    """What a job makes of these records: the newest of each key, and all of them as versions."""
    (given,) = Events.of(events).tables
    letters = "".join("d" if row is None else "u" for row in given.rows)
    times_ms = [int(at(minute).timestamp() * 1000) for minute in minutes]
    newest = {str(event.key): event for event in sorted(events, key=lambda event: event.tag)}
    return Batch(list(newest.values()), versions=[TableVersions(given, letters, times_ms)])


def keeping(file: Path, minute: int) -> WarehouseTables:
    """Of a sink that keeps what is needed from this minute on."""
    days = (datetime.now(UTC) - at(minute)) / timedelta(days=1)
    chosen = WarehouseSettings(url=SecretStr(f"duckdb:///{file}"), history=True, keep_history_days=days)
    return WarehouseTables("shop", chosen, 1)


def trim(tables: WarehouseTables, *, times: int) -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    beside = WarehouseGenerations(tables)
    for _ in range(times):
        beside.load_progress()
        beside.save_progress(replace(progress(LSN + 8_001, commit_time_ms=now_ms), epoch=1))


def as_of(file: Path, minutes: Iterable[int]) -> list[dict[int, str]]:
    versions = read(file, "select id, note, valid_from, valid_to from shop.orders_history")
    states = []
    for moment in map(at, minutes):
        rows = [(key, note) for key, note, since, to in versions if since <= moment and (to is None or moment < to)]
        assert len(rows) == len(dict(rows)), "a row was there twice at one time"
        states.append(dict(rows))
    return states


@pytest.mark.parametrize("at_once", [0, 1_000])
def test_of_a_trimmed_history_every_later_time_is_as_it_was(
    file: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also in portions."""
    monkeypatch.setattr(upkeep, "_TRIMMED_AT_ONCE", at_once)
    monkeypatch.setattr(upkeep, "_TRIM_PORTIONS", 3)
    sink = open_sink(table(), history=True)
    begun = with_versions(
        upsert({"id": 1, "note": "a"}, tag(1)),
        upsert({"id": 2, "note": "x"}, tag(2)),
        upsert({"id": 1, "note": "b"}, tag(3)),
        delete({"id": 3}, tag(3)),
        upsert({"id": 4, "note": "k"}, tag(4)),
        delete({"id": 4}, tag(5)),
        minutes=[1, 2, 3, 3, 4, 5],
    )
    sink.apply(begun)
    sink.apply(with_versions(upsert({"id": 1, "note": "c"}, tag(20)), delete({"id": 2}, tag(21)), minutes=[20, 21]))
    minutes = (10, 15, 20, 21, 30)
    before = as_of(file, minutes)
    with closing(WarehouseSink(tables := keeping(file, 10))):
        trim(tables, times=2 * 3)
    assert as_of(file, minutes) == before
    held = "select id, note from shop_g1.orders_history order by id, _tag"
    assert read(file, held) == [(1, "b"), (1, "c"), (2, "x"), (2, None)]
    ((since, refused),) = read(file, "select complete_from, refused_versions from lockstep.history")
    assert (at(10) - timedelta(minutes=1) < since < at(11), refused) == (True, 0)
    sink.apply(begun)
    assert read(file, held) == [(1, "b"), (1, "c"), (2, "x"), (2, None)], "what is repeated brings nothing back"


@given(
    changes=st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=10),
    minute=st.integers(0, 12),
    clock=st.lists(st.integers(1, 12), min_size=10, max_size=10),
)
@settings(
    deadline=None,
    max_examples=examples(4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_a_history_holds_trimming_changes_no_later_time(
    changes: list[tuple[int, bool]], minute: int, clock: list[int], tmp_path: Path
) -> None:
    """Also where the source's clock goes back and forth."""
    file = tmp_path / f"{uuid.uuid4().hex}.duckdb"
    events = [
        delete({"id": key}, tag(commit)) if is_gone else upsert({"id": key, "note": str(commit)}, tag(commit))
        for commit, (key, is_gone) in enumerate(changes, 1)
    ]
    tables = keeping(file, minute)
    with closing(WarehouseSink(tables)) as sink:
        sink.prepare([table()])
        applied = with_versions(*events, minutes=clock[: len(events)])
        sink.apply(applied)
        before = as_of(file, range(minute + 1, 15))
        for _ in range(3):
            trim(tables, times=1)
            assert as_of(file, range(minute + 1, 15)) == before
        sink.apply(applied)
        assert as_of(file, range(minute + 1, 15)) == before


# Indexes


def indexes(file: Path) -> list[str]:
    """What own indexes are on, in SQL."""
    rows = read(file, f"select sql from duckdb_indexes() where starts_with(index_name, '{NAME_PREFIX}')")
    return sorted(row[0].partition(" ON ")[2].rstrip(";") for row in rows)


def declared(*given: dict[str, Any]) -> dict[str, Any]:
    return {"indexes": {"public.orders": given}}


def test_an_index_goes_with_its_declaration_and_one_that_cannot_be_made_stops(file: Path, open_sink: Open) -> None:
    open_sink(table(), **declared({"columns": ["note"]}))
    assert len(indexes(file)) == 1
    open_sink(table())
    assert indexes(file) == []
    grid = table(column("id", "int8"), column("grid", "int4", is_array=True))
    with pytest.raises(LockstepError, match="can't be made"):
        open_sink(grid, generation=2, **declared({"columns": ["grid"]}))


def test_a_generation_gets_its_indexes_after_its_bulk_load(file: Path, open_sink: Open) -> None:
    sink = open_sink(generation=2, **declared({"columns": ["note"]}))
    sink.prepare([table()], go_live=False)
    beside = generations_of(sink)
    beside.begin_bulk()
    assert indexes(file) == []
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
    beside.end_bulk()
    assert len(indexes(file)) == 1
    assert [dict(stored.row) for stored in sink.scan(table())] == [{"id": 1, "note": "b"}]
