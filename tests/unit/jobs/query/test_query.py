"""What a query decides by itself."""

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from cdc.model.errors import DataLost, Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.event import Position
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord, TopicIdentity
from jobs.dead_letters.limit import TooManyOpen
from jobs.executor.driver_line import Told
from jobs.executor.result import Failure, RejectedEvent, Result
from jobs.generations.lease import GenerationLease
from jobs.query.captured_tables import Captured, CapturedWatch
from jobs.query.long_batch_listener import TaskSlots
from jobs.query.query import SinkQuery, lacks_record, told_topics
from jobs.query.resume_check import TopicFacts
from jobs.query.threads import QueryState
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_shards import ViewShards
from jobs.report import SinkWaiting
from sinks.contract import TablesRefused
from sinks.memory import MemoryStore, open_memory
from tests.builders import table
from tests.generations import Time, prepared_store
from tests.keepers import keeper_of, log_of

P0 = ("a", 0)
FEW = [f"t{number}" for number in range(64)]
MANY = [f"t{number}" for number in range(2_000)]


def test_tasks_are_told_of_all_topics_where_there_are_few() -> None:
    assert told_topics(["t1"], frozenset(), FEW) == frozenset(FEW)


def test_of_many_topics_tasks_are_told_of_those_that_batches_had_lately() -> None:
    first = told_topics(["t1"], frozenset(), MANY)
    assert first == {"t1"}
    assert told_topics(["t2", "t3"], first, MANY) == {"t1", "t2", "t3"}


def test_what_was_told_does_not_grow_without_end() -> None:
    assert told_topics(["t1999"], frozenset(FEW), MANY) == {"t1999"}


def test_a_batch_with_many_topics_has_all_of_them() -> None:
    assert told_topics(MANY, frozenset(FEW), MANY) == frozenset(MANY)


def test_a_task_that_is_behind_and_says_only_that_it_lives_does_not_pass_for_one_at_work() -> None:
    class Behind:
        is_behind = True

    class Listening(SinkQuery):
        def __init__(self) -> None:
            self._state, self._keeper = QueryState(), cast("Any", Behind())
            self._state.under_way = (1, 0.0)
            self._is_told_stored, self._shards, self._rejected_since = True, None, 0

    query = Listening()
    query._told(Told())
    assert query._state.heard_at == 0
    assert query._state.is_overdue(1_000, told_at_s=0)
    query._told(Told(has_got_on=True))
    assert query._state.heard_at > 0, "a step may be of very much"
    query._state.heard_at = 0
    query._keeper = cast("Any", type("UpToDate", (), {"is_behind": False})())
    query._told(Told())
    assert query._state.heard_at > 0


@pytest.mark.parametrize("is_consistent", [True, False])
def test_only_the_offsets_of_steps_must_be_with_the_rows(is_consistent: bool) -> None:
    stored: list[Any] = []

    class Keeper:
        is_behind = False

        def batch_applied(self, ends: object, *, rejected: int, written: object) -> Any:
            stored.append((ends, rejected, written))
            return SimpleNamespace(rejected=0, watermark_lsn=0)

    class Listening(SinkQuery):
        def __init__(self) -> None:
            self._state, self._keeper = QueryState(), cast("Any", Keeper())
            self._task = cast(
                "Any", SimpleNamespace(sink="dwh", generation=1, steps=object() if is_consistent else None)
            )
            self._topics = cast("Any", SimpleNamespace(heard_of=lambda _: None))
            self._report, self._batch_id, self._part_began = lambda _: None, 1, 0.0
            self._is_told_stored, self._shards, self._rejected_since = True, None, 0

    reached = {("a", 0): 5}
    assert Listening()._told(Told(next_offsets=reached))
    assert stored == [(reached, 0, reached if is_consistent else {})]


class Listening(SinkQuery):
    """Hears of the tasks of a view in two shards."""

    def __init__(self, keeper: Any, shards: ViewShards) -> None:
        self._state, self._keeper, self._shards = QueryState(), keeper, shards
        self._task = cast("Any", SimpleNamespace(sink="cache", generation=3, steps=None))
        self._topics = cast("Any", SimpleNamespace(heard_of=lambda _: None))
        self._report, self._batch_id, self._part_began = lambda _: None, 1, 0.0
        self._is_told_stored, self._rejected_since = True, 0


