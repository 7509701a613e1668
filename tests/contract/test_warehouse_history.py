"""All versions of rows in a real warehouse: any row as of any time, whatever came twice, late or from two writers."""

import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from cdc.model.event import Events, JsonValue, RowEvent
from cdc.model.table import Column, Table
from sinks.contract import Batch, TableVersions
from sinks.warehouse import generations, tables
from sinks.warehouse.generations import WarehouseGenerations
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import column, delete, progress, table, tag, upsert
from tests.contract.beside import generations_of
from tests.examples import examples

pytestmark = pytest.mark.live

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Open = Callable[..., WarehouseSink]


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def ms(minute: int) -> int:
    return int(at(minute).timestamp() * 1000)


def minute_of(event: RowEvent) -> int:
    """Of the events of this file: the n-th commit is that of minute n."""
    return (int(event.tag[4:20], 16) - 0x1000000) // 8


def versions(
    *events: RowEvent, minutes: Sequence[int] = (), operations: str = "", complete_from: int | None = None
) -> list[TableVersions]:
    versions_by_table = []
    for table_events in Events.of(events).tables:
        known = [minute_of(event) for event in table_events]
        letters = operations or "".join("d" if row is None else "u" for row in table_events.rows)
        times_ms = [ms(minute) for minute in minutes or known]
        versions_by_table.append(
            TableVersions(table_events, letters, times_ms, None if complete_from is None else ms(complete_from))
        )
    return versions_by_table


def batch(*events: RowEvent, **more: Any) -> Batch:
    """What a job makes of these records: the newest of each key, and all of them as versions."""
    newest: dict[str, RowEvent] = {}
    for event in sorted(events, key=lambda event: event.tag):
        newest[f"{event.table} {event.key}"] = event
    overwrite_equal_tags = more.pop("overwrite_equal_tags", False)
    return Batch(list(newest.values()), versions=versions(*events, **more), overwrite_equal_tags=overwrite_equal_tags)


def row(number: int, note: str | None, commit: int, seq: int = 1) -> RowEvent:
    return upsert({"id": number, "note": note}, tag(commit, seq))


def gone(number: int, commit: int, seq: int = 1) -> RowEvent:
    return delete({"id": number}, tag(commit, seq))


