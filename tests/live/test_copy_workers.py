"""The first copy by several processes: every row once, whatever the tables are like, and whatever is lost meanwhile."""

import collections
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdc.capture.batch_size import BatchSize
from cdc.capture.settings import SnapshotSettings
from cdc.kafka.control_topics import read_copied_ranges
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState
from lockstep.capture.publisher import capture_publisher
from lockstep.capture.recover import recover
from snapshot.worker import copy_publisher, fence_workers
from stack.stack import Endpoints
from tests.captured import Captured, StartCapture
from tests.databases import Database, until

pytestmark = pytest.mark.live

WORKERS = "[snapshot]\nworkers = 2"
T = "create table t (id int primary key, a text)"
ROWS = 5000
FILL = f"insert into t select n, repeat('x', 100) || n from generate_series(1, {ROWS}) n"


@pytest.fixture
def make(capture: StartCapture) -> Any:
    """Makes a capture of these tables, whose first copy takes two workers."""
    return partial(capture, start=False, sections=WORKERS, copy_batch=BatchSize(100, 1 << 20))


def _snapshot_rows(captured: Captured, table: str) -> list[int]:
    """The ids of the copied rows, in order."""
    values = [json.loads(event.value) for event in captured.events(table) if event.value is not None]
    return sorted(value["after"]["id"] for value in values if value["op"] == "r")


def test_every_row_is_copied_once(database: Database, make: Any) -> None:
    database.execute(
        T,
        FILL,
        "delete from t where id % 7 = 0",
        "create table empty (id int primary key)",
        "create table one (id int primary key)",
        "insert into one values (1)",
        "create table big (id int primary key, a text)",
        "alter table big alter a set storage external",
        "insert into big select n, repeat('y', 30000) || n from generate_series(1, 40) n",
    )
    names = ["t", "empty", "one", "big"]
    captured = make(*(f"public.{name}" for name in names)).start()
    assert any("2 workers copy" in line for line in captured.said)
    for name in names:
        expected = [row[0] for row in database.connection.execute(f"select id from {name} order by id").fetchall()]
        assert _snapshot_rows(captured, f"public.{name}") == expected
    captured.assert_equal()
    assert captured.state().copied[TableName("public", "t")] == ROWS - ROWS // 7


@pytest.mark.soak
def test_partitions_are_copied_side_by_side(database: Database, make: Any) -> None:
    database.execute(
        "create table p (id int, a text, primary key (id)) partition by range (id)",
        "create table p1 partition of p for values from (0) to (3000)",
        "create table p2 (a text, id int not null) ",
        "alter table p attach partition p2 for values from (3000) to (5000)",
        "create table p3 partition of p for values from (5000) to (9000) partition by range (id)",
        "create table p3a partition of p3 for values from (5000) to (9000)",
        "insert into p select n, repeat('x', 100) from generate_series(1, 7000) n",
        "create table bare (id int primary key) partition by range (id)",
    )
    captured = make("public.p", "public.bare").start()
    assert _snapshot_rows(captured, "public.p") == list(range(1, 7001))
    captured.assert_equal()


def _workers() -> list[multiprocessing.process.BaseProcess]:
    """Our children that copy, without the servers of earlier tests and their remains."""
    return [child for child in multiprocessing.active_children() if child.name.startswith("lockstep copy")]


def _kill_one() -> None:
    _workers()[0].kill()


class _Once:
    """Does something once after a commit while there are workers: the one before the first row, or a later one."""

    def __init__(self, inner: Any, action: Callable[[], object], *, when: Callable[[CaptureState], bool]) -> None:
        self._inner = inner
        self._action = action
        self._when = when

    def commit(self, state: CaptureState, *arguments: Any, **options: Any) -> Any:
        result = self._inner.commit(state, *arguments, **options)
        if _workers() and self._when(state):
            self._action()
            self._when = lambda _: False
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _once(action: Callable[[], object], *, when: Callable[[CaptureState], bool] = lambda _: True) -> Any:
    """A wrapper of publishers, shared by all sessions."""
    made: list[_Once] = []

    def wrap(inner: Any) -> Any:
        if made:
            return inner
        made.append(_Once(inner, action, when=when))
        return made[0]

    return wrap


@pytest.mark.parametrize("in_ledger", [0, 1])
@pytest.mark.soak
def test_a_worker_that_is_killed_costs_a_new_start_and_no_row(database: Database, make: Any, in_ledger: int) -> None:
    database.execute(T, FILL, "create table u (like t including all)", "insert into u select * from t where id < 2000")
    captured = make("public.t", "public.u")
    kill = _once(_kill_one, when=lambda state: len(state.copied) == in_ledger)
    captured.start(wrap_publisher=kill)
    assert any("a process that copied has ended" in line for line in captured.said)
    counts = collections.Counter[int]()
    for table, rows in (("public.t", ROWS), ("public.u", 1999)):
        copied = _snapshot_rows(captured, table)
        assert set(copied) == set(range(1, rows + 1))
        counts[len(copied) == rows] += 1
    assert counts[True] >= in_ledger  # what is in the ledger isn't copied again
    captured.assert_equal()