def test_a_view_gets_on_with_the_last_of_its_shards_and_all_is_stored_at_once() -> None:
    """A shard's state that was put back to where the view is must not seem to be good."""
    done: list[Any] = []
    is_down = True

    class Keeper:
        is_behind = False

        def batch_applied(self, ends: object, *, rejected: int, shards: Any) -> Any:
            if is_down:
                raise Unavailable("it is down")
            done.append((ends, shards))
            return SimpleNamespace(rejected=0, watermark_lsn=0)

    known = ViewShards([{P0: 1}, {P0: 1}])
    query = Listening(Keeper(), known)
    assert not query._told(Told(next_offsets={P0: 5}, shard=0))
    assert (known.stored(0), done) == ({P0: 1}, [])
    is_down = False
    assert query._told(Told(next_offsets={P0: 4}, shard=1))
    assert done == [({P0: 4}, [{P0: 5}, {P0: 4}])]
    assert (known.stored(0), known.stored(1)) == ({P0: 5}, {P0: 4})
    # A batch of which one shard couldn't begin says nothing new of the view.
    result = Result(reached={0: {P0: 9}})
    query._reach_of_shards(result, known)
    assert (result.next_offsets, known.stored(0)) == ({}, {P0: 5})
    result = Result(reached={0: {P0: 9}, 1: {P0: 7}})
    query._reach_of_shards(result, known)
    assert result.next_offsets == {P0: 7}


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (Unavailable("it is down", retry_after_s=4.0), False),
        (DataLost("it was put back"), True),
        (LockstepError("it is full"), True),
    ],
)
def test_what_one_shard_fails_with_is_known_at_once(error: LockstepError, ends: bool) -> None:
    """Its batch may go on for an hour: another shard is being built."""
    reports: list[Any] = []
    query = Listening(SimpleNamespace(is_behind=True), ViewShards([{}, {}]))
    query._report = reports.append
    assert query._told(Told(failure=Failure.of(error), shard=1))
    if ends:
        assert (type(query._state.failure), str(query._state.failure), reports) == (type(error), str(error), [])
    else:
        assert (query._state.failure, reports) == (None, [SinkWaiting("cache", "it is down", 4.0)])


@pytest.mark.parametrize("error", [None, Unavailable("no brokers"), DataLost("put back"), LockstepError("too many")])
def test_what_one_shard_rejects_is_kept_before_it_is_told_to_be(error: LockstepError | None) -> None:
    """Its batch may go on for an hour: another shard is being built."""
    event = RejectedEvent(Position("shop.views.v", 0, 0), b'{"id":1}', b"{}", "0" * 28, "too large")
    kept: list[object] = []

    class Keeping(Listening):
        def _keep_rejections(self, result: Result | Told) -> None:
            if error is not None:
                raise error
            kept.append((result.rejected, result.resolved))

    opened = open_memory(prepared_store(1))
    keeper = keeper_of(opened.generations, log_of("a"))
    reports: list[Any] = []
    query = Keeping(keeper, ViewShards([{}, {}]))
    query._report = reports.append
    assert query._told(Told(rejected=[event], resolved=[("shop.views.v", b'{"id":2}')], shard=1)) is (error is None)
    if error is not None:
        ends = not isinstance(error, Unavailable) or isinstance(error, DataLost)
        assert (query._state.failure, kept) == (error if ends else None, [])
        return
    assert kept == [([event], [("shop.views.v", b'{"id":2}')])]
    for _ in range(2):
        assert query._told(Told(next_offsets={P0: 5}, shard=1))
    stored = opened.generations.load_progress()
    assert stored is not None
    assert ([report.rejected for report in reports], stored.rejected) == ([1, 0], 1)


def test_a_store_that_was_put_back_gets_no_word_of_what_its_shards_had_reached() -> None:
    """Redis fails over, and has rows and progress as of 8; the shards have forgotten what they wrote up to 10.

    Whoever begins then must find both at 8: a state that has forgotten what the store lacks is built again.
    """
    store = MemoryStore()
    opened = open_memory(store)
    opened.sink.prepare([table()])
    opened.sink.claim()
    topic = P0[0]
    keeper = keeper_of(opened.generations, log_of(topic))
    query = Listening(keeper, ViewShards([{}, {}]))
    for shard in (0, 1):
        assert query._told(Told(next_offsets={P0: 8}, shard=shard))
    as_of_8 = opened.generations.load_progress()
    for shard in (0, 1):
        assert query._told(Told(next_offsets={P0: 10}, shard=shard))
    store.generation(1).progress = as_of_8
    assert not query._told(Told(next_offsets={P0: 20}, shard=0))
    assert isinstance(query._state.failure, DataLost)
    assert store.records == {}
    stored = opened.generations.load_progress()
    assert stored == as_of_8
    assert stored is not None
    again = ViewShards.of_progress(stored.shards, count=2, reached=stored.next_offsets)
    assert (again.stored(0), again.stored(1), again.least) == ({P0: 8},) * 3