@pytest.fixture(scope="module")
def database(endpoints: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        yield connection


@pytest.fixture
def open_sink(endpoints: Any, name: str) -> Iterator[Open]:
    opened = []

    def open_(generation: int = 1, *tables: Table, **more: Any) -> WarehouseSink:
        values: dict[str, Any] = {"url": SecretStr(endpoints.warehouse_url), "lock_timeout_s": 1, "history": True}
        sink = WarehouseSink(WarehouseTables(name, WarehouseSettings(**{**values, **more}), generation))
        opened.append(sink)
        if tables:
            sink.prepare(tables)
        return sink

    yield open_
    for sink in opened:
        sink.close()


@pytest.fixture
def sink(open_sink: Open) -> WarehouseSink:
    return open_sink(1, table())


def as_of(database: Any, name: str, minute: int) -> dict[int, str]:
    query = f"select id, note from {name}.orders_history where valid_from <= %s and (valid_to is null or %s < valid_to)"
    state_rows = database.execute(query, (at(minute), at(minute))).fetchall()
    assert len(state_rows) == len(dict(state_rows)), "a row was there twice at one time"
    return dict(state_rows)


def story(database: Any, name: str, number: int = 1) -> list[tuple[Any, ...]]:
    """A row's versions by tag: minutes from and to, operation, note."""
    query = f"select valid_from, valid_to, _operation, note from {name}.orders_history where id = %s order by _tag"

    def minute(time: datetime | None) -> int | None:
        return None if time is None else int((time - BEGIN) / timedelta(minutes=1))

    return [(minute(start), minute(end), *rest) for start, end, *rest in database.execute(query, (number,))]


def complete_from(database: Any, name: str) -> list[tuple[Any, ...]]:
    query = (
        "select source_table, generation, is_live, complete_from, refused_versions from lockstep.history"
        " where view_schema = %s order by 1, 2"
    )
    return database.execute(query, (name,)).fetchall()


def test_any_row_at_any_time(database: Any, sink: WarehouseSink, name: str) -> None:
    outcome = sink.apply(batch(row(1, "a", 10), row(2, "x", 10), row(1, "b", 20), operations="rcu"))
    assert (outcome.applied, outcome.stale) == (2, 0)
    sink.apply(batch(gone(1, 30)))
    sink.apply(batch(row(1, "again", 40), operations="c"))
    assert [as_of(database, name, minute) for minute in (9, 10, 20, 29, 30, 39, 40, 99)] == [
        {},
        {1: "a", 2: "x"},
        {1: "b", 2: "x"},
        {1: "b", 2: "x"},
        {2: "x"},
        {2: "x"},
        {1: "again", 2: "x"},
        {1: "again", 2: "x"},
    ]
    assert story(database, name) == [
        (10, 20, "snapshot", "a"),
        (20, 30, "update", "b"),
        (30, 30, "delete", None),
        (40, None, "insert", "again"),
    ]
    assert database.execute(f"select id, note from {name}.orders order by 1").fetchall() == [(1, "again"), (2, "x")]


def test_of_several_versions_of_one_transaction_the_last_is_seen(database: Any, sink: WarehouseSink, name: str) -> None:
    sink.apply(batch(row(1, "a", 10, 1), row(1, "b", 10, 2), row(1, "c", 10, 3)))
    assert story(database, name) == [(10, 10, "update", "a"), (10, 10, "update", "b"), (10, None, "update", "c")]
    assert as_of(database, name, 10) == {1: "c"}


@pytest.mark.soak
def test_a_clock_that_was_set_back_makes_no_two_versions_valid_at_once(
    database: Any, sink: WarehouseSink, name: str
) -> None:
    sink.apply(batch(row(1, "a", 1), row(1, "b", 2), row(1, "c", 3), row(1, "d", 4), minutes=(10, 20, 15, 30)))
    assert [as_of(database, name, minute)[1] for minute in (10, 14, 15, 19, 20, 29, 30)] == list("aaaaccd")
    assert story(database, name)[1:3] == [(20, 20, "update", "b"), (20, 30, "update", "c")]


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
    """Versions of a few keys, and batches that hold all of them at least once, in any order."""
    changes = draw(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=10))
    base = draw(st.integers(1, 10**12)) * 10  # keys of this example's own
    events = [
        gone(base + key, minute) if is_delete else row(base + key, f"v{minute}", minute)
        for minute, (key, is_delete) in enumerate(changes, 1)
    ]
    extra = draw(st.lists(st.sampled_from(events), max_size=8))
    batches: list[list[RowEvent]] = [[]]
    for event in draw(st.permutations(events + extra)):
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(event)
    return events, batches


@given(history=_histories(), in_bulk=st.booleans())
@settings(
    deadline=None,
    max_examples=examples(4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_from_two_writers_ends_in_the_same_history(
    history: tuple[list[RowEvent], list[list[RowEvent]]], in_bulk: bool, database: Any, endpoints: Any
) -> None:
    events, batches = history
    name = f"t{uuid.uuid4().hex[:12]}"
    chosen = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), history=True)
    writers = [WarehouseSink(WarehouseTables(name, chosen, 1)) for _ in range(2)]
    try:
        writers[0].prepare([table()], go_live=not in_bulk)
        if in_bulk:
            generations_of(writers[0]).begin_bulk()
        for turn, of_batch in enumerate(batches):
            writers[turn % 2].apply(batch(*of_batch))
        generations_of(writers[0]).end_bulk()
        writers[0].prepare([table()])
        for key in {event.key["id"] for event in events}:
            events_of_key = [event for event in events if event.key["id"] == key]
            ends = [minute_of(event) for event in events_of_key[1:]] + [None]
            expected = [
                (minute_of(event), minute_of(event), "delete", None)
                if event.row is None
                else (minute_of(event), end, "update", event.row["note"])
                for event, end in zip(events_of_key, ends, strict=True)
            ]
            assert story(database, name, int(str(key))) == expected
    finally:
        for writer in writers:
            writer.close()


