"""The way back after a restore, a lost slot and a promotion: the same topics, equal to the source again."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.kafka.control_topics import read_progress
from cdc.kafka.publisher import TransactionalPublisher
from cdc.model.errors import LockstepError
from cdc.model.tag import Tag
from cdc.postgres.slot import find_slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from lockstep.capture import recover as recovery
from lockstep.capture.recover import Recovery, recover
from monitor.collector import LagCollector
from monitor.log_start import offsets_after
from snapshot import recovery as slots
from snapshot.recovery import RECOVERIES_MAX
from stack.ports import pick
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.own_server import OwnServer

pytestmark = pytest.mark.live

_TABLES = (
    "create table t (id int primary key, v text, big text)",
    "alter table t alter big set storage external",
    "insert into t select n, 'old', repeat('b', 3000) from generate_series(1, 50) n",
    "create table log (at int, line text)",
    "insert into log values (1, 'first')",
)
_SETTINGS = "[source.options.'public.log']\nappend_only = true\n"


@pytest.fixture
def captured(capture: StartCapture) -> Captured:
    """A capture that has run, and is stopped."""
    return _stopped(capture)


def _stopped(capture: StartCapture, **options: Any) -> Captured:
    """The same of another database, or with another publication."""
    captured = capture("public.t", "public.log", sections=_SETTINGS, start=False, **options)
    captured.database.execute(*_TABLES)
    captured.start().settle()
    captured.stop()
    return captured


def _recover(captured: Captured, *tables: str) -> tuple[list[Recovery], CaptureState | None]:
    asked: list[Recovery] = []

    def agreed(what: Recovery) -> bool:
        asked.append(what)
        return True

    state = recover(
        captured.config.as_pipeline(), tables, agreed=agreed, stopping=lambda: False, say=captured.said.append
    )
    return asked, state


def _tags_per_key(captured: Captured, table: str) -> dict[bytes, list[str]]:
    tags: dict[bytes, list[str]] = {}
    for event in captured.events(table):
        if event.value is not None:
            tags.setdefault(event.key, []).append(event.tag)
    return tags


def _assert_recovered(captured: Captured) -> None:
    """Equal for a new reader, and for one that keeps the greatest tag, as sinks do."""
    captured.assert_equal("public.t")
    for tags in _tags_per_key(captured, "public.t").values():
        assert tags == sorted(tags)
        assert Tag.parse(tags[-1]).epoch == 1 or tags == sorted(tags)


def test_after_a_lost_slot_the_topics_are_equal_again(captured: Captured, database: Database) -> None:
    database.drop_slot(captured.config.slot)
    database.execute(
        "delete from t where id <= 10",
        "update t set v = 'unseen' where id = 11",
        "insert into t values (51, 'unseen', 'x')",
        "insert into log values (2, 'unseen')",
    )
    captured.begin()
    assert "`lockstep recover`" in str(captured.wait_error())
    captured.stop()
    (asked,), state = _recover(captured)
    assert "is gone: changes from" in asked.missing[0]
    assert [str(name) for name in asked.tables] == ["public.t"]
    assert [str(name) for name in asked.left_out] == ["public.log"]
    assert state is not None
    assert (state.epoch, state.phase) == (1, SnapshotPhase.DONE)
    captured.start()
    database.execute("update t set v = 'after' where id = 12", "insert into log values (3, 'after')")
    _assert_recovered(captured)
    lines = [event.after["line"] for event in captured.events("public.log")]
    assert lines == ["first", "after"]  # once each, without what nobody could read
    pipeline = captured.config.as_pipeline()
    topics = pipeline.topics().values()
    assert not any(offsets_after(pipeline, topics, 0).offsets.values()), "that is before the first of them"
    assert any(offsets_after(pipeline, topics, captured.state().end_lsn).offsets.values())


def test_what_a_restore_has_undone_is_undone_on_the_topics(own: OwnServer, capture: StartCapture) -> None:
    """Its LSNs are below those that were published: tags and watermarks must not take that for older."""
    database = own.database
    captured = _stopped(capture, of=database)
    own.keep()
    captured.start()
    database.execute(
        "insert into t select n, 'undone', repeat('u', 9000) from generate_series(51, 2000) n",
        "update t set v = 'undone', big = repeat('u', 9000) where id = 1",
        "delete from t where id = 2",
    )
    captured.settle()
    captured.stop()
    published = captured.state().end_lsn
    own.take_back()
    (asked,), state = _recover(captured)
    assert "its WAL ends at" in asked.missing[0]
    assert state is not None
    assert state.end_lsn < published
    captured.start()
    # The old large value must not come from what was published of the earlier server.
    database.execute("update t set v = 'after' where id = 1")
    _assert_recovered(captured)
    newest = list(read_progress(captured.client, captured.name))[-1]
    assert (newest.epoch, newest.uncopied) == (1, ())
    assert newest.lsn < published
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        assert collector.collect().broken == ()


@pytest.mark.soak
def test_on_another_server_a_table_that_is_not_copied_is_the_one_of_its_name(
    database: Database, own: OwnServer, capture: StartCapture
) -> None:
    """There, its number is another table's. A copy would repeat the rows of an append-only table."""
    other = own.database
    captured = _stopped(capture, publication="all tables")
    database.drop_slot(captured.config.slot)
    number = database.value("select 'log'::regclass::oid")
    taken = other.value("select lo_creat(-1)")
    last = other.value("select max(lo_creat(-1)) from generate_series(1, %s)", number - 1 - taken)
    assert last == number - 1
    other.execute(
        "create table somebodys (at int, line text)",
        "create publication p for all tables",
        *_TABLES,
        "insert into log values (2, 'copied with the database')",
    )
    assert other.value("select 'somebodys'::regclass::oid") == number
    captured.database = other
    captured.configure(dsn=other.dsn)
    # Its WAL may be longer, and it may have a slot of this name. Lag and wait don't take it for the source.
    other.execute(
        f"select pg_create_logical_replication_slot('{captured.config.slot}', 'pgoutput')",
        "select pg_logical_emit_message(false, 'filler', repeat('x', 10000000)) from generate_series(1, 5)",
    )
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        (broken,) = collector.collect().broken
    assert "the source isn't the database that capture published from: system identifier was" in broken
    (asked,), _ = _recover(captured)
    assert [str(name) for name in asked.left_out] == ["public.log"]
    captured.start()
    other.execute("insert into somebodys values (9, 'foreign')", "insert into log values (3, 'after')")
    _assert_recovered(captured)
    captured.wait_quiet()
    assert [event.after["line"] for event in captured.events("public.log")] == ["first", "after"]
    other.execute("alter table log rename column line to words", "insert into log values (4, 'renamed')")
    captured.settle()
    (renamed,) = captured.rows("public.log").values()  # all of its rows have one key
    assert renamed == {"at": 4, "words": "renamed"}