def test_what_a_recreated_topic_has_got_raises_no_watermark() -> None:
    """Its offsets begin again: all of them are below those that were applied."""
    topic = "shop.public.orders"
    record = ProgressRecord(200, 0, {topic: (1,)}, epoch=1)

    class Reader:
        known_at_ms = 0
        identities: ClassVar = {topic: TopicIdentity("second", 1)}

        def new_records(self, _: object) -> list[ProgressRecord]:
            return [record]

    class Keeper:
        learned: ClassVar[list[ProgressRecord]] = []

        def learn(self, records: list[ProgressRecord], *, selection: str, known_at_ms: int) -> None:
            self.learned += records

    class Reading(SinkQuery):
        def __init__(self) -> None:
            self._unlearned, self._progress_reader, self._keeper = [], cast("Any", Reader()), cast("Any", Keeper())
            self._bell = _namespace(take_heard=tuple)
            self._captured = None
            self._state = QueryState()
            self._topics = TopicWatch("cache", {topic: TopicFacts("first", 1, 0)})

    query = Reading()
    with pytest.raises(PositionMismatch, match="was recreated"):
        query._read_progress()
    assert Keeper.learned == []
    Reader.identities = {topic: TopicIdentity("first", 1)}
    assert query._read_progress()
    assert Keeper.learned == [record]


