"""jobs.query.job: which failure ends a job, and after which another query follows."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import orjson
import pytest
from pydantic import SecretStr

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import (
    ConfigurationError,
    DataLost,
    Fenced,
    LockstepError,
    Overtaken,
    PositionMismatch,
    Unavailable,
)
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.lease import GenerationLease, is_running
from jobs.generations.record import Record, save_record
from jobs.query.job import Recovery, SinkJob
from jobs.query.job_lease import JobLease
from jobs.query.log_facts import LogFacts
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from jobs.report import Report, SinkWaiting
from sinks.contract import TablesRefused
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.builders import table
from tests.databases import until
from tests.generations import hold_tables, prepared_store

_NOTHING = cast("Any", None)
_A, _B = TableName("public", "a"), TableName("public", "b")


class _Queries:
    """The first ends with an error, and the next one in order."""

    def __init__(self, error: LockstepError, queries: int = 2) -> None:
        self.run_number, self._error, self._last = 0, error, queries
        self.refused: TablesRefused | None = None
        self.known_shapes: Sequence[SchemaRecord] = ()
        self.has_got_on = False

    def run(self) -> bool:
        self.run_number += 1
        self.has_got_on = False
        if self.run_number == self._last:
            return False
        self.known_shapes = [SchemaRecord(table(), 1)]
        raise self._error


class _Job:
    """A job with these queries, on a destination in memory."""

    def __init__(
        self,
        error: LockstepError,
        *,
        store: MemoryStore | None = None,
        once: bool = False,
        held_tables: dict[TableName, HeldTable] | None = None,
        queries: _Queries | None = None,
    ) -> None:
        self.reports: list[Report] = []
        self.stop = threading.Event()
        self.store = store or prepared_store(1)
        settings = RedisSettings(type="redis", url=SecretStr("redis://cache"))
        kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
        plan = SinkPlan(
            "s", settings, 1, "p", kafka, [_A, _B], _NOTHING, once=once, open=lambda *_: open_memory(self.store)
        )
        self.queries = queries or _Queries(error)
        self.lease = JobLease(plan)
        self.tables = SinkTables(plan, report=self.reports.append)
        if held_tables:
            hold_tables(self.tables, open_memory(self.store), held_tables).end()
        self._recovery = Recovery(self.tables, self.lease, self.queries, stop=self.stop, report=self.reports.append)

    def run(self) -> int:
        """Returns how many queries it took."""
        with self.lease.kept():
            self._recovery.run()
        return self.queries.run_number

    def claimed(self) -> GenerationLease:
        """Its lease, as the newest job's."""
        save_record(open_memory(self.store).records, 1, Record("p", {}))
        lease = self.lease.reopened()
        lease.claim(open_memory(self.store).sink.claim)
        return lease


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool | Unavailable]:
    """What each look at the tables' shapes finds."""
    found: list[bool | Unavailable] = []

    def look(*_: object) -> bool:
        answer = found.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    monkeypatch.setattr("jobs.query.job.have_shapes_changed", look)
    monkeypatch.setattr("jobs.query.job.unreadable", lambda *_: {})
    return found


_AWAY = Unavailable("the brokers don't answer", retry_after_s=0.01)


def test_another_query_prepares_the_shape_that_the_first_did_not_know(looks: list[bool | Unavailable]) -> None:
    job = _Job(LockstepError("not prepared for"))
    looks += [_AWAY, _AWAY, True]
    assert job.run() == 2
    assert [type(report) for report in job.reports] == [SinkWaiting] * 2, "nobody gives up where nobody can tell"


