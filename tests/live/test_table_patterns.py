"""Tables that patterns of ``source.tables`` match: at the first start, while capture runs, and while it is down."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from cdc.kafka.control_topics import read_progress, read_state
from cdc.kafka.topic_admin import TopicAdmin, table_topic_plan
from cdc.model.finding import Finding, Severity
from cdc.model.table import TableName
from cdc.protocol.control_records import selection_of
from lockstep.config import load, read
from lockstep.doctor.examine import examine
from snapshot.request import request_copies
from tests.captured import Captured, StartCapture
from tests.databases import Database, until

pytestmark = pytest.mark.live


def _names(captured: Captured) -> list[str]:
    """The captured tables, for a process that reads the file now."""
    captured.config = load(captured.path)
    return [str(name) for name in captured.config.source.table_names]


def _recorded(captured: Captured) -> list[str]:
    state = read_state(captured.client, captured.name, captured.config.slot)
    return [] if state is None else [str(name) for name in state.captured]


def _about(captured: Captured, subject: str) -> list[Finding]:
    return [finding for finding in examine(read(captured.path)) if finding.subject == subject]


def _publish(database: Database, captured: Captured, table: str) -> None:
    database.execute(f'alter publication "{captured.config.publication}" add table {table}')


@pytest.mark.soak
def test_a_first_start_takes_what_matches_and_nothing_that_can_not_be_captured(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create schema sales",
        "create table sales.order_a (id int primary key)",
        'create table sales."order_B.c" (id int primary key)',
        "create table sales.other (id int primary key)",
        "create table t (id int primary key)",
        "create table t_old (id int primary key)",
        "create table parts (id int primary key) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (9)",
        "create unlogged table volatile (id int primary key)",
        "create view seen as select * from t",
        "create schema shop_g1",
        "create table shop_g1.t (id int primary key, _tag text)",
        "insert into t values (1)",
        "insert into sales.order_a values (2)",
        "insert into parts values (3)",
    )
    # One is named as well, which makes no difference; it comes first.
    captured = capture("public.t", "*.*", source="exclude_tables = ['public.*_old', 'sales.oth*', 'public.volatile']")
    expected = ["public.t", "public.parts", "sales.order_a", 'sales."order_B.c"']
    assert sorted(_names(captured)) == sorted(expected)
    captured.assert_equal(*expected)
    database.execute('insert into sales."order_B.c" values (1)', "update parts set id = 4")
    captured.assert_equal(*expected)


def test_a_table_whose_name_has_a_hidden_character_is_copied_beside_the_others(
    database: Database, capture: StartCapture
) -> None:
    odd = TableName("public", "a\x01\nb")
    for name in (odd.sql, "t"):
        database.execute(f"create table {name} (id int primary key, v text)", f"insert into {name} values (1, 'a')")
    captured = capture("public.*")
    captured.assert_equal(str(odd), "public.t")
    request_copies(captured.config.as_pipeline(), [str(odd)])
    captured.wait_for(f"{odd} is copied: 1 rows")
    database.execute(f"update {odd.sql} set v = 'b'")
    captured.assert_equal(str(odd), "public.t")


@pytest.mark.soak
def test_a_table_that_comes_while_capture_runs_is_told_of_and_joins_once_it_is_published(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = capture("public.*")
    captured.settle()
    database.execute("create table late (id int primary key, v text)", "insert into late values (1, 'before')")
    captured.wait_for(
        f"public.late matches source.tables and isn't captured: publication {captured.config.publication} lacks"
    )
    errors = [finding for finding in _about(captured, "source.tables") if finding.severity is Severity.ERROR]
    assert ["public.late" in finding.what for finding in errors] == [True]
    assert _names(captured) == ["public.t"]

    _publish(database, captured, "late")
    captured.wait_for("public.late: matches source.tables, and is captured from now on")
    until(lambda: _recorded(captured) == ["public.late", "public.t"])
    database.execute("insert into late values (2, 'after')", "insert into t values (2)")
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")
    assert not [finding for finding in _about(captured, "source.tables") if finding.severity is Severity.ERROR]


@pytest.mark.soak
def test_a_table_that_the_stream_shows_joins_before_its_first_transaction_is_published(
    database: Database, capture: StartCapture
) -> None:
    """Nobody looks at the catalogue within this hour. A wait for that transaction doesn't report that sinks have it."""
    database.execute("create table t (id int primary key)")
    database.execute("create publication whole for tables in schema public with (publish_via_partition_root = true)")
    captured = capture("public.*", source="publication = 'whole'")
    captured.stop()
    captured.configure(heartbeat_interval_s=3600.0)
    captured.start()
    database.execute("insert into t values (1)")
    captured.settle()
    with database.connection.transaction():
        database.execute(
            "create table late (id int primary key, v text)",
            "create table keyless (v text)",
            "insert into keyless values ('of no use')",
            "insert into t values (2)",
            "insert into late values (1, 'first')",
        )
    before = {selection_of([TableName("public", "t")])}
    captured.wait_for("public.late: matches source.tables, and is captured from now on")
    until(lambda: _recorded(captured) == ["public.late", "public.t"])
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")
    committed = min(int(event.tag[4:20], 16) for event in captured.events("public.t") if event.after["id"] == 2)
    told = {record.selection for record in read_progress(captured.client, captured.name) if record.lsn > committed}
    assert told == {selection_of([TableName("public", "late"), TableName("public", "t")])}
    assert not told & before