@pytest.mark.parametrize(
    ("parts", "stops"), [([["a"], ["b"]], False), ([["a"], ["a"]], False), ([["a"], ["b", "c"]], True)]
)
def test_a_view_that_refuses_more_rows_than_a_batch_may_stops_whatever_the_parts(
    parts: list[list[str]], stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is refused twice is one."""
    monkeypatch.setattr("jobs.executor.result.REJECTIONS_MAX", 2)
    monkeypatch.setattr("jobs.query.query.range_frame", lambda *_: None)
    at = Position("shop.views.v", 0, 0)
    left = [
        Result(rejected=[RejectedEvent(at, key.encode(), b"{}", "0" * 28, "too long") for key in part], has_more=True)
        for part in parts
    ]
    left[-1].has_more = False
    kept: list[list[bytes]] = []

    class View(SinkQuery):
        def __init__(self) -> None:
            self._task = cast("Any", SimpleNamespace(view=object(), tables={}, sink="v"))
            self._shards, self._shard_count = None, 1
            self._topics, self._cluster = cast("Any", SimpleNamespace(check=lambda *_: None)), cast("Any", None)
            self._takes_slots, self._batch_id = False, -1
            self._keeper = cast("Any", SimpleNamespace(reached={}, commit_time_ms=0))
            self._batch_minute_ms = 0
            self._state, self._stop, self._leaving = QueryState(), threading.Event(), threading.Event()

        def _deliver(self, *_: object, **__: object) -> Result:
            return left.pop(0)

        def _keep_rejections(self, result: Result | Told) -> None:
            kept.append([event.key for event in result.rejected])

    frame = cast("Any", SimpleNamespace(sparkSession=None))
    if stops:
        with pytest.raises(LockstepError, match="sink 'v' rejected 3 events of one batch"):
            View()._run_whole_batch(frame)
        assert kept == [[b"a"]], "what was kept stays, and the part that is too much comes again"
    else:
        View()._run_whole_batch(frame)
        assert len(kept) == len(parts)


@pytest.mark.parametrize("answers", [True, False])
def test_a_query_that_only_loads_holds_no_records_of_hours_that_it_can_not_learn(answers: bool) -> None:
    """Another table has joined, which the load doesn't take up; or Kafka doesn't say which tables there are."""
    reads = 0

    class Reader:
        def new_records(self, _: object) -> list[ProgressRecord]:
            nonlocal reads
            reads += 1
            return [ProgressRecord(reads, 0, {}, selection="more")]

    def look() -> Captured:
        if not answers:
            raise Unavailable("no answer")
        return Captured([TableName("public", "orders")], selection="more")

    class Loading(SinkQuery):
        def __init__(self) -> None:
            self._unlearned, self._progress_reader = [], cast("Any", Reader())
            self._state = QueryState()
            self._bell = _namespace(take_heard=tuple)
            self._captured = CapturedWatch((), Captured([], selection="before"), look)
            self._plan = cast("Any", SimpleNamespace(takes_up=False))
            self._stop = threading.Event()

    query = Loading()
    for _ in range(1_000):
        with contextlib.suppress(Unavailable):
            assert query._read_progress()
    assert len(query._unlearned) <= 1
    assert (reads, query._stop.is_set()) == (1_000 if answers else 1, False)


def test_a_job_that_wakes_up_writes_no_dead_letters_where_a_newer_one_runs() -> None:
    """Rejections that somebody has closed meanwhile would be open again."""
    store, now = prepared_store(1), Time()
    lease = GenerationLease(open_memory(store, 1), 1, clock=now.clock())
    lease.claim(lambda: 0)
    kept: list[object] = []

    class Hung(SinkQuery):
        def __init__(self) -> None:
            self._lease, self._rejections, self._writers, self._keeping = lease, {}, {}, threading.Lock()
            self._dead_letters = cast("Any", SimpleNamespace(keep=lambda *_, **__: kept.append(1)))
            self._task = cast("Any", SimpleNamespace(sink="s", reads_whole_transactions=False, tables={}))
            self._plan = cast("Any", SimpleNamespace(settings=SimpleNamespace(max_open_rejections=1)))

    query, result = Hung(), Result(resolved=cast("Any", [1]))
    query._keep_rejections(result)
    assert kept
    now.now += 60
    GenerationLease(open_memory(store, 1), 1).claim(lambda: 0)
    with pytest.raises(Fenced):
        query._keep_rejections(result)
    assert len(kept) == 1


def test_more_open_rejections_than_may_be_are_a_matter_of_the_table_that_most_are_of() -> None:
    """The others go on without it. A view, or a consistent sink, can't."""
    too_many = TooManyOpen("too many", hint="discard them", topic="shop.public.orders")

    class Keeping(SinkQuery):
        def __init__(self, *, is_whole: bool) -> None:
            def keep(*_: object, **__: object) -> None:
                raise too_many

            tables = {"shop.public.orders": TableName("public", "orders")}
            self._lease, self._dead_letters = cast("Any", SimpleNamespace(check=lambda: None)), _namespace(keep=keep)
            self._task = _namespace(sink="s", reads_whole_transactions=is_whole, tables=tables)
            self._plan = _namespace(settings=_namespace(max_open_rejections=0))
            self._keeping = threading.Lock()

    result = Result(resolved=cast("Any", [1]))
    with pytest.raises(TablesRefused) as caught:
        Keeping(is_whole=False)._keep_rejections(result)
    assert caught.value.errors == {TableName("public", "orders"): too_many}
    with pytest.raises(TooManyOpen):
        Keeping(is_whole=True)._keep_rejections(result)


def _namespace(**attributes: object) -> Any:
    return SimpleNamespace(**attributes)


def test_a_batch_whose_topics_nobody_tells_of_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sinks of the process share them, and nobody would give it back."""
    slots = TaskSlots()
    monkeypatch.setattr("jobs.query.query.SLOTS", slots)

    def unanswered(*_: object) -> None:
        raise Unavailable("Kafka doesn't answer")

    class Planning(SinkQuery):
        def __init__(self) -> None:
            self._state, self._batch_id, self._shard_count, self._takes_slots = QueryState(), -1, 1, True
            self._plan = _namespace(spark=_namespace(small_batch_rows=100), once=False)
            self._spark = _namespace(sparkContext=_namespace(defaultParallelism=2))
            self._batch_plan = _namespace(next=lambda: ({P0: 0}, {P0: 5}))
            self._topics, self._cluster = _namespace(check=unanswered), cast("Any", None)
            self._on_no_task_left = lambda: None

    with pytest.raises(Unavailable):
        Planning()._run_batch(cast("Any", None))
    assert slots.take(2)


def test_a_query_asks_some_times_for_the_end_of_a_topic_that_may_be_gone() -> None:
    """The next one looks at the rights and the topics of each table, and goes on without those that it can't read."""
    waits = list[str]()

    def unanswered() -> None:
        raise Unavailable(f"not authorized, after {len(waits)} waits")

    class Planning(SinkQuery):
        def __init__(self) -> None:
            self._batch_plan = _namespace(next=unanswered)

        def _wait_out(self, error: Unavailable, _: object) -> None:
            waits.append(error.message)

    with pytest.raises(Unavailable, match="after 3 waits"):
        Planning()._planned()


def test_a_bug_in_a_rest_ends_the_query_with_itself_and_not_with_what_spark_makes_of_it() -> None:
    """Spark has nothing but the text of what a batch raises."""

    class Resting(SinkQuery):
        def __init__(self) -> None:
            self._state = QueryState()
            self._may_rest = self._looks_now = True

        def _rest(self, *, look_now: bool = False) -> None:
            raise RuntimeError("a bug")

    query = Resting()
    with pytest.raises(Exception, match=r"^$"):
        query._batch(cast("Any", None), 1)
    assert str(query._state.failure) == "a bug"


def test_only_a_sink_that_nobody_copies_for_needs_capture_to_be_started() -> None:
    assert "start capture" in (lacks_record("sink 'dwh'", awaits_copy=False).hint or "")
    copied = lacks_record("sink 'dwh'", awaits_copy=True)
    assert "is being copied" in copied.message
    assert "start capture" not in (copied.hint or "")