def test_a_recovery_that_is_killed_goes_on_when_capture_is_started(
    captured: Captured, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.drop_slot(captured.config.slot)
    database.execute("delete from t where id = 1", "insert into t values (51, 'unseen', 'x')")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "create_slot_again", killed)
        with pytest.raises(KeyboardInterrupt):
            _recover(captured)
    assert captured.state().phase is SnapshotPhase.RECOVERING
    with monkeypatch.context() as patch:  # once more, with the slot made and nothing of it published
        patch.setattr(TransactionalPublisher, "commit", _dying_when(SnapshotPhase.DONE))
        captured.begin()
        captured.wait_error()
        captured.stop()
    first = find_slot(database.connection, captured.config.slot)
    assert first is not None
    assert captured.state().phase is SnapshotPhase.RECOVERING
    captured.start()
    _assert_recovered(captured)
    assert captured.state().epoch == 1


def _dying_when(phase: SnapshotPhase) -> Any:
    commit = TransactionalPublisher.commit

    def dying(self: TransactionalPublisher, state: CaptureState, *arguments: Any, **options: Any) -> Any:
        if state.phase is phase:
            raise KeyboardInterrupt
        return commit(self, state, *arguments, **options)

    return dying


@pytest.mark.soak
def test_a_chosen_table_is_copied_alone_also_an_append_only_one(captured: Captured, database: Database) -> None:
    database.drop_slot(captured.config.slot)
    database.execute("update t set v = 'unseen' where id = 1", "insert into log values (2, 'unseen')")
    (asked,), _ = _recover(captured, "public.log")
    assert [str(name) for name in asked.left_out] == ["public.t"]
    captured.start()
    database.execute("update t set v = 'after' where id = 2")
    captured.settle()
    events = [(event.op, event.parsed["after"] and event.after["line"]) for event in captured.events("public.log")]
    # The copy replaces what was there before it.
    assert events == [("r", "first"), ("t", None), ("r", "first"), ("r", "unseen")]
    rows = captured.rows("public.t")
    assert (rows[b'{"id":1}']["v"], rows[b'{"id":2}']["v"]) == ("old", "after")


