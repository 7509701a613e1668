"""jobs.query.job"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
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
from cdc.protocol.control_records import ProgressRecord, SchemaRecord
from jobs.generations.lease import Clock, GenerationLease, is_running
from jobs.generations.set_aside import Aside, AsideState, Order, Wish, asides_name, dump_asides, load_asides
from jobs.query.captured_tables import Captured
from jobs.query.job import SinkJob
from jobs.query.log_facts import LogFacts
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import as_of_start, left_topics
from jobs.query.resume_check import TopicFacts
from jobs.query.set_aside_tables import Noted, SetAside
from jobs.query.sink_plan import SinkPlan
from jobs.report import SinkWaiting
from sinks.contract import OpenedSink, Progress, TablesRefused
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.builders import table
from tests.databases import until
from tests.generations import prepared_store
from tests.keepers import keeper_of, log_of

_NOTHING = cast("Any", None)


class _Job(SinkJob):
    """A job whose first query ends with an error, and the next one in order."""

    def __init__(self, error: LockstepError) -> None:
        self.reports: list[Any] = []
        self.stop = threading.Event()
        plan = SinkPlan("s", _NOTHING, 1, "p", _NOTHING, (), _NOTHING, once=False)
        super().__init__(plan, _NOTHING, stop=self.stop, report=self.reports.append)
        self.queries = 0
        self._error = error

    def _run_query(self) -> bool:
        self.queries += 1
        if self.queries == 2:
            return False
        self._known_shapes = [SchemaRecord(table(), 1)]
        raise self._error


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
    return found


_AWAY = Unavailable("the brokers don't answer", retry_after_s=0.01)


def test_another_query_prepares_the_shape_that_the_first_did_not_know(looks: list[bool | Unavailable]) -> None:
    job = _Job(LockstepError("not prepared for"))
    looks += [_AWAY, _AWAY, True]
    job.run()
    assert job.queries == 2
    assert [type(report) for report in job.reports] == [SinkWaiting] * 2, "nobody gives up where nobody can tell"


def test_without_another_shape_the_failure_is_final(looks: list[bool | Unavailable]) -> None:
    looks += [_AWAY, False]
    with pytest.raises(LockstepError, match="no room"):
        _Job(LockstepError("no room")).run()


@pytest.mark.parametrize(("denied", "queries"), [(["a"], 2), ([], 1), (["a", "b"], 1)])
def test_a_job_that_may_not_read_some_tables_any_more_begins_again_without_them(
    denied: list[str], queries: int, looks: list[bool | Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it may read none, nothing is gained by that."""
    error = LockstepError("the log can't be read: not authorized")
    monkeypatch.setattr("jobs.query.job.unreadable", lambda *_: {TableName("public", name): error for name in denied})
    looks.append(False)
    job = _Job(error)
    settings = RedisSettings(type="redis", url=SecretStr("redis://cache"))
    tables = [TableName("public", "a"), TableName("public", "b")]
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    job._plan = replace(job._plan, settings=settings, tables=tables, kafka=kafka)
    if queries == 2:
        job.run()
    else:
        with pytest.raises(LockstepError, match="not authorized"):
            job.run()
    assert job.queries == queries


_A, _B = TableName("public", "a"), TableName("public", "b")


def _refusing(refused: list[TableName], store: MemoryStore) -> tuple[SinkJob, OpenedSink, GenerationLease]:
    """A job whose last query has found that the destination refuses these of two tables."""
    job = _Job(LockstepError("never"))
    settings = RedisSettings(type="redis", url=SecretStr("redis://cache"))
    job._plan = replace(job._plan, settings=settings, tables=[_A, _B])
    errors = {name: LockstepError(f"no room in {name}", hint="make some") for name in refused}
    job._refused = TablesRefused(errors) if errors else None
    opened = open_memory(store)
    lease = GenerationLease(opened, 1)
    lease.claim(opened.sink.claim)
    return job, opened, lease


