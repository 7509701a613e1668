"""Changes that the stream doesn't show, even if they were undone while nobody looked."""

import pytest

from cdc.postgres.ddl_messages import DDL_PREFIX
from cdc.protocol.pgoutput import LogicalMessage
from migrations.source import ddl_messages_sql
from tests.captured import Captured, StartCapture
from tests.databases import Database

pytestmark = pytest.mark.live


def _while_stopped(captured: Captured, *statements: str) -> None:
    """Run statements, begin again, and wait until everything that was noticed is copied."""
    captured.settle()
    captured.stop()
    captured.database.execute(*statements)
    captured.start()
    captured.wait_quiet()


_TYPES = (
    "create type mood as enum ('calm', 'angry')",
    "create type pair as (a int, b int)",
    "create domain moods as mood[]",
    "create table value_of_enum (id int primary key, v moods)",
    "create table key_of_enum (id mood primary key, v text)",
    "create table value_of_composite (id int primary key, v pair)",
    "create table key_of_composite (id pair primary key, v text)",
    "create table parted (id int primary key, v text) partition by range (id)",
    "create table parted_1 partition of parted for values from (0) to (100)",
    "insert into value_of_enum values (1, '{calm}')",
    "insert into key_of_enum values ('calm', 'x'), ('angry', 'y')",
    "insert into value_of_composite values (1, '(1,2)')",
    "insert into key_of_composite values ('(1,2)', 'x'), ('(3,4)', 'y')",
    "insert into parted values (1, 'x')",
)
_TABLES = (
    "public.value_of_enum",
    "public.key_of_enum",
    "public.value_of_composite",
    "public.key_of_composite",
    "public.parted",
)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.soak
def test_rows_that_change_with_their_type_or_partition_are_copied(
    database: Database, capture: StartCapture, back: bool
) -> None:
    database.execute(*_TYPES)
    captured = capture(*_TABLES)
    statements = [
        "alter type mood rename value 'calm' to 'quiet'",
        "alter type pair add attribute c int",
        "insert into value_of_enum values (2, '{quiet}')",
        "insert into value_of_composite values (2, '(5,6,7)')",
        "delete from key_of_enum where id = 'quiet'",
        "delete from key_of_composite where id = '(1,2,)'::pair",
        "alter table parted detach partition parted_1",
        "update parted_1 set v = 'unseen'",
    ]
    if back:
        statements += [
            "alter type mood rename value 'quiet' to 'calm'",
            "alter type pair drop attribute c",
            "alter table parted attach partition parted_1 for values from (0) to (100)",
        ]
    _while_stopped(captured, *statements)
    captured.assert_equal()
    partition = "a partition was detached" if back else "a partition went"
    causes = ["was renamed", "was renamed", "other attributes", "other attributes", partition]
    for table, cause in zip(_TABLES, causes, strict=True):
        assert any(line.startswith(f"{table}: ") and cause in line for line in captured.said), table


@pytest.mark.parametrize(
    "at_once", [pytest.param(False, marks=pytest.mark.soak), True], ids=["one after the other", "in one transaction"]
)
def test_a_type_that_comes_and_is_altered_between_two_looks_has_its_tables_copied(
    database: Database, capture: StartCapture, at_once: bool
) -> None:
    database.execute(
        "create type old as enum ('calm')",
        "alter type old add value 'glad'",
        *(f"create table {name} (id int primary key)" for name in ("renamed", "filled", "pairs", "others")),
        *(f"insert into {name} values (1)" for name in ("renamed", "filled", "pairs", "others")),
    )
    captured = capture("public.renamed", "public.filled", "public.pairs", "public.others")
    statements = [
        "create type mood as enum ('calm', 'angry')",
        "create type pair as (a int, b int)",
        "alter table renamed add v mood[]",
        "alter table filled add v mood default 'calm'",
        "alter table pairs add v pair",
        "alter table others add v old default 'glad'",
        "insert into renamed values (2, '{calm}')",
        "insert into filled values (2, 'angry')",
        "insert into pairs values (2, '(5,6)')",
        "insert into others values (2, 'calm')",
        "alter type mood rename value 'calm' to 'quiet'",
        "alter type pair add attribute c int",
    ]
    _while_stopped(captured, *(["; ".join(["begin", *statements, "commit"])] if at_once else statements))
    captured.assert_equal()
    for table in ("renamed", "filled", "pairs"):
        captured.wait_for(f"public.{table}: rows may have changed without an event: a type that came with a column")
    assert captured.copied_rows("public.others") == 1


