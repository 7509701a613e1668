"""Dead letters are applied again beside a job, and what became of them is told."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Table
from cdc.model.tag import Tag
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.dead_letters.record import DeadLetter
from jobs.generations.prepared import preparing
from jobs.generations.record import Phase, Record, save_record
from lockstep.rejections.apply_beside import Beside, Portion
from lockstep.rejections.events import RetryEvents
from lockstep.rejections.retried import Retried
from lockstep.rejections.retry import lost_topics
from sinks.contract import Batch, OpenedSink, Outcome, Progress, Sink
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import column, table
from tests.dead_letters import rejected
from tests.duckdb_sink import open_duckdb
from tests.events import key_bytes, value_bytes

TOPIC = "shop.public.orders"
ORDERS = table()
WIDER = table(*ORDERS.columns, column("more"))
RECORDS = [SchemaRecord(ORDERS, 0), SchemaRecord(WIDER, 8, ShapeChange(defaults={"more": "5"}))]
LSN = 64
TAG = f"0001{LSN:016x}00000001"


def put() -> tuple[DeadLetter, bytes]:
    key = key_bytes(ORDERS, {"id": 1, "note": "n"})
    dead_letter = DeadLetter("search", 1, Position(TOPIC, 0, 3), key, TAG, "no", 5, b"", 9)
    return dead_letter, value_bytes(ORDERS, "u", {"id": 1, "note": "n"}, lsn=LSN, seq=1)


def test_rejections_of_another_topic_of_the_same_name_cant_be_retried() -> None:
    progress = Progress({}, 0, 0, 0, {"a": "1", "b": "1"})
    lost = lost_topics(["a", "b", "c", "d"], progress, {"a": "1", "b": "2", "c": "1"})
    assert list(lost) == ["b", "d"]
    assert "was recreated" in lost["b"]
    assert "doesn't exist" in lost["d"]
    assert lost_topics(["a"], None, {"a": "1"}) == {}


def test_a_sentence_says_what_became_of_them() -> None:
    dead_letter = rejected(reason="no room")
    assert Retried(1, taken=1).sentence("cache") == "cache took 1 rejected event"
    assert Retried(1, taken=1200, void=1, gone=2, refused=[dead_letter]).sentence("cache") == (
        "cache took 1,200 rejected events; void, since their table was copied again: 1; closed meanwhile: 2;"
        " still open: 1"
    )
    assert Retried(1, taken=1, refused=[dead_letter]).to_json({})["refused"][0]["reason"] == "no room"


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


def applied(store: MemoryStore, sink: Sink | None = None) -> tuple[RetryEvents, Outcome]:
    opened = open_memory(store) if sink is None else replace(open_memory(store), sink=sink)
    beside = Beside(opened, "memory", 1, {TOPIC: ORDERS.name}, lambda: RECORDS, sleep=lambda _: None)
    _, events, outcome = beside.apply([put()])
    return events, outcome


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


def test_a_row_that_is_erased_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    """Its rejection is closed before the events are applied, and after it was looked at."""
    job, is_erased = open_duckdb(tmp_path), [False]

    def erase(portion: Portion) -> Portion:
        if is_erased[0]:
            return []
        is_erased[0] = True
        deleted = RowEvent(ORDERS.name, {"id": 1}, str(Tag(9, 1, 1)), None, Position(TOPIC, 0, 9))
        job.sink.apply(Batch([deleted], fence=job.sink.fence()))
        assert job.erasing.erase(ORDERS, {"id": 1}, below=str(Tag(9, 9, 9))) == []
        return portion

    with closing(job.sink):
        save_record(job.records, 1, Record("shop", {}))
        prepare(job, ORDERS)
        beside = Beside(job, "dwh", 1, {TOPIC: ORDERS.name}, lambda: RECORDS, still_open=erase, sleep=lambda _: None)
        _, events, outcome = beside.apply([put()])
        assert (events.events, outcome.applied) == ([], 0)
        assert list(job.sink.scan(ORDERS)) == []


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