def test_a_table_that_the_destination_refuses_is_set_aside_with_its_reason() -> None:
    store = prepared_store(1)
    job, opened, lease = _refusing([_B], store)
    opened.generations.save_progress(Progress({}, 0, 0, 0, {}))
    job._obeyed = {_B: Order(Wish.APPLY, 3)}
    with pytest.raises(SetAside):
        job._set_refused_aside(opened, lease)
    aside = load_asides(opened.records, 1)[_B]
    assert (aside.state, aside.reason, aside.hint) == (AsideState.FAILED, "no room in public.b", "make some")
    assert aside.order == 3, "an order that came meanwhile is a newer one, and has it tried again"
    job._set_refused_aside(opened, lease)


def _tried(store: MemoryStore, aside: Aside) -> tuple[SinkJob, Callable[..., bool]]:
    """A job with a query for which it has set table b aside, and what looks beside it."""
    job, opened, lease = _refusing([], store)
    job._asides._asides = {_B: aside}
    opened.records.save(asides_name(1), dump_asides(job._asides.now))
    noted = Noted(job._asides.now)

    def looks(*, advanced: Sequence[str] = (), has_caught_up: bool = False) -> bool:
        resuming = frozenset() if has_caught_up else frozenset({"p.public.b"})
        keeper = SimpleNamespace(resuming=resuming, has_caught_up=has_caught_up, advanced=frozenset(advanced))
        return job._has_orders(lease, {}, noted, cast("Any", keeper))

    return job, looks


def test_a_query_ends_when_a_table_that_has_failed_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("jobs.query.set_aside_tables.now_ms", lambda: clock[0])
    _, looks = _tried(prepared_store(1), Aside(AsideState.FAILED, 5, retry_at_ms=clock[0] + 60_000))
    assert not looks()
    clock[0] += 60_000
    assert looks()


def test_a_table_that_is_tried_again_is_resumed_by_its_first_batch_and_then_has_caught_up() -> None:
    store = prepared_store(1)
    job, looks = _tried(store, Aside(AsideState.RETRYING, 5, reason="no room", tries=2, begun=True))
    records = MemorySink(store)
    looks(advanced=["p.public.a"])
    assert load_asides(records, 1)[_B].state is AsideState.RETRYING
    looks(advanced=["p.public.a", "p.public.b"])
    assert load_asides(records, 1) == job._asides.now == {_B: Aside(AsideState.RESUMING, 5, begun=True)}
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_asides(records, 1) == job._asides.now == {}


def test_what_looks_beside_a_query_that_has_ended_changes_nothing_any_more() -> None:
    store = prepared_store(1)
    job, looks = _tried(store, Aside(AsideState.RETRYING, 5, reason="no room"))
    job._asides._asides = {_B: Aside(AsideState.FAILED, 5, reason="no room", tries=1)}
    MemorySink(store).save(asides_name(1), dump_asides(job._asides.now))
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_asides(MemorySink(store), 1)[_B].state is AsideState.FAILED


@pytest.mark.parametrize("state", [AsideState.RETRYING, AsideState.RESUMING])
def test_a_table_that_fails_again_while_no_other_is_read_ends_no_job(state: AsideState) -> None:
    """Its neighbours may be paused, and go on without it."""
    store = prepared_store(1)
    job, opened, lease = _refusing([_B], store)
    opened.generations.save_progress(Progress({}, 0, 0, 0, {}))
    job._plan = replace(job._plan, tables=[_B])
    job._asides._asides = {_A: Aside(AsideState.PAUSED, 5), _B: Aside(state, 5, tries=3)}
    with pytest.raises(SetAside):
        job._set_refused_aside(opened, lease)
    asides = load_asides(opened.records, 1)
    assert (asides[_A].state, asides[_B].state) == (AsideState.PAUSED, AsideState.FAILED)
    assert asides[_B].tries == (4 if state is AsideState.RETRYING else 0)


def test_a_job_that_has_applied_all_there_is_has_no_table_left_that_it_tries_again() -> None:
    store = prepared_store(1)
    job, opened, lease = _refusing([], store)
    job._asides._asides = {
        _A: Aside(AsideState.PAUSED, 5),
        _B: Aside(AsideState.RETRYING, 5, reason="no room", tries=2),
    }
    job._asides.note_all_applied(lease)
    expected = {_A: Aside(AsideState.PAUSED, 5), _B: Aside(AsideState.RESUMING, 5)}
    assert load_asides(opened.records, 1) == job._asides.now == expected
    job._plan = replace(job._plan, once=True)
    job._check_all_applied()


