"""All versions of rows in a warehouse: any row as of any time, whatever came twice, late or from two writers."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.model.errors import LockstepError
from cdc.model.event import Events, JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName
from sinks.contract import Batch, OpenedSink, Sink, TableVersions
from sinks.warehouse import generations, purging
from sinks.warehouse.duckdb import upkeep
from tests.builders import column, delete, table, tag, upsert
from tests.contract.typed_stores import BEGIN, LSN, POSTGRESQL, Store, save
from tests.examples import examples
from tests.threads import at_once

of_examples = settings(
    deadline=None,
    max_examples=examples(4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def ms(minute: int) -> int:
    return int(at(minute).timestamp() * 1000)


def minute_of(event: RowEvent) -> int:
    """In this file, the n-th commit is that of minute n."""
    return (int(event.tag[4:20], 16) - LSN) // 8


def versions(
    *events: RowEvent, minutes: Sequence[int] = (), operations: str = "", complete_from: int | None = None
) -> list[TableVersions]:
    (given_events,) = Events.of(events).tables
    letters = operations or "".join("d" if row is None else "u" for row in given_events.rows)
    times_ms = [ms(minute) for minute in minutes or map(minute_of, given_events)]
    return [TableVersions(given_events, letters, times_ms, None if complete_from is None else ms(complete_from))]


def batch(*events: RowEvent, overwrite_equal_tags: bool = False, **more: Any) -> Batch:
    """What a job makes of these records of one table: the newest of each key, and all of them as versions."""
    newest = {str(event.key): event for event in sorted(events, key=lambda event: event.tag)}
    return Batch(list(newest.values()), versions=versions(*events, **more), overwrite_equal_tags=overwrite_equal_tags)


def row(number: int, note: str | None, commit: int, seq: int = 1) -> RowEvent:
    return upsert({"id": number, "note": note}, tag(commit, seq))


def gone(number: int, commit: int, seq: int = 1) -> RowEvent:
    return delete({"id": number}, tag(commit, seq))


@pytest.fixture
def sink(store: Store) -> Sink:
    """A sink with a history of ``table()``; others of its store have one too unless they say otherwise."""
    store.settings = {"history": True}
    return store.open(table()).sink


def as_of(store: Store, minutes: Iterable[int]) -> list[dict[int, str]]:
    """The rows at each of these times."""
    held = store.query(f"select id, note, valid_from, valid_to from {store.name}.orders_history")
    states = []
    for moment in map(at, minutes):
        rows = [(key, note) for key, note, since, to in held if since <= moment and (to is None or moment < to)]
        assert len(rows) == len(dict(rows)), "a row was there twice at one time"
        states.append(dict(rows))
    return states


def story(store: Store, number: int = 1) -> list[tuple[Any, ...]]:
    """A row's versions by tag: minutes from and to, operation, note."""
    query = f"select valid_from, valid_to, _operation, note from {store.name}.orders_history where id = {number}"

    def minute(time: datetime | None) -> int | None:
        return None if time is None else int((time - BEGIN) / timedelta(minutes=1))

    return [(minute(start), minute(end), *rest) for start, end, *rest in store.query(f"{query} order by _tag")]


def held_versions(store: Store) -> list[tuple[int, str | None]]:
    return store.query(f"select id, note from {store.name}_g1.orders_history order by id, _tag")


def complete_from(store: Store) -> list[tuple[Any, ...]]:
    return store.query(
        "select source_table, generation, is_live, complete_from, refused_versions from lockstep.history"
        f" where view_schema = '{store.name}' order by 1, 2"
    )