def test_a_publication_that_left_changes_out_for_a_while_has_its_tables_copied(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key, a text)", "insert into t values (1, 'x'), (2, 'y')")
    captured = capture("public.t")
    publication = captured.config.publication
    _while_stopped(
        captured,
        f"alter publication {publication} set (publish = 'insert')",
        "update t set a = 'unseen'",
        "delete from t where id = 2",
        f"alter publication {publication} set (publish = 'insert, update, delete, truncate')",
    )
    captured.assert_equal()
    captured.wait_for("public.t: rows may have changed without an event: the settings of the publication")


@pytest.mark.soak
def test_a_table_that_was_out_of_the_published_schema_for_a_while_is_copied(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create schema s",
        "create schema hidden",
        "create table s.t (id int primary key, a text)",
        "create table s.u (id int primary key, a text)",
        "insert into s.t values (1, 'x'), (2, 'y')",
        "insert into s.u select * from s.t",
        "create publication p for tables in schema s",
    )
    captured = capture("s.t", "s.u", source="publication = 'p'")
    _while_stopped(
        captured,
        "alter table s.t set schema hidden",
        "update hidden.t set a = 'unseen'",
        "alter table hidden.t set schema s",
        "alter publication p add tables in schema hidden",
        "grant select on s.u to public",
    )
    captured.assert_equal()
    captured.wait_for("s.t: rows may have changed without an event: it was moved to another schema")
    assert captured.copied_rows("s.u") == 2


_LOGGED = (
    "create table wide (id int primary key, a text)",
    "create table narrow (id int primary key, a int)",
    "insert into wide values (1, 'x'), (2, 'y')",
    "insert into narrow values (1, 1), (2, 2)",
    "create publication p for all tables",
)
_UNLOGGED = (
    "alter table wide set unlogged",
    "alter table narrow set unlogged",
    "update wide set a = 'unseen'",
    "update narrow set a = 9",
    "delete from narrow where id = 1",
)
_LOGGED_AGAIN = ("alter table wide set logged", "alter table narrow set logged")


def test_tables_that_were_unlogged_for_a_while_are_copied(database: Database, capture: StartCapture) -> None:
    database.execute(*_LOGGED)
    captured = capture("public.wide", "public.narrow", source="publication = 'p'")
    _while_stopped(captured, *_UNLOGGED, *_LOGGED_AGAIN)
    captured.assert_equal()
    captured.wait_for("public.wide: rows may have changed without an event: it may have been UNLOGGED")
    captured.wait_for("public.narrow: rows may have changed without an event: it may have been UNLOGGED")


@pytest.mark.soak
def test_tables_that_are_unlogged_are_copied_when_they_are_back(database: Database, capture: StartCapture) -> None:
    database.execute(*_LOGGED)
    captured = capture("public.wide", "public.narrow", source="publication = 'p'")
    database.execute(*_UNLOGGED)
    captured.wait_for("public.narrow: not in publication p")
    captured.wait_for("public.wide: not in publication p")
    database.execute(*_LOGGED_AGAIN)
    captured.wait_for("copying public.narrow")
    captured.wait_for("copying public.wide")
    captured.assert_equal()


_SWAP = (
    "create table new (id int primary key, a text)",
    "insert into new select id, 'new' from t",
    "begin; alter table t rename to old; alter table new rename to t; commit",
)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.soak
def test_what_becomes_of_a_table_that_was_swapped_out_does_not_touch_the_new_one(
    database: Database, capture: StartCapture, stopped: bool
) -> None:
    database.execute(
        "create table t (id int primary key, a text)",
        "insert into t select n, 'x' from generate_series(1, 10) n",
        "create publication p for all tables",
    )
    captured = capture("public.t", source="publication = 'p'")
    after = ("delete from old where id = 1", "update t set a = 'newer' where id = 3", "delete from old where id < 5")
    if stopped:
        _while_stopped(captured, *_SWAP, *after)
    else:
        database.execute("update t set a = 'y' where id = 2", *_SWAP, *after)
        captured.wait_quiet()
    database.execute("delete from old where id > 7", "update old set a = 'old' where id = 7")
    captured.assert_equal()
    database.execute("truncate old")
    captured.assert_equal()
    captured.stop()
    captured.start()
    database.execute("insert into old values (1, 'old')", "insert into t values (11, 'new')")
    captured.wait_quiet()
    captured.assert_equal()
    assert captured.copied_rows("public.t") == 20


def test_columns_whose_names_move_on_while_capture_is_behind_keep_their_values(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create table t (id int primary key, email text, email_new text)",
        "insert into t select n, 'old' || n, 'new' || n from generate_series(1, 6) n",
    )
    captured = capture("public.t")
    _while_stopped(
        captured,
        "update t set email = 'first' where id = 1",
        "alter table t rename email to email_old",
        "update t set email_old = 'second' where id = 2",
        "alter table t rename email_new to email",
        "update t set email = 'third' where id = 3",
    )
    captured.assert_equal()
    assert captured.copied_rows("public.t") == 6
    for record in captured.schemas("public.t"):
        numbers = [column.number for column in record.table.columns]
        assert numbers == sorted(set(numbers))