@pytest.mark.parametrize(("refused", "has_progress"), [([_A, _B], True), ([_B], False)])
def test_where_no_table_is_left_or_nothing_was_ever_applied_the_error_is_that_of_the_sink(
    refused: list[TableName], has_progress: bool
) -> None:
    store = prepared_store(1)
    job, opened, lease = _refusing(refused, store)
    if has_progress:
        opened.generations.save_progress(Progress({}, 0, 0, 0, {}))
    with pytest.raises(LockstepError, match=f"no room in {refused[0]}") as caught:
        job._set_refused_aside(opened, lease)
    assert not isinstance(caught.value, TablesRefused)
    assert load_asides(opened.records, 1) == {}


@pytest.mark.parametrize(
    ("state", "once", "stopped", "fails"),
    [
        (AsideState.FAILED, True, False, True),
        (AsideState.FAILED, False, False, False),
        (AsideState.FAILED, True, True, False),
        (AsideState.PAUSED, True, False, False),
    ],
)
def test_a_job_that_is_to_apply_all_there_is_fails_where_a_table_was_not_applied(
    state: AsideState, once: bool, stopped: bool, fails: bool
) -> None:
    job = _Job(LockstepError("never"))
    job._plan = replace(job._plan, once=once)
    job._asides._asides = {_A: Aside(AsideState.RESUMING, 5), _B: Aside(state, 5, reason="no room", hint="make some")}
    job.queries = 1
    if stopped:
        job.stop.set()
    if not fails:
        job.run()
        return
    with pytest.raises(LockstepError, match=r"'s' hasn't got all: public\.b is set aside.*no room") as caught:
        job.run()
    assert caught.value.hint == "make some; then `lockstep resume s public.b`"


def test_a_refused_table_of_another_shape_is_prepared_again_first(looks: list[bool | Unavailable]) -> None:
    looks.append(True)
    job = _Job(TablesRefused({_B: LockstepError("no such column")}))
    job.run()
    assert (job.queries, job._refused) == (2, None)
    looks.append(False)
    job = _Job(TablesRefused({_B: LockstepError("no room")}))
    job.run()
    assert job._refused is not None, "the next query begins with it"


def test_what_has_nothing_to_do_with_shapes_is_final_at_once(looks: list[bool | Unavailable]) -> None:
    with pytest.raises(Fenced, match="another job"):
        _Job(Fenced("another job has become the writer")).run()


def test_a_table_that_is_resumed_too_late_does_not_end_the_job_of_the_others() -> None:
    """The next start sets that table aside, if it is to blame."""
    error = PositionMismatch("deletes may be missing")
    with pytest.raises(PositionMismatch):
        _Job(error).run()
    job = _Job(error)
    job._asides._asides = {table().name: Aside(AsideState.RESUMING, 5)}
    job.run()
    assert job.queries == 2
    again = _Job(error)
    again._asides._asides = again._checked_again = job._asides.now
    with pytest.raises(PositionMismatch):
        again.run()


def test_a_job_that_another_one_has_overtaken_begins_again_unless_it_is_the_older_one(
    looks: list[bool | Unavailable],
) -> None:
    newer = _Job(Overtaken("another job has applied more"))
    newer.run()
    assert newer.queries == 2
    older = _Job(Overtaken("another job has applied more"))
    store = MemoryStore()
    older._lease = GenerationLease(open_memory(store), 1, clock=Clock(itertools.count(0.0, 10.0).__next__))
    older._lease.claim(lambda: 0)
    GenerationLease(open_memory(store), 1).claim(lambda: 0)
    with pytest.raises(Fenced, match="another job has begun"):
        older.run()
    assert older.queries == 1


@pytest.mark.parametrize("error", [Fenced("another job has become the writer"), DataLost("it was put back")])
def test_a_job_whose_destination_was_put_back_begins_again(
    error: LockstepError, looks: list[bool | Unavailable]
) -> None:
    """Its next query finds what is missing, and names the way out."""
    job, store = _Job(error), prepared_store(1)
    opened = open_memory(store, 1)
    job._lease = GenerationLease(opened, 1, clock=Clock(itertools.count(0.0, 10.0).__next__))
    job._lease.claim(opened.sink.claim)
    before = store.records["g1.heartbeat"]
    job._lease.claim(opened.sink.claim)
    store.records["g1.heartbeat"], store.generation(1).fence = before, 1
    job.run()
    assert job.queries == 2