@pytest.mark.parametrize(("denied", "queries"), [(["a"], 2), ([], 1), (["a", "b"], 1)])
def test_a_job_that_may_not_read_some_tables_any_more_begins_again_without_them(
    denied: list[str], queries: int, looks: list[bool | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it may read none, nothing is gained by that."""
    error = LockstepError("the log can't be read: not authorized")
    monkeypatch.setattr("jobs.query.job.unreadable", lambda *_: {TableName("public", name): error for name in denied})
    looks.append(False)
    job = _Job(error)
    if queries == 2:
        assert job.run() == 2
        return
    with pytest.raises(LockstepError, match="not authorized"):
        job.run()
    assert job.queries.run_number == 1


@pytest.mark.parametrize(
    ("state", "once", "stopped", "fails"),
    [
        (HeldState.FAILED, True, False, True),
        (HeldState.FAILED, False, False, False),
        (HeldState.FAILED, True, True, False),
        (HeldState.PAUSED, True, False, False),
    ],
)
def test_a_job_that_is_to_apply_all_there_is_fails_where_a_table_was_not_applied(
    state: HeldState, once: bool, stopped: bool, fails: bool
) -> None:
    held_tables = {_A: HeldTable(HeldState.RESUMING, 5), _B: HeldTable(state, 5, reason="no room", hint="make some")}
    job = _Job(_NOTHING, once=once, held_tables=held_tables, queries=_Queries(_NOTHING, queries=1))
    if stopped:
        job.stop.set()
    if not fails:
        job.run()
        return
    with pytest.raises(LockstepError, match=r"'s' hasn't got all: public\.b is held.*no room") as caught:
        job.run()
    assert caught.value.hint == "make some; if the reason ends without that, `lockstep resume s public.b`"


def test_a_refused_table_of_another_shape_is_prepared_again_first(looks: list[bool | Unavailable]) -> None:
    looks.append(True)
    job = _Job(TablesRefused({_B: LockstepError("no such column")}))
    assert job.run() == 2
    assert job.queries.refused is None
    looks.append(False)
    job = _Job(TablesRefused({_B: LockstepError("no room")}))
    job.run()
    assert job.queries.refused is not None, "the next query begins with it"


def test_what_has_nothing_to_do_with_shapes_is_final_at_once(looks: list[bool | Unavailable]) -> None:
    with pytest.raises(Fenced, match="another job"):
        _Job(Fenced("another job has become the writer")).run()


def test_a_table_that_is_resumed_too_late_does_not_end_the_job_of_the_others() -> None:
    """The next start holds that table, if it is to blame."""
    error = PositionMismatch("deletes may be missing")
    with pytest.raises(PositionMismatch):
        _Job(error).run()
    held_tables = {_B: HeldTable(HeldState.RESUMING, 5)}
    assert _Job(error, held_tables=held_tables).run() == 2
    with pytest.raises(PositionMismatch):
        _Job(error, held_tables=held_tables, queries=_Queries(error, queries=3)).run()


def test_a_job_that_another_one_has_overtaken_begins_again_unless_it_is_the_older_one(
    looks: list[bool | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.generations.lease.HEARTBEAT_S", 0.0)
    assert _Job(Overtaken("another job has applied more")).run() == 2
    older = _Job(Overtaken("another job has applied more"))
    older.claimed()
    GenerationLease(open_memory(older.store), 1).claim(open_memory(older.store).sink.claim)
    with pytest.raises(Fenced, match="another job has begun"):
        older.run()
    assert older.queries.run_number == 1


@pytest.mark.parametrize("error", [Fenced("another job has become the writer"), DataLost("it was put back")])
def test_a_job_whose_destination_was_put_back_begins_again(
    error: LockstepError, looks: list[bool | Unavailable]
) -> None:
    """Its next query finds what is missing, and names the way out."""
    job = _Job(error)
    lease, opened = job.claimed(), open_memory(job.store)
    before = job.store.records["g1.heartbeat"]
    lease.claim(opened.sink.claim)
    job.store.records["g1.heartbeat"], job.store.generation(1).fence = before, 1
    assert job.run() == 2


def test_a_job_that_waits_for_the_log_shows_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store, has_seen = prepared_store(1), threading.Event()
    monkeypatch.setattr("jobs.query.job_lease.TICK_S", 0.01)
    monkeypatch.setattr("jobs.generations.lease.HEARTBEAT_S", 0.01)
    monkeypatch.setattr("jobs.query.queries.require_in_use", lambda *_: None)
    monkeypatch.setattr("jobs.query.job_lease.require_in_use", lambda *_: None)

    def wait_for_capture(*_: object, **__: object) -> LogFacts:
        assert has_seen.wait(300)
        raise ConfigurationError("it has no such table")

    monkeypatch.setattr("jobs.query.queries.read_log_facts", wait_for_capture)
    kafka = KafkaSettings(bootstrap_servers="nowhere:1")
    plan = SinkPlan(
        "s", RedisSettings(), 1, "p", kafka, (), _NOTHING, once=False, open=lambda *_: open_memory(store, 1)
    )
    job = SinkJob(plan, _NOTHING, stop=threading.Event(), report=lambda _: None)
    failures: list[Exception] = []

    def run() -> None:
        try:
            job.run()
        except ConfigurationError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: is_running(MemorySink(store), 1))
    finally:
        has_seen.set()
        thread.join(300)
    assert failures
    assert not is_running(MemorySink(store), 1), "it has said goodbye"


def test_each_query_begins_with_a_connection_of_its_own_for_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password may have been changed meanwhile. The job stays the one that it was."""
    store, opened, closed = prepared_store(1), list[Any](), list[Any]()
    monkeypatch.setattr("jobs.query.job_lease.require_in_use", lambda *_: None)

    def open_sink(*_: object) -> Any:
        opened.append(open_memory(store, 1))
        sink = opened[-1].sink
        monkeypatch.setattr(sink, "close", lambda: closed.append(sink))
        return opened[-1]

    plan = SinkPlan("s", _NOTHING, 1, "p", _NOTHING, (), _NOTHING, once=False, open=open_sink)
    job_lease = JobLease(plan)
    lease = job_lease.reopened()
    assert lease.claim(opened[0].sink.claim) == 1
    assert job_lease.reopened() is lease
    assert closed == [opened[0].sink]
    monkeypatch.setattr(opened[0].records, "load", _NOTHING)
    lease.heartbeat()
    assert lease.claim(opened[1].sink.claim) == 2
    assert len(orjson.loads(store.records["g1.heartbeat"])["jobs"]) == 1


@pytest.mark.parametrize("gets_on", [False, True])
def test_two_jobs_that_overtake_each_other_do_not_do_so_for_ever(
    gets_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaking(_Queries):
        def run(self) -> bool:
            try:
                return super().run()
            finally:
                self.has_got_on = gets_on and self.run_number % 3 == 0

    monkeypatch.setattr("jobs.query.job.Backoff.next_s", lambda *_: 0.0)
    error = Overtaken("another job has applied more", hint="stop one of the two jobs")
    job = _Job(error, queries=Overtaking(error, queries=20))
    if gets_on:
        assert job.run() == 20
        return
    with pytest.raises(Overtaken) as raised:
        job.run()
    assert raised.value.hint == "stop one of the two jobs"
    assert job.queries.run_number == 5


def test_whatever_ends_a_job_that_a_newer_one_has_overtaken_is_that_one(looks: list[bool | Unavailable]) -> None:
    older = _Job(LockstepError("the query failed"))
    older.claimed()
    GenerationLease(open_memory(older.store), 1).claim(open_memory(older.store).sink.claim)
    with pytest.raises(Fenced, match="another job has begun"):
        older.run()
    looks.append(False)
    newest = _Job(LockstepError("no room"))
    newest.claimed()
    with pytest.raises(LockstepError, match="no room"):
        newest.run()


def test_a_job_that_waits_for_a_server_shows_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.generations.lease.HEARTBEAT_S", 0.0)
    job = _Job(Unavailable("the brokers don't answer", retry_after_s=0.2))
    lease, beats = job.claimed(), list[Any]()
    heartbeat = lease.heartbeat

    def beat() -> None:
        heartbeat()
        beats.append(orjson.loads(job.store.records["g1.heartbeat"])["jobs"])

    monkeypatch.setattr(lease, "heartbeat", beat)
    job.run()
    assert beats
    assert all(beats)
    assert not orjson.loads(job.store.records["g1.heartbeat"])["jobs"]


def test_a_job_that_is_to_stop_does_not_wait_for_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _Job(LockstepError("no room"))

    def asked_to_stop(*_: object) -> bool:
        job.stop.set()
        raise _AWAY

    monkeypatch.setattr("jobs.query.job.have_shapes_changed", asked_to_stop)
    with pytest.raises(LockstepError, match="no room"):
        job.run()
