"""A source whose files were put back to an earlier moment has the same identity, and a WAL that ends too early."""

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.model.errors import LockstepError
from cdc.postgres.slot import find_slot, wal_end
from lockstep.doctor.position import check_position
from monitor.collector import LagCollector
from monitor.comparable_lsns import Line
from stack.stack import Endpoints
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.dying_publisher import Killed, dying
from tests.own_server import OwnServer

pytestmark = pytest.mark.live


def _kept(own: OwnServer, capture: StartCapture, **settings: str) -> Captured:
    """A capture that has run and is stopped, over a source whose files of that time are saved."""
    own.database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = capture("public.t", of=own.database, **settings)
    captured.settle()
    captured.stop()
    own.keep()
    return captured


def _write_beyond(database: Database, lsn: int) -> None:
    number = 10_000
    while wal_end(database.connection) < lsn:
        database.execute(f"insert into t select n from generate_series({number}, {number + 99}) n")
        number += 100


def test_a_volume_that_was_taken_back_is_refused_before_anything_is_confirmed(
    own: OwnServer, capture: StartCapture
) -> None:
    captured = _kept(own, capture)
    captured.start()
    own.database.execute("insert into t select n from generate_series(2, 2000) n")
    captured.settle()
    captured.stop()
    own.take_back()
    before = find_slot(own.database.connection, captured.config.slot)
    assert "its WAL ends at" in captured.refusal()
    assert find_slot(own.database.connection, captured.config.slot) == before
    (finding,) = check_position(captured.config)
    assert "its WAL ends at" in finding.what
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        (sentence,) = collector.collect().broken
        assert "it was put back to an earlier moment" in sentence
    with Line(captured.config.as_pipeline()) as line, pytest.raises(LockstepError, match="put back"):
        line.check()


@pytest.mark.soak
def test_a_volume_that_was_taken_back_and_written_to_since_is_refused_as_well(
    own: OwnServer, capture: StartCapture
) -> None:
    """Its WAL reaches beyond what was published by now, so positions alone look as after an ordinary restart."""
    captured = _kept(own, capture)
    captured.start()
    own.database.execute("insert into t select n from generate_series(2, 50) n")
    captured.settle()
    captured.stop()
    published = captured.state()
    own.take_back()
    _write_beyond(own.database, published.end_lsn + 100_000)
    refusal = captured.refusal()
    assert "put back to an earlier moment and has gone on since" in refusal
    assert "lockstep recover" in refusal
    assert captured.state().end_lsn == published.end_lsn


@pytest.mark.soak
def test_a_volume_from_before_a_transaction_that_was_published_in_part_is_refused_as_well(
    own: OwnServer, capture: StartCapture
) -> None:
    """The last whole transaction still exists. Commits below the other one would count as published."""
    captured = _kept(own, capture, batch=BatchSize(100, 1 << 20))
    captured.configure(heartbeat_interval_s=600.0)
    own.database.execute("insert into t select n from generate_series(2, 2000) n")
    captured.begin(wrap_publisher=dying(lambda commit: captured.topic("public.t") in commit.topics))
    assert isinstance(captured.wait_error(), Killed)
    captured.stop()
    published = captured.state()
    assert published.commit_lsn > published.end_lsn
    own.take_back()
    _write_beyond(own.database, published.commit_lsn + 10_000)
    confirmed = find_slot(own.database.connection, captured.config.slot)
    refusal = captured.refusal()
    assert "was published in part" in refusal
    assert "lockstep recover" in refusal
    assert find_slot(own.database.connection, captured.config.slot).confirmed == confirmed.confirmed  # type: ignore[union-attr]


@pytest.mark.soak
def test_postgresql_can_shut_down_while_capture_runs(own: OwnServer, capture: StartCapture) -> None:
    """It waits for readers that haven't confirmed all of its WAL, and WAL without a transaction is never confirmed."""
    own.database.execute("create table t (id int primary key)")
    captured = capture("public.t", of=own.database, start=False)
    captured.configure(heartbeat_interval_s=600.0)
    captured.start().settle()
    own.database.execute("checkpoint")
    own.stop()
    captured.wait_for("shuts down")
    own.start()
    own.database.execute("insert into t values (1)")
    captured.assert_equal()
    captured.stop()


@pytest.mark.soak
def test_a_slot_that_is_gone_is_reported_by_the_lag(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.t", start=False)
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        assert collector.collect().broken == ()
        captured.start()
        captured.settle()
        assert collector.collect().broken == ()
        captured.stop()
        database.drop_slot(captured.config.slot)
        (sentence,) = collector.collect().broken
    assert "the slot is gone" in sentence


def test_a_capture_of_another_database_is_refused_before_it_takes_over(
    database: Database, endpoints: Endpoints, capture: StartCapture
) -> None:
    other = Database(endpoints.source_dsn)
    try:
        for each in (database, other):
            each.execute("create table t (id int primary key)")
        captured = capture("public.t")
        wrong = capture("public.t", start=False)
        wrong.config = captured.config
        wrong.configure(dsn=other.dsn)
        assert f"database was {database.name}, is {other.name}" in wrong.refusal()
        database.execute("insert into t values (1)")
        captured.assert_equal()  # nobody has fenced it
        captured.stop()
    finally:
        other.drop()