def test_a_job_that_waits_for_the_log_shows_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store, has_seen = prepared_store(1), threading.Event()
    monkeypatch.setattr("jobs.query.job.TICK_S", 0.01)
    monkeypatch.setattr("jobs.generations.lease.HEARTBEAT_S", 0.01)
    monkeypatch.setattr("jobs.query.job.require_in_use", lambda *_: None)

    def wait_for_capture(*_: object, **__: object) -> LogFacts:
        assert has_seen.wait(300)
        raise ConfigurationError("it has no such table")

    monkeypatch.setattr("jobs.query.job.read_log_facts", wait_for_capture)
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
    monkeypatch.setattr("jobs.query.job.require_in_use", lambda *_: None)

    def open_sink(*_: object) -> Any:
        opened.append(open_memory(store, 1))
        sink = opened[-1].sink
        monkeypatch.setattr(sink, "close", lambda: closed.append(sink))
        return opened[-1]

    plan = SinkPlan("s", _NOTHING, 1, "p", _NOTHING, (), _NOTHING, once=False, open=open_sink)
    job = SinkJob(plan, _NOTHING, stop=threading.Event(), report=lambda _: None)
    lease = job._opened_lease()
    assert lease.claim(opened[0].sink.claim) == 1
    assert job._opened_lease() is lease
    assert closed == [opened[0].sink]
    monkeypatch.setattr(opened[0].records, "load", _NOTHING)
    lease.heartbeat()
    assert lease.claim(opened[1].sink.claim) == 2
    assert len(orjson.loads(store.records["g1.heartbeat"])["jobs"]) == 1