def test_writers_at_once_do_not_end_each_other(database: Any, sink: WarehouseSink, open_sink: Open, name: str) -> None:
    events = [row(key, f"v{commit}", commit) for commit in range(1, 11) for key in range(20)]
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        shuffled = random.Random(seed).sample(events, len(events))
        patient = open_sink(1, lock_timeout_s=30)
        try:
            for start in range(0, len(shuffled), 40):
                patient.apply(batch(*shuffled[start : start + 40]))
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert [as_of(database, name, minute) for minute in (0, 5, 10)] == [
        {},
        dict.fromkeys(range(20), "v5"),
        dict.fromkeys(range(20), "v10"),
    ]


def test_a_deletion_of_which_the_tombstone_alone_is_left_has_the_earliest_time_known(
    database: Any, sink: WarehouseSink, name: str
) -> None:
    sink.apply(batch(row(1, "a", 10)))
    times = [(30, 30), (20, 20), (25, 20)]
    for overwrite_equal_tags in (False, True):
        for known, expected in times:
            sink.apply(batch(gone(1, 20), minutes=[known], overwrite_equal_tags=overwrite_equal_tags))
            assert story(database, name) == [(10, expected, "update", "a"), (expected, expected, "delete", None)]
        times = [(22, 20)]


def test_a_replay_makes_versions_again_and_a_repetition_does_not(database: Any, sink: WarehouseSink, name: str) -> None:
    sink.apply(batch(row(1, "wrong", 10), row(1, "wrong too", 20)))
    sink.apply(batch(row(1, "other", 10)))
    assert story(database, name)[0] == (10, 20, "update", "wrong")
    again = [row(1, "right", 10), row(1, "right", 10), gone(1, 20)]
    sink.apply(batch(*again, overwrite_equal_tags=True))
    assert story(database, name) == [(10, 20, "update", "right"), (20, 20, "delete", None)]
    assert database.execute(f"select * from {name}.orders").fetchall() == []


def test_a_batch_without_versions_leaves_no_gap_in_silence(database: Any, sink: WarehouseSink, name: str) -> None:
    with pytest.raises(LockstepError, match="without the versions that the history of"):
        sink.apply(Batch([row(1, "a", 1)]))
    assert database.execute(f"select * from {name}.orders").fetchall() == []
    assert sink.apply(Batch([row(1, "a", 1)], overwrite_equal_tags=True)).applied == 1


# Completeness


def test_a_history_says_from_when_on_it_is_complete(database: Any, sink: WarehouseSink, name: str) -> None:
    ((*_, begun, refused),) = complete_from(database, name)
    now = database.execute("select now()").fetchone()[0]
    assert (timedelta(0) <= now - begun < timedelta(minutes=1), refused) == (True, 0)
    sink.apply(batch(row(1, "a", 10), complete_from=5))
    assert complete_from(database, name) == [("orders", 1, True, at(5), 0)], "the job's first word"
    for later, known in ((None, 5), (3, 5), (8, 8), (7, 8)):
        sink.apply(batch(row(1, "b", 11), complete_from=later))
        assert complete_from(database, name)[0][3] == at(known)
    sink.prepare([table()])
    assert complete_from(database, name)[0][3] == at(8)


def test_a_copy_ends_what_a_history_is_complete_for(database: Any, sink: WarehouseSink, name: str) -> None:
    ((*_, begun, _refused),) = complete_from(database, name)

    def copied(minute: int, known: int | None = None) -> Any:
        whole = batch(row(1, "a", 10), complete_from=known)
        sink.apply(replace(whole, versions=[replace(whole.versions[0], missing_until_ms=ms(minute))]))
        return complete_from(database, name)[0][3]

    assert copied(5) == begun, "what was missing before it was begun takes nothing from it"
    assert copied(9, known=7) == at(9)
    assert copied(6) == at(9)
    assert copied(12) == at(12)