def test_any_row_at_any_time(store: Store, sink: Sink) -> None:
    outcome = sink.apply(batch(row(1, "a", 10), row(2, "x", 10), row(1, "b", 20), operations="rcu"))
    assert (outcome.applied, outcome.stale) == (2, 0)
    sink.apply(batch(gone(1, 30)))
    sink.apply(batch(row(1, "again", 40), operations="c"))
    assert as_of(store, (9, 10, 20, 29, 30, 39, 40, 99)) == [
        {},
        {1: "a", 2: "x"},
        {1: "b", 2: "x"},
        {1: "b", 2: "x"},
        {2: "x"},
        {2: "x"},
        {1: "again", 2: "x"},
        {1: "again", 2: "x"},
    ]
    assert story(store) == [
        (10, 20, "snapshot", "a"),
        (20, 30, "update", "b"),
        (30, 30, "delete", None),
        (40, None, "insert", "again"),
    ]
    assert store.query(f"select id, note from {store.name}.orders order by 1") == [(1, "again"), (2, "x")]


def test_of_several_versions_of_one_transaction_the_last_is_seen(store: Store, sink: Sink) -> None:
    sink.apply(batch(row(1, "a", 10, 1), row(1, "b", 10, 2), row(1, "c", 10, 3)))
    assert story(store) == [(10, 10, "update", "a"), (10, 10, "update", "b"), (10, None, "update", "c")]
    assert as_of(store, [10]) == [{1: "c"}]


@pytest.mark.soak
def test_a_clock_that_was_set_back_makes_no_two_versions_valid_at_once(store: Store, sink: Sink) -> None:
    sink.apply(batch(row(1, "a", 1), row(1, "b", 2), row(1, "c", 3), row(1, "d", 4), minutes=(10, 20, 15, 30)))
    assert [state[1] for state in as_of(store, (10, 14, 15, 19, 20, 29, 30))] == list("aaaaccd")
    assert story(store)[1:3] == [(20, 20, "update", "b"), (20, 30, "update", "c")]


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
    """Versions of a few keys, and batches that hold all of them at least once, in any order."""
    changes = draw(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=10))
    events = [
        gone(key, minute) if is_delete else row(key, f"v{minute}", minute)
        for minute, (key, is_delete) in enumerate(changes, 1)
    ]
    extra = draw(st.lists(st.sampled_from(events), max_size=8))
    batches: list[list[RowEvent]] = [[]]
    for event in draw(st.permutations(events + extra)):
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(event)
    return events, [of_batch for of_batch in batches if of_batch]


@given(history=_histories(), in_bulk=st.booleans())
@of_examples
def test_any_order_and_repetition_from_two_writers_ends_in_the_same_history(
    history: tuple[list[RowEvent], list[list[RowEvent]]], in_bulk: bool, store: Store
) -> None:
    events, batches = history
    with store.another() as fresh:
        writers = [fresh.open(history=True) for _ in range(2)]
        writers[0].sink.prepare([table()], go_live=not in_bulk)
        if in_bulk:
            writers[0].bulk.begin_bulk()
        for turn, of_batch in enumerate(batches):
            writers[turn % 2].sink.apply(batch(*of_batch))
        writers[0].bulk.end_bulk()
        writers[0].sink.prepare([table()])
        for key in {event.key["id"] for event in events}:
            events_of_key = [event for event in events if event.key["id"] == key]
            ends = [minute_of(event) for event in events_of_key[1:]] + [None]
            assert story(fresh, int(str(key))) == [
                (minute_of(event), minute_of(event), "delete", None)
                if event.row is None
                else (minute_of(event), end, "update", event.row["note"])
                for event, end in zip(events_of_key, ends, strict=True)
            ]


def test_writers_at_once_do_not_end_each_other(store: Store, sink: Sink) -> None:
    events = [row(key, f"v{commit}", commit) for commit in range(1, 11) for key in range(20)]

    def write(seed: int, patient: Sink) -> None:
        shuffled = random.Random(seed).sample(events, len(events))
        for start in range(0, len(shuffled), 40):
            patient.apply(batch(*shuffled[start : start + 40]))

    at_once(*(partial(write, seed, store.open(lock_timeout_s=30).sink) for seed in (1, 2)))
    assert as_of(store, (0, 5, 10)) == [{}, dict.fromkeys(range(20), "v5"), dict.fromkeys(range(20), "v10")]