@pytest.mark.parametrize("gets_on", [False, True])
def test_two_jobs_that_overtake_each_other_do_not_do_so_for_ever(
    gets_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaking(_Job):
        def _run_query(self) -> bool:
            self.queries += 1
            if self.queries == 20:
                return False
            if gets_on and self.queries % 3 == 0:
                self._has_got_on = True
            raise self._error

    monkeypatch.setattr("jobs.query.job.Backoff.next_s", lambda *_: 0.0)
    job = Overtaking(Overtaken("another job has applied more", hint="stop one of the two jobs"))
    if gets_on:
        job.run()
        assert job.queries == 20
        return
    with pytest.raises(Overtaken) as raised:
        job.run()
    assert raised.value.hint == "stop one of the two jobs"
    assert job.queries == 5


def test_whatever_ends_a_job_that_a_newer_one_has_overtaken_is_that_one(looks: list[bool | Unavailable]) -> None:
    older, store = _Job(LockstepError("the query failed")), MemoryStore()
    older._lease = GenerationLease(open_memory(store), 1)
    older._lease.claim(lambda: 0)
    GenerationLease(open_memory(store), 1).claim(lambda: 0)
    with pytest.raises(Fenced, match="another job has begun"):
        older.run()
    looks.append(False)
    newest = _Job(LockstepError("no room"))
    newest._lease = GenerationLease(open_memory(store), 1)
    newest._lease.claim(lambda: 0)
    with pytest.raises(LockstepError, match="no room"):
        newest.run()


def test_a_job_that_waits_for_a_server_shows_that_it_runs(looks: list[bool | Unavailable]) -> None:
    job = _Job(Unavailable("the brokers don't answer", retry_after_s=0.2))
    store = MemoryStore()
    job._lease = GenerationLease(open_memory(store), 1, clock=Clock(itertools.count(0.0, 10.0).__next__))
    beats: list[Any] = []
    heartbeat = job._lease.heartbeat
    job._lease.heartbeat = lambda: (heartbeat(), beats.append(orjson.loads(store.records["g1.heartbeat"])["jobs"]))  # type: ignore[method-assign,assign,func-returns-value]
    job.run()
    assert beats
    assert all(beats)
    assert not orjson.loads(store.records["g1.heartbeat"])["jobs"]


def test_a_watermark_stays_where_a_table_joins_and_names_it_until_it_is_true_of_that_too() -> None:
    """A sink's watermark says that all of its tables are applied up to there."""
    stored = Progress({("p.public.a", 0): 5}, 100, 7, 0, {})

    def keeper(stored: Progress, *topics: str, uncopied: str = "") -> ProgressKeeper:
        opened = open_memory(MemoryStore())
        opened.sink.prepare([table()])
        opened.sink.claim()
        log = log_of(*topics, uncopied=uncopied)
        return keeper_of(opened.generations, log, stored, selection="after")

    a, b = ("p.public.a", 0), ("p.public.b", 0)
    alone = keeper(stored, "p.public.a").batch_applied({a: 5}, rejected=0)
    assert (alone.watermark_lsn, alone.joining, alone.selection) == (100, (), "after")
    waiting = keeper(stored, "p.public.a", uncopied="b").batch_applied({a: 5}, rejected=0)
    assert (waiting.watermark_lsn, waiting.joining) == (100, ("p.public.b",)), "its copy hasn't begun"
    begun = keeper(stored, "p.public.a", "p.public.b").batch_applied({a: 5, b: 1}, rejected=0)
    assert (begun.watermark_lsn, begun.commit_time_ms, begun.joining) == (100, 7, ("p.public.b",))
    again = keeper(begun, "p.public.a", "p.public.b")
    again.learn([ProgressRecord(100, 7, {a[0]: (5,), b[0]: (3,)})])
    assert again.batch_applied({b: 2}, rejected=0).joining == ("p.public.b",), "also after a restart in the middle"
    whole = again.batch_applied({b: 3}, rejected=0)
    assert (whole.watermark_lsn, whole.joining) == (100, ()), "also where nothing was committed meanwhile"
    left = keeper(begun, "p.public.a").batch_applied({a: 5}, rejected=0)
    assert (left.watermark_lsn, left.joining) == (100, ()), "it was true of the others all the time"


_HOUR_MS = 3_600_000


def _refused_in_its_first_batch(clock: list[int]) -> OpenedSink:
    """A sink that has table a for long, after a batch that has written rows of table b, and was refused.

    ``clock`` is the time, in milliseconds. An hour later the sink has gone on with a alone.
    """
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    at = ("p.public.a", 0)
    opened.generations.save_progress(Progress({at: 5}, 100, 7, clock[0] - _HOUR_MS, {at[0]: "id"}))
    stored = opened.generations.load_progress()
    keeper_of(opened.generations, _log("a", "b"), stored, now_ms=lambda: clock[0]).begin()
    clock[0] += _HOUR_MS
    stored, asides = opened.generations.load_progress(), {"p.public.b": Aside(AsideState.FAILED, clock[0])}
    alone = keeper_of(opened.generations, _log("a"), stored, now_ms=lambda: clock[0], asides=asides)
    alone.learn([ProgressRecord(200, 200, {at[0]: (6,), "p.public.b": (9,)})])
    alone.batch_applied({at: 6}, rejected=0)
    return opened


_PLAN = SinkPlan("s", _NOTHING, 1, "p", _NOTHING, (), _NOTHING, once=False)


def _log(*names: str, b_is: str = "theirs") -> LogFacts:
    ids = {"a": "id", "b": b_is}
    facts = {f"p.public.{name}": TopicFacts(ids[name], 1, 24 * _HOUR_MS) for name in names}
    return LogFacts({}, [], facts, {f"p.public.{name}": TableName("public", name) for name in names})


@pytest.mark.parametrize(
    ("hours", "b_is", "refused"),
    [(22, "theirs", None), (24, "theirs", "deletes may be missing"), (1, "another", "was recreated")],
)
def test_rows_of_a_table_that_failed_in_its_first_batch_may_have_lost_their_deletes(
    hours: int, b_is: str, refused: str | None
) -> None:
    """The destination may have rows of it, though nothing counts as applied."""
    clock = [1_000 * _HOUR_MS]
    opened = _refused_in_its_first_batch(clock)
    clock[0] += hours * _HOUR_MS + 1
    stored = opened.generations.load_progress()
    assert stored is not None
    assert stored.joining == ("p.public.b",)
    job = SinkJob(_PLAN, _NOTHING, stop=threading.Event(), report=lambda _: None)
    job._asides._asides = {_B: Aside(AsideState.RESUMING, 5)}
    lease = GenerationLease(opened, 1)
    lease.claim(opened.sink.claim)
    log = _log("a", "b", b_is=b_is)
    cluster = cast("Any", SimpleNamespace(begin_offsets=lambda partitions: dict.fromkeys(partitions, 0)))
    ends = {("p.public.a", 0): 6, ("p.public.b", 0): 9}
    if refused is None:
        job._check_resuming(cluster, log, stored, lease, {}, ends=ends, now_ms=clock[0])
        asides = {"p.public.b": job._asides.now[_B]}
        keeper = keeper_of(opened.generations, log, stored, now_ms=lambda: clock[0], asides=asides)
        clock[0] += _HOUR_MS
        with pytest.raises(PositionMismatch, match=r"topic p\.public\.b keeps tombstones"):
            keeper.batch_applied({("p.public.b", 0): 9}, rejected=0)
        return
    with pytest.raises(SetAside):
        job._check_resuming(cluster, log, stored, lease, {}, ends=ends, now_ms=clock[0])
    aside = load_asides(opened.records, 1)[_B]
    assert aside.state is AsideState.FAILED
    assert refused in str(aside.reason)


def test_a_table_that_is_read_for_the_first_time_is_no_table_that_had_left() -> None:
    """It is paused like any other: the watermark waits for it. One that had left holds nothing up."""
    opened = _refused_in_its_first_batch([1_000 * _HOUR_MS])
    stored = opened.generations.load_progress()
    assert stored is not None
    assert "p.public.b" in stored.left_at_ms
    assert left_topics(stored) == set()
    assert left_topics(replace(stored, joining=())) == {"p.public.b"}
    assert left_topics(replace(stored, joining=(), watermark_lsn=0)) == set()


def test_a_sink_that_was_away_is_not_behind_because_of_a_table_that_it_has_just_begun_to_read() -> None:
    at, late = ("p.public.a", 0), ("p.public.late", 0)
    stored = Progress({at: 5, late: 0}, 100, 7, 1_000, {}, left_at_ms={late[0]: 900})
    quiet = as_of_start(stored, {at: 5, late: 9}, 900_000)
    assert quiet is not None
    assert (quiet.updated_at_ms, quiet.left_at_ms) == (900_000, {late[0]: 900})


def test_the_watermark_waits_for_a_table_whose_copy_has_not_begun() -> None:
    """The sink reads nothing of it, and is said to have it once its copy is there."""
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    topic = "p.public.orders"
    keeper = keeper_of(opened.generations, log_of(topic, uncopied="late"))
    keeper.batch_applied({(topic, 0): 5}, rejected=0)
    for record in (
        ProgressRecord(100, 0, {topic: (5,), "p.public.late": (0,)}, uncopied=("p.public.late",)),
        ProgressRecord(200, 0, {topic: (5,), "p.public.late": (3,)}),
    ):
        keeper.learn([record])
        assert keeper.batch_applied({(topic, 0): 5}, rejected=0).watermark_lsn == 0


def test_a_table_that_joins_is_read_from_now_on_however_long_the_sink_was_away() -> None:
    """Nothing of it is older than the first look at it: no delete can be missing."""
    at, late = ("p.public.a", 0), ("p.public.late", 0)
    stored = Progress({at: 5}, 100, 7, 1_000, {})
    quiet = as_of_start(stored, {at: 5, late: 9}, 900_000)
    assert quiet is not None
    assert quiet.updated_at_ms == 900_000
    assert as_of_start(stored, {at: 6, late: 9}, 900_000) is stored, "a table that it had has gone on"


def test_a_running_view_learns_that_a_table_left_and_waits_until_it_is_back() -> None:
    orders, items = TableName("public", "orders"), TableName("public", "items")
    before = Captured([orders], selection="before")
    found = [before]
    settings = cast("Any", SimpleNamespace(view=object(), tables=["public.orders"]))
    plan = SinkPlan("v", settings, 1, "p", _NOTHING, (), _NOTHING, once=False, captured=lambda: found[-1])
    job = SinkJob(plan, _NOTHING, stop=threading.Event(), report=lambda _: None)
    job._look_at_captured()
    watch = job._captured_watch()
    assert watch is not None
    found.append(Captured([orders, items], selection="more"))
    assert not watch.has_changed([ProgressRecord(1, 0, {}, selection="more")]), "it doesn't read that one"
    found.append(Captured([items], selection="others"))
    assert watch.has_changed([ProgressRecord(2, 0, {}, selection="others")])
    with pytest.raises(Unavailable, match=r"the view reads public\.orders, which isn't captured"):
        job._look_at_captured()
    found.append(before)
    job._look_at_captured()
    assert job._tables == [orders]


class _Lease:
    """Of a job that nobody else takes over from."""

    def claim(self, claim: Any) -> int:
        return int(claim())

    def check(self) -> None: ...


@pytest.mark.parametrize(("asides", "skipped"), [(True, False), (False, True), (False, False)])
def test_a_sink_none_of_whose_tables_is_captured_lacks_nothing_unless_it_did_before(
    asides: bool, skipped: bool
) -> None:
    at, name = ("p.public.orders", 0), table().name
    opened = open_memory(prepared_store(1))
    opened.sink.claim()
    opened.generations.save_progress(
        Progress({at: 5}, 100, 7, 1_000, {at[0]: "id"}, skipped={at: 9} if skipped else {}, selection="before")
    )
    plan = SinkPlan("s", _NOTHING, 1, "p", _NOTHING, (), _NOTHING, once=False)
    job = SinkJob(plan, _NOTHING, stop=threading.Event(), report=lambda _: None)
    job._captured = Captured((), selection="none")
    if asides:
        job._asides._asides = {name: Aside(AsideState.PAUSED, 1)}
    keeper = job._keeper_of_none(opened, cast("Any", _Lease()))
    if asides or skipped:
        assert keeper is None
        return
    assert keeper is not None
    raised = keeper.learn([ProgressRecord(200, 8, {at[0]: (9,)}, selection="none")], selection="none")
    assert raised is not None
    assert (raised.watermark_lsn, raised.selection, raised.next_offsets) == (200, "none", {at: 5})
    assert raised.left_at_ms == {at[0]: 1_000}, "what comes of it once it is back is no matter of this watermark"


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
) -> tuple[SinkJob, GenerationLease]:
    """A job none of whose tables is captured any more."""
    monkeypatch.setattr("jobs.query.job.TopicAdmin", lambda _: SimpleNamespace(create=print, missing=lambda _: []))
    monkeypatch.setattr("jobs.query.job.ProgressReader", log)
    monkeypatch.setattr("jobs.query.job._ORDERS_LOOK_S", 0.001)
    opened = open_memory(store, 1)
    opened.sink.claim()
    at = ("p.public.orders", 0)
    opened.generations.save_progress(Progress({at: 5}, 100, 7, 1_000, {at[0]: "id"}, selection="before"))
    settings = cast("Any", SimpleNamespace(tables=[], view=None))
    kafka = KafkaSettings(bootstrap_servers="nowhere:1")
    plan = SinkPlan("s", settings, 1, "p", kafka, (), _NOTHING, once=False, captured=look)
    job = SinkJob(plan, _NOTHING, stop=threading.Event(), report=lambda _: None)
    job._captured = Captured((), selection="none")
    return job, GenerationLease(opened, 1, clock=Clock(itertools.count(0.0, 10.0).__next__))


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

    job, lease = _without_tables(monkeypatch, store, Log(), lambda: Captured((), selection="none"))
    lease.claim(opened.sink.claim)
    before = store.records["g1.heartbeat"]
    with pytest.raises(DataLost, match="put back"):
        job._wait_for_orders(opened, lease, {})