@pytest.mark.soak
def test_workers_that_are_fenced_before_the_first_row_publish_nothing(database: Database, make: Any) -> None:
    """As a process that takes over does: it reads the state, and ends what was begun before."""
    database.execute(T, FILL)
    captured = make("public.t")
    pipeline = captured.config.as_pipeline()
    captured.start(wrap_publisher=_once(lambda: fence_workers(pipeline, while_waiting=lambda: None)))
    assert any("another process has taken over" in line for line in captured.said)
    assert _snapshot_rows(captured, "public.t") == list(range(1, ROWS + 1))


@pytest.mark.parametrize("recovers", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_worker_of_before_commits_nothing_after_a_takeover(database: Database, make: Any, recovers: bool) -> None:
    """Even if the new capture has no workers with its id, or streams at once since a recovery took over."""
    database.execute(T, FILL)
    captured = make("public.t")
    captured.begin(wrap_publisher=_once(captured.stopping.set))
    until(captured.stopping.is_set)
    captured.stop()
    old = copy_publisher(captured.config.as_pipeline(), 5)
    old.start()
    old.send_rows(captured.topic("public.t"), [(b'{"id":1}', b"old")])
    if recovers:
        pipeline = captured.config.as_pipeline()
        assert recover(pipeline, (), agreed=lambda _: True, stopping=lambda: False, say=captured.said.append)
    captured.config = captured.config.model_copy(update={"snapshot": SnapshotSettings(workers=0)})
    captured.start()
    with pytest.raises(Unavailable, match="another process has taken over"):
        old.commit_events()
    old.close()
    captured.assert_equal()


@pytest.mark.soak
def test_what_a_worker_of_before_has_open_hides_no_state(database: Database, make: Any) -> None:
    """Until it is ended, a reader sees nothing of what was committed behind its record."""
    database.execute(T, FILL)
    captured = make("public.t")
    captured.begin(wrap_publisher=_once(captured.stopping.set))
    until(captured.stopping.is_set)
    captured.stop()
    state = captured.state()
    pipeline = captured.config.as_pipeline()
    killed, last = copy_publisher(pipeline, 5), capture_publisher(pipeline)
    killed.start()
    killed.send(control_topic(captured.name, STATE), b"range", b"{}")
    killed.end_of(control_topic(captured.name, STATE))  # the brokers have it
    last.start()
    last.commit(replace(state, first_copy_paused=True))
    captured.begin()
    until(lambda: any("the first copy is paused" in line or "handoff at" in line for line in captured.said))
    assert not any("handoff at" in line for line in captured.said)
    for publisher in (killed, last):
        publisher.close()


SLOWLY = f"{WORKERS}\nrows_per_s = 1000"


def _begin(captured: Captured) -> None:
    """Start it, and wait until a range of the first table is copied, and others aren't."""
    captured.begin()
    captured.wait_for("handoff at")
    until(lambda: read_copied_ranges(captured.client, captured.name, captured.config.slot))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.soak
def test_a_table_is_not_locked_before_its_turn(database: Database, make: Any, workers: int) -> None:
    """It is rewritten then, so its copy starts over; the copied rows of others stay."""
    database.execute(T, FILL, "create table u (like t including all)", "insert into u select * from t where id < 100")
    captured = make("public.t", "public.u", sections=SLOWLY.replace("workers = 2", f"workers = {workers}"))
    _begin(captured)
    database.execute("set lock_timeout = 500")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        database.execute("alter table t add b int")
    database.execute("truncate u", "insert into u values (-1, 'x')")
    captured.wait_for("streaming from")
    assert any("public.u changed while the copy began" in line for line in captured.said)
    assert len(_snapshot_rows(captured, "public.t")) < 1.5 * ROWS
    captured.wait_quiet()
    captured.assert_equal()


class _Slow:
    """Takes so long for more than ``rows_max`` rows that Kafka ends their transaction before it is committed."""

    def __init__(self, inner: Any, topic: str, kafka: str, *, rows_max: int) -> None:
        self._inner = inner
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": kafka})
        self._rows_max = rows_max
        self._rows = 0

    def send_rows(self, topic: str, rows: Any) -> None:
        self._inner.send_rows(topic, rows)
        self._rows += len(rows)

    def commit(self, *arguments: Any, **options: Any) -> Any:
        if self._rows > self._rows_max:
            end = self._inner.end_of(self._topic)
            until(lambda: self._committed_end() > end)  # by the marker
        self._rows = 0
        return self._inner.commit(*arguments, **options)

    def _committed_end(self) -> int:
        at = TopicPartition(self._topic, 0)
        asked = self._admin.list_offsets(
            {at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10
        )
        end: int = asked[at].result().offset
        return end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.soak
def test_a_copy_that_kafka_does_not_take_in_time_is_tried_with_smaller_transactions(
    database: Database, make: Any, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.kafka.transactions.TRANSACTION_TIMEOUT_MS", 1000)
    monkeypatch.setattr("cdc.capture.batch_size.BATCH_ROWS_MIN", 1)
    database.execute(T, "insert into t select n, 'x' from generate_series(1, 20) n")
    captured = make("public.t", sections="", copy_batch=BatchSize(8, 1 << 20), partitions=1)
    topic, kafka = captured.topic("public.t"), endpoints.kafka_bootstrap
    captured.start(wrap_publisher=lambda inner: _Slow(inner, topic, kafka, rows_max=4))
    assert any("more than the 1 s that it may be" in line for line in captured.said)
    told = [line for line in captured.said if line.startswith("the first copy has smaller transactions")]
    assert ["of 4 rows" in line for line in told] == [True]
    captured.assert_equal()
