"""How far a capture that has nothing to do is said to be behind, on real servers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.model.lsn import Lsn
from cdc.postgres.replication import APPLICATION, ReplicationConnection
from cdc.postgres.slot import announce_capture, temporary_slot_name, wal_end
from monitor.collector import LagCollector
from monitor.lag import LagReport, Stage
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until

pytestmark = pytest.mark.live

_NEVER_S = 1e6


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[Captured]:
    """Of one table. There are no heartbeats, so that it publishes nothing by itself."""
    database.execute("create table t (id int primary key)", "create table others (id int)")
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"]) as captured:
        captured.configure(heartbeat_interval_s=_NEVER_S)
        yield captured


def _write_for_others(captured: Captured) -> Lsn:
    captured.database.execute("insert into others select generate_series(1, 1000)")
    return wal_end(captured.database.connection)


def _in_kafka(lag: LagReport) -> Stage:
    return next(stage for stage in lag.stages if stage.name == "in Kafka")


def _reaches(collector: LagCollector, lsn: int) -> bool:
    # Who asks about jobs has a heartbeat written, and that is published.
    return (_in_kafka(collector.collect(with_jobs=False)).lsn or 0) >= lsn


@pytest.mark.soak
def test_wal_of_others_puts_an_idle_capture_behind_no_more(captured: Captured) -> None:
    captured.start().settle()
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        published = _in_kafka(collector.collect()).lsn
        written = _write_for_others(captured)
        assert published is not None
        assert published < written
        until(lambda: _reaches(collector, written))
        captured.stop()
        # Of a capture that is gone counts what it has published, once the server has noticed that it is gone.
        until(lambda: not _reaches(collector, written))
        assert _in_kafka(collector.collect(with_jobs=False)).seconds_behind != 0


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.soak
def test_who_is_in_the_way_of_this_capture_is_named_and_of_no_other(captured: Captured, *, is_ours: bool) -> None:
    """Several pipelines may capture one database."""
    captured.start().settle()
    captured.stop()
    database, slot = captured.database, captured.config.slot
    whose = slot if is_ours else "another_pipelines"

    def wait_for_lock() -> None:
        with psycopg.connect(database.dsn, application_name=APPLICATION) as waiting:
            announce_capture(waiting, whose)
            # It waits for the holder, and has no xid, for which the slot would wait as well.
            waiting.execute("lock table others in share mode")

    def make_slot() -> None:
        with ReplicationConnection(database.source()) as waiting:
            waiting.create_slot(temporary_slot_name(whose), temporary=True)

    threads = [threading.Thread(target=wait_for_lock), threading.Thread(target=make_slot)]
    with psycopg.connect(database.dsn) as holder, LagCollector(captured.config.as_pipeline(), {}) as collector:
        pid = holder.info.backend_pid
        holder.execute("insert into others values (1)")
        for thread in threads:
            thread.start()
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        until(lambda: database.value(waiting) == len(threads))
        collector.collect()
        source = collector._source(None, None, None)
        holder.commit()
    for thread in threads:
        thread.join()
    named = [text and text.split(" (")[0] for text in (source.blocked_by, source.slot_waits_for)]
    assert named == 2 * [f"pid {pid}" if is_ours else None]


class _Falling:
    """A stream whose other end hears nothing more, once ``is_silent``."""

    is_silent = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.receive, self.wait = stream.receive, stream.wait

    def send(self, frame: bytes) -> None:
        if not self.is_silent:
            self._stream.send(frame)


@pytest.mark.soak
def test_what_a_capture_said_that_hangs_now_counts_for_nothing(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[_Falling] = []

    def wrapped(stream: Any) -> _Falling:
        opened.append(_Falling(stream))
        return opened[-1]

    captured.start(wrap_stream=wrapped).settle()
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        written = _write_for_others(captured)
        until(lambda: _reaches(collector, written))
        opened[-1].is_silent = True
        monkeypatch.setattr("monitor.collector._SILENT_S", 0.5)
        until(lambda: not _reaches(collector, written))
        assert _in_kafka(collector.collect(with_jobs=False)).seconds_behind != 0