def test_what_a_job_without_tables_could_not_learn_yet_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks = prepared_store(1), list[int]()

    def look() -> Captured:
        looks.append(1)
        if len(looks) == 1:
            raise Unavailable("Kafka doesn't answer")
        return Captured((), selection="newer")

    log = _Log(ProgressRecord(200, 8, {}, selection="newer"))
    job, lease = _without_tables(monkeypatch, store, log, look)
    stored: list[int] = []

    def tell(progress: Progress | None) -> None:
        if progress is not None:
            stored.append(progress.watermark_lsn)
            job._stop.set()
        assert log.asked < 100, "the record was dropped"

    monkeypatch.setattr(job, "_tell_raised", tell)
    assert not job._wait_for_orders(open_memory(store, 1), lease, {})
    assert (stored, len(looks)) == ([200], 2)


def test_a_sink_that_was_away_for_long_and_missed_nothing_is_not_behind() -> None:
    """Its first batch may come before the thread that follows the watermark has looked once."""
    at, other = ("p.public.a", 0), ("p.public.b", 0)
    stored = Progress({at: 5, other: 3}, 100, 7, 1_000, {})
    assert as_of_start(stored, {at: 6}, 9_000) is stored
    again = replace(stored, reads_again={at: 4})
    assert as_of_start(again, {at: 5}, 9_000) is again, "what is read again isn't complete"
    started = as_of_start(stored, {at: 5}, 9_000)
    assert started is not None
    assert (started.updated_at_ms, started.left_at_ms) == (9_000, {"p.public.b": 1_000})
    assert as_of_start(None, {at: 0}, 9_000) is None
    # Of a part that was left out nobody knows more than before.
    beyond = as_of_start(replace(stored, skipped={at: 9}), {at: 9}, 9_000)
    assert beyond is not None
    assert (beyond.updated_at_ms, beyond.read_at_ms) == (1_000, 9_000)
    behind = replace(stored, skipped={at: 8})
    assert as_of_start(behind, {at: 9}, 9_000) is behind