def test_a_deletion_of_which_the_tombstone_alone_is_left_has_the_earliest_time_known(store: Store, sink: Sink) -> None:
    sink.apply(batch(row(1, "a", 10)))
    times = [(30, 30), (20, 20), (25, 20)]
    for overwrite_equal_tags in (False, True):
        for known, expected in times:
            sink.apply(batch(gone(1, 20), minutes=[known], overwrite_equal_tags=overwrite_equal_tags))
            assert story(store) == [(10, expected, "update", "a"), (expected, expected, "delete", None)]
        times = [(22, 20)]


def test_a_row_whose_key_a_copy_writes_differently_is_its_newest_version(store: Store) -> None:
    """To some stores, both texts are one value. The copy deletes the former text, and writes the row, at one tag."""
    keyed = table(column("k", "numeric"), column("note"), name=TableName("public", "keyed"), key=("k",))
    sink = store.open(keyed, history=True).sink
    for number, parts in enumerate(([[0, 1]], [[1, 0]], [[0], [1]], [[1], [0]])):
        sink.apply(batch(upsert({"k": f"{number}.0", "note": "before"}, 10, of=keyed)))
        copied = [
            delete({"k": f"{number}.0"}, 20, of=keyed),
            upsert({"k": f"{number}.00", "note": "copied"}, 20, of=keyed),
        ]
        for part in parts:
            sink.apply(batch(*(copied[which] for which in part)))
    of_readers = f"select cast(k as varchar), note from {store.name}.keyed_history where valid_to is null order by 1"
    assert store.query(of_readers) == [(f"{number}.00", "copied") for number in range(4)]


def test_a_replay_makes_versions_again_and_a_repetition_does_not(store: Store, sink: Sink) -> None:
    sink.apply(batch(row(1, "wrong", 10), row(1, "wrong too", 20)))
    sink.apply(batch(row(1, "other", 10)))
    assert story(store)[0] == (10, 20, "update", "wrong")
    again = [row(1, "right", 10), row(1, "right", 10), gone(1, 20)]
    sink.apply(batch(*again, overwrite_equal_tags=True))
    assert story(store) == [(10, 20, "update", "right"), (20, 20, "delete", None)]
    assert store.query(f"select * from {store.name}.orders") == []


def test_a_batch_without_versions_leaves_no_gap_in_silence(store: Store, sink: Sink) -> None:
    with pytest.raises(LockstepError, match="without the versions that the history of"):
        sink.apply(Batch([row(1, "a", 1)]))
    assert store.query(f"select * from {store.name}.orders") == []
    assert sink.apply(Batch([row(1, "a", 1)], overwrite_equal_tags=True)).applied == 1


def test_a_version_that_is_refused_is_counted_until_it_is_taken(store: Store) -> None:
    documents = table(column("id", "int8"), column("doc", "jsonb"))
    sink = store.open(documents, history=True).sink

    def document(number: int, text: str) -> RowEvent:
        return upsert({"id": number, "doc": text}, 1, of=documents)

    assert len(sink.apply(batch(document(1, "{"), document(2, "{}"))).rejections) == 1
    assert store.query(f"select id from {store.name}.orders_history") == [(2,)]
    assert complete_from(store)[0][4] == 1
    sink.apply(batch(document(1, "{}"), overwrite_equal_tags=True))
    assert complete_from(store)[0][4] == 0


# Completeness


def test_a_history_says_from_when_on_it_is_complete(store: Store, sink: Sink) -> None:
    ((*_, begun, refused),) = complete_from(store)
    ((now,),) = store.query("select now() as now")
    assert (timedelta(0) <= now - begun < timedelta(minutes=1), refused) == (True, 0)
    sink.apply(batch(row(1, "a", 10), complete_from=5))
    assert complete_from(store) == [("orders", 1, True, at(5), 0)], "the job's first word"
    for later, known in ((None, 5), (3, 5), (8, 8), (7, 8)):
        sink.apply(batch(row(1, "b", 11), complete_from=later))
        assert complete_from(store)[0][3] == at(known)
    sink.prepare([table()])
    assert complete_from(store)[0][3] == at(8)