def test_what_recover_refuses_leaves_all_as_it_is(captured: Captured, database: Database) -> None:
    before = captured.state()
    with pytest.raises(LockstepError, match=r"public\.nothing isn't captured"):
        _recover(captured, "public.nothing")
    asked = recover(
        captured.config.as_pipeline(), (), agreed=lambda _: False, stopping=lambda: False, say=captured.said.append
    )
    assert asked is None
    assert captured.state() == before
    with pytest.raises(LockstepError, match="the most that its tags can count"):
        recovery.require_state(replace(before, epoch=RECOVERIES_MAX), captured.config.as_pipeline())
    database.drop_slot(captured.config.slot)
    database.execute(f"select pg_create_logical_replication_slot('{captured.config.slot}', 'test_decoding')")
    with pytest.raises(LockstepError, match="isn't ours") as caught:
        slots.drop_own_slot(database.connection, captured.config.slot, captured.said.append)
    assert "select pg_drop_replication_slot(" in (caught.value.hint or "")  # another name would have no state


@pytest.mark.soak
def test_a_capture_that_runs_is_ended_by_a_recovery(captured: Captured, database: Database) -> None:
    captured.start()
    running = list(captured.said)
    (asked,), _ = _recover(captured)
    assert asked.missing == ()
    assert "nothing is seen that keeps capture from going on" in str(asked)
    assert "has taken over" in str(captured.wait_error())
    assert running
    captured.stop()
    captured.start()
    _assert_recovered(captured)


@pytest.mark.soak
def test_a_promoted_server_is_followed_only_if_it_has_all_that_was_published(
    own: OwnServer, capture: StartCapture
) -> None:
    captured = _stopped(capture, of=own.database)
    own.keep()
    own.database.execute("insert into t values (51, 'lost', 'x')")
    captured.start().settle()
    captured.stop()
    own.keep("all")
    own.take_back(as_standby=True)
    own.promote()
    assert "it left timeline 1 at" in captured.refusal()
    captured.stop()

    own.take_back("all", as_standby=True)
    own.promote()
    own.database.execute("insert into t values (52, 'after', 'x')")
    captured.start()
    assert any("was promoted, from timeline 1 to 2" in line for line in captured.said)
    captured.assert_equal("public.t")
    assert (captured.state().timeline, captured.state().epoch) == (2, 0)


@pytest.mark.soak
def test_a_standby_that_is_not_promoted_yet_is_waited_for(own: OwnServer, capture: StartCapture) -> None:
    """In a failover the address may lead to it before it has replayed everything, or has its slot."""
    captured = _stopped(capture, of=own.database)
    own.keep()
    own.take_back(as_standby=True)
    captured.begin()
    captured.wait_for("isn't promoted so far")
    own.promote()
    captured.wait_for("streaming from")
    own.database.execute("insert into t values (51, 'after', 'x')")
    captured.assert_equal("public.t")


@pytest.mark.soak
def test_a_capture_that_stands_by_takes_over_from_one_that_is_killed(
    captured: Captured, database: Database, tmp_path: Path
) -> None:
    with captured.path.open("a") as file:  # both have the address; the standby leaves it alone
        file.write(f'[metrics]\ncapture = "127.0.0.1:{pick(None, taken=())}"\n')
    with _standing_by(captured, tmp_path / "first.log") as first:
        until(lambda: "streaming from" in (tmp_path / "first.log").read_text())
        with _standing_by(captured, tmp_path / "second.log"):
            until(lambda: "standing by" in (tmp_path / "second.log").read_text())
            assert "listen" not in (tmp_path / "second.log").read_text()
            database.execute("insert into t values (51, 'before', 'x')")
            first.kill()
            until(lambda: "streaming from" in (tmp_path / "second.log").read_text())
            assert "metrics are served" in (tmp_path / "second.log").read_text()
            database.execute("insert into t values (52, 'after', 'x')")
            until(lambda: b'{"id":52}' in captured.rows("public.t"))
            assert captured.rows("public.t") == captured.source_rows("public.t")


@contextlib.contextmanager
def _standing_by(captured: Captured, log: Path, config: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "lockstep", "capture", "--standby", "--config", str(config or captured.path)]
    with log.open("w") as file, subprocess.Popen(command, stderr=file, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