def test_a_topic_that_is_read_no_longer_keeps_the_time_at_which_itleft_topics() -> None:
    """When it is read again it is a table that joins: the watermark isn't true of it yet."""
    stored = Progress({("p.public.a", 0): 5, ("p.public.b", 0): 3}, 100, 7, 1_000, {})

    def after(before: Progress, *topics: str) -> Progress:
        opened = open_memory(MemoryStore())
        opened.sink.prepare([table()])
        opened.sink.claim()
        return keeper_of(opened.generations, log_of(*topics), before).batch_applied({("p.public.a", 0): 6}, rejected=0)

    without = after(stored, "p.public.a")
    assert (without.left_at_ms, without.watermark_lsn) == ({"p.public.b": 1_000}, 100)
    later = replace(without, updated_at_ms=9_000)
    assert after(later, "p.public.a").left_at_ms == {"p.public.b": 1_000}
    back = after(later, "p.public.a", "p.public.b")
    assert (back.left_at_ms, back.watermark_lsn) == ({"p.public.b": 1_000}, 100), "it lacks deletes from that time on"
    assert (without.joining, back.joining) == ((), ("p.public.b",))


def test_a_job_that_is_to_stop_does_not_wait_for_the_brokers(looks: list[bool | Unavailable]) -> None:
    job = _Job(LockstepError("no room"))
    looks += [_AWAY] * 100
    job.stop.set()
    job._known_shapes = [SchemaRecord(table(), 1)]
    assert not job._have_shapes_changed()


