"""What capture does about WAL that its slot makes the server keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.capture.ownership import Ownership
from cdc.kafka.control_topics import read_state
from cdc.model.errors import Fenced, LockstepError, PositionMismatch
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.settings import SlotGuardSettings
from cdc.protocol.control_records import Gap
from cdc.stream.slot_guard import SlotHoldsTooMuch, SlotLook
from lockstep.capture.recover import Recovery, recover
from lockstep.capture.slot_drop import SlotDropped, drop_announced
from lockstep.doctor.position import check_position
from monitor.collector import LagCollector
from snapshot.recovery import drop_own_slot
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until

pytestmark = pytest.mark.live


class Source:
    """The test's database, and another one of the server in which WAL is written that capture doesn't get."""

    def __init__(self, database: Database, server: psycopg.Connection[Any]) -> None:
        self.database = database
        self._server = server
        self.held_back = False

    def hold_back(self, megabytes: int) -> None:
        """Write so much WAL."""
        self.held_back = True
        self._server.execute(
            "select count(pg_logical_emit_message(false, 'filler', repeat('x', 1048576))) from generate_series(1, %s)",
            (megabytes,),
        )

    @contextmanager
    def writing(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that writes and stays open: the slot needs its WAL from where it began."""
        with psycopg.connect(self.database.dsn) as open_transaction:
            open_transaction.execute("insert into t values (0)")
            yield open_transaction

    def slots(self, name: str) -> int:
        count = self.database.value("select count(*) from pg_replication_slots where slot_name = %s", name)
        assert isinstance(count, int)
        return count


@pytest.fixture
def source(database: Database, endpoints: Endpoints) -> Iterator[Source]:
    database.execute("create table t (id int primary key)", "insert into t select * from generate_series(1, 5000)")
    with psycopg.connect(endpoints.source_dsn, autocommit=True) as server:
        yield Source(database, server)


@pytest.fixture(autouse=True)
def _looks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.stream.slot_guard._LOOK_EVERY_S", 0.0)


def _captured(source: Source, endpoints: Endpoints, directory: Path, guard: str, **more: str) -> Captured:
    line = f"slot_guard = {{ {guard} }}"
    return Captured(source.database, endpoints.kafka_bootstrap, directory, ["public.t"], source=line, **more)


COPIES = "copying public.t at"
STOPPED = "no table is copied in the stream meanwhile"


def _index(captured: Captured, words: str) -> int:
    return next(index for index, line in enumerate(captured.said) if words in line)


def _wait_for_copies(captured: Captured, source: Source, count: int) -> None:
    def copied() -> bool:
        source.database.execute("checkpoint")  # it tells the stream which WAL is needed no more
        assert captured.error is None
        return sum(COPIES in line for line in captured.said) >= count

    until(copied)


def test_a_slot_is_warned_of_and_never_dropped_unasked(source: Source, endpoints: Endpoints, tmp_path: Path) -> None:
    with _captured(source, endpoints, tmp_path, "warn = '32MB', stop_copies = '64MB'") as captured:
        captured.start()
        with source.writing() as writer:
            source.hold_back(70)
            captured.wait_for(STOPPED)
            assert "makes the server keep" in captured.said[_index(captured, STOPPED)]
            request_repair(source.database.connection, TableName("public", "t"), None, slot=captured.config.slot)
            captured.wait_for("copying it again, as was asked for")
            writer.commit()
            _wait_for_copies(captured, source, 1)
        assert _index(captured, "which is no more than it should") < _index(captured, COPIES)
        captured.assert_equal()
        assert source.slots(captured.config.slot) == 1


class _HoldsBackWhileCopying:
    """A publisher in whose second commit of a copy much WAL is written, once."""

    def __init__(self, publisher: Any, source: Source) -> None:
        self._publisher = publisher
        self._source = source
        self._commits = 0

    def commit(self, *arguments: Any, progress: bool = True, **options: Any) -> Any:
        bounds = self._publisher.commit(*arguments, progress=progress, **options)
        self._commits += not progress
        if self._commits == 2 and not self._source.held_back:
            self._source.hold_back(70)
        return bounds

    def __getattr__(self, name: str) -> object:
        return getattr(self._publisher, name)


@pytest.mark.soak
def test_a_copy_in_the_stream_ends_and_begins_again(source: Source, endpoints: Endpoints, tmp_path: Path) -> None:
    """One for which the stream stops, as for a table whose key is deferrable."""
    source.database.execute(
        "alter table t drop constraint t_pkey, add primary key (id) deferrable", "alter table t replica identity full"
    )
    guard, sections = "warn = '32MB', stop_copies = '64MB'", "[capture]\nbatch_rows = 1000\n"
    with _captured(source, endpoints, tmp_path, guard, sections=sections) as captured:
        captured.start()
        captured.settle()
        captured.stop()
        captured.start(wrap_publisher=lambda publisher: _HoldsBackWhileCopying(publisher, source))
        request_repair(source.database.connection, TableName("public", "t"), None, slot=captured.config.slot)
        captured.wait_for(STOPPED)
        source.database.execute("insert into t values (100000)")
        _wait_for_copies(captured, source, 2)
        captured.assert_equal()


