"""A source whose files were put back to an earlier moment has the same identity, and a WAL that ends too early."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.kafka.control_topics import read_state
from cdc.model.errors import LockstepError, PositionMismatch
from cdc.postgres.slot import find_slot, wal_end
from lockstep.doctor.position import check_position
from monitor.collector import LagCollector
from monitor.line import Line
from stack.stack import Endpoints, Stack
from tests.captured import Captured
from tests.databases import Database
from tests.dying_publisher import Killed, dying
from tests.services import temporary_directory

pytestmark = pytest.mark.live


@pytest.fixture
def own() -> Iterator[tuple[Stack, Database]]:
    """A PostgreSQL of the test's own, and a database of it."""
    with temporary_directory() as directory:
        stack = Stack(directory, light=True, durable=False)
        try:
            database = Database(stack.up(["postgres"]).source_dsn)
            yield stack, database
            database.connection.close()
        finally:
            stack.remove()


def _copy(files: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(files), str(to)], check=True)  # with their owner, which PostgreSQL insists on


def test_a_volume_that_was_taken_back_is_refused_before_anything_is_confirmed(
    own: tuple[Stack, Database], endpoints: Endpoints, tmp_path: Path
) -> None:
    stack, database = own
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
    captured.start()
    captured.settle()
    captured.stop()
    files = Path(database.value("show data_directory"))
    stack.stop("postgres")
    _copy(files, tmp_path / "volume")
    stack.start("postgres")
    database.reconnect()
    captured.start()
    database.execute("insert into t select n from generate_series(2, 2000) n")
    captured.settle()
    captured.stop()

    stack.stop("postgres")
    shutil.rmtree(files)
    _copy(tmp_path / "volume", files)
    stack.start("postgres")
    database.reconnect()
    before = find_slot(database.connection, captured.config.slot)
    captured.begin()
    error = captured.wait_error()
    assert isinstance(error, PositionMismatch)
    assert "its WAL ends at" in str(error)
    assert find_slot(database.connection, captured.config.slot) == before
    (finding,) = check_position(captured.config)
    assert "its WAL ends at" in finding.what
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        (sentence,) = collector.collect().broken
        assert "it was put back to an earlier moment" in sentence
    with Line(captured.config.as_pipeline()) as line, pytest.raises(LockstepError, match="put back"):
        line.check()


@pytest.mark.soak
def test_a_volume_that_was_taken_back_and_written_to_since_is_refused_as_well(
    own: tuple[Stack, Database], endpoints: Endpoints, tmp_path: Path
) -> None:
    """Its WAL reaches beyond what was published by now, so positions alone look as after an ordinary restart."""
    stack, database = own
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
    captured.start()
    captured.settle()
    captured.stop()
    files = Path(database.value("show data_directory"))
    stack.stop("postgres")
    _copy(files, tmp_path / "volume")
    stack.start("postgres")
    database.reconnect()
    captured.start()
    database.execute("insert into t select n from generate_series(2, 50) n")
    captured.settle()
    captured.stop()
    published = read_state(captured.client, captured.name, captured.config.slot)
    assert published is not None

    stack.stop("postgres")
    shutil.rmtree(files)
    _copy(tmp_path / "volume", files)
    stack.start("postgres")
    database.reconnect()
    number = 100
    while wal_end(database.connection) < published.end_lsn + 100_000:
        database.execute(f"insert into t select n from generate_series({number}, {number + 99}) n")
        number += 100
    captured.begin()
    error = captured.wait_error()
    assert isinstance(error, PositionMismatch)
    assert "put back to an earlier moment and has gone on since" in str(error)
    assert "lockstep recover" in str(error)
    assert read_state(captured.client, captured.name, captured.config.slot).end_lsn == published.end_lsn  # type: ignore[union-attr]


@pytest.mark.soak
def test_a_volume_from_before_a_transaction_that_was_published_in_part_is_refused_as_well(
    own: tuple[Stack, Database], endpoints: Endpoints, tmp_path: Path
) -> None:
    """The last whole transaction is there still. What commits below the other one would be taken for published."""
    stack, database = own
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = Captured(
        database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], sections="[capture]\nbatch_rows = 100\n"
    )
    captured.start()
    captured.settle()
    captured.stop()
    captured.configure(heartbeat_interval_s=600.0)
    files = Path(database.value("show data_directory"))
    stack.stop("postgres")
    _copy(files, tmp_path / "volume")
    stack.start("postgres")
    database.reconnect()
    database.execute("insert into t select n from generate_series(2, 2000) n")
    captured.begin(wrap_publisher=dying(lambda commit: captured.topic("public.t") in commit.topics))
    assert isinstance(captured.wait_error(), Killed)
    captured.stop()
    published = read_state(captured.client, captured.name, captured.config.slot)
    assert published is not None
    assert published.commit_lsn > published.end_lsn

    stack.stop("postgres")
    shutil.rmtree(files)
    _copy(tmp_path / "volume", files)
    stack.start("postgres")
    database.reconnect()
    number = 10_000
    while wal_end(database.connection) < published.commit_lsn + 10_000:
        database.execute(f"insert into t select n from generate_series({number}, {number + 99}) n")
        number += 100
    confirmed = find_slot(database.connection, captured.config.slot)
    captured.begin()
    error = captured.wait_error()
    assert isinstance(error, PositionMismatch)
    assert "was published in part" in str(error)
    assert "lockstep recover" in str(error)
    assert find_slot(database.connection, captured.config.slot).confirmed == confirmed.confirmed  # type: ignore[union-attr]


@pytest.mark.soak
def test_postgresql_can_shut_down_while_capture_runs(
    own: tuple[Stack, Database], endpoints: Endpoints, tmp_path: Path
) -> None:
    """It waits for readers that haven't confirmed all of its WAL, and what no transaction wrote is never confirmed."""
    stack, database = own
    database.execute("create table t (id int primary key)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
    captured.configure(heartbeat_interval_s=600.0)
    with captured.start():
        captured.settle()
        database.execute("checkpoint")
        stack.stop("postgres")
        captured.wait_for("shuts down")
        stack.start("postgres")
        database.reconnect()
        database.execute("insert into t values (1)")
        captured.assert_equal()


@pytest.mark.soak
def test_a_slot_that_is_gone_is_reported_by_the_lag(database: Database, endpoints: Endpoints, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
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
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    other = Database(endpoints.source_dsn)
    try:
        for each in (database, other):
            each.execute("create table t (id int primary key)")
        captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
        captured.start()
        wrong = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
        wrong.config = captured.config
        wrong.configure(dsn=other.dsn)
        wrong.begin()
        error = wrong.wait_error()
        assert isinstance(error, PositionMismatch)
        assert f"database was {database.name}, is {other.name}" in str(error)
        database.execute("insert into t values (1)")
        captured.assert_equal()  # nobody has fenced it
        captured.stop()
    finally:
        other.drop()
