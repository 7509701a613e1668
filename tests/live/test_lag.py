"""How far an idle capture is said to be behind, on real servers."""

import pytest

from cdc.model.lsn import Lsn
from cdc.postgres.slot import wal_end
from monitor.collector import LagCollector
from monitor.lag import LagReport, Stage
from tests.captured import Captured, StartCapture
from tests.databases import Database, until

pytestmark = pytest.mark.live

_NEVER_S = 1e6


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    """Captures one table, without heartbeats, so that it publishes nothing by itself."""
    database.execute("create table t (id int primary key)", "create table others (id int)")
    captured = capture("public.t", start=False)
    captured.configure(heartbeat_interval_s=_NEVER_S)
    return captured


def _write_for_others(captured: Captured) -> Lsn:
    captured.database.execute("insert into others select generate_series(1, 1000)")
    return wal_end(captured.database.connection)


def _in_kafka(lag: LagReport) -> Stage:
    return next(stage for stage in lag.stages if stage.name == "in Kafka")


def _reaches(collector: LagCollector, lsn: int) -> bool:
    # A look at jobs writes a heartbeat, which is published.
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
        # For a capture that is gone, what it has published counts, once the server has noticed its absence.
        until(lambda: not _reaches(collector, written))
        assert _in_kafka(collector.collect(with_jobs=False)).seconds_behind != 0