def test_a_history_that_is_begun_later_is_complete_since_then(database: Any, open_sink: Open, name: str) -> None:
    sink = open_sink(1, table(), history=False)
    sink.apply(Batch([row(1, "a", 10)]))
    later = open_sink(1, table())
    assert len(complete_from(database, name)) == 1
    later.apply(batch(row(1, "a", 10), row(1, "b", 20)))
    assert story(database, name) == [(10, 20, "update", "a"), (20, None, "update", "b")]
    with pytest.raises(LockstepError, match="generation 1 has a history of table"):
        open_sink(1, table(), history=False)


# Generations and shapes


def _numbered(*columns: Column) -> Table:
    return replace(table(), columns=columns, oid=7)


IDENTITY, NOTE = (replace(column, number=number) for number, column in enumerate(table().columns, 1))
EXTRA = replace(column("extra"), number=3)


def test_columns_come_and_are_renamed_and_dropped_and_no_version_loses_a_value(
    database: Any, open_sink: Open, name: str
) -> None:
    sink = open_sink(1, _numbered(IDENTITY, NOTE, EXTRA), schema_changes="follow")
    database.execute(f"create view {name}.of_others as select id, valid_from from {name}.orders_history")
    database.execute(f"grant select on {name}.orders_history to public")
    sink.apply(batch(upsert({"id": 1, "note": "a", "extra": "kept"}, 1), gone(2, 1)))
    later = _numbered(IDENTITY, replace(NOTE, name="remark"), EXTRA, replace(column("grade", "int4"), number=4))
    sink.prepare([later], added={later.name: {"grade": 5}})
    query = f"select id, remark, extra, grade from {name}.orders_history order by 1"
    assert database.execute(query).fetchall() == [(1, "a", "kept", 5), (2, None, None, None)]
    database.execute(f"drop view {name}.of_others")
    again: Sequence[Column] = (IDENTITY, replace(NOTE, name="remark"), replace(column("extra", "int4"), number=9))
    sink.prepare([_numbered(*again[:2])])
    sink.prepare([_numbered(*again)])
    values: dict[str, JsonValue] = {"id": 1, "remark": "b", "extra": 7}
    sink.apply(batch(upsert(values, 2, of=_numbered(*again))))
    assert database.execute(
        f"select remark, extra from {name}.orders_history where id = 1 order by _tag"
    ).fetchall() == [
        ("a", None),
        ("b", 7),
    ]
    held = f"select _dropped_3_extra from {name}_g1.orders_history where id = 1 order by _tag"
    assert database.execute(held).fetchall() == [("kept",), (None,)]
    granted = "select has_table_privilege('pg_monitor', %s, 'select')"
    assert database.execute(granted, (f"{name}.orders_history",)).fetchone() == (True,)


@pytest.fixture
def open_trimmed(open_sink: Open, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], WarehouseGenerations]:
    """The generations of a sink that keeps what is needed from this minute on: each saved progress trims a portion."""
    monkeypatch.setattr(generations, "PURGE_S", 0.0)
    monkeypatch.setattr(generations, "PASS_S", 0.0)

    def open_(minute: int) -> WarehouseGenerations:
        days = (datetime.now(UTC) - at(minute)) / timedelta(days=1)
        return WarehouseGenerations(open_sink(keep_history_days=days)._tables)

    return open_


def _trim(
    opened: WarehouseGenerations, *, applied: int = 1_000, times: int = 2, committed: datetime | None = None
) -> None:
    """Deletions go in the pass after that of what they end. ``committed``: when the source is, by its clock."""
    commit_time_ms = int((committed or datetime.now(UTC)).timestamp() * 1000)
    for _ in range(times):
        opened.load_progress()
        reached = progress(0x1000000 + applied * 8 + 1, commit_time_ms=commit_time_ms)
        opened.save_progress(replace(reached, epoch=1))