def test_a_copy_ends_what_a_history_is_complete_for(store: Store, sink: Sink) -> None:
    ((*_, begun, _refused),) = complete_from(store)

    def copied(minute: int, known: int | None = None) -> Any:
        whole = batch(row(1, "a", 10), complete_from=known)
        sink.apply(replace(whole, versions=[replace(whole.versions[0], missing_until_ms=ms(minute))]))
        return complete_from(store)[0][3]

    assert copied(5) == begun, "what was missing before it was begun takes nothing from it"
    assert copied(9, known=7) == at(9)
    assert copied(6) == at(9)
    assert copied(12) == at(12)


def test_a_history_that_is_begun_later_is_complete_since_then(store: Store) -> None:
    store.open(table()).sink.apply(Batch([row(1, "a", 10)]))
    later = store.open(table(), history=True).sink
    assert len(complete_from(store)) == 1
    later.apply(batch(row(1, "a", 10), row(1, "b", 20)))
    assert story(store) == [(10, 20, "update", "a"), (20, None, "update", "b")]
    with pytest.raises(LockstepError, match="generation 1 has a history of table"):
        store.open(table())


# Generations and shapes


def _numbered(*columns: Column) -> Table:
    return replace(table(), columns=columns, oid=7)


IDENTITY, NOTE = (replace(column, number=number) for number, column in enumerate(table().columns, 1))
EXTRA = replace(column("extra"), number=3)


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
def test_columns_come_and_are_renamed_and_dropped_and_no_version_loses_a_value(
    store: Store, warehouse: psycopg.Connection[Any]
) -> None:
    name = store.name
    sink = store.open(_numbered(IDENTITY, NOTE, EXTRA), history=True, schema_changes="follow").sink
    warehouse.execute(f"create view {name}.of_others as select id, valid_from from {name}.orders_history".encode())
    warehouse.execute(f"grant select on {name}.orders_history to public".encode())
    sink.apply(batch(upsert({"id": 1, "note": "a", "extra": "kept"}, 1), gone(2, 1)))
    later = _numbered(IDENTITY, replace(NOTE, name="remark"), EXTRA, replace(column("grade", "int4"), number=4))
    sink.prepare([later], added={later.name: {"grade": 5}})
    query = f"select id, remark, extra, grade from {name}.orders_history order by 1"
    assert store.query(query) == [(1, "a", "kept", 5), (2, None, None, None)]
    warehouse.execute(f"drop view {name}.of_others".encode())
    again: Sequence[Column] = (IDENTITY, replace(NOTE, name="remark"), replace(column("extra", "int4"), number=9))
    sink.prepare([_numbered(*again[:2])])
    sink.prepare([_numbered(*again)])
    values: dict[str, JsonValue] = {"id": 1, "remark": "b", "extra": 7}
    sink.apply(batch(upsert(values, 2, of=_numbered(*again))))
    of_readers = f"select remark, extra from {name}.orders_history where id = 1 order by _tag"
    assert store.query(of_readers) == [("a", None), ("b", 7)]
    held = f"select _dropped_3_extra from {name}_g1.orders_history where id = 1 order by _tag"
    assert store.query(held) == [("kept",), (None,)]
    assert store.query(f"select has_table_privilege('pg_monitor', '{name}.orders_history', 'select')") == [(True,)]


# What is trimmed


def keeping(store: Store, minute: int) -> OpenedSink:
    """A sink that keeps what is needed from this minute on."""
    return store.open(history=True, keep_history_days=(datetime.now(UTC) - at(minute)) / timedelta(days=1))


def trim(opened: OpenedSink, *, applied: int = 1_000, times: int = 2) -> None:
    """A portion at a time. A deletion is removed in the pass after the versions that it ends."""
    for _ in range(times):
        save(opened, applied, commit_time_ms=int(datetime.now(UTC).timestamp() * 1000))