def test_a_rewrite_that_keeps_the_shape_is_seen_at_the_next_row(database: Database, capture: StartCapture) -> None:
    """No earlier value of a row completes an update. No look at the tables comes in between."""
    database.execute(
        "create table t (id int primary key, a int, large text)",
        "alter table t alter large set storage external",
        "insert into t select n, 0, repeat('large ' || n, 2000) from generate_series(1, 4) n",
    )
    captured = capture("public.t")
    captured.stop()
    captured.configure(heartbeat_interval_s=600.0)
    captured.start()
    database.execute("update t set a = 1 where id = 4")
    captured.wait_for("streaming")
    database.execute("alter table t alter id type int using 5 - id", "update t set a = 2 where id = 1")
    captured.wait_for("public.t: rows may have changed without an event: an ALTER TABLE")
    captured.wait_for("copying public.t")
    captured.assert_equal()
    large = {event.after["large"][:7] for event in captured.events("public.t") if event.key == b'{"id":1}'}
    assert large == {"large 1", "large 4"}
    assert all(event.op == "r" for event in captured.events("public.t") if '"a":2' in str(event.value))


_ROUTINE = (
    "vacuum full t",
    "cluster t using t_pkey",
    "reindex table t",
    "analyze t",
    "grant select on t to public",
    "grant select (a) on t to public",
    "grant usage on type mood to public",
    "create index on t (a)",
    "alter table t set (fillfactor = 90)",
    "comment on table t is 'x'",
    "alter type mood add value 'glad' before 'calm'",
    "alter type mood rename to temper",
    "alter type pair rename attribute a to z",
    "create table other (id int primary key)",
    "alter table t add m2 temper default 'calm', add p2 pair",
    "alter table t drop m2, drop p2",
    "truncate u",
)


@pytest.mark.parametrize("publication", ["table t, u", pytest.param("all tables", marks=pytest.mark.soak)])
def test_what_changes_no_row_copies_no_table(database: Database, capture: StartCapture, publication: str) -> None:
    database.execute(
        "create type mood as enum ('calm', 'angry')",
        "create type pair as (a int, b int)",
        "create table t (id int primary key, a text, m mood, p pair)",
        "create table u (id int primary key, a text)",
        "insert into t select n, 'x', 'calm', '(1,2)' from generate_series(1, 5) n",
        f"create publication p for {publication}",
    )
    captured = capture("public.t", "public.u", source="publication = 'p'")
    more = ("alter publication p add table other",) if publication != "all tables" else ()
    database.execute(*_ROUTINE, *more)
    captured.wait_quiet()
    _while_stopped(captured, *_ROUTINE[:5])
    captured.assert_equal()
    assert (captured.copied_rows("public.t"), captured.copied_rows("public.u")) == (5, 0)


@pytest.mark.soak
def test_an_event_trigger_has_the_catalogue_looked_at_where_it_was_altered(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create type mood as enum ('calm', 'angry')",
        "create table t (id mood primary key)",
        "create table u (id int primary key, a int) partition by range (id)",
        "create table u_1 partition of u for values from (0) to (100)",
        "insert into t values ('calm')",
        "insert into u values (1, 1)",
        ddl_messages_sql(),
    )
    captured = capture("public.t", "public.u")
    captured.stop()
    captured.configure(heartbeat_interval_s=600.0)
    captured.start()
    database.execute("create temp table mine (id int)", "alter table mine add a int", "drop table mine")
    database.execute("alter type mood rename value 'calm' to 'quiet'")
    captured.wait_for("public.t: rows may have changed without an event: a label")
    captured.wait_for("copying public.t")
    database.execute("drop table u_1")
    captured.wait_for("public.u: rows may have changed without an event: a partition went")
    captured.wait_for("copying public.u")
    captured.assert_equal()
    database.execute("drop schema lockstep cascade")


@pytest.mark.soak
def test_statements_about_temporary_tables_are_not_told(database: Database) -> None:
    database.publish_all()
    slot, at = database.create_slot()
    database.execute(
        ddl_messages_sql(),
        "create temp table mine (id int)",
        "alter table mine add a int",
        "drop table mine",
        "create table t (id int)",
        "create index on t (id)",
        "alter table t add a int",
        "drop table t",
        "alter publication lockstep_test set (publish = 'insert')",
    )
    messages = [message for _, message in database.stream(slot, at) if isinstance(message, LogicalMessage)]
    told = [message.content for message in messages if message.prefix == DDL_PREFIX]
    assert told == [b"CREATE TABLE", b"ALTER TABLE", b"DROP TABLE", b"ALTER PUBLICATION"]
