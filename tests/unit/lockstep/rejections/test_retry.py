"""Rejected events become events again, in the shapes that the sink is prepared for."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, Position
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.dead_letters.record import DeadLetter
from jobs.generations.prepared import Prepared, preparing
from jobs.generations.record import Phase, Record, save_record
from lockstep.rejections.commands import Rejection
from lockstep.rejections.retry import (
    Kept,
    Made,
    Refused,
    Retried,
    apply_beside,
    lost_topics,
    make_events,
    prepared_histories,
)
from sinks.contract import Batch, OpenedSink, Outcome, Progress, Sink
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import column, table
from tests.events import key_bytes, value_bytes

TOPIC = "shop.public.orders"
ORDERS = table()
WIDER = table(*ORDERS.columns, column("more"))
REKEYED = table(*WIDER.columns, key=("note",))
RECORDS = [SchemaRecord(ORDERS, 0), SchemaRecord(WIDER, 8, ShapeChange(defaults={"more": "5"}))]
LSN = 64
TAG = f"0001{LSN:016x}00000001"


def rejection(of: Table = ORDERS, *, name: TableName | None = ORDERS.name) -> Rejection:
    key = key_bytes(of, {"id": 1, "note": "n"})
    return Rejection(DeadLetter("search", 1, Position(TOPIC, 0, 3), key, TAG, "no", 5, b"", 9), name)


def put(of: Table = ORDERS) -> Kept:
    row: Mapping[str, JsonValue] = {"id": 1, "note": "n", "more": "m"}
    return rejection(of), value_bytes(of, "u", row, lsn=LSN, seq=1)


def made(kept: Kept, prepared: Prepared, records: list[SchemaRecord] = RECORDS) -> Made:
    return make_events([kept], prepared_histories(records, prepared))


def row_of(result: Made) -> Mapping[str, JsonValue] | None:
    [(_, event)] = result.events
    assert (event.tag, event.position, dict(event.key)) == (TAG, Position(TOPIC, 0, 3), {"id": 1})
    return event.row


def test_an_event_keeps_its_tag_and_its_position() -> None:
    assert row_of(made(put(), {ORDERS.name: ORDERS.schema_id})) == {"id": 1, "note": "n"}


def test_an_event_of_an_earlier_shape_becomes_a_row_of_the_prepared_one() -> None:
    assert row_of(made(put(), {ORDERS.name: WIDER.schema_id})) == {"id": 1, "note": "n", "more": "5"}


def test_the_newest_shape_doesnt_matter_while_the_sink_has_an_earlier_one() -> None:
    assert row_of(made(put(), {ORDERS.name: ORDERS.schema_id}, RECORDS)) == {"id": 1, "note": "n"}


def test_an_event_of_a_shape_that_the_sink_isnt_prepared_for_stays() -> None:
    for records in (RECORDS[:1], RECORDS):
        result = made(put(WIDER), {ORDERS.name: ORDERS.schema_id}, records)
        assert (result.events, result.void) == ([], 0)
        assert ["shape" in one.why for one in result.refused] == [True]


def test_a_tombstone_deletes() -> None:
    assert row_of(made((rejection(), None), {ORDERS.name: WIDER.schema_id})) is None


def test_an_event_that_a_copy_has_replaced_is_void() -> None:
    # With another key, all rows came again.
    records = [*RECORDS, SchemaRecord(REKEYED, 16, ShapeChange(rewritten="another key"))]
    result = made(put(), {ORDERS.name: REKEYED.schema_id}, records)
    assert (result.events, result.refused, result.void) == ([], [], 1)


def test_an_event_of_a_table_that_isnt_prepared_stays() -> None:
    for kept, prepared in (
        (put(), {}),
        (put(), {ORDERS.name: "of another log"}),
        ((rejection(name=None), None), {ORDERS.name: ORDERS.schema_id}),
    ):
        result = made(kept, prepared)
        assert (result.events, result.void, len(result.refused)) == ([], 0, 1)


def test_what_is_no_event_stays_and_the_others_are_made() -> None:
    bad = (rejection(), b'{"op":"u"}')
    result = make_events([bad, put()], prepared_histories(RECORDS, {ORDERS.name: ORDERS.schema_id}))
    assert (len(result.events), [one.rejection for one in result.refused]) == (1, [bad[0]])


def test_rejections_of_another_topic_of_the_same_name_cant_be_retried() -> None:
    progress = Progress({}, 0, 0, 0, {"a": "1", "b": "1"})
    lost = lost_topics(["a", "b", "c", "d"], progress, {"a": "1", "b": "2", "c": "1"})
    assert list(lost) == ["b", "d"]
    assert "made anew" in lost["b"]
    assert "doesn't exist" in lost["d"]
    assert lost_topics(["a"], None, {"a": "1"}) == {}


def test_what_became_of_them_is_told_in_a_sentence() -> None:
    one = Refused(rejection(), "no room")
    assert Retried(1, taken=1).sentence("cache") == "cache took 1 rejected event"
    assert Retried(1, taken=1200, void=1, gone=2, refused=[one]).sentence("cache") == (
        "cache took 1,200 rejected events; void, since their table was copied anew: 1; closed meanwhile: 2; still open: 1"
    )
    assert Retried(1, taken=1, refused=[replace(one, why="no room at all")]).to_json()["refused"][0]["reason"] == (
        "no room at all"
    )


# Beside a job.


class Shared(MemorySink):
    """Does what a job does in the middle of a batch of ours: ``before_apply`` has one deed for each time."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1)
        self.before_apply: list[Callable[[], object]] = []
        self.overwrite_equal_tags: list[bool] = []

    def apply(self, batch: Batch) -> Outcome:
        if self.before_apply:
            self.before_apply.pop(0)()
        self.overwrite_equal_tags.append(batch.overwrite_equal_tags)
        return super().apply(batch)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    opened = open_memory(store, 1)
    save_record(opened.records, 1, Record("shop", {}))
    prepare(opened, ORDERS)
    opened.sink.claim()
    return store