@pytest.mark.parametrize(
    ("state", "awaited", "reads", "expected"),
    [
        (AsideState.PAUSED, True, False, 100),
        (AsideState.FAILED, True, False, 100),
        (AsideState.RESUMING, True, True, 100),
        (AsideState.OUT, False, False, 200),
        (AsideState.RESUMING, False, True, 100),
        # It came back, and can't be read: since nobody has taken it out, nobody may be told that the sink has all.
        (AsideState.FAILED, False, False, 100),
        (None, False, True, 100),
    ],
)
def test_the_watermark_waits_for_a_paused_table_and_not_for_one_that_was_out(
    state: AsideState | None, awaited: bool, reads: bool, expected: int
) -> None:
    """One that comes back after it was out lacks what the watermark has passed meanwhile."""
    kept, aside = "p.public.a", "p.public.b"
    stored = Progress({(kept, 0): 5, (aside, 0): 3}, 100, 7, 0, {}, left_at_ms={aside: 4})
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    log = log_of(*([kept, aside] if reads else [kept]))
    asides = {} if state is None else {aside: Aside(state, 5, awaited=awaited)}
    keeper = keeper_of(opened.generations, log, stored, asides=asides)
    keeper.learn([ProgressRecord(200, 200, {kept: (6,), aside: (9,)})])
    progress = keeper.batch_applied({(kept, 0): 6}, rejected=0)
    assert progress.watermark_lsn == expected
    lacks = (reads or state is AsideState.FAILED) and not awaited
    assert progress.joining == ((aside,) if lacks else ()), "it isn't true of one that was out"
    assert progress.next_offsets[aside, 0] == 3
    assert progress.left_at_ms == {aside: 4}