def test_a_slot_is_dropped_where_that_is_allowed_and_the_gap_is_told(
    source: Source, endpoints: Endpoints, tmp_path: Path
) -> None:
    with _captured(source, endpoints, tmp_path, "warn = '32MB', drop = '64MB'") as captured:
        captured.start()
        with source.writing():
            source.hold_back(70)
            error = captured.wait_error()
        assert isinstance(error, LockstepError)
        assert (
            "lets capture drop the slot from 64.0 MB on: it was dropped. What wasn't published can't be read"
            in error.message
        )
        assert source.slots(captured.config.slot) == 0
        captured.begin()
        error = captured.wait_error()
        assert isinstance(error, PositionMismatch)
        assert "is gone: changes after" in error.message
        assert source.slots(captured.config.slot) == 0
        dropped = _gap(captured)
        assert dropped.is_open
        assert "lets capture drop the slot" in dropped.reason
        captured.stop()
        pipeline = captured.config.as_pipeline()
        state = recover(pipeline, [], agreed=lambda _: True, stopping=lambda: False, say=captured.said.append)
        assert state is not None
        assert state.gaps == (dropped._replace(to_lsn=state.handoff),)
        assert _gap(captured) == state.gaps[-1]
        captured.start().settle()
        assert _gap(captured) == state.gaps[-1]
        captured.assert_equal()


def _gap(captured: Captured) -> Gap:
    """What the collector tells, as the state has it."""
    state = read_state(captured.client, captured.name, captured.config.slot)
    assert state is not None
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        assert collector.collect().gap == state.gaps[-1]
    return state.gaps[-1]


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_capture_that_is_killed_after_it_has_dropped_the_slot_leaves_the_reason(
    source: Source, endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _captured(source, endpoints, tmp_path, "drop = '64MB'") as captured:
        captured.start()

        def killed_after(sql: psycopg.Connection[Any], name: str, say: Any) -> None:
            drop_own_slot(sql, name, say)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, source.writing():
            patch.setattr("lockstep.capture.slot_drop.drop_own_slot", killed_after)
            source.hold_back(70)
            assert isinstance(captured.wait_error(), KeyboardInterrupt)
        assert source.slots(captured.config.slot) == 0
        captured.stop()
        gap = _gap(captured)
        assert gap.is_open
        assert "lets capture drop the slot" in gap.reason
        captured.begin()
        assert str(gap) in str(captured.wait_error())
        captured.stop()
        assert str(gap) in [finding.why for finding in check_position(captured.config)]
        asked: list[Recovery] = []
        pipeline = captured.config.as_pipeline()
        state = recover(
            pipeline, [], agreed=lambda it: asked.append(it) is None, stopping=lambda: False, say=captured.said.append
        )
        assert str(gap) in asked[0].missing
        assert state is not None
        assert state.gaps == (gap._replace(to_lsn=state.handoff),)


@pytest.mark.soak
def test_a_capture_that_is_killed_before_it_has_dropped_the_slot_goes_on_with_it(
    source: Source, endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _captured(source, endpoints, tmp_path, "drop = '64MB'") as captured:
        captured.start()
        with monkeypatch.context() as patch, source.writing() as writer:
            patch.setattr("lockstep.capture.slot_drop.drop_own_slot", _killed)
            source.hold_back(70)
            assert isinstance(captured.wait_error(), KeyboardInterrupt)
            writer.commit()
        captured.stop()
        assert source.slots(captured.config.slot) == 1
        with LagCollector(captured.config.as_pipeline(), {}) as collector:
            assert collector.collect().gap is None
        captured.configure(slot_guard=SlotGuardSettings())
        captured.start()
        captured.assert_equal()
        state = read_state(captured.client, captured.name, captured.config.slot)
        assert state is not None
        assert state.gaps == ()


_FULL = SlotHoldsTooMuch("too much", SlotLook(0.0, Lsn(2), None, 1, "reserved", None))


@pytest.mark.soak
def test_who_was_taken_over_from_drops_nothing(source: Source, endpoints: Endpoints, tmp_path: Path) -> None:
    with _captured(source, endpoints, tmp_path, "drop = '1GB'") as captured:
        captured.start()
        captured.settle()
        older = Ownership("older")
        older.take(None)
        with pytest.raises(Fenced):
            drop_announced(captured.config.as_pipeline(), older, _FULL, captured.said.append)
        assert source.slots(captured.config.slot) == 1
        captured.settle()


@pytest.mark.soak
def test_the_slot_is_dropped_also_while_kafka_is_away(source: Source, endpoints: Endpoints, tmp_path: Path) -> None:
    with _captured(source, endpoints, tmp_path, "drop = '1GB'") as captured:
        captured.start()
        captured.stop()
        pipeline = captured.config.as_pipeline()
        away = pipeline.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
        own = Ownership("own")
        own.take(None)
        with pytest.raises(SlotDropped, match="it was dropped"):
            drop_announced(replace(pipeline, kafka=away), own, _FULL, captured.said.append)
        assert "is in this log alone" in captured.said[-1]
        assert source.slots(captured.config.slot) == 0