@pytest.mark.soak
def test_a_table_that_comes_while_capture_is_down_joins_at_its_next_start(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.*", source="exclude_tables = ['public.ignored*']")
    captured.settle()
    captured.stop()
    database.execute(
        "create table late (id int primary key)",
        "insert into late values (1)",
        "create table ignored_1 (id int primary key)",
    )
    _publish(database, captured, "late, ignored_1")
    captured.start()
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")


def test_a_matching_table_that_is_renamed_keeps_its_topic_and_one_that_is_dropped_its_place(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table a (id int primary key)", "create table b (id int primary key)")
    captured = capture("public.*")
    captured.settle()
    database.execute("alter table a rename to c", "insert into c values (1)", "drop table b")
    captured.wait_for("public.a is named public.c now")
    captured.wait_for("public.b")
    captured.stop()
    captured.start()
    database.execute("insert into c values (2)")
    until(lambda: len(captured.rows("public.a")) == 2)
    assert _names(captured) == ["public.a", "public.b"]


def test_a_table_that_can_not_be_captured_waits_by_itself_with_what_to_do(
    database: Database, capture: StartCapture
) -> None:
    long = "ü" * 31  # each takes six characters in the name of a topic
    database.execute("create table t_x (id int primary key)")
    captured = capture("*.*")
    publication = f'"{captured.config.publication}"'
    foreign = f"{captured.name}.public.foreign_events"
    TopicAdmin(captured.client).create([table_topic_plan(foreign, captured.config.kafka.topics)])
    producer = Producer(dict(captured.client))
    producer.produce(foreign, key=b"k", value=b"v")
    assert producer.flush(30) == 0
    database.execute(
        "create table listed (id int primary key, v text)",
        f"alter publication {publication} add table listed (v)",
        f'create schema "{long}"',
        f'create table "{long}"."{long}" (id int primary key)',
        "create schema public_t",
        "create table public_t.x (id int primary key)",
        "create table foreign_events (id int primary key)",
        f'alter publication {publication} add table "{long}"."{long}", public_t.x, foreign_events',
    )
    waits = "matches source.tables and isn't captured: "
    for name, words in (
        (
            "public.listed",
            f"{waits}publication {captured.config.publication} leaves out key columns of public.listed: id",
        ),
        (str(TableName(long, long)), f"{waits}the topic name for"),
        ("public_t.x", f"{waits}its topic {captured.name}.public_t.x can't be beside {captured.name}.public.t_x"),
        ("public.foreign_events", f"{waits}slot {captured.config.slot} has published nothing to topic {foreign}"),
    ):
        captured.wait_for(f"warning: {name} {words}")
    assert any('exclude_tables = ["public_t.x"]' in line for line in captured.said)
    database.execute("insert into t_x values (1)")
    captured.assert_equal("public.t_x")
    captured.stop()
    captured.start()
    database.execute("insert into t_x values (2)")
    captured.assert_equal("public.t_x")
    assert _names(captured) == ["public.t_x"]

    admin = AdminClient(dict(captured.client))
    admin.delete_topics([foreign], operation_timeout=30)[foreign].result(300)
    database.execute(
        f"alter publication {publication} drop table listed",
        f"alter publication {publication} add table listed",
        f'alter schema "{long}" rename to short',
        "alter table public_t.x rename to y",
    )
    expected = ["public.foreign_events", "public.listed", "public.t_x", "public_t.y", str(TableName("short", long))]
    until(lambda: _recorded(captured) == expected)
    assert _names(captured) == expected
    captured.assert_equal(*expected)
