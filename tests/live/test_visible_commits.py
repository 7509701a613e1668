"""Transactions that the stream shows before any statement of the source sees them, as with a slow standby."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from lockstep.config import load
from migrations.source import ddl_messages_sql
from tests.captured import StartCapture
from tests.databases import Database, until

pytestmark = [pytest.mark.live, pytest.mark.alone]

Show = Callable[[], None]


@contextmanager
def _unseen(database: Database, *statements: str) -> Iterator[tuple[int, Show]]:
    """Commit these in one transaction that nobody sees until it is shown; yields its process and what shows it."""

    def commit() -> None:
        with psycopg.connect(database.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    database.execute("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    database.connection.execute("set synchronous_commit = local")
    hanging = threading.Thread(target=commit)
    waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"
    try:
        hanging.start()
        pid = until(lambda: [row[0] for row in database.connection.execute(waiting.encode()).fetchall()])[0]
        yield pid, lambda: database.execute(f"select pg_cancel_backend({pid})")
    finally:
        database.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
        hanging.join()


def test_a_table_that_nobody_sees_so_far_joins_before_its_first_transaction_is_published(
    database: Database, capture: StartCapture
) -> None:
    """Otherwise a wait for that transaction would report that sinks have it, though none knows of the table."""
    database.execute(
        "create table t (id int primary key)",
        "insert into t values (1)",
        "create publication whole for tables in schema public with (publish_via_partition_root = true)",
    )
    captured = capture("public.*", source="publication = 'whole'")
    captured.settle()
    with _unseen(database, "create table late (id int primary key)", "insert into late values (1)") as (pid, show):
        captured.wait_for(
            "public.late was created or altered by a transaction that is committed and not visible yet:"
            f" process {pid} (no name) has committed and waits for a standby: see synchronous_standby_names"
        )
        database.execute("insert into t values (2)")
        until(lambda: sum("not visible yet" in line for line in captured.said) > 1)
        assert len(captured.events("public.t")) == 1, "nothing behind it is published"
        show()
        captured.wait_for("public.late is copied: 1 rows")
    captured.config = load(captured.path)  # Kafka says which tables exist
    captured.assert_equal()
    assert [event.after for event in captured.events("public.late")] == [{"id": 1}]


@pytest.mark.soak
def test_names_that_were_swapped_by_a_transaction_that_nobody_sees_are_told_apart(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create table pair (id int primary key, a text, b text)", "insert into pair values (1, 'of a', 'of b')"
    )
    captured = capture("public.pair")
    captured.settle()
    swap = (
        "alter table pair rename a to other",
        "alter table pair rename b to a",
        "alter table pair rename other to b",
        "insert into pair values (2, 'of b', 'of a')",
    )
    with _unseen(database, *swap) as (_, show):
        captured.wait_for("public.pair was created or altered by a transaction that is committed")
        show()
        captured.wait_for("public.pair has a new shape")
    captured.settle()
    newest = captured.schemas("public.pair")[-1]
    assert newest.change.renamed == {"a": "b", "b": "a"}
    assert newest.change.rewritten == ""
    captured.assert_equal()


def test_rows_that_were_rewritten_by_a_transaction_that_nobody_sees_complete_no_update(
    database: Database, capture: StartCapture
) -> None:
    """The stream describes the table as before: only the catalogue shows that its rows were rewritten."""
    database.execute(
        "create table t (id int primary key, n int, large text)",
        "alter table t alter large set storage external",
        "insert into t values (1, 0, repeat('large', 2000))",
    )
    captured = capture("public.t", start=False)
    captured.configure(heartbeat_interval_s=3600.0)
    captured.start()
    captured.settle()
    rewrite = "alter table t alter large type text using upper(large)", "update t set n = 1"
    with _unseen(database, *rewrite) as (_, show):
        captured.wait_for("public.t was created or altered by a transaction that is committed")
        show()
        captured.wait_for("public.t: rows may have changed without an event: an ALTER TABLE")
    captured.wait_for("public.t is copied: 1 rows")
    captured.assert_equal()
    assert {event.after["large"][:5] for event in captured.events("public.t") if event.after["n"]} == {"LARGE"}


@pytest.mark.soak
def test_an_event_trigger_has_the_catalogue_looked_at_once_it_shows_what_was_altered(
    database: Database, capture: StartCapture
) -> None:
    """Nobody else looks at the catalogue within this hour."""
    database.execute(
        "create type mood as enum ('calm', 'angry')",
        "create table t (id mood primary key)",
        "insert into t values ('calm')",
        ddl_messages_sql(),
    )
    captured = capture("public.t", start=False)
    captured.configure(heartbeat_interval_s=3600.0)
    captured.start()
    with _unseen(database, "alter type mood rename value 'calm' to 'quiet'") as (pid, show):
        captured.wait_for(
            "tables, types or a publication were altered by a transaction that is committed and not visible yet:"
            f" process {pid} (no name) has committed and waits for a standby"
        )
        show()
        captured.wait_for("public.t: rows may have changed without an event: a label")
    captured.wait_for("public.t is copied: 1 rows")
    captured.assert_equal()
    database.execute("drop schema lockstep cascade")