@pytest.mark.usefixtures("at_each_progress")
@pytest.mark.parametrize("in_portions", [False, True])
def test_of_a_trimmed_history_every_later_time_is_as_it_was(
    store: Store, sink: Sink, in_portions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_portions:
        monkeypatch.setattr(upkeep, "TRIMMED_AT_ONCE", 0)
        monkeypatch.setattr(upkeep, "TRIM_PORTIONS", 3)
    begun = batch(row(1, "a", 1), row(2, "x", 2), row(1, "b", 3), gone(3, 3), row(4, "k", 4), gone(4, 5))
    sink.apply(begun)
    sink.apply(batch(row(1, "c", 20), gone(2, 21), row(4, "again", 22)))
    minutes = (10, 15, 20, 21, 22, 30)
    before = as_of(store, minutes)
    trim(keeping(store, 10), times=2 * 3)
    assert as_of(store, minutes) == before
    held = [(1, "b"), (1, "c"), (2, "x"), (2, None), (4, "again")]
    assert held_versions(store) == held
    ((*_, since, refused),) = complete_from(store)
    assert (at(10) - timedelta(minutes=1) < since < at(11), refused) == (True, 0)
    # Repeated events bring nothing back, and new ones are kept.
    sink.apply(begun)
    sink.apply(batch(row(4, "k", 4), row(5, "new", 23)))
    assert held_versions(store) == [*held, (5, "new")]
    trim(keeping(store, 10), times=2 * 3)
    assert as_of(store, [30]) == [{1: "c", 4: "again", 5: "new"}]


@pytest.mark.usefixtures("at_each_progress")
@pytest.mark.soak
def test_what_is_beyond_the_watermark_is_not_trimmed(store: Store, sink: Sink) -> None:
    sink.apply(batch(row(1, "a", 1), row(1, "b", 2), row(1, "c", 3)))
    trim(keeping(store, 10), applied=1)
    assert [note for *_, note in story(store)] == ["b", "c"], "of the first it is known that it is applied"


@pytest.mark.usefixtures("at_each_progress")
@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
@pytest.mark.soak
def test_a_history_is_trimmed_a_few_blocks_at_a_time(store: Store, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (generations, purging):
        monkeypatch.setattr(module, "BLOCKS", 1)
    sink.apply(batch(*(row(key, "n" * 100, commit) for commit in (1, 2) for key in range(300))))
    opened = keeping(store, 10)
    counts = []
    for applied in range(1_000, 1_030):
        trim(opened, applied=applied, times=1)
        counts.append(len(held_versions(store)))
    assert counts == sorted(counts, reverse=True)
    assert 300 < counts[0] < 600
    assert counts[-1] == 300


@pytest.mark.usefixtures("at_each_progress")
@given(history=_histories(), minute=st.integers(0, 12), clock=st.lists(st.integers(1, 12), min_size=10, max_size=10))
@of_examples
def test_whatever_a_history_holds_trimming_changes_no_later_time(
    history: tuple[list[RowEvent], list[list[RowEvent]]], minute: int, clock: list[int], store: Store
) -> None:
    """Even if the source's clock goes back and forth."""
    events, batches = history
    with store.another() as fresh:
        opened = keeping(fresh, minute)
        opened.sink.prepare([table()])

        def apply_all() -> None:
            for of_batch in batches:
                opened.sink.apply(batch(*of_batch, minutes=[clock[minute_of(event) - 1] for event in of_batch]))

        later = range(minute + 1, 15)
        apply_all()
        before = as_of(fresh, later)
        for _ in range(3):
            trim(opened, times=1)
            assert as_of(fresh, later) == before
        apply_all()
        assert as_of(fresh, later) == before
        if minute > max(clock):
            live = {event.key["id"]: event.row for event in events}
            assert len(held_versions(fresh)) == sum(row is not None for row in live.values())
