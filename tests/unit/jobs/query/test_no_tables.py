"""jobs.query.no_tables: a job that reads nothing."""

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import DataLost, Unavailable
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.lease import Clock, GenerationLease
from jobs.query.captured_tables import Captured
from jobs.query.no_tables import keeper_of_none, wait_for_tables
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from jobs.report import Report, WatermarkRaised
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from tests.builders import table
from tests.generations import hold_tables, prepared_store

_NOTHING = cast("Any", None)
_AT = ("p.public.orders", 0)


def tables_of(look: Callable[[], Captured]) -> SinkTables:
    """Those of a sink of which, at the first look, none is captured any more."""
    settings = cast("Any", SimpleNamespace(tables=[], view=None))
    kafka = KafkaSettings(bootstrap_servers="nowhere:1")
    none = [Captured((), selection="none")]
    plan = SinkPlan(
        "s", settings, 1, "p", kafka, (), _NOTHING, once=False, captured=lambda: none.pop() if none else look()
    )
    tables = SinkTables(plan, report=lambda _: None)
    tables.look()
    return tables


@pytest.mark.parametrize(("is_paused", "skipped"), [(True, False), (False, True), (False, False)])
def test_a_sink_none_of_whose_tables_is_captured_lacks_nothing_unless_it_did_before(
    is_paused: bool, skipped: bool
) -> None:
    opened = open_memory(prepared_store(1))
    opened.sink.claim()
    opened.generations.save_progress(
        Progress({_AT: 5}, 100, 7, 1_000, {_AT[0]: "id"}, skipped={_AT: 9} if skipped else {}, selection="before")
    )
    tables = tables_of(lambda: Captured([table().name]))
    if is_paused:
        tables.look()
    lease = hold_tables(tables, opened, {table().name: HeldTable(HeldState.PAUSED, 1)} if is_paused else {})
    keeper = keeper_of_none(tables, opened, lease)
    if is_paused or skipped:
        assert keeper is None
        return
    assert keeper is not None
    raised = keeper.learn([ProgressRecord(200, 8, {_AT[0]: (9,)}, selection="none")], selection="none")
    assert raised is not None
    assert (raised.watermark_lsn, raised.selection, raised.next_offsets) == (200, "none", {_AT: 5})
    assert raised.left_at_ms == {_AT[0]: 1_000}, "what comes of it once it is back is no matter of this watermark"


class _Log:
    """Progress records as a job that reads nothing gets them: each once. Kafka isn't there."""

    def __init__(self, *records: ProgressRecord) -> None:
        self._records = list(records)
        self.asked = 0

    def __call__(self, *_: object) -> "_Log":
        return self

    def new_records(self) -> list[ProgressRecord]:
        self.asked += 1
        new, self._records = self._records, []
        return new

    def close(self) -> None: ...


def _without_tables(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, log: _Log, look: Callable[[], Captured]
) -> tuple[SinkTables, GenerationLease]:
    """A job none of whose tables is captured any more."""
    monkeypatch.setattr(
        "jobs.query.no_tables.TopicAdmin", lambda _: SimpleNamespace(create=print, missing=lambda _: [])
    )
    monkeypatch.setattr("jobs.query.no_tables.ProgressReader", log)
    monkeypatch.setattr("jobs.query.no_tables.ORDERS_LOOK_S", 0.001)
    opened = open_memory(store, 1)
    opened.sink.claim()
    opened.generations.save_progress(Progress({_AT: 5}, 100, 7, 1_000, {_AT[0]: "id"}, selection="before"))
    lease = GenerationLease(opened, 1, clock=Clock(itertools.count(0.0, 10.0).__next__))
    return tables_of(look), lease


def test_a_job_none_of_whose_tables_is_captured_notices_that_its_destination_was_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go on for ever without its claim, and say nothing."""
    store = prepared_store(1)
    opened = open_memory(store, 1)

    class Log(_Log):
        def new_records(self) -> list[ProgressRecord]:
            store.records["g1.heartbeat"], store.generation(1).fence = before, 1
            return super().new_records()

    tables, lease = _without_tables(monkeypatch, store, Log(), lambda: Captured((), selection="none"))
    lease.claim(opened.sink.claim)
    before = store.records["g1.heartbeat"]
    with pytest.raises(DataLost, match="put back"):
        wait_for_tables(tables, opened, lease, {}, threading.Event(), lambda _: None)


def test_what_a_job_without_tables_could_not_learn_yet_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks = prepared_store(1), list[int]()

    def look() -> Captured:
        looks.append(1)
        if len(looks) == 1:
            raise Unavailable("Kafka doesn't answer")
        return Captured((), selection="newer")

    log = _Log(ProgressRecord(200, 8, {}, selection="newer"))
    tables, lease = _without_tables(monkeypatch, store, log, look)
    stop, reports = threading.Event(), list[Report]()

    def report(one: Report) -> None:
        reports.append(one)
        if isinstance(one, WatermarkRaised):
            stop.set()

    assert not wait_for_tables(tables, open_memory(store, 1), lease, {}, stop, report)
    raised = [one.watermark_lsn for one in reports if isinstance(one, WatermarkRaised)]
    assert (raised, len(looks)) == ([200], 2)