def test_of_a_trimmed_history_every_later_time_is_as_it_was(
    database: Any, sink: WarehouseSink, open_trimmed: Callable[[int], WarehouseGenerations], name: str
) -> None:
    begun = batch(row(1, "a", 1), row(2, "x", 2), row(1, "b", 3), gone(3, 3), row(4, "k", 4), gone(4, 5))
    sink.apply(begun)
    sink.apply(batch(row(1, "c", 20), gone(2, 21), row(4, "again", 22)))
    minutes = (10, 15, 20, 21, 22, 30)
    before = [as_of(database, name, minute) for minute in minutes]
    _trim(open_trimmed(10))
    assert [as_of(database, name, minute) for minute in minutes] == before
    held = database.execute(f"select id, note from {name}_g1.orders_history order by id, _tag").fetchall()
    assert held == [(1, "b"), (1, "c"), (2, "x"), (2, None), (4, "again")]
    ((*_, since, refused),) = complete_from(database, name)
    assert (at(10) - timedelta(minutes=1) < since < at(11), refused) == (True, 0)
    # What is repeated brings nothing back, and what is new is kept.
    sink.apply(begun)
    sink.apply(batch(row(4, "k", 4), row(5, "new", 23)))
    assert database.execute(f"select id, note from {name}_g1.orders_history order by id, _tag").fetchall() == [
        *held,
        (5, "new"),
    ]
    _trim(open_trimmed(10))
    assert as_of(database, name, 30) == {1: "c", 4: "again", 5: "new"}


@pytest.mark.soak
def test_what_is_beyond_the_watermark_is_not_trimmed(
    database: Any, sink: WarehouseSink, open_trimmed: Callable[[int], WarehouseGenerations], name: str
) -> None:
    sink.apply(batch(row(1, "a", 1), row(1, "b", 2), row(1, "c", 3)))
    _trim(open_trimmed(10), applied=1)
    assert [note for *_, note in story(database, name)] == ["b", "c"], "of the first it is known that it is applied"


@pytest.mark.soak
def test_a_history_is_trimmed_a_few_blocks_at_a_time(
    database: Any,
    sink: WarehouseSink,
    open_trimmed: Callable[[int], WarehouseGenerations],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    for module in (generations, tables):
        monkeypatch.setattr(module, "BLOCKS", 1)
    sink.apply(batch(*(row(key, "n" * 100, commit) for commit in (1, 2) for key in range(300))))
    opened = open_trimmed(10)
    query = f"select count(*) from {name}_g1.orders_history"
    counts = []
    for applied in range(1_000, 1_030):
        _trim(opened, applied=applied, times=1)
        counts += database.execute(query).fetchone()
    assert counts == sorted(counts, reverse=True)
    assert 300 < counts[0] < 600
    assert counts[-1] == 300


@given(history=_histories(), minute=st.integers(0, 12), clock=st.lists(st.integers(1, 12), min_size=10, max_size=10))
@settings(
    deadline=None,
    max_examples=examples(4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_a_history_holds_trimming_changes_no_later_time(
    history: tuple[list[RowEvent], list[list[RowEvent]]],
    minute: int,
    clock: list[int],
    database: Any,
    endpoints: Any,
) -> None:
    """Also where the source's clock goes back and forth."""
    events, batches = history
    name = f"t{uuid.uuid4().hex[:12]}"
    days = (datetime.now(UTC) - at(minute)) / timedelta(days=1)
    chosen = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), history=True, keep_history_days=days)
    opened = WarehouseTables(name, chosen, 1)
    with closing(WarehouseSink(opened)) as sink:
        sink.prepare([table()])

        def apply_all() -> None:
            for of_batch in batches:
                if of_batch:
                    sink.apply(batch(*of_batch, minutes=[clock[minute_of(event) - 1] for event in of_batch]))

        def later() -> list[dict[int, str]]:
            return [as_of(database, name, time) for time in range(minute + 1, 15)]

        apply_all()
        before = later()
        for _ in range(3):
            _trim(WarehouseGenerations(opened), times=1)
            assert later() == before
        apply_all()
        assert later() == before
        held = f"select count(*) from {name}_g1.orders_history"
        if minute > max(clock):
            live = {event.key["id"]: event.row for event in events}
            assert database.execute(held).fetchone() == (sum(row is not None for row in live.values()),)