def prepare(opened: OpenedSink, of: Table) -> None:
    with preparing(opened.records, 1, {of.name: of}):
        opened.sink.prepare([of])


def applied(store: MemoryStore, sink: Sink | None = None) -> tuple[Made, Outcome]:
    opened = open_memory(store) if sink is None else replace(open_memory(store), sink=sink)
    return apply_beside(opened, "memory", 1, [put()], records=lambda: RECORDS, sleep=lambda _: None)


def rows(store: MemoryStore, of: Table = ORDERS) -> list[Mapping[str, JsonValue]]:
    return [stored.row for stored in MemorySink(store, 1).scan(of)]


def test_an_event_is_applied_with_the_fence_of_the_job(store: MemoryStore) -> None:
    job = MemorySink(store, 1)
    fence = job.claim()
    result, outcome = applied(store)
    assert (len(result.events), outcome.applied) == (1, 1)
    # The job hasn't lost its place by it.
    assert job.apply(Batch([], fence=fence)).applied == 0
    assert rows(store) == [{"id": 1, "note": "n"}]


def test_a_job_that_begins_meanwhile_doesnt_matter(store: MemoryStore) -> None:
    sink = Shared(store)
    sink.before_apply = [MemorySink(store, 1).claim]
    assert applied(store, sink)[1].applied == 1
    assert rows(store) == [{"id": 1, "note": "n"}]


def test_a_column_that_comes_meanwhile_is_in_the_row_too(store: MemoryStore) -> None:
    sink = Shared(store)
    sink.before_apply = [lambda: prepare(open_memory(store), WIDER)]
    applied(store, sink)
    # In the same version, so it had to replace what it had written itself.
    assert sink.overwrite_equal_tags == [True, True]
    assert rows(store, WIDER) == [{"id": 1, "note": "n", "more": "5"}]


def test_nothing_is_applied_while_a_job_prepares_other_shapes(store: MemoryStore) -> None:
    job = open_memory(store, 1)
    with preparing(job.records, 1, {WIDER.name: WIDER}), pytest.raises(LockstepError, match="is being prepared"):
        applied(store)
    assert rows(store) == []


def test_a_generation_that_is_being_dropped_gets_nothing(store: MemoryStore) -> None:
    opened = open_memory(store, 1)
    save_record(opened.records, 1, Record("shop", {}, Phase.RETIRED))
    with pytest.raises(LockstepError, match="was dropped"):
        applied(store)
    assert rows(store) == []
